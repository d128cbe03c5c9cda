"""Clocked kinds that training sees: counters, registers, shift registers and small state machines, each with one reset."""

from crossmesh.data.rtl_design import Design, Kind, Params, Picker, Port, Reset, Sequential, mask, module_name

RESET_STYLES = ("synchronous active-high", "synchronous active-low", "asynchronous active-high", "asynchronous active-low")
CLOCK = "clk"


def reset_of(params: Params) -> Reset:
    """Return the reset that `params["reset"]`, one of `RESET_STYLES`, asks for."""
    timing, level = str(params["reset"]).split(" ")
    low = level == "active-low"
    return Reset("resetn" if low else "rst", timing == "asynchronous", low)


def reset_words(reset: Reset, picker: Picker, signal: str, value: int = 0) -> str:
    """Describe `reset` in a sentence."""
    article = "an" if reset.asynchronous else "a"
    return picker.choice(
        "reset",
        (
            f"{reset.name} is {article} {reset.style} reset to {value}.",
            f"{reset.style.capitalize()} {reset.name} sets {signal} to {value}.",
        ),
    )


def clocked_block(reset: Reset, on_reset: str, *otherwise: str) -> tuple[str, ...]:
    """Return the always block that every clocked kind has: reset first, then one or two branches."""
    return (
        f"always @({reset.sensitivity(CLOCK)})",
        f"  if ({reset.condition}) {on_reset};",
        *(f"  else {branch};" for branch in otherwise),
    )


def _counter(params: Params, picker: Picker) -> Design:
    width, up = int(params["width"]), params["direction"] == "up"
    reset = reset_of(params)
    q = picker.choice("count", ("count", "q", "cnt"))
    verb, sign, step = ("counts up", "+", 1) if up else ("counts down", "-", -1)
    behaviour = picker.choice("words", (f"{q} {verb} by 1 at posedge {CLOCK}.", f"At posedge {CLOCK}, {q} {verb} by 1."))
    return Design(
        module_name(picker, "counter", "cnt_reg", "ticks"),
        (),
        (Port(q, width),),
        f"{behaviour} {reset_words(reset, picker, q)}",
        clocked_block(reset, f"{q} <= 0", f"{q} <= {q} {sign} 1"),
        Sequential(CLOCK, reset, 0, lambda state, _: (state + step) & mask(width), lambda state, _: (state,), cycles=(1 << width) + 4),
        output_reg=True,
    )


def _register(params: Params, picker: Picker) -> Design:
    width, low = int(params["width"]), params["enable"] == "low"
    reset = reset_of(params)
    enable = picker.choice("enable", ("en_n", "wr_n") if low else ("en", "wr"))
    d, q = picker.choice("data", (("d", "q"), ("din", "dout"), ("data", "q")))
    level, condition = (0, f"!{enable}") if low else (1, enable)
    behaviour = picker.choice(
        "words",
        (
            f"At posedge {CLOCK}, {q} takes {d} if {enable} is {level}.",
            f"If {enable} is {level}, {q} takes {d} at posedge {CLOCK}.",
        ),
    )
    return Design(
        module_name(picker, "register", "reg_en", "storage"),
        (Port(enable), Port(d, width)),
        (Port(q, width),),
        f"{behaviour} {reset_words(reset, picker, q)}",
        clocked_block(reset, f"{q} <= 0", f"if ({condition}) {q} <= {d}"),
        Sequential(CLOCK, reset, 0, lambda state, data: data[1] if data[0] == level else state, lambda state, _: (state,)),
        output_reg=True,
    )


def _shift(params: Params, picker: Picker) -> Design:
    width, left = int(params["width"]), params["direction"] == "left"
    reset = reset_of(params)
    d, q = picker.choice("data", (("d", "q"), ("din", "q"), ("d", "taps")))
    direction, entry = ("left", 0) if left else ("right", width - 1)
    behaviour = picker.choice(
        "words",
        (
            f"At posedge {CLOCK}, {q} shifts {direction} with {d} into bit {entry}.",
            f"{q} shifts {direction} with {d} into bit {entry} at posedge {CLOCK}.",
        ),
    )
    return Design(
        module_name(picker, "shift_reg", "shifter", "shift"),
        (Port(d),),
        (Port(q, width),),
        f"{behaviour} {reset_words(reset, picker, q)}",
        clocked_block(reset, f"{q} <= 0", f"{q} <= {{{q}[{width - 2}:0], {d}}}" if left else f"{q} <= {{{d}, {q}[{width - 1}:1]}}"),
        Sequential(
            CLOCK,
            reset,
            0,
            lambda state, data: (state << 1 | data[0]) & mask(width) if left else state >> 1 | data[0] << (width - 1),
            lambda state, _: (state,),
        ),
        output_reg=True,
    )


