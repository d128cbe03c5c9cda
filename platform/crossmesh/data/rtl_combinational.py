"""Combinational kinds that training sees: gates, multiplexers, adders, subtractors, comparators, minimum and maximum, decoders."""

import operator
from collections.abc import Callable

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

_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
_PLAIN: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "AND": ("&", operator.and_),
    "OR": ("|", operator.or_),
    "XOR": ("^", operator.xor),
}
_INVERTED = {"NAND": "AND", "NOR": "OR", "XNOR": "XOR"}
_COMPARISONS: dict[str, tuple[str, Callable[[int, int], bool]]] = {
    "equal to": ("==", operator.eq),
    "not equal to": ("!=", operator.ne),
    "less than": ("<", operator.lt),
    "greater than": (">", operator.gt),
    "less than or equal to": ("<=", operator.le),
    "greater than or equal to": (">=", operator.ge),
}


def _gate(params: Params, picker: Picker) -> Design:
    name, width, count = str(params["gate"]), int(params["width"]), int(params["inputs"])
    inverted = name in _INVERTED
    plain = _INVERTED.get(name, name)
    symbol, combine = _PLAIN[plain]
    operands = operand_names(picker, count)
    out = output_name(picker)
    joined = f" {symbol} ".join(operands)
    listed = f"{', '.join(operands[:-1])} and {operands[-1]}"

    def outputs(values: Values) -> Values:
        result = values[0]
        for value in values[1:]:
            result = combine(result, value)
        return (result ^ mask(width) if inverted else result,)

    words = f"{'bitwise ' if width > 1 else ''}{name}{f' (inverted {plain})' if inverted else ''}"
    behaviour = picker.choice("words", (f"{out} is the {words} of {listed}.", f"Compute {out} as the {words} of {listed}."))
    return Design(
        module_name(picker, "gate", "logic_gate", "bit_op"),
        tuple(Port(operand, width) for operand in operands),
        (Port(out, width),),
        behaviour,
        (f"assign {out} = ~({joined});" if inverted else f"assign {out} = {joined};",),
        Combinational(outputs),
    )


