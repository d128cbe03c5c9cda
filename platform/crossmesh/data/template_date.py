"""The date that a chat template is told: fixed once for the rows of a spec under a template, so that they are the same on another day."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from crossmesh.config.training import DataSpec
from crossmesh.errors import reading
from crossmesh.files import canonical_json, digest_text, read_json, write_json


def fixed_date(data: DataSpec, template_digest: str, folder: Path) -> str:
    """Return `data.template_date`, or the moment (to the minute) at which these rows were first prepared, which is kept in `folder`."""
    if data.template_date:
        return data.template_date
    asked = {key: value for key, value in asdict(data).items() if key not in ("template_date", "max_dropped", "seed")}
    file = folder / f"{digest_text(canonical_json([asked, template_digest]))[:16]}.json"
    if not file.is_file():
        write_json(file, {"date": datetime.now().astimezone().replace(tzinfo=None).isoformat(timespec="minutes")})
    with reading(file, "a JSON object with the date of the chat template"):
        return str(read_json(file)["date"])
