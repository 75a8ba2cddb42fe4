"""Serves one version on Vertex AI: `python -m daybreak.extensions.vertex.container` in the project's image.

Vertex passes the location of the version's files in AIP_STORAGE_URI, and the routes of requests in
AIP_HTTP_PORT, AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE. Files are checked against MODEL_DIGEST and FILES_DIGEST
before any is loaded; then the version's own code answers as it did when it was judged, in a separate process
without the container's secrets (vertex_app.py). LOG_FROM names a file that holds the URL of
the traffic log: a container's environment can be read in Vertex's registry, and a URL may hold a password.
Without LOG_FROM, exposures and outcomes are not recorded. SERVING holds the limits of params.yaml, as JSON.
"""

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uvicorn


def lay_out(variables: Mapping[str, str], root: Path) -> None:
    """Fetches the version and its arrays into `root`, and checks them.

    Raises ReleaseError if the files are not those of the model that was to be deployed, or hold a pickle.
    """
    import fsspec

    from daybreak.registry import carried_code
    from daybreak.storage.bucket import WHOLE, BucketFolder, options

    uri = variables["AIP_STORAGE_URI"]
    files, folder = fsspec.core.url_to_fs(uri, **options(uri))
    files.get(f"{folder}/", f"{root / 'version'}/", recursive=True)
    (root / "version" / WHOLE).unlink(missing_ok=True)  # written beside the version's files by the bucket
    model_digest, files_digest = variables["MODEL_DIGEST"], variables["FILES_DIGEST"]
    carried_code.verify(root / "version", model_digest=model_digest, files_digest=files_digest, uri=uri)
    if variables.get("ARRAYS"):
        BucketFolder(url=variables["ARRAYS_BUCKET"]).bring_thing(variables["ARRAYS"], root / "arrays")


def config(app: Any, variables: Mapping[str, str]) -> "uvicorn.Config":
    """Returns how the app is served: by the router's limits of connections, but for those of an address.

    All that is asked of a container comes from Vertex's own front.
    """
    from daybreak.extensions.router import server
    from daybreak.extensions.router.connections import MAX_CONNECTIONS
    from daybreak.extensions.vertex.vertex_app import params_of

    limits = params_of(variables).model_copy(update={"max_connections_per_address": MAX_CONNECTIONS})
    return server.config(app, limits)


def main() -> None:
    """Fetches the version and serves it."""
    variables = os.environ
    root = Path(tempfile.mkdtemp(prefix="version-"))
    lay_out(variables, root)
    import uvicorn

    from daybreak.extensions.router.server import listen
    from daybreak.extensions.vertex.vertex_app import app
    from daybreak.storage.traffic_log import read_url

    host = variables.get("SERVE_HOST", "0.0.0.0")  # requests come from outside of the container
    port = int(variables.get("AIP_HTTP_PORT", "8080"))
    log = read_url(variables["LOG_FROM"]) if variables.get("LOG_FROM") else ""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    served = config(app(root, variables, log=log), variables)
    uvicorn.Server(served).run(sockets=[listen(host, port)])


if __name__ == "__main__":
    main()
