"""Kinds that training never sees: Gray code, rotation, population count, parity, priority encoding and a small ALU."""

from crossmesh.data.rtl_design import (
    Combinational,
    Design,
    Kind,
    Params,
    Picker,
    Port,
    Values,
    mask,
    module_name,
    operand_names,
    output_name,
)


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


KINDS = (
    Kind("gray", {"width": (3, 4, 5, 6, 7, 8), "direction": ("binary to Gray", "Gray to binary")}, _gray),
    Kind("rotate", {"width": (4, 8, 16), "direction": ("left", "right")}, _rotate),
    Kind("popcount", {"width": (3, 4, 5, 6, 7), "bit": (0, 1)}, _popcount),
    Kind("parity", {"width": (3, 4, 5, 6, 7, 8), "parity": ("even", "odd")}, _parity),
    Kind("priority", {"width": (3, 4, 5, 6), "first": ("highest", "lowest")}, _priority),
    Kind("alu", {"width": (2, 3, 4, 8, 16), "order": ("arithmetic first", "logic first")}, _alu),
)
