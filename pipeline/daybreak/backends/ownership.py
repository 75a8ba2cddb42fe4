"""Labels jobs with their owner: home, night, model, and when the night has to end."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from daybreak.contract.backend import Job
from daybreak.storage import address
from daybreak.storage.home import Home


def home_token(home: Home | None) -> str:
    """Returns the token of a home, by which jobs and artifacts are labelled as its own; "none" if none."""
    return address.look(home.folder).token if home else "none"


def completed(job: Job) -> Job:
    """Returns the job with the night, model and end that only its job.json says."""
    path = Path(job.folder) / "job.json"
    recipe = json.loads(path.read_text()) if path.exists() else {}
    until, workload = recipe.get("train_until"), recipe.get("workload", "")
    use = workload if isinstance(workload, str) else workload["use"]
    return replace(
        job,
        night=job.night or recipe.get("night", ""),
        model=job.model or use.rpartition(":")[2],
        until=job.until or (datetime.fromisoformat(until) if until else None),
    )
