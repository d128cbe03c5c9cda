"""x."""
import sys
from dataclasses import dataclass
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))
from crossmesh.spec.compose import Job, run_job

@dataclass(frozen=True)
class Finetune:
    force: bool = False
    output: str = "table"

def run(job: Job[Finetune]) -> None:
    print(job)

if __name__ == "__main__":
    run_job("finetune", Finetune, run, Path(__file__).resolve().parents[1] / "conf")
