"""Kinds that training never sees: Gray code, rotation, population count, parity, priority encoding, a small ALU, edges, modulo counting."""

from crossmesh.data.rtl_design import (
    Combinational,
    Design,
    Kind,
    Params,
    Picker,
    Port,
    Sequential,
    Values,
    mask,
    module_name,
    operand_names,
    output_name,
)
from crossmesh.data.rtl_sequential import CLOCK, RESET_STYLES, clocked_block, reset_of, reset_words


def _gray(params: Params, picker: Picker) -> Design:
    width, encode = int(params["width"]), params["direction"] == "binary to Gray"
    a, y = picker.choice("data", (("bin", "gray"), ("b", "g"))) if encode else picker.choice("data", (("gray", "bin_out"), ("g", "b")))

    def compute(values: Values) -> Values:
        code = values[0]
        if encode:
            return (code ^ code >> 1,)
        for distance in (1, 2, 4):
            code ^= code >> distance
        return (code,)

    words = "Gray code of the binary number" if encode else "binary number whose Gray code is"
    body = (f"assign {y} = {a} ^ ({a} >> 1);",) if encode else tuple(f"assign {y}[{bit}] = ^({a} >> {bit});" for bit in range(width))
    return Design(
        module_name(picker, "gray_conv", "gray_code"),
        (Port(a, width),),
        (Port(y, width),),
        f"{y} is the {words} {a}.",
        body,
        Combinational(compute),
    )


def _rotate(params: Params, picker: Picker) -> Design:
    width, left = int(params["width"]), params["direction"] == "left"
    a, amount, out = "a", picker.choice("amount", ("n", "amt")), output_name(picker)
    near, far = ("<<", ">>") if left else (">>", "<<")

    def compute(values: Values) -> Values:
        shift = values[1] if left else (width - values[1]) % width
        return ((values[0] << shift | values[0] >> (width - shift)) & mask(width),)

    return Design(
        module_name(picker, "rotate", "barrel"),
        (Port(a, width), Port(amount, width.bit_length() - 1)),
        (Port(out, width),),
        f"{out} is {a} rotated {params['direction']} by {amount} bit positions.",
        (f"assign {out} = ({a} {near} {amount}) | ({a} {far} ({width} - {amount}));",),
        Combinational(compute),
    )


def _popcount(params: Params, picker: Picker) -> Design:
    width, bit = int(params["width"]), int(params["bit"])
    a, count = picker.choice("data", ("a", "d", "v")), picker.choice("count", ("count", "num"))
    terms = " + ".join(f"{a}[{index}]" for index in range(width))
    expression = terms if bit else f"{width} - ({terms})"
    return Design(
        module_name(picker, "popcount", "bit_count"),
        (Port(a, width),),
        (Port(count, width.bit_length()),),
        f"{count} is the number of bits of {a} that are {bit}.",
        (f"assign {count} = {expression};",),
        Combinational(lambda values: (values[0].bit_count() if bit else width - values[0].bit_count(),)),
    )


def _parity(params: Params, picker: Picker) -> Design:
    width, odd = int(params["width"]), params["parity"] == "odd"
    d, p = picker.choice("data", ("d", "a", "data")), picker.choice("parity", ("p", "par"))
    return Design(
        module_name(picker, "parity", "par_gen"),
        (Port(d, width),),
        (Port(p),),
        f"{p} is the {params['parity']} parity bit of {d}: {d} and {p} together hold an {params['parity']} number of ones.",
        (f"assign {p} = {'~' if odd else ''}^{d};",),
        Combinational(lambda values: (values[0].bit_count() & 1 ^ int(odd),)),
    )


def _priority(params: Params, picker: Picker) -> Design:
    width, highest = int(params["width"]), params["first"] == "highest"
    req, index = picker.choice("request", ("req", "r", "in")), picker.choice("index", ("idx", "pos"))
    order = range(width - 1, 0, -1) if highest else range(width - 1)
    last = 0 if highest else width - 1
    chosen = "".join(f"{req}[{bit}] ? {bit} : " for bit in order) + str(last)

    def compute(values: Values) -> Values:
        word = values[0]
        found = (word.bit_length() - 1 if highest else (word & -word).bit_length() - 1) if word else 0
        return (int(word != 0), found)

    expression = chosen if highest else f"{req} == 0 ? 0 : {chosen}"
    return Design(
        module_name(picker, "priority_enc", "prio"),
        (Port(req, width),),
        (Port("valid"), Port(index, (width - 1).bit_length())),
        f"{index} is the number of the {params['first']} bit of {req} that is 1, or 0 if none is. valid is 1 when any bit of {req} is 1.",
        (f"assign valid = |{req};", f"assign {index} = {expression};"),
        Combinational(compute),
    )


