"""What the judge is: all that turns an answer into a verdict, apart from the problem, as a record that stands in every result.

Verdicts are compared, and kept ones used again, only under an equal record. Testbenches and prompts are the task's (`task_digest`).
"""

import inspect
import io
import tokenize
from typing import Any

from crossmesh.config.evaluation import EvalSpec
from crossmesh.data import markdown, verilog
from crossmesh.evaluate import judge, sandbox, screening
from crossmesh.evaluate.judge import limits_of, simulator_version
from crossmesh.files import canonical_json, digest_text

_MODULES = (judge, sandbox, screening, verilog, markdown)
"""All code between an answer and its verdict."""
_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING)
_BEFORE_STATEMENT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def judge_record(spec: EvalSpec) -> dict[str, Any]:
    """The code of the judge by digest, the simulator's version, the sandbox and the limits.

    Raises `InputError` when the simulator is not installed.
    """
    limits = limits_of(spec)
    code = {one.__name__: code_text(inspect.getsource(one)) for one in _MODULES}
    return {
        "code": digest_text(canonical_json(code)),
        "simulator": simulator_version(),
        "sandbox": spec.sandbox,
        "testbench_timeout": "fails",  # As in verilog-eval's own analysis: whoever answers, and the task's own solution too.
        "limits": {
            "cpu_s": limits.cpu_s,
            "memory_mib": limits.memory_mib,
            "disk_mib": limits.disk_mib,
            "processes": limits.processes,
            "output_bytes": limits.output_bytes,
        },
    }


def code_text(source: str) -> list[str]:
    """The words of Python source in order, without comments, docstrings and layout: what it does, however it is written down."""
    words: list[str] = []
    statement = True
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(source).readline) if one.type not in _SILENT]
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        alone = following is None or following.type in (tokenize.NEWLINE, tokenize.ENDMARKER)
        if statement and token.type == tokenize.STRING and alone:
            continue  # A docstring: its line break is none of the code's either.
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            words.append(tokenize.tok_name[token.type])
        elif token.type == tokenize.NEWLINE:
            if words and words[-1] != "NEWLINE":
                words.append("NEWLINE")
        else:
            words.append(token.string)
        statement = token.type in _BEFORE_STATEMENT or not words
    return words
