"""What was a version made of? Its recipe, and the digests that tie it to data, code and night.

A recipe is what decides the model apart from the data: the workload's import path and arguments, its
source files, and how it is trained. A challenger of the champion's recipe is a refresh.
"""

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from pipeline import records
from pipeline.errors import ParamsError
from pipeline.params import Params
from pipeline.records import Night, Version

LOCK = Path("dvc.lock")


def recipe(params: Params) -> str:
    """Digest of the workload (import path, arguments, source files) and of `train`.

    What changes how it is trained but not what comes out, such as the checkpoint interval, is left out.
    """
    train = params.train.model_dump_json(exclude={"checkpoint_every_s", "num_workers"})
    plug = params.workload.model_dump_json()
    code = [records.digest(path) for path in source_files(params.workload.use.partition(":")[0])]
    return hashlib.md5("\n".join((plug, train, *code)).encode(), usedforsecurity=False).hexdigest()


def source_files(module: str) -> list[Path]:
    """Files of a module and of what it imports from its own package, none of which is run.

    Raises ParamsError where there is no such module.
    """
    package = module.rpartition(".")[0]
    found: dict[str, Path] = {}
    asked = [module]
    while asked:
        name = asked.pop()
        path = None if name in found else _file_of(name)
        if path is None:
            continue
        found[name] = path
        if package:  # the module right below the package; asking for more would run it
            depth = package.count(".") + 2
            names = {".".join(name.split(".")[:depth]) for name in _imports(path)}
            asked += sorted(name for name in names if name.startswith(f"{package}."))
    if not found:
        raise ParamsError(f"workload: module {module} is not found; name one that python can import here")
    return [found[name] for name in sorted(found)]


def _file_of(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _imports(path: Path) -> Iterator[str]:
    """Absolute names that a file imports, among them some that are no modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def lineage(night: Night, *, data_digest: str, model_digest: str, params: Params) -> dict[str, str]:
    """What a version was made of, as the tags it gets in MLflow and in the ledger."""
    return {
        "night": night.id,
        "day": night.day.isoformat(),
        "code_commit": night.code_commit,
        "data_digest": data_digest,
        "dvc_lock": records.digest(LOCK) if LOCK.exists() else "",
        "model_digest": model_digest,
        "recipe": recipe(params),
    }


def tags_of(version: Version, *, night: Night, params: Params) -> dict[str, str]:
    """The lineage of a registered version."""
    return lineage(night, data_digest=version.data_digest, model_digest=version.model_digest, params=params)
