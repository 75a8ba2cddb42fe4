"""What is left when a worker dies at any moment? The last checkpoint that was written whole.

A checkpoint is a folder `seen=N` of safetensors and JSON, never pickle. It is written under another name,
with a manifest of SHA-256 hashes, brought to disk, and renamed: it is there whole or not at all. One that
does not match its manifest is skipped. It belongs to what is learned (`identity`), and is refused by others.
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

from pipeline.contract.errors import JobError
from pipeline.contract.records import sync

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

KEEP = 2
MANIFEST, SCALARS = "manifest.json", "state.json"


@dataclass(frozen=True, kw_only=True)
class State:
    """All there is to know of a run: tensors by part ("model", "optimizer") and JSON scalars."""

    tensors: dict[str, dict[str, "Tensor"]]
    scalars: dict[str, Any] = field(default_factory=dict)


def save(folder: Path, state: State, *, seen: int, identity: str) -> Path | None:
    """Write `folder/seen=N`, remove all but the newest two, and return its path.

    A disk that is full or read-only is warned of and gives None: training goes on, the caller tries again.
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


def newest(folder: Path, *, identity: str) -> Path | None:
    """The newest checkpoint that is whole; None if there is none, JobError if it is another job's."""
    for path in reversed(_all(folder)):
        if wrong := fault(path):
            log.warning("checkpoint %s is skipped: %s", path, wrong)
            continue
        owner = scalars(path)["identity"]
        if owner != identity:
            raise JobError(
                f"checkpoint {path} belongs to job {owner[:12]}, this is {identity[:12]}: another "
                f"model, data set or seed; remove {folder} to begin anew"
            )
        return path
    return None


def take_place(fresh: Path, path: Path) -> None:
    """Let a folder that is written become a checkpoint; one that is torn goes."""
    _remove(path)
    fresh.rename(path)
    sync(path.parent)


def load(path: Path) -> State:
    """The state in a checkpoint that `newest` has found; tensors on the CPU."""
    from safetensors.torch import load_file

    tensors = {file.stem: load_file(file) for file in sorted(path.glob("*.safetensors"))}
    return State(tensors=tensors, scalars=scalars(path))


def scalars(path: Path) -> dict[str, Any]:
    """The scalars of a checkpoint: `seen`, `identity`, and what its writer put there."""
    told: dict[str, Any] = json.loads((path / SCALARS).read_text())
    return told


def take_over(folder: Path, *, identity: str) -> Path | None:
    """As `newest`, and remove torn ones and what killed writers left behind; only where no writer runs.

    A torn one further on than the newest would count as one of those to keep, in place of a good one.
    """
    for path in folder.glob(".seen=*"):
        shutil.rmtree(path, ignore_errors=True)
    found = newest(folder, identity=identity)
    for path in _all(folder):
        if found is None or path.name > found.name:
            _remove(path)
    return found


def pack(tree: Any) -> tuple[dict[str, "Tensor"], Any]:
    """A tree of dicts, lists, tensors and scalars (a torch state_dict) as named tensors and JSON."""
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
    """The inverse of `pack`."""
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
    """Tensors as safetensors takes them: on the CPU, contiguous, none sharing memory with another."""
    taken: set[int] = set()
    separated = {}
    for name, tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        separated[name] = plain.clone() if place in taken else plain
        taken.add(place)
    return separated


def write_tensors(path: Path, tensors: dict[str, "Tensor"]) -> None:
    """Write a safetensors file and bring it to disk."""
    from safetensors.torch import save_file

    save_file(separate(tensors.items()), path)
    sync(path)


def _write(folder: Path, state: State, *, seen: int, identity: str) -> None:
    for part, tensors in state.tensors.items():
        write_tensors(folder / f"{part}.safetensors", tensors)
    (folder / SCALARS).write_text(json.dumps({**state.scalars, "seen": seen, "identity": identity}))
    manifest = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))
    for name in (SCALARS, MANIFEST):
        sync(folder / name)
    sync(folder)


def fault(path: Path) -> str:
    """What is wrong with a checkpoint; empty if nothing is."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        there = {file.name for file in path.iterdir()} - {MANIFEST}
        if there != set(manifest):
            return f"it holds {', '.join(sorted(there))}, its manifest names {', '.join(sorted(manifest))}"
        changed = [name for name, told in manifest.items() if _sha256(path / name) != told]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"its manifest cannot be read: {error}"
    return f"{', '.join(changed)} does not match its hash" if changed else ""


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("seen=*"))


def _forget_old(folder: Path) -> None:
    for path in _all(folder)[:-KEEP]:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a checkpoint, whole or not at all: half of one would count as one of those to keep."""
    going = path.with_name(f".{path.name}.going")
    shutil.rmtree(going, ignore_errors=True)
    with suppress(OSError):
        path.rename(going)
    shutil.rmtree(going, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
