"""The verilog-eval benchmark (NVlabs/verilog-eval, release 2) read from a folder: spec-to-RTL and code-complete.

Nothing of it is carried or downloaded here. Its testbenches are changed in two lines: what counts mismatches, and what ends a simulation by
its own clock, report to the judge, with the nonce, instead of printing a line that a design could print as well.
"""

from collections.abc import Iterator
from pathlib import Path

from crossmesh.data.verilog import renamed
from crossmesh.errors import InputError, reading
from crossmesh.evaluate.problems import Problem

SPEC_TO_RTL, CODE_COMPLETE = "spec_to_rtl", "code_complete"
DATASETS = {SPEC_TO_RTL: "dataset_spec-to-rtl", CODE_COMPLETE: "dataset_code-complete-iccad2023"}
"""Folder of a checkout by `eval.variant`."""
MODULE, _REFERENCE = "TopModule", "RefModule"
_PROMPT, _SOLUTION, _BENCH, _HEADER = "_prompt.txt", "_ref.sv", "_test.sv", "_ifc.txt"
_ADDRESS = "https://github.com/NVlabs/verilog-eval"

_VERDICT = '$display("Mismatches: %1d in %1d samples", stats1.errors, stats1.clocks);'
_TOP = "module tb();"
_OUR_TOP = f"{_TOP}\n\tstring crossmesh_nonce;\n\tbit crossmesh_late = 0;\n"
_TIMEOUT = '$display("TIMEOUT");'
_OUR_TIMEOUT = f"crossmesh_late = 1; {_TIMEOUT}"
"""Upstream's analysis fails what prints TIMEOUT, whatever it counts: some of its solutions do so themselves."""
_OUR_VERDICT = (
    'if (crossmesh_late && $value$plusargs("nonce=%s", crossmesh_nonce)) $display("LATE %0s", crossmesh_nonce);'
    ' if (stats1.errors == 0 && stats1.clocks > 0 && $value$plusargs("nonce=%s", crossmesh_nonce))'
    ' $display("PASS %0s %0d", crossmesh_nonce, stats1.clocks);'
    ' else $display("FAIL %0d of %0d", stats1.errors, stats1.clocks);'
)
_COMPLETE = "Complete the Verilog module that is begun below: write what follows its header, up to and including endmodule.\n\n"


def load_verilog_eval(path: str, variant: str, system_prompt: str) -> tuple[Problem, ...]:
    """Return the problems in `path`, by name: a checkout of the repository, or one of its `dataset_...` folders.

    Raises:
        InputError: there is no such folder, it holds no problems or those of the other variant, or a problem lacks a file.
    """
    folder = _dataset(path, variant)
    names = sorted(file.name.removesuffix(_PROMPT) for file in folder.glob(f"*{_PROMPT}"))
    completing = any((folder / f"{name}{_HEADER}").is_file() for name in names)
    if completing != (variant == CODE_COMPLETE):
        other = CODE_COMPLETE if completing else SPEC_TO_RTL
        raise InputError(f"eval.path={path!r} holds the problems of eval.variant={other}, not of {variant}. Set the other of the two.")
    return tuple(_problem(folder, name, variant, system_prompt) for name in names)


def _dataset(path: str, variant: str) -> Path:
    given = Path(path).expanduser()
    if not path or not given.is_dir():
        raise InputError(
            f"eval.path={path!r} is not a folder. verilog-eval is not part of crossmesh: get it with `git clone {_ADDRESS}` and give the "
            "folder, eval.path=/path/to/verilog-eval."
        )
    for folder in (given, given / DATASETS[variant]):
        if any(folder.glob(f"*{_PROMPT}")):
            return folder.absolute()
    raise InputError(
        f"eval.path={path!r} has no problems of eval.variant={variant}: neither files *{_PROMPT} nor a folder {DATASETS[variant]} with "
        f"them. Give a checkout of {_ADDRESS}, or one of its dataset folders."
    )


def _problem(folder: Path, name: str, variant: str, system_prompt: str) -> Problem:
    prompt, reference, bench = (_text(folder / f"{name}{ending}") for ending in (_PROMPT, _SOLUTION, _BENCH))
    header = _text(folder / f"{name}{_HEADER}") if variant == CODE_COMPLETE else ""
    if bench.count(_VERDICT) != 1 or bench.count(_TOP) != 1:
        raise InputError(
            f"{folder / f'{name}{_BENCH}'} is not a testbench of release 2 of verilog-eval: it does not count its mismatches as those do. "
            f"Give the files of {_ADDRESS} as they are."
        )
    return Problem(
        id=name,
        messages=tuple(_messages(prompt, variant, system_prompt)),
        reference=renamed(reference, _REFERENCE, MODULE),
        testbench=bench.replace(_TOP, _OUR_TOP).replace(_VERDICT, _OUR_VERDICT).replace(_TIMEOUT, _OUR_TIMEOUT),
        split=variant,
        module=MODULE,
        support=reference,
        header=header,
    )


def _text(file: Path) -> str:
    with reading(file, "a text file of verilog-eval"):
        return file.read_text(encoding="utf-8")


def _messages(prompt: str, variant: str, system_prompt: str) -> Iterator[dict[str, str]]:
    if system_prompt:
        yield {"role": "system", "content": system_prompt}
    yield {"role": "user", "content": (_COMPLETE if variant == CODE_COMPLETE else "") + prompt.strip()}
