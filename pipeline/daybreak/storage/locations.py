"""Says which locations of MLflow's artifacts are a home's own; no other is asked for anything.

MLflow follows the location that its database has of a version: any host of `mlflow-artifacts://HOST/` or
`http://HOST/` is sent the account of the tracking server, any bucket is opened with this machine's account,
and any folder is read, or deleted. Whoever may write to MLflow may write it. So a location is used only if it
is one of these, or below it:

    the tracking server         mlflow-artifacts:/..., which names no host, or the server's own address
    the home                    var/artifacts, or the folder beside the SQLite file of MLflow
    what a person names         $MLFLOW_ARTIFACTS_DESTINATION, `register.artifacts` in params.yaml
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import url2pathname

from daybreak.contract.errors import ReleaseError, without_password

SCHEME = "mlflow-artifacts"  # of what MLflow's server keeps, or the folder beside its SQLite file
SQLITE = "sqlite:///"
API = "/api/2.0/mlflow-artifacts/"  # of the server that keeps artifacts
OF_HTTP = ("http", "https")
OF_DATABASE = ("models", "runs")  # which MLflow resolves by its database, to anything
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Locations:
    """The locations that are a home's own."""

    server: str  # URI of the tracking store
    roots: tuple[str, ...]  # folders, and URLs of buckets

    def expect_own(self, location: str, *, run_id: str = "") -> str:
        """Returns a location if it is the home's; raises ReleaseError if it is not.

        With `run_id`, as before files are changed or deleted, it is to be among the artifacts of that run.
        """
        is_own = self._is_served(location) or any(_is_below(location, root) for root in self.roots)
        if not is_own or _leads_up(location):
            known = ", ".join(map(without_password, (self.server, *self.roots)))
            raise _refusal(location, f"which is at none of the places of this home ({known})")
        if run_id and f"/{run_id}/artifacts/" not in f"{location}/":
            raise _refusal(location, f"which is not of the run {run_id} that the ledger names")
        return location

    def expect_known_host(self, location: str) -> str:
        """Returns a location that a person chose; ReleaseError if its host would get another's account."""
        if urlsplit(location).scheme in (SCHEME, *OF_HTTP, *OF_DATABASE) and not self._is_served(location):
            raise _refusal(location, f"which is not at {without_password(self.server)}")
        return location

    def _is_served(self, location: str) -> bool:
        """Returns whether the tracking server keeps what is there, or the folder beside its file does."""
        at, server = urlsplit(location), urlsplit(self.server)
        if self.server.startswith(SQLITE):
            top, path = beside(self.server), folder_of(location)
            if at.scheme == SCHEME and not at.netloc:
                path = beside(self.server, location)
            return path is not None and _is_in(path, top)
        return server.scheme in OF_HTTP and not _leads_up(location) and _is_of_server(at, server)


def _refusal(location: str, why: str) -> ReleaseError:
    return ReleaseError(
        f"MLflow names {without_password(location)} as a place of artifacts, {why}, and nothing was asked "
        f"there; bring MLflow's database back from a backup, or name the place, if it is yours, in "
        f"register.artifacts"
    )


def _is_of_server(at: SplitResult, server: SplitResult) -> bool:
    if at.query or at.fragment:
        return False
    if at.scheme == SCHEME and not at.netloc:
        return True
    try:  # what MLflow keeps is asked for by the scheme of the server
        ports = {one.port or PORTS[server.scheme] for one in (at, server)}
    except ValueError:  # no number
        return False
    if "@" in at.netloc or at.hostname != server.hostname or len(ports) > 1:
        return False
    is_below = at.path.startswith(f"{server.path.rstrip('/')}{API}")
    return at.scheme == SCHEME or (at.scheme == server.scheme and is_below)


def _is_below(location: str, root: str) -> bool:
    if (top := folder_of(root)) is not None:
        path = folder_of(location)
        return path is not None and _is_in(path, top)
    at, bucket = urlsplit(location), urlsplit(root)
    is_same = (at.scheme, at.netloc, at.query, at.fragment) == (bucket.scheme, bucket.netloc, "", "")
    return is_same and f"{at.path}/".startswith(f"{bucket.path.rstrip('/')}/")


def _leads_up(location: str) -> bool:
    """Returns whether a location has a part that leads out of its folder, also for who decodes it twice."""
    return ".." in unquote(unquote(location)).replace("\\", "/").split("/")


def _is_in(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def folder_of(location: str) -> Path | None:
    """Returns the folder of this machine that a location is; None where it is none."""
    at = urlsplit(location)
    if at.scheme == "file":
        return Path(url2pathname(at.path)) if at.netloc in ("", "localhost") else None
    return None if at.scheme or not location else Path(location)


def beside(server: str, location: str = "") -> Path:
    """Returns the folder beside MLflow's SQLite file that has artifacts, or what a location is there."""
    folder = Path(server.removeprefix(SQLITE)).parent / "artifacts"
    return folder / unquote(urlsplit(location).path).lstrip("/")