def _mux(params: Params, picker: Picker) -> Design:
    width, ways, descending = int(params["width"]), int(params["ways"]), params["order"] == "descending"
    names = operand_names(picker, ways)
    select, out = picker.choice("select", ("sel", "pick")), output_name(picker)
    ordered = names[::-1] if descending else names
    if ways == 2:
        words = (f"{out} is {ordered[1]} if {select}, else {ordered[0]}.", f"If {select}, {out} is {ordered[1]}, else {ordered[0]}.")
        expression = f"{select} ? {ordered[1]} : {ordered[0]}"
    else:
        listed = f"{ordered[0]}, {ordered[1]}, {ordered[2]} or {ordered[3]}"
        words = (f"{out} is {listed} for {select} 0, 1, 2 or 3.", f"For {select} 0, 1, 2 or 3, {out} is {listed}.")
        cases = "".join(f"{select} == {value} ? {name} : " for value, name in enumerate(ordered[:3]))
        expression = f"{cases}{ordered[3]}"
    return Design(
        module_name(picker, "mux", f"mux{ways}", "selector"),
        (*(Port(name, width) for name in names), Port(select, ways // 2)),
        (Port(out, width),),
        picker.choice("words", words),
        (f"assign {out} = {expression};",),
        Combinational(lambda values: (values[ways - 1 - values[ways] if descending else values[ways]],)),
    )


def _adder(params: Params, picker: Picker) -> Design:
    width, carry = int(params["width"]), str(params["carry"])
    a, b = operand_names(picker)
    out = picker.choice("sum", ("sum", "total", "y"))
    inputs, outputs = [Port(a, width), Port(b, width)], [Port(out, width)]
    addends, target, tail = f"{a} + {b}", out, "wrapping around on overflow"
    listed = f"{a} and {b}"
    if carry == "in and out":
        inputs.append(Port("cin"))
        addends, listed = f"{a} + {b} + cin", f"{a}, {b} and carry-in cin"
    if carry != "none":
        outputs.insert(0, Port("cout"))
        target, tail = f"{{cout, {out}}}", "with carry-out cout"
    behaviour = picker.choice("words", (f"{out} is the sum of {listed}, {tail}.", f"Add {listed} to give {out}, {tail}."))

    def compute(values: Values) -> Values:
        total = sum(values)
        return (total & mask(width),) if carry == "none" else (total >> width, total & mask(width))

    return Design(
        module_name(picker, "adder", "add", "sum_unit"),
        tuple(inputs),
        tuple(outputs),
        behaviour,
        (f"assign {target} = {addends};",),
        Combinational(compute),
    )


def _subtractor(params: Params, picker: Picker) -> Design:
    width, borrow, swapped = int(params["width"]), params["borrow"] == "yes", params["order"] == "second minus first"
    names = operand_names(picker)
    out = picker.choice("difference", ("diff", "delta", "y"))
    left, right = names[::-1] if swapped else names
    tail = "with borrow-out bout" if borrow else "wrapping around below zero"
    target = f"{{bout, {out}}}" if borrow else out
    behaviour = picker.choice("words", (f"{out} is {left} minus {right}, {tail}.", f"Subtract {right} from {left} to give {out}, {tail}."))

    def compute(values: Values) -> Values:
        a, b = values[::-1] if swapped else values
        return (int(a < b), (a - b) & mask(width)) if borrow else ((a - b) & mask(width),)

    return Design(
        module_name(picker, "subtractor", "sub", "minus"),
        (Port(names[0], width), Port(names[1], width)),
        (Port("bout"), Port(out, width)) if borrow else (Port(out, width),),
        behaviour,
        (f"assign {target} = {left} - {right};",),
        Combinational(compute),
    )


def _comparator(params: Params, picker: Picker) -> Design:
    width, relation = int(params["width"]), str(params["relation"])
    symbol, holds = _COMPARISONS[relation]
    a, b = operand_names(picker)
    out = output_name(picker)
    behaviour = picker.choice(
        "words", (f"{out} is 1 when {a} is {relation} {b} (unsigned), else 0.", f"Set {out} to 1 if {a} is {relation} {b}, unsigned.")
    )
    return Design(
        module_name(picker, "compare", "comparator", "cmp"),
        (Port(a, width), Port(b, width)),
        (Port(out),),
        behaviour,
        (f"assign {out} = {a} {symbol} {b};",),
        Combinational(lambda values: (int(holds(*values)),)),
    )


def _extreme(params: Params, picker: Picker) -> Design:
    width, which = int(params["width"]), str(params["which"])
    a, b = operand_names(picker)
    out = output_name(picker)
    symbol, choose = (">", max) if which == "larger" else ("<", min)
    behaviour = picker.choice(
        "words", (f"{out} is the {which} of {a} and {b} (unsigned).", f"Output the {which} of the unsigned values {a} and {b} on {out}.")
    )
    return Design(
        module_name(picker, "extreme", "choose", "limit"),
        (Port(a, width), Port(b, width)),
        (Port(out, width),),
        behaviour,
        (f"assign {out} = ({a} {symbol} {b}) ? {a} : {b};",),
        Combinational(lambda values: (choose(values),)),
    )


def _decoder(params: Params, picker: Picker) -> Design:
    bits, enable, active = int(params["bits"]), "en" if params["enable"] == "yes" else "", str(params["active"])
    code, out = picker.choice("code", ("a", "code", "addr")), output_name(picker)
    shifted = f"1 << {code}"
    hot = f"{enable} ? {shifted} : 0" if enable else shifted
    condition, inverted = f" if {enable}" if enable else "", ", then all bits are inverted" if active == "low" else ""
    behaviour = picker.choice(
        "words",
        (
            f"{out}[{code}] is 1{condition}, all other bits are 0{inverted}.",
            f"Decode {code}: {out}[{code}] is 1{condition}, all other bits are 0{inverted}.",
        ),
    )

    def compute(values: Values) -> Values:
        word = (values[1] if enable else 1) << values[0]
        return (word ^ mask(1 << bits) if active == "low" else word,)

    return Design(
        module_name(picker, "decoder", "decode", "onehot"),
        (Port(code, bits), Port(enable)) if enable else (Port(code, bits),),
        (Port(out, 1 << bits),),
        behaviour,
        (f"assign {out} = ~({hot});" if active == "low" else f"assign {out} = {hot};",),
        Combinational(compute),
    )


KINDS = (
    Kind("gate", {"gate": (*_PLAIN, *_INVERTED), "inputs": (2, 3), "width": _WIDTHS}, _gate),
    Kind("mux", {"width": (*_WIDTHS, 16), "ways": (2, 4), "order": ("ascending", "descending")}, _mux),
    Kind("adder", {"width": (*_WIDTHS, 16), "carry": ("none", "out", "in and out")}, _adder),
    Kind("subtractor", {"width": _WIDTHS, "borrow": ("no", "yes"), "order": ("first minus second", "second minus first")}, _subtractor),
    Kind("comparator", {"width": _WIDTHS, "relation": tuple(_COMPARISONS)}, _comparator),
    Kind("extreme", {"width": (*_WIDTHS, 16), "which": ("larger", "smaller")}, _extreme),
    Kind("decoder", {"bits": (2, 3, 4), "enable": ("no", "yes"), "active": ("high", "low")}, _decoder),
)