def _detector(params: Params, picker: Picker) -> Design:
    pattern = str(params["pattern"])
    width, goal = len(pattern), int(pattern, 2)
    reset = reset_of(params)
    x, y = picker.choice("bit", ("x", "d", "din")), picker.choice("found", ("found", "y", "hit"))
    behaviour = picker.choice(
        "words",
        (
            f"At posedge {CLOCK}, the {width}-bit state shifts left with {x} into bit 0. {y} is 1 if state is {pattern}.",
            f"The {width}-bit state shifts left with {x} into bit 0 at posedge {CLOCK}. {y} is 1 if state is {pattern}.",
        ),
    )
    return Design(
        module_name(picker, "detector", "detect", "pattern"),
        (Port(x),),
        (Port(y),),
        f"{behaviour} {reset_words(reset, picker, 'state')}",
        (
            f"reg [{width - 1}:0] state;",
            *clocked_block(reset, "state <= 0", f"state <= {{state[{width - 2}:0], {x}}}"),
            f"assign {y} = (state == {width}'b{pattern});",
        ),
        Sequential(
            CLOCK, reset, 0, lambda state, data: (state << 1 | data[0]) & mask(width), lambda state, _: (int(state == goal),), cycles=96
        ),
    )


def _switch(params: Params, picker: Picker) -> Design:
    initial, start_wins = int(params["initial"]), params["priority"] == "start"
    reset = reset_of(params)
    start, stop = picker.choice("inputs", (("start", "stop"), ("set", "clear"), ("go", "halt")))
    out = picker.choice("state", ("run", "active", "busy"))
    first, second = ((start, 1), (stop, 0)) if start_wins else ((stop, 0), (start, 1))
    behaviour = picker.choice(
        "words",
        (
            f"At posedge {CLOCK}, {out} becomes {first[1]} if {first[0]}, else {second[1]} if {second[0]}.",
            f"{out} becomes {first[1]} if {first[0]}, else {second[1]} if {second[0]}, at posedge {CLOCK}.",
        ),
    )

    def advance(state: int, data: tuple[int, ...]) -> int:
        go, halt = data
        return (1 if go else 0 if halt else state) if start_wins else (0 if halt else 1 if go else state)

    return Design(
        module_name(picker, "switch", "run_fsm", "onoff"),
        (Port(start), Port(stop)),
        (Port(out),),
        f"{behaviour} {reset_words(reset, picker, out, initial)}",
        clocked_block(reset, f"{out} <= {initial}", *(f"if ({name}) {out} <= {value}" for name, value in (first, second))),
        Sequential(CLOCK, reset, initial, advance, lambda state, _: (state,)),
        output_reg=True,
    )


# Patterns begin with 1: after a reset to zeros, none is found before all its bits were seen.
_PATTERNS = tuple(f"{value:b}" for value in range(2, 16))

KINDS = (
    Kind("counter", {"width": (2, 3, 4, 5, 6), "direction": ("up", "down"), "reset": RESET_STYLES}, _counter),
    Kind("register", {"width": (1, 2, 3, 4, 5, 6, 7, 8, 16), "enable": ("high", "low"), "reset": RESET_STYLES}, _register),
    Kind("shift", {"width": (3, 4, 5, 6, 7, 8), "direction": ("left", "right"), "reset": RESET_STYLES}, _shift),
    Kind("detector", {"pattern": _PATTERNS, "reset": RESET_STYLES}, _detector),
    Kind("switch", {"initial": (0, 1), "priority": ("start", "stop"), "reset": RESET_STYLES}, _switch),
)
