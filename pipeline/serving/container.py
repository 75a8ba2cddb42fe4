"""Serves one version on Vertex AI: `python -m pipeline.serving.container` in the project's image.

Vertex says by AIP_STORAGE_URI where the files of the version are, and by AIP_HTTP_PORT, AIP_HEALTH_ROUTE and
AIP_PREDICT_ROUTE how it sends requests. The files are checked against MODEL_DIGEST and FILES_DIGEST before
any of them is loaded; then the program starts itself again with the code that the version carries, so that it
answers as it did when it was judged (pipeline/serving/vertex_app.py). LOG_FROM names a file that holds the
URL of the log of serving: a container's environment can be read in Vertex's registry, and a URL may
hold a password. Without LOG_FROM, exposures and outcomes are not recorded. SERVING holds the limits of
params.yaml, as JSON.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def lay_out(variables: Mapping[str, str], root: Path) -> None:
    """Fetches the version and its arrays into `root`, checks them, and unpacks the version's code.

    Raises ReleaseError if the files are not those of the model that was to be deployed, or hold a pickle.
    """
    import fsspec

    from pipeline.registry import carried_code, packaging
    from pipeline.storage.bucket import WHOLE, BucketFolder, options

    uri = variables["AIP_STORAGE_URI"]
    files, folder = fsspec.core.url_to_fs(uri, **options(uri))
    files.get(f"{folder}/", f"{root / 'version'}/", recursive=True)
    (root / "version" / WHOLE).unlink(missing_ok=True)  # written beside the version's files by the bucket
    packaging.verify(
        root / "version",
        model_digest=variables["MODEL_DIGEST"],
        files_digest=variables.get("FILES_DIGEST", ""),
        uri=uri,
    )
    carried_code.check_inside(root / "version")
    carried_code.unpack(root / "version", root / "code")
    if variables.get("ARRAYS"):
        BucketFolder(url=variables["ARRAYS_BUCKET"]).bring_thing(variables["ARRAYS"], root / "arrays")


def main(words: Sequence[str]) -> None:
    """Fetches the version and starts itself again, or with --serve FOLDER serves the version in it."""
    variables = os.environ
    if words[:1] != ["--serve"]:
        root = Path(tempfile.mkdtemp(prefix="version-"))
        lay_out(variables, root)
        paths = [str(root / "code"), *filter(None, [variables.get("PYTHONPATH")])]
        again = [sys.executable, "-m", __spec__.name, "--serve", str(root)]
        os.execve(sys.executable, again, {**variables, "PYTHONPATH": os.pathsep.join(paths)})
    import uvicorn

    from pipeline.serving.vertex_app import app
    from pipeline.storage.traffic_log import read_url

    host = variables.get("SERVE_HOST", "0.0.0.0")  # requests come from outside of the container
    port = int(variables.get("AIP_HTTP_PORT", "8080"))
    log = read_url(variables["LOG_FROM"]) if variables.get("LOG_FROM") else ""
    uvicorn.run(app(Path(words[1]), variables, log=log), host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
