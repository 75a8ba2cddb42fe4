"""Records the origin of a version: the recipe, and the digests of data, code and night.

A recipe is what decides the model apart from the data: the workload's import path and arguments, its
source files, and how it is trained. A challenger of the champion's recipe is a refresh.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.record_types import Champion, Ingredients, Night, Version
from daybreak.contract.sections import TrainParams, WorkloadPlug
from daybreak.storage import branch, ledger, ledger_notes
from daybreak.storage.home import Home
from daybreak.storage.source_code import file_digests, frame_digest, source_digest

LOCK = Path("dvc.lock")
ADOPTED = "adopted_from"  # URI of a model that a night did not train, among the lineage of its version
# What a version is found and verified by, as tags; its ledger entry and the records of its run have the rest.
TAGS = ("night", "model_digest", "recipe", ADOPTED)
MOST_NAMED = 6  # changes, in a sentence
ADDED: tuple[str, ...] = ()  # keys of `train` that a release after 0.1.0 added


def recipe(workload: WorkloadPlug, train: TrainParams) -> str:
    """Returns the digest of the workload (import path, arguments, source files) and of `train`.

    Parameters that do not change the model, such as the checkpoint interval, are left out; so is the order in
    which params.yaml has the arguments.
    """
    ordered = WorkloadPlug(use=workload.use, **dict(sorted((workload.model_extra or {}).items())))
    parts = (ordered.model_dump_json(), _train(train), source_digest(workload.use))
    return hashlib.md5("\n".join(parts).encode(), usedforsecurity=False).hexdigest()


def ingredients(workload: WorkloadPlug, train: TrainParams) -> Ingredients:
    """Returns what tonight's recipe is made of."""
    plug = workload.model_dump(mode="json")
    values = {f"workload.{key}": value for key, value in plug.items()}
    values |= {f"train.{key}": value for key, value in json.loads(_train(train)).items()}
    return Ingredients(files=file_digests(workload.use), values=values)


def is_refresh(champion: Champion | None, workload: WorkloadPlug, train: TrainParams) -> bool:
    """Returns whether tonight's recipe is the one that the champion was made by."""
    return champion is not None and champion.lineage.get("recipe") == recipe(workload, train)


def what_changed(home: Home, champion: Champion, workload: WorkloadPlug, train: TrainParams) -> str:
    """Returns a clause on what makes tonight's recipe another, and how to declare that it learns the same."""
    if adopted := champion.lineage.get(ADOPTED):
        return (
            f"version {champion.version} was adopted from {adopted}, so that tonight has to be proven "
            f'better; if no worse is enough, declare it: daybreak same-recipe --reason "why it is"'
        )
    (made,) = ledger.promotions(home, champion.version)
    before = branch.read_at(home, made.commit, Ingredients) if made else None
    if before is None:
        changes = "what that was made of is not on record"
    else:
        changes = (
            ", ".join(differences(before, ingredients(workload, train))) or "Daybreak itself has changed"
        )
    return (
        f"the recipe is not that of version {champion.version} ({changes}); if it learns the same, declare "
        f'it: daybreak same-recipe --reason "why it does"'
    )


def differences(before: Ingredients, now: Ingredients) -> list[str]:
    """Returns what differs between two recipes, a clause each, and how many more there are."""
    said = [f"{name} removed" for name in sorted(before.files.keys() - now.files.keys())]
    said += [
        f"{name} {'edited' if name in before.files else 'added'}"
        for name, digest in sorted(now.files.items())
        if before.files.get(name) != digest
    ]
    said += [
        f"{key} {before.values.get(key, 'unset')} -> {now.values.get(key, 'unset')}"
        for key in sorted({*before.values, *now.values})
        if before.values.get(key) != now.values.get(key)
    ]
    more = [f"{len(said) - MOST_NAMED} more"] if len(said) > MOST_NAMED else []
    return [*said[:MOST_NAMED], *more]


def is_declared_equal(
    home: Home, champion: Champion | None, workload: WorkloadPlug, train: TrainParams
) -> bool:
    """Returns whether a person declared tonight's recipe to be the one that the champion was made by."""
    if champion is None:
        return False
    tonight = recipe(workload, train)
    notes = ledger_notes.read(home, branch.expect_signed(home))
    return any(note.recipe == tonight and champion.version in note.versions for note in notes)


def _train(params: TrainParams) -> str:
    """Returns the part of `train` that decides the model: no checkpoint interval, no number of workers.

    Keys in `ADDED` are left out at their defaults, so that a release that adds one changes no recipe.
    """
    fields = type(params).model_fields
    added = {name for name in ADDED if getattr(params, name) == fields[name].default}
    return params.model_dump_json(exclude={"checkpoint_every_s", "num_workers"} | added)


def lineage(
    night: Night, *, data_digest: str, model_digest: str, workload: WorkloadPlug, train: TrainParams
) -> dict[str, str]:
    """Returns what a version was made of, as the ledger keeps it."""
    return {
        "night": night.id,
        "day": night.day.isoformat(),
        "code_commit": night.code_commit,
        "data_digest": data_digest,
        "dvc_lock": records.digest(LOCK) if LOCK.exists() else "",
        "model_digest": model_digest,
        "recipe": recipe(workload, train),
        "source": source_digest(workload.use),
        "daybreak": frame_digest(),
    }


def tags(made_of: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of a version's lineage that its tags in MLflow have."""
    return {name: made_of[name] for name in TAGS if made_of.get(name)}


def lineage_of(
    version: Version, *, night: Night, workload: WorkloadPlug, train: TrainParams
) -> dict[str, str]:
    """Returns the lineage of a registered version; one that was adopted has no recipe of this home."""
    made_of = lineage(
        night,
        data_digest=version.data_digest,
        model_digest=version.model_digest,
        workload=workload,
        train=train,
    )
    own = {"recipe": "", "source": "", ADOPTED: version.adopted} if version.adopted else {}
    return made_of | own
