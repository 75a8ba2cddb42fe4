"""Writes and reads checkpoints, so that a worker that dies at any moment leaves the last whole one behind.

A checkpoint is a folder `seen=N` of safetensors and JSON, never pickle. It is written under another name,
with a manifest of SHA-256 hashes, synced to disk, and renamed: it exists whole or not at all. A checkpoint
that does not match its manifest is skipped. Each belongs to one job by what that learns (`identity`); another
job refuses it.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import JobError
from daybreak.contract.records import sync

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

KEEP = 2
MANIFEST, SCALARS = "manifest.json", "state.json"


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """The whole state of a run: tensors by part ("model", "optimizer") and JSON scalars."""

    tensors: dict[str, dict[str, "Tensor"]]
    scalars: dict[str, Any] = field(default_factory=dict)


def save(folder: Path, state: TrainingState, *, seen: int, identity: str) -> Path | None:
    """Writes `folder/seen=N`, removes all but the newest two, and returns its path.

    Where the disk is full or read-only it logs a warning and returns None: training goes on, and the caller
    tries again later.
    """
    from safetensors import SafetensorError

    path = folder / f"seen={seen:015d}"
    if path.exists() and not fault(path):  # the same state again, after a restart or at the end
        return path
    fresh = folder / f".{path.name}.{os.getpid()}"
    try:
        fresh.mkdir(parents=True, exist_ok=True)
        _write(fresh, state, seen=seen, identity=identity)
        take_place(fresh, path)
    except (OSError, SafetensorError) as error:
        log.warning("no checkpoint at %d samples: %s; going on, and trying again later", seen, error)
        shutil.rmtree(fresh, ignore_errors=True)
        return None
    _forget_old(folder)
    return path


def newest(folder: Path, *, identity: str, finite: bool = False) -> Path | None:
    """Returns the newest whole checkpoint, whose weights are all `finite` if that is asked for, or None.

    Raises JobError if it belongs to another job.
    """
    for path in reversed(_all(folder)):
        if wrong := fault(path, finite=finite):
            log.warning("checkpoint %s is skipped: %s", path, wrong)
            continue
        owner = scalars(path)["identity"]
        if owner != identity:
            raise JobError(
                f"checkpoint {path} belongs to job {owner[:12]}, this is {identity[:12]}: another "
                f"model, data set or seed; remove {folder} to start over"
            )
        return path
    return None


def take_place(fresh: Path, path: Path) -> None:
    """Renames a finished folder to its final path, replacing a torn checkpoint there."""
    _remove(path)
    fresh.rename(path)
    sync(path.parent)


def load(path: Path) -> TrainingState:
    """Returns the state in a checkpoint that `newest` returned, with tensors on the CPU."""
    from safetensors.torch import load_file

    tensors = {file.stem: load_file(file) for file in sorted(path.glob("*.safetensors"))}
    return TrainingState(tensors=tensors, scalars=scalars(path))


def scalars(path: Path) -> dict[str, Any]:
    """Returns the scalars of a checkpoint: `seen`, `identity`, and those of the state."""
    content: dict[str, Any] = json.loads((path / SCALARS).read_text())
    return content


def take_over(folder: Path, *, identity: str, finite: bool = False) -> Path | None:
    """Returns the newest valid checkpoint after removing newer, torn ones and leftovers of killed writers.

    Call it only while no writer runs. A torn checkpoint that is newer than the newest whole one would
    otherwise be kept in place of a whole one.
    """
    for path in folder.glob(".seen=*"):
        shutil.rmtree(path, ignore_errors=True)
    path_to_resume = newest(folder, identity=identity, finite=finite)
    for path in _all(folder):
        if path_to_resume is None or path.name > path_to_resume.name:
            _remove(path)
    return path_to_resume


def pack(tree: Any) -> tuple[dict[str, "Tensor"], Any]:
    """Splits a tree of dicts, lists, tensors and scalars (a torch state_dict) into named tensors and JSON."""
    tensors: dict[str, Tensor] = {}

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {"dict": [[key, walk(value)] for key, value in node.items()]}
        if isinstance(node, list | tuple):
            return {type(node).__name__: [walk(value) for value in node]}
        if hasattr(node, "storage_offset"):
            name = str(len(tensors))
            tensors[name] = node
            return {"tensor": name}
        return node

    return tensors, walk(tree)


def unpack(tensors: dict[str, "Tensor"], tree: Any) -> Any:
    """Returns the tree that `pack` split."""
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: unpack(tensors, part) for key, part in value}
    parts = [unpack(tensors, part) for part in value]
    return tuple(parts) if kind == "tuple" else parts


def separate(tensors: Iterable[tuple[str, "Tensor"]]) -> dict[str, "Tensor"]:
    """Returns tensors as safetensors takes them: on the CPU, contiguous, without shared memory."""
    taken: set[int] = set()
    separated = {}
    for name, tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        separated[name] = plain.clone() if place in taken else plain
        taken.add(place)
    return separated


def write_tensors(path: Path, tensors: dict[str, "Tensor"]) -> None:
    """Writes a safetensors file and syncs it to disk."""
    from safetensors.torch import save_file

    save_file(separate(tensors.items()), path)
    sync(path)


def _write(folder: Path, state: TrainingState, *, seen: int, identity: str) -> None:
    for part, tensors in state.tensors.items():
        write_tensors(folder / f"{part}.safetensors", tensors)
    (folder / SCALARS).write_text(json.dumps({**state.scalars, "seen": seen, "identity": identity}))
    manifest = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))
    for name in (SCALARS, MANIFEST):
        sync(folder / name)
    sync(folder)


def fault(path: Path, *, finite: bool = False) -> str:
    """Returns what is wrong with a checkpoint, or "" if nothing is.

    With `finite`, a whole one is wrong, too, where a weight of its model is not finite.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        there = {file.name for file in path.iterdir()} - {MANIFEST}
        if there != set(manifest):
            return f"it holds {', '.join(sorted(there))}, its manifest names {', '.join(sorted(manifest))}"
        changed = [name for name, digest in manifest.items() if _sha256(path / name) != digest]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"its manifest cannot be read: {error}"
    if changed:
        return f"{', '.join(changed)} does not match its hash"
    return _not_finite(path) if finite else ""


def _not_finite(path: Path) -> str:
    """Returns which weight is not finite, or "". Buffers such as masks may hold infinities."""
    from safetensors import safe_open

    with safe_open(path / "model.safetensors", framework="pt") as tensors:
        for name in scalars(path).get("parameters", tensors.keys()):
            if not tensors.get_tensor(name).isfinite().all():
                return f"its weight {name} is not finite"
    return ""


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("seen=*"))


def _forget_old(folder: Path) -> None:
    for path in _all(folder)[:-KEEP]:
        _remove(path)


def _remove(path: Path) -> None:
    """Removes a checkpoint atomically, since half a checkpoint would count among those to keep."""
    going = path.with_name(f".{path.name}.going")
    shutil.rmtree(going, ignore_errors=True)
    with suppress(OSError):
        path.rename(going)
    shutil.rmtree(going, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
