"""Clocked kinds that training sees: registers, counters, shift registers and small state machines, each with one reset."""

from crossmesh.data.rtl_design import Design, Kind, Params, Picker, Port, Reset, Sequential, mask, module_name

_STYLES = ("synchronous active-high", "synchronous active-low", "asynchronous active-high", "asynchronous active-low")


def _clock(picker: Picker) -> str:
    return picker.choice("clock", ("clk", "clock"))


def _reset(params: Params, picker: Picker) -> Reset:
    timing, level = str(params["reset"]).split(" ")
    low = level == "active-low"
    name = picker.choice("reset", ("rst_n", "reset_n", "resetn") if low else ("rst", "reset", "clr"))
    return Reset(name, timing == "asynchronous", low)


def _reset_words(reset: Reset, picker: Picker, value: int = 0) -> str:
    article = "an" if reset.asynchronous else "a"
    return picker.choice(
        "reset words",
        (
            f"{reset.style.capitalize()} reset {reset.name} to {value}.",
            f"{reset.name} is {article} {reset.style} reset to {value}.",
        ),
    )


def _block(clock: str, reset: Reset, on_reset: str, *otherwise: str) -> tuple[str, ...]:
    """Return the always block that every clocked kind has: reset first, then one or two branches."""
    return (
        f"always @({reset.sensitivity(clock)})",
        f"  if ({reset.condition}) {on_reset};",
        *(f"  else {branch};" for branch in otherwise),
    )


def _counter(params: Params, picker: Picker) -> Design:
    width, up = int(params["width"]), params["direction"] == "up"
    clock, reset = _clock(picker), _reset(params, picker)
    q = picker.choice("count", ("count", "q", "cnt"))
    verb = "counts up" if up else "counts down"
    behaviour = picker.choice(
        "words", (f"{q} {verb} by 1 on each rising edge of {clock}.", f"On each rising edge of {clock}, {q} {verb} by 1.")
    )
    step = 1 if up else -1
    return Design(
        module_name(picker, "counter", "cnt_reg", "tick_counter"),
        (),
        (Port(q, width),),
        f"{behaviour} {_reset_words(reset, picker)}",
        _block(clock, reset, f"{q} <= 0", f"{q} <= {q} {'+' if up else '-'} 1"),
        Sequential(clock, reset, 0, lambda state, _: (state + step) & mask(width), lambda state, _: (state,), cycles=(1 << width) + 4),
        output_reg=True,
    )


def _modulo(params: Params, picker: Picker) -> Design:
    last = int(params["last"])
    clock, reset = _clock(picker), _reset(params, picker)
    q = picker.choice("count", ("count", "q", "cnt"))
    width = last.bit_length()
    behaviour = picker.choice(
        "words",
        (
            f"{q} counts from 0 to {last} on rising edges of {clock}, then starts again at 0.",
            f"On each rising edge of {clock}, {q} counts up by 1; after {last} comes 0.",
        ),
    )
    return Design(
        module_name(picker, "mod_counter", "modulo", "wrap_counter"),
        (),
        (Port(q, width),),
        f"{behaviour} {_reset_words(reset, picker)}",
        _block(clock, reset, f"{q} <= 0", f"if ({q} == {last}) {q} <= 0", f"{q} <= {q} + 1"),
        Sequential(clock, reset, 0, lambda state, _: 0 if state == last else state + 1, lambda state, _: (state,), cycles=2 * last + 4),
        output_reg=True,
    )


def _register(params: Params, picker: Picker) -> Design:
    width, low = int(params["width"]), params["enable"] == "low"
    clock, reset = _clock(picker), _reset(params, picker)
    enable = picker.choice("enable", ("en_n", "load_n") if low else ("en", "load"))
    d, q = picker.choice("data", (("d", "q"), ("din", "dout"), ("data", "q")))
    level = 0 if low else 1
    behaviour = picker.choice(
        "words",
        (
            f"On the rising edge of {clock}, {q} takes {d} when {enable} is {level}.",
            f"When {enable} is {level}, {q} loads {d} on rising edges of {clock}.",
        ),
    )
    return Design(
        module_name(picker, "register", "reg_en", "storage"),
        (Port(enable), Port(d, width)),
        (Port(q, width),),
        f"{behaviour} {_reset_words(reset, picker)}",
        _block(clock, reset, f"{q} <= 0", f"if ({'!' if low else ''}{enable}) {q} <= {d}"),
        Sequential(clock, reset, 0, lambda state, data: data[1] if data[0] == level else state, lambda state, _: (state,)),
        output_reg=True,
    )


