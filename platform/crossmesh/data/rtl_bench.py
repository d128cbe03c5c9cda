"""Self-checking testbenches, made from a design's model in Python.

A testbench prints `PASS <nonce>` only after its last check, only without a mismatch, and only with the nonce that the judge passes
at run time (`+nonce=...`): a design that prints, stops the simulation early or leaves outputs undriven does not pass. Outputs are
compared with `!==`, so unknown and undriven bits count as wrong.
"""

from collections.abc import Iterator, Sequence

from crossmesh.data.rtl_design import Combinational, Design, Picker, Port, Sequential, Values, mask

_EXHAUSTIVE_BITS = 8
_SAMPLED_VECTORS = 96
_VISIBLE_RESETS = 4
_LONGEST_RESET_PHASE = 256


def _join(values: Sequence[int], ports: Sequence[Port]) -> int:
    """Concatenate port values into one number, first port in the highest bits."""
    joined = 0
    for value, port in zip(values, ports, strict=True):
        joined = joined << port.width | value & mask(port.width)
    return joined


def _split(joined: int, ports: Sequence[Port]) -> Values:
    values = []
    for port in reversed(ports):
        values.append(joined & mask(port.width))
        joined >>= port.width
    return tuple(reversed(values))


def _width(ports: Sequence[Port]) -> int:
    return sum(port.width for port in ports)


def _connections(ports: Sequence[Port], vector: str) -> list[str]:
    """Connect each port to its part of `vector`, in the order of `_join`."""
    high, parts = _width(ports), []
    for port in ports:
        low = high - port.width
        parts.append(f".{port.name}({vector}[{high - 1}:{low}])")
        high = low
    return parts


def input_vectors(ports: Sequence[Port], picker: Picker) -> list[Values]:
    """Return stimuli: all of them up to 8 input bits, else corners, equal and neighbouring operands, and random ones."""
    width = _width(ports)
    if width <= _EXHAUSTIVE_BITS:
        return [_split(joined, ports) for joined in range(1 << width)]
    corners = [
        tuple(mask(port.width) if choice >> index & 1 else 0 for index, port in enumerate(ports)) for choice in range(1 << len(ports))
    ]
    vectors = dict.fromkeys(corners)
    index = 0
    while len(vectors) < _SAMPLED_VECTORS:
        drawn = _split(picker.bits(f"vector{index}", width), ports)
        base = drawn[0]
        for values in (drawn, tuple(base for _ in ports), (base, *(base + 1 for _ in ports[1:])), (base + 1, *(base for _ in ports[1:]))):
            vectors[tuple(value & mask(port.width) for value, port in zip(values, ports, strict=True))] = None
        index += 1
    return list(vectors)


def _combinational_steps(design: Design, model: Combinational, picker: Picker) -> Iterator[str]:
    inputs, outputs = _width(design.inputs), _width(design.outputs)
    for values in input_vectors(design.inputs, picker):
        want = _join(model.outputs(values), design.outputs)
        yield f"apply({inputs}'h{_join(values, design.inputs):x}, {outputs}'h{want:x});"


def _sequential_steps(design: Design, model: Sequential, picker: Picker) -> Iterator[str]:
    """Drive reset and data between clock edges; expect outputs before and after each rising edge."""
    ports = (Port(model.reset.name), *design.data_inputs)
    inputs, outputs = _width(ports), _width(design.outputs)
    state: int | None = None
    resets = 0
    for cycle in range(2 + model.cycles + _LONGEST_RESET_PHASE):
        data = _split(picker.bits(f"data{cycle}", _width(design.data_inputs)), design.data_inputs)
        resetting = cycle < 2
        if cycle >= 2 + model.cycles and state is not None:
            # Only where the reset changes an output does it tell a synchronous from an asynchronous one: reset there more often.
            visible = model.show(state, data) != model.show(model.initial, data)
            resetting = picker.bits(f"reset{cycle}", 1 if visible else 3) == 0
            resets += resetting and visible
        if resetting and model.reset.asynchronous:
            state = model.initial
        # Before the first edge a synchronous reset has not acted yet, and the outputs may be anything.
        known = state is not None
        before = _join(model.show(state, data), design.outputs) if state is not None else 0
        state = model.initial if resetting or state is None else model.advance(state, data)
        after = _join(model.show(state, data), design.outputs)
        driven = _join((int(resetting != model.reset.active_low), *data), ports)
        yield f"cycle({inputs}'h{driven:x}, {int(known)}, {outputs}'h{before:x}, {outputs}'h{after:x});"
        if resets == _VISIBLE_RESETS:
            return


_APPLY = """\
  task apply(input [{inputs}:0] drive, input [{outputs}:0] want);
    begin
      stimulus = drive; #2;
      if (seen !== want) mismatches = mismatches + 1;
    end
  endtask"""

_CYCLE = """\
  task cycle(input [{inputs}:0] drive, input known, input [{outputs}:0] early, input [{outputs}:0] late);
    begin
      stimulus = drive; #2;
      if (known && seen !== early) mismatches = mismatches + 1;
      clock = 1; #2;
      if (seen !== late) mismatches = mismatches + 1;
      clock = 0; #2;
      if (seen !== late) mismatches = mismatches + 1;
    end
  endtask"""


def testbench_text(design: Design, picker: Picker) -> str:
    """Return the testbench of `design`: a module `tb` that needs the design beside it.

    Run it with `+nonce=<text>`; the design passed if and only if the output has the line `PASS <text>`.
    """
    model = design.model
    if isinstance(model, Sequential):
        ports: tuple[Port, ...] = (Port(model.reset.name), *design.data_inputs)
        declare, task, steps = ["  reg clock = 0;"], _CYCLE, _sequential_steps(design, model, picker)
        connections = [f".{model.clock}(clock)"]
    else:
        ports, declare, task, connections = design.inputs, [], _APPLY, []
        steps = _combinational_steps(design, model, picker)
    inputs, outputs = _width(ports) - 1, _width(design.outputs) - 1
    connections += _connections(ports, "stimulus") + _connections(design.outputs, "seen")
    lines = [
        "module tb;",
        *declare,
        f"  reg [{inputs}:0] stimulus;",
        f"  wire [{outputs}:0] seen;",
        "  integer mismatches = 0;",
        "  string nonce;",
        f"  {design.name} dut({', '.join(connections)});",
        task.format(inputs=inputs, outputs=outputs),
        "  initial begin",
        *(f"    {step}" for step in steps),
        '    if (mismatches == 0 && $value$plusargs("nonce=%s", nonce)) $display("PASS %s", nonce);',
        '    else $display("FAIL %0d", mismatches);',
        "    $finish(0);",
        "  end",
        "endmodule",
    ]
    return "\n".join(lines) + "\n"
