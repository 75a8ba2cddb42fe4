"""What answers on Vertex AI? `python -m pipeline.release.container` in the project's image, one version each.

Vertex says by AIP_STORAGE_URI where the files of the version are, and by AIP_HTTP_PORT, AIP_HEALTH_ROUTE and
AIP_PREDICT_ROUTE how it wants to ask. The files are held against MODEL_DIGEST before anything of them is
loaded, then the program starts itself anew with the code that the version carries, so that it answers as it
did when it was judged. A request is

    {"instances": [{"user": "17850", "top": 10}]}   ->   {"predictions": [{"items": [...], "known": true}]}

for a workload that recommends (pipeline/workload.py), from the arrays of the version's own night. Of any
workload, instances {"sample": 3} name samples of the arrays' test split, and predictions are their scores.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

TOP = 20  # items, where none are asked for
MAX_BYTES = 1_500_000  # of a request: Vertex's own limit
MAX_INSTANCES = 1_000


def lay_out(told: Mapping[str, str], root: Path) -> None:
    """Fetch the version and its arrays, and check them.

    Raises ReleaseError where the files are not of the model that was to be deployed, or hold a pickle.
    """
    import fsspec

    from pipeline.backends.luggage import Depot, options
    from pipeline.release import packaging

    uri = told["AIP_STORAGE_URI"]
    files, folder = fsspec.core.url_to_fs(uri, **options(uri))
    files.get(f"{folder}/", f"{root / 'version'}/", recursive=True)
    packaging.checked(root / "version", told["MODEL_DIGEST"], uri=uri)
    if told.get("ARRAYS"):
        Depot(url=told["ARRAYS_BUCKET"]).bring_thing(told["ARRAYS"], root / "arrays")


class Answers:
    """A loaded version, and the arrays that it answers from."""

    def __init__(self, root: Path) -> None:
        from pipeline.params import Plug
        from pipeline.release.evaluator import load_model

        folder = root / "version" / "artifacts" / "model"
        facts = json.loads((folder / "model.json").read_text())
        self.workload: Any = Plug(use=facts["workload"], **facts["arguments"]).make()
        self.model = load_model(self.workload, folder)
        self.arrays = root / "arrays"

    @cached_property
    def tested(self) -> Any:
        """The samples that were held out."""
        return self.workload.dataset(self.arrays, "test")

    @cached_property
    def known(self) -> Any:
        """All that is known by now."""
        return self.workload.dataset(self.arrays, "serve")

    def predict(self, instances: Sequence[Mapping[str, Any]]) -> list[Any]:
        """A prediction for each instance; KeyError, TypeError or ValueError where one makes no sense."""
        if instances and "sample" in instances[0]:
            return self._scores([int(one["sample"]) for one in instances])
        if not hasattr(self.workload, "recommend"):
            raise ValueError(f"{type(self.workload).__qualname__} scores samples only")
        users = [str(one["user"]) for one in instances]
        tops = [int(one.get("top", TOP)) for one in instances]
        most = max(tops, default=TOP)
        popular = self.workload.popular(self.known, most)
        found = self.workload.recommend(self.model, self.known, users, most)
        return [
            {"items": list(items or popular)[:top], "known": bool(items)}
            for items, top in zip(found, tops, strict=True)
        ]

    def _scores(self, numbers: list[int]) -> list[Any]:
        import torch

        from pipeline.release.evaluator import batch_of, placed

        if not all(0 <= number < len(self.tested) for number in numbers):
            raise ValueError(f"samples are numbered from 0 to {len(self.tested) - 1}")
        with torch.inference_mode():
            batch = placed(batch_of(self.tested, numbers), self.model)
            scores: list[Any] = self.workload.score(self.model, batch).cpu().tolist()
        return scores


def app(answers: Answers, *, health: str, predict: str) -> Any:
    """The two routes, for a server of ASGI."""
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

    made = FastAPI(openapi_url=None)

    async def well(_: Request) -> Response:
        return JSONResponse({"version": os.environ.get("MODEL_VERSION", "")})

    async def asked(request: Request) -> Response:
        text = b""
        async for chunk in request.stream():
            text += chunk
            if len(text) > MAX_BYTES:
                return JSONResponse({"error": f"a request is of at most {MAX_BYTES:,} bytes"}, 413)
        try:
            instances = json.loads(text)["instances"]
            if len(instances) > MAX_INSTANCES:
                raise ValueError(
                    f"{len(instances):,} instances, at most {MAX_INSTANCES:,} are answered at once"
                )
            found = await asyncio.to_thread(answers.predict, instances)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return JSONResponse({"error": f"{told}; look at docs/vertex.md for what is understood"}, 400)
        return JSONResponse({"predictions": found})

    made.add_route(health, well, methods=["GET"])
    made.add_route(predict, asked, methods=["POST"])
    return made


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

    made = app(
        Answers(Path(words[1])),
        health=told.get("AIP_HEALTH_ROUTE", "/health"),
        predict=told.get("AIP_PREDICT_ROUTE", "/predict"),
    )
    host = told.get("SERVE_HOST", "0.0.0.0")  # the service asks from outside of the container
    uvicorn.run(made, host=host, port=int(told.get("AIP_HTTP_PORT", "8080")), log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
