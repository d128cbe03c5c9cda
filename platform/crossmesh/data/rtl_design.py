"""The parts that every generated RTL problem is made of: ports, a behaviour in words, a Verilog body and a model in Python.

The model in Python is written apart from the Verilog, so that a testbench made from it is an independent judge of the reference.
Choices (names, phrasings, stimuli) come from digests of a key and not from a random generator: they hold across Python versions.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Params = Mapping[str, int | str]
Values = tuple[int, ...]
_Option = TypeVar("_Option")


@dataclass(frozen=True)
class Picker:
    """Repeatable choices: equal key and purpose give equal choices."""

    key: str

    def bits(self, what: str, width: int) -> int:
        """Return `width` bits that look random."""
        size = max(1, (width + 7) // 8)
        return int.from_bytes(hashlib.blake2b(f"{self.key}/{what}".encode(), digest_size=size).digest(), "big") & ((1 << width) - 1)

    def choice(self, what: str, options: Sequence[_Option]) -> _Option:
        """Return one of `options`."""
        return options[self.bits(what, 64) % len(options)]


@dataclass(frozen=True)
class Port:
    """A port or a signal: its name and its width in bits."""

    name: str
    width: int = 1

    @property
    def range(self) -> str:
        """The range with a space after it, as in `[3:0] `; nothing for one bit."""
        return "" if self.width == 1 else f"[{self.width - 1}:0] "


def port_groups(ports: Sequence[Port]) -> list[str]:
    """List ports in order, neighbours of one width together: `["clk, rst", "[3:0] a, b"]`."""
    return [prefix + ", ".join(port.name for port in group) for prefix, group in itertools.groupby(ports, key=lambda port: port.range)]


@dataclass(frozen=True)
class Reset:
    """The reset of a clocked design."""

    name: str
    asynchronous: bool
    active_low: bool

    @property
    def style(self) -> str:
        """In words: `asynchronous active-low`."""
        return f"{'asynchronous' if self.asynchronous else 'synchronous'} active-{'low' if self.active_low else 'high'}"

    @property
    def condition(self) -> str:
        """The Verilog condition that holds while the reset is asserted."""
        return f"!{self.name}" if self.active_low else self.name

    def sensitivity(self, clock: str) -> str:
        """Return the event list of a block on the rising edge of `clock` with this reset."""
        if not self.asynchronous:
            return f"posedge {clock}"
        return f"posedge {clock} or {'negedge' if self.active_low else 'posedge'} {self.name}"


@dataclass(frozen=True)
class Combinational:
    """Outputs as a function of the inputs, both in port order."""

    outputs: Callable[[Values], Values]


@dataclass(frozen=True)
class Sequential:
    """A clocked design: one state, one clock edge, one reset."""

    clock: str
    reset: Reset
    initial: int
    """State after reset."""
    advance: Callable[[int, Values], int]
    """Next state from the state and the data inputs (clock and reset left out)."""
    show: Callable[[int, Values], Values]
    """Outputs from the state and the data inputs."""
    cycles: int = 40
    """Cycles to watch without a reset, enough to see the whole behaviour."""


@dataclass(frozen=True)
class Design:
    """One module: what it is called, what it does in words, how it looks in Verilog and what it computes."""

    name: str
    data_inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    behaviour: str
    body: tuple[str, ...]
    """Lines between header and `endmodule`."""
    model: Combinational | Sequential
    output_reg: bool = False
    """The outputs are assigned in an always block."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """All inputs in port order: clock and reset first."""
        if isinstance(self.model, Sequential):
            return (Port(self.model.clock), Port(self.model.reset.name), *self.data_inputs)
        return self.data_inputs

    @property
    def declarations(self) -> str:
        """The port list as the module header has it."""
        outputs = "output reg" if self.output_reg else "output"
        return ", ".join(
            [f"input {group}" for group in port_groups(self.inputs)] + [f"{outputs} {group}" for group in port_groups(self.outputs)]
        )

    @property
    def module_text(self) -> str:
        """The reference solution."""
        return "\n".join([f"module {self.name}({self.declarations});", *(f"  {line}" for line in self.body), "endmodule"])

    def prompt_text(self, picker: Picker) -> str:
        """Return the task in one of several phrasings; the header is given, so that only behaviour is judged."""
        header = f"{self.name}({self.declarations})"
        head = picker.choice(
            "head",
            (
                f"Write the Verilog module {header}. ",
                f"Write this Verilog module:\nmodule {header};\n",
                f"Implement the Verilog module {header}. ",
                f"Complete this Verilog module:\nmodule {header};\n",
            ),
        )
        return head + self.behaviour


@dataclass(frozen=True)
class Kind:
    """A family of designs: the parameters it is drawn from and how one combination becomes a design."""

    name: str
    axes: Mapping[str, tuple[int | str, ...]]
    build: Callable[[Params, Picker], Design]


def module_name(picker: Picker, *stems: str) -> str:
    """Choose a module name from what the kind is commonly called."""
    return picker.choice("stem", stems) + picker.choice("suffix", ("", "_unit", "_top", "_a", "_b", "1", "2"))


def output_name(picker: Picker) -> str:
    """Choose the name of the main output of a combinational design."""
    return picker.choice("output", ("y", "z", "f", "out", "res"))


def operand_names(picker: Picker, count: int = 2) -> tuple[str, ...]:
    """Choose names for `count` (at most 4) alike inputs."""
    letters = (("a", "b", "c", "d"), ("p", "q", "r", "s"))
    numbered = (("in0", "in1", "in2"), ("x0", "x1", "x2"))
    return picker.choice("operands", letters if count > 3 else (*letters, *numbered))[:count]


def mask(width: int) -> int:
    """Return `width` ones."""
    return (1 << width) - 1