def _alu(params: Params, picker: Picker) -> Design:
    width, swapped = int(params["width"]), params["order"] == "logic first"
    a, b = operand_names(picker)
    out = output_name(picker)
    arithmetic, logic = (f"{a} + {b}", f"{a} - {b}"), (f"{a} & {b}", f"{a} | {b}")
    forms = (*logic, *arithmetic) if swapped else (*arithmetic, *logic)

    def compute(values: Values) -> Values:
        x, y, op = values
        results = (x & y, x | y, x + y, x - y) if swapped else (x + y, x - y, x & y, x | y)
        return (results[op] & mask(width),)

    return Design(
        module_name(picker, "alu", "calc"),
        (Port(a, width), Port(b, width), Port("op", 2)),
        (Port(out, width),),
        f"{out} is {forms[0]}, {forms[1]}, {forms[2]} or {forms[3]} for op 0, 1, 2, 3.",
        (f"assign {out} = op == 0 ? {forms[0]} : op == 1 ? {forms[1]} : op == 2 ? {forms[2]} : {forms[3]};",),
        Combinational(compute),
    )


def _edge(params: Params, picker: Picker) -> Design:
    width, edge = int(params["width"]), str(params["edge"])
    reset = reset_of(params)
    d, y = picker.choice("data", (("d", "y"), ("d", "pulse")))
    now, then = {"rising": (1, 0), "falling": (0, 1)}.get(edge, (0, 0))
    each = f"each {y} bit" if width > 1 else y
    change = f"{d} differs from prev" if edge == "any" else f"{d} is {now} and prev is {then}"
    behaviour = picker.choice(
        "words",
        (
            f"prev stores {d} at posedge {CLOCK}; {each} is 1 when {change}.",
            f"prev is {d} delayed by one {CLOCK} cycle; {each} is 1 when {change}.",
        ),
    )
    expression = {"rising": f"{d} & ~prev", "falling": f"~{d} & prev", "any": f"{d} ^ prev"}[edge]

    def show(state: int, data: tuple[int, ...]) -> tuple[int, ...]:
        value = {"rising": data[0] & ~state, "falling": ~data[0] & state, "any": data[0] ^ state}[edge]
        return (value & mask(width),)

    return Design(
        module_name(picker, "edges", "change", "differ"),
        (Port(d, width),),
        (Port(y, width),),
        f"{behaviour} {reset_words(reset, picker, 'prev')}",
        (f"reg {Port('prev', width).range}prev;", *clocked_block(reset, "prev <= 0", f"prev <= {d}"), f"assign {y} = {expression};"),
        Sequential(CLOCK, reset, 0, lambda _, data: data[0], show),
    )


def _modulo(params: Params, picker: Picker) -> Design:
    last = int(params["last"])
    reset = reset_of(params)
    q = picker.choice("count", ("count", "q", "cnt"))
    width = last.bit_length()
    behaviour = picker.choice(
        "words",
        (
            f"{q} counts from 0 to {last} at posedge {CLOCK}, then starts again at 0.",
            f"At posedge {CLOCK}, {q} counts up by 1; after {last} comes 0.",
        ),
    )
    return Design(
        module_name(picker, "modulo", "mod_counter", "wrap"),
        (),
        (Port(q, width),),
        f"{behaviour} {reset_words(reset, picker, q)}",
        clocked_block(reset, f"{q} <= 0", f"if ({q} == {last}) {q} <= 0", f"{q} <= {q} + 1"),
        Sequential(CLOCK, reset, 0, lambda state, _: 0 if state == last else state + 1, lambda state, _: (state,), cycles=2 * last + 4),
        output_reg=True,
    )


KINDS = (
    Kind("gray", {"width": (3, 4, 5, 6, 7, 8), "direction": ("binary to Gray", "Gray to binary")}, _gray),
    Kind("parity", {"width": (3, 4, 5, 6, 7, 8), "parity": ("even", "odd")}, _parity),
    Kind("priority", {"width": (3, 4, 5, 6), "first": ("highest", "lowest")}, _priority),
    Kind("edge", {"width": (1, 2, 3, 4, 8), "edge": ("rising", "falling", "any"), "reset": RESET_STYLES}, _edge),
    Kind("popcount", {"width": (3, 4, 5, 6, 7), "bit": (0, 1)}, _popcount),
    Kind("modulo", {"last": (2, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14), "reset": RESET_STYLES}, _modulo),
    Kind("alu", {"width": (2, 3, 4, 8, 16), "order": ("arithmetic first", "logic first")}, _alu),
    Kind("rotate", {"width": (4, 8, 16), "direction": ("left", "right")}, _rotate),
)