def _shift(params: Params, picker: Picker) -> Design:
    width, left = int(params["width"]), params["direction"] == "left"
    clock, reset = _clock(picker), _reset(params, picker)
    d, q = picker.choice("data", (("d", "q"), ("sin", "q"), ("si", "taps")))
    direction, entry = ("left", 0) if left else ("right", width - 1)
    behaviour = picker.choice(
        "words",
        (
            f"On each rising edge of {clock}, {q} shifts {direction} by 1 and {d} enters at bit {entry}.",
            f"{q} shifts {direction} by 1 on the rising edge of {clock}; {d} becomes bit {entry}.",
        ),
    )
    return Design(
        module_name(picker, "shift_reg", "shifter", "shift"),
        (Port(d),),
        (Port(q, width),),
        f"{behaviour} {_reset_words(reset, picker)}",
        _block(clock, reset, f"{q} <= 0", f"{q} <= {{{q}[{width - 2}:0], {d}}}" if left else f"{q} <= {{{d}, {q}[{width - 1}:1]}}"),
        Sequential(
            clock,
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
    clock, reset = _clock(picker), _reset(params, picker)
    x = picker.choice("bit", ("x", "bit_in", "din"))
    y = picker.choice("found", ("found", "y", "hit"))
    behaviour = picker.choice(
        "words",
        (
            f"Sample {x} on rising edges of {clock}; {y} is 1 when the last {width} samples were {pattern}, oldest first.",
            f"{y} is 1 when the last {width} samples of {x}, oldest first, were {pattern}; {clock} samples on rising edges.",
        ),
    )
    return Design(
        module_name(picker, "detector", "seq_detect", "pattern_fsm"),
        (Port(x),),
        (Port(y),),
        f"{behaviour} {_reset_words(reset, picker)}",
        (
            f"reg [{width - 1}:0] state;",
            *_block(clock, reset, "state <= 0", f"state <= {{state[{width - 2}:0], {x}}}"),
            f"assign {y} = (state == {width}'b{pattern});",
        ),
        Sequential(
            clock, reset, 0, lambda state, data: (state << 1 | data[0]) & mask(width), lambda state, _: (int(state == goal),), cycles=96
        ),
    )


def _edge(params: Params, picker: Picker) -> Design:
    width, edge = int(params["width"]), str(params["edge"])
    clock, reset = _clock(picker), _reset(params, picker)
    d, y = picker.choice("data", (("d", "y"), ("din", "pulse"), ("level", "y")))
    now, then = {"rising": (1, 0), "falling": (0, 1)}.get(edge, (0, 0))
    each = f"each bit of {y}" if width > 1 else y
    change = f"{d} differs from prev" if edge == "any" else f"{d} is {now} and prev is {then}"
    behaviour = picker.choice(
        "words",
        (
            f"prev stores {d} on each rising edge of {clock}; {each} is 1 when {change}.",
            f"On rising edges of {clock}, prev takes {d}; {each} is 1 if {change}.",
        ),
    )
    expression = {"rising": f"{d} & ~prev", "falling": f"~{d} & prev", "any": f"{d} ^ prev"}[edge]

    def show(state: int, data: tuple[int, ...]) -> tuple[int, ...]:
        value = {"rising": data[0] & ~state, "falling": ~data[0] & state, "any": data[0] ^ state}[edge]
        return (value & mask(width),)

    return Design(
        module_name(picker, "edge_detect", "edge_finder", "change"),
        (Port(d, width),),
        (Port(y, width),),
        f"{behaviour} {_reset_words(reset, picker)}",
        (f"reg {Port('prev', width).range}prev;", *_block(clock, reset, "prev <= 0", f"prev <= {d}"), f"assign {y} = {expression};"),
        Sequential(clock, reset, 0, lambda _, data: data[0], show),
    )


def _switch(params: Params, picker: Picker) -> Design:
    initial, start_wins = int(params["initial"]), params["priority"] == "start"
    clock, reset = _clock(picker), _reset(params, picker)
    start, stop = picker.choice("inputs", (("start", "stop"), ("set", "clear"), ("go", "halt")))
    out = picker.choice("state", ("run", "active", "busy"))
    order = ((start, 1), (stop, 0)) if start_wins else ((stop, 0), (start, 1))
    winner = order[0][0]
    behaviour = picker.choice(
        "words",
        (
            f"On rising edges of {clock}, {start} sets {out} to 1 and {stop} sets it to 0; {winner} has priority.",
            f"At rising edges of {clock}, {start} makes {out} 1 and {stop} makes it 0; {winner} wins.",
        ),
    )

    def advance(state: int, data: tuple[int, ...]) -> int:
        go, halt = data
        return (1 if go else 0 if halt else state) if start_wins else (0 if halt else 1 if go else state)

    return Design(
        module_name(picker, "switch", "run_fsm", "onoff"),
        (Port(start), Port(stop)),
        (Port(out),),
        f"{behaviour} {_reset_words(reset, picker, initial)}",
        _block(clock, reset, f"{out} <= {initial}", *(f"if ({name}) {out} <= {value}" for name, value in order)),
        Sequential(clock, reset, initial, advance, lambda state, _: (state,)),
        output_reg=True,
    )


# Patterns begin with 1: after a reset to zeros, none is found before all its bits were seen.
_PATTERNS = tuple(f"{value:b}" for value in range(2, 16))

KINDS = (
    Kind("counter", {"width": (2, 3, 4, 5, 6), "direction": ("up", "down"), "reset": _STYLES}, _counter),
    Kind("modulo", {"last": (2, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14), "reset": _STYLES}, _modulo),
    Kind("register", {"width": (1, 2, 3, 4, 5, 6, 7, 8, 16), "enable": ("high", "low"), "reset": _STYLES}, _register),
    Kind("shift", {"width": (3, 4, 5, 6, 7, 8), "direction": ("left", "right"), "reset": _STYLES}, _shift),
    Kind("detector", {"pattern": _PATTERNS, "reset": _STYLES}, _detector),
    Kind("edge", {"width": (1, 2, 3, 4, 8), "edge": ("rising", "falling", "any"), "reset": _STYLES}, _edge),
    Kind("switch", {"initial": (0, 1), "priority": ("start", "stop"), "reset": _STYLES}, _switch),
)
