"""Tells whose a job is: the home of its nights, its night, its model, and when that has to end."""

import json
import logging
import os
import secrets
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pipeline.contract.backend import Job
from pipeline.contract.errors import ParamsError
from pipeline.contract.records import replace_text
from pipeline.storage import checkout

log = logging.getLogger(__name__)

HOME = Path("var/home")  # holds the token that tells the jobs of this home from those of others


def home_token() -> str:
    """Returns the token of the home of the nights; it is made once, and labels what belongs to this home."""
    try:
        path = checkout.home() / HOME
    except ParamsError:
        return "none"
    if not path.exists():
        fresh = path.with_name(f".home.{os.getpid()}")
        replace_text(fresh, secrets.token_hex(8))
        try:
            os.link(fresh, path)
        except FileExistsError:
            log.info("another process has made %s", path)
        fresh.unlink()
    return path.read_text().strip()


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
