"""Records what a version was made of: its recipe, and the digests that tie it to data, code and night.

A recipe is what decides the model apart from the data: the workload's import path and arguments, its
source files, and how it is trained. A challenger of the champion's recipe is a refresh.
"""

import hashlib
from pathlib import Path

from pipeline.contract import older, records
from pipeline.contract.params import JobSections
from pipeline.contract.records import Champion, Night, Version
from pipeline.storage import ledger, ledger_notes
from pipeline.storage.source_code import frame_digest, source_digest, source_files

LOCK = Path("dvc.lock")
ADDED = ("band_rate", "threads", "follow_memory")  # keys of `train`, since the first release


def recipe(params: JobSections) -> str:
    """Returns the digest of the workload (import path, arguments, source files) and of `train`.

    Parameters that do not change the model, such as the checkpoint interval, are left out.
    """
    train = _train(params)
    plug = params.workload.model_dump_json()
    parts = (plug, train, source_digest(params.workload.use))
    return hashlib.md5("\n".join(parts).encode(), usedforsecurity=False).hexdigest()


def is_refresh(champion: Champion | None, params: JobSections) -> bool:
    """Returns whether tonight's recipe is the one that the champion was made by."""
    if champion is None:
        return False
    use = params.workload.use
    before = older.recipe(
        plug=params.workload.model_dump_json(), train=_train(params), use=use,
        files=source_files(use.partition(":")[0]),
    )  # fmt: skip
    return champion.lineage.get("recipe") in {recipe(params), before}


def is_declared_equal(champion: Champion | None, params: JobSections) -> bool:
    """Returns whether a person declared tonight's recipe to be the one that the champion was made by."""
    if champion is None:
        return False
    tonight = recipe(params)
    notes = ledger_notes.read(ledger.expect_signed())
    return any(note.recipe == tonight and champion.version in note.versions for note in notes)


def _train(params: JobSections) -> str:
    """Returns the part of `train` that decides the model: no checkpoint interval, no number of workers.

    Keys that were added since the first release are left out at their defaults: recipes of before had none.
    """
    fields = type(params.train).model_fields
    added = {name for name in ADDED if getattr(params.train, name) == fields[name].default}
    return params.train.model_dump_json(exclude={"checkpoint_every_s", "num_workers"} | added)


def lineage(night: Night, *, data_digest: str, model_digest: str, params: JobSections) -> dict[str, str]:
    """Returns what a version was made of, as the tags that it gets in MLflow and in the ledger."""
    return {
        "night": night.id,
        "day": night.day.isoformat(),
        "code_commit": night.code_commit,
        "data_digest": data_digest,
        "dvc_lock": records.digest(LOCK) if LOCK.exists() else "",
        "model_digest": model_digest,
        "recipe": recipe(params),
        "source": source_digest(params.workload.use),
        "daybreak": frame_digest(),
    }


def tags_of(version: Version, *, night: Night, params: JobSections) -> dict[str, str]:
    """Returns the lineage of a registered version."""
    return lineage(night, data_digest=version.data_digest, model_digest=version.model_digest, params=params)
