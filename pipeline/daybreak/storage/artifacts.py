"""Finds the files of versions beside MLflow's database, wherever the home lies.

MLflow keeps a URI with each experiment, run and version. With a path in the URI, a copied home would write to
the original and delete from it, and a moved home would lose all versions. So the URI is
`mlflow-artifacts:/RUN/...`, MLflow's own for files that its server keeps. Where there is no server, and the
tracking URI is a SQLite file, artifacts are in the folder `artifacts` beside that file, where the server of
`make up` looks too.

MLflow's clients outside of this package find this by the entry point in pyproject.toml.
"""

from urllib.parse import quote

from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

from daybreak.storage.locations import SCHEME, SQLITE, beside


def repository(
    artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None
) -> ArtifactRepository:
    """Returns the repository of such a URI: a folder here for a SQLite file, else the server's."""
    import mlflow

    store = tracking_uri or mlflow.get_tracking_uri()
    if not store.startswith(SQLITE):
        return MlflowArtifactsRepository(artifact_uri, tracking_uri, registry_uri)
    path = beside(store, artifact_uri)
    return LocalArtifactRepository(f"file://{quote(str(path))}", tracking_uri, registry_uri)


def register() -> None:
    """Has MLflow ask `repository` in this process, also where the package is not installed."""
    _artifact_repository_registry.register(SCHEME, repository)  # type: ignore[no-untyped-call]
