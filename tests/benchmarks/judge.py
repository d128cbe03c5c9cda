"""How long the judge takes: `python tests/benchmarks/judge.py /path/to/verilog-eval [answers] [workers]`.

Every problem gets so many answers, all different and all right: a right answer is the slowest, for it is compiled and simulated to its end.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "platform"))

from crossmesh.config.evaluation import EvalSpec
from crossmesh.config.training import DataSpec
from crossmesh.evaluate.harness import open_task


def main(path: str, answers: str = "5", workers: str = "2") -> None:
    began = time.monotonic()
    task = open_task(EvalSpec(task="verilog_eval", path=path, workers=int(workers)), DataSpec())
    opened = time.monotonic()
    usable = task.references.usable
    given = [(one, f"```verilog\n{one.reference}\n// {index}\n```") for one in usable for index in range(int(answers))]
    verdicts = task.judge(given)
    judged = time.monotonic() - opened
    print(  # noqa: T201
        json.dumps(
            {
                "problems": len(usable),
                "answers": len(given),
                "passed": sum(verdict.passed for verdict in verdicts),
                "judge_s": round(judged, 1),
                "answers_per_s": round(len(given) / judged, 1),
                "references_s": round(opened - began, 1),
                "workers": int(workers),
                "simulator": task.simulator,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
