"""What answers on Vertex AI? `python -m pipeline.serving.container` in the project's image, one version each.

Vertex says by AIP_STORAGE_URI where the files of the version are, and by AIP_HTTP_PORT, AIP_HEALTH_ROUTE and
AIP_PREDICT_ROUTE how it wants to ask. The files are held against MODEL_DIGEST and FILES_DIGEST before any of
them is loaded, then the program starts itself anew with the code that the version carries, so that it answers
as it did when it was judged (pipeline/serving/vertex_app.py). LOG_FROM names a file that holds the URL of
the log of serving: what stands in a container's environment can be read in Vertex's registry, and a URL may
hold a password. Without it, nothing is kept of who met what. SERVING holds the limits of params.yaml, as
JSON.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def lay_out(told: Mapping[str, str], root: Path) -> None:
    """Fetch the version and its arrays, and check them.

    Raises ReleaseError where the files are not of the model that was to be deployed, or hold a pickle.
    """
    import fsspec

    from pipeline.registry import carried_code, packaging
    from pipeline.storage.bucket import WHOLE, BucketFolder, options

    uri = told["AIP_STORAGE_URI"]
    files, folder = fsspec.core.url_to_fs(uri, **options(uri))
    files.get(f"{folder}/", f"{root / 'version'}/", recursive=True)
    (root / "version" / WHOLE).unlink(missing_ok=True)  # written beside the version's files by the bucket
    packaging.verify(
        root / "version",
        model_digest=told["MODEL_DIGEST"],
        files_digest=told.get("FILES_DIGEST", ""),
        uri=uri,
    )
    carried_code.check_inside(root / "version")
    if told.get("ARRAYS"):
        BucketFolder(url=told["ARRAYS_BUCKET"]).bring_thing(told["ARRAYS"], root / "arrays")


def main(words: Sequence[str]) -> None:
    """Lay the version out, or with --serve FOLDER answer from it."""
    told = os.environ
    if words[:1] != ["--serve"]:
        root = Path(tempfile.mkdtemp(prefix="version-"))
        lay_out(told, root)
        paths = [str(root / "version" / "code"), *filter(None, [told.get("PYTHONPATH")])]
        again = [sys.executable, "-m", __spec__.name, "--serve", str(root)]
        os.execve(sys.executable, again, {**told, "PYTHONPATH": os.pathsep.join(paths)})
    import uvicorn

    from pipeline.serving.vertex_app import app
    from pipeline.storage.traffic_log import read_url

    host = told.get("SERVE_HOST", "0.0.0.0")  # the service asks from outside of the container
    port = int(told.get("AIP_HTTP_PORT", "8080"))
    log = read_url(told["LOG_FROM"]) if told.get("LOG_FROM") else ""
    uvicorn.run(app(Path(words[1]), told, log=log), host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
