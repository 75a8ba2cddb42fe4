"""Fetches and verifies a version's files, and imports its workload from the code that it carries alone.

A version carries its code as one archive, `code/code.zip`, since MLflow stores, lists and fetches each file
by itself.

A version names its workload in model.json by an import path. Resolved by this process's own `sys.path`, that
path could name anything that is installed, and an edit of the checkout would change what an old version runs.
So the modules that a version carries are imported under a name of their own, `version_DIGEST`, and their
`import` statements of each other lead back there: several versions of one package live side by side.
"""

import atexit
import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import shutil
import sys
import tempfile
import types
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from daybreak.contract import records
from daybreak.contract.code_path import without_secrets
from daybreak.contract.errors import ParamsError, ReleaseError, without_password
from daybreak.contract.record_types import Release, Version
from daybreak.contract.sections import made_of
from daybreak.registry import confined
from daybreak.storage import artifact_files, erasures, mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.source_code import FRAME, archived_name, listed, workload_files

MODEL = Path("artifacts/model")  # in the folder of a version
CODE = Path("code")
ARCHIVE = "code.zip"  # in that folder
PICKLES = {".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".npz"}
SECRET = (".git", ".dvc/config.local", "var")  # of the home of the nights


def environment(scratch: Path) -> dict[str, str]:
    """Returns the environment for a process that runs a version's code, whose own folder is `scratch`."""
    return without_secrets() | {"HOME": str(scratch), "TMPDIR": str(scratch)}


def command(
    home: Home | None,
    target: str | Path,
    *words: str,
    scratch: Path,
    reads: Iterable[Path] = (),
) -> list[str]:
    """Returns the command of such a process (daybreak/registry/confined.py); it writes to `scratch` alone."""
    hides: list[Path] = []
    if home:  # the container of an endpoint has none
        hides, reads = [home.folder / name for name in SECRET], (*reads, home.folder / ".dvc" / "cache")
    return confined.command(target, *words, reads=reads, writes=(scratch,), hides=hides)


def facts(version: Path) -> dict[str, Any]:
    """Returns model.json of the version in this folder: its workload, arguments, last day."""
    document: dict[str, Any] = json.loads((version / MODEL / "model.json").read_text())
    return document


def check_inside(version: Path) -> None:
    """Raises ReleaseError unless the module of the version's workload is in the code that it carries."""
    use = str(facts(version)["workload"])
    path = use.partition(":")[0].replace(".", "/")
    if not {f"{path}.py", f"{path}/__init__.py"} & set(file_names(version)):
        raise ReleaseError(
            f"the version names the workload {use}, which is not in the code that it carries; "
            f"register the model again"
        )


def file_names(version: Path) -> list[str]:
    """Returns the names of the files of the version's code; ReleaseError where its archive is none."""
    try:
        with zipfile.ZipFile(version / CODE / ARCHIVE) as packed:
            return packed.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise ReleaseError(
            f"{CODE / ARCHIVE} of the version cannot be read: {error}; restore MLflow's artifacts"
        ) from None


def files_of(workload: str) -> dict[str, Path]:
    """Returns the files that a version of the workload carries, its own and Daybreak's, by their names.

    Raises ParamsError where one may be a pickle, or its name is not UTF-8.
    """
    frame = Path(__file__).parents[1]
    files = {archived_name(path, frame.parent): path for path in listed(frame)}
    if not workload.startswith(f"{FRAME}."):
        files |= workload_files(workload, tracked=False)
    for name, path in sorted(files.items()):
        if may_be_pickle(name):
            raise ParamsError(
                f"{path} may be a pickle, which loading would run, so that no version carries it; keep it as "
                f"JSON, Parquet, .npy or safetensors, or have git ignore it"
            )
    return files


def may_be_pickle(name: str) -> bool:
    """Returns whether a file of this name may be a pickle."""
    return PurePosixPath(name).suffix.lower() in PICKLES


def fetch(home: Home, uri: str, wanted: Release | Version, *, into: Path) -> Path:
    """Fetches and verifies a version's files, and returns the folder, from which they may be run.

    Raises ReleaseError where MLflow names a place that is not the home's, where files are missing, differ
    from the ledger's record, or hold a pickle, which loading would run.
    """
    if not wanted.files:
        raise ReleaseError(
            f"{uri} was registered before the ledger named the files of a version, and none is fetched that "
            f"it does not name; use the code that registered it, or begin a new home with make setup"
        )
    bring(home, location := location_of(uri), wanted, into=into)
    if not any(into.iterdir()):
        raise ReleaseError(
            f"{uri} has none of its {len(wanted.files)} files at {without_password(location)}; "
            f"restore MLflow's artifacts"
        )
    files_digest = wanted.files_digest
    if records.digest(into) != files_digest:
        files_digest = erasures.now(
            home, files_digest
        )  # rows that the version carried may have been erased since
    verify(into, model_digest=wanted.model_digest, files_digest=files_digest, uri=uri)
    return into


def bring(home: Home, location: str, wanted: Release | Version, *, into: Path) -> None:
    """Brings those files of a version that are at a location; they are not verified yet.

    Raises ReleaseError where it is not a place of the home, or a file there is larger than the ledger says.
    """
    known = mlflow_client.locations(home)
    into.mkdir(parents=True, exist_ok=True)
    artifact_files.fetch(
        known.expect_own(location),
        wanted.files,
        into=into,
        server=known.server,
        is_erased=len(erasures.forms(home, wanted.files_digest)) > 1,
    )


def location_of(uri: str) -> str:
    """Returns where MLflow's database says that the files of a model are.

    Raises ReleaseError where it does not know the model, and what the session tells of where it does not
    answer.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.models_artifact_repo import ModelsArtifactRepository
    from mlflow.store.artifact.runs_artifact_repo import RunsArtifactRepository

    try:
        if uri.startswith("models:"):
            uri = str(ModelsArtifactRepository.get_underlying_uri(uri))  # type: ignore[no-untyped-call]
        if uri.startswith("runs:"):
            uri = str(RunsArtifactRepository.get_underlying_uri(uri))
        return uri
    except MlflowException as error:
        if mlflow_client.is_of_server(error):
            raise
        message = without_password(" ".join(str(error).split()))[:200]
        raise ReleaseError(f"{uri} is not to be had: {message}; look at it in MLflow") from None


def download(uri: str, into: Path) -> Path:
    """Downloads the files of a model that a person chose, and returns their folder.

    Raises ReleaseError where that fails.
    """
    import mlflow.artifacts

    with artifact_files.told_in_a_sentence(uri):
        return Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(into)))


def verify(folder: Path, *, model_digest: str, files_digest: str, uri: str) -> None:
    """Raises ReleaseError as `fetch` does.

    Also looks for pickles in the archive of the version's code, after its digest has been verified.
    """
    if linked := sorted(path.name for path in folder.rglob("*") if path.is_symlink()):
        raise ReleaseError(f"{uri} holds {linked[0]}, a link; restore MLflow's artifacts")
    for path, expected in ((folder / MODEL, model_digest), (folder, files_digest)):
        if (digest := records.digest(path)) != expected:
            raise ReleaseError(
                f"the files of {uri} have digest {digest}, the ledger says {expected}; "
                f"restore MLflow's artifacts"
            )
    names = [path.name for path in folder.rglob("*")] + file_names(folder)
    if pickled := sorted(filter(may_be_pickle, names)):
        raise ReleaseError(f"{uri} holds {pickled[0]}, which may be a pickle; register the model again")


def pack(files: Mapping[str, Path], archive: Path) -> None:
    """Packs files by their names: the same files make the same bytes."""
    with zipfile.ZipFile(archive, "w") as packed:
        for name, path in sorted(files.items()):
            packed.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)  # without times


def unpack(version: Path, to: Path) -> None:
    """Writes the files of the version's code to a folder.

    `extractall` leaves out of a name what would lead out of the folder, and makes no links.
    """
    with zipfile.ZipFile(version / CODE / ARCHIVE) as packed:
        packed.extractall(to)


def workload_of(version: Path) -> Any:
    """Makes the workload of the version in this folder, from a copy of its code that outlives the folder.

    The files must have been verified before (`carried_code.fetch`).
    """
    check_inside(version)
    module, _, name = str(facts(version)["workload"]).partition(":")
    imported = importlib.import_module(f"{_package(version)}.{module}")
    return made_of(getattr(imported, name), facts(version)["arguments"])


def _package(version: Path) -> str:
    """Returns the package with the modules of the version; makes it at the first call for these bytes."""
    name = f"version_{records.digest(version / CODE).removesuffix('.dir')}"
    if name not in sys.modules:
        copy = Path(tempfile.mkdtemp(prefix=f"{name}-"))  # for imports, while this process lives
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        unpack(version, copy)
        sys.meta_path.insert(0, _Finder(name, copy))
        package = types.ModuleType(name)
        package.__path__ = [str(copy)]
        sys.modules[name] = package
    return name


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules below one version's package, and has them import each other there."""

    def __init__(self, package: str, folder: Path) -> None:
        tops = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"}

        def imported(
            name: str,
            globals: Mapping[str, object] | None = None,
            locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> types.ModuleType:
            top = name.partition(".")[0]
            if level or top not in tops:
                return builtins.__import__(name, globals, locals, fromlist or (), level)
            module = builtins.__import__(f"{package}.{name}", globals, locals, fromlist or (), 0)
            return module if fromlist else sys.modules[f"{package}.{top}"]

        self.package = package
        self.builtins = {**vars(builtins), "__import__": imported}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{self.package}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec and spec.origin and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(fullname, spec.origin, self.builtins)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a module with other builtins than Python's own."""

    def __init__(self, name: str, path: str, replaced: dict[str, Any]) -> None:
        super().__init__(name, path)
        self.replaced = replaced

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__builtins__"] = self.replaced
        super().exec_module(module)
