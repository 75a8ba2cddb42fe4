"""What does a version answer on Vertex AI? The router's own answers, a list of instances at a time.

    {"instances": [{"user": "17850", "top": 10}]}
        ->  {"predictions": [{"items": [...], "exposure": ID, "version": 8}]}
    {"instances": [{"exposure": ID, "items": ["22423"]}]}
        ->  {"predictions": [{"kept": true}]}

It is the router of `python -m pipeline serve` with one version, over the arrays of that version's own night;
an instance is what a user's request brings there, and whose version it meets, the endpoint has drawn
(pipeline/serving/deployed.py). Without a log there are no exposures, and no outcomes. Of any workload,
instances {"sample": 3} name samples of the arrays' test split, and predictions are their scores.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from pipeline.contract.params import Plug, ServingParams
from pipeline.registry.weights import batch_of, load_model, placed
from pipeline.serving.answers import Answers
from pipeline.serving.deployed import Deployed
from pipeline.serving.limits import Limits
from pipeline.serving.router import Router, read, sentence
from pipeline.storage.traffic_log import Log, open_log

MAX_BYTES = 1_500_000  # of a request: Vertex's own limit
MAX_INSTANCES = 1_000
BODY_S = 10.0  # that a body may take to come


class Loaded:
    """A version, and the arrays that it answers from."""

    def __init__(self, root: Path) -> None:
        folder = root / "version" / "artifacts" / "model"
        facts = json.loads((folder / "model.json").read_text())
        self.workload: Any = Plug(use=facts["workload"], **facts["arguments"]).make()
        self.model = load_model(self.workload, folder)
        self.arrays = root / "arrays"

    @cached_property
    def tested(self) -> Any:
        """The samples that were held out."""
        return self.workload.dataset(self.arrays, "test")

    def keeper(self, kept: Log | None, told: Mapping[str, str], *, top: int, keep: int) -> Deployed | None:
        """The version for a router; None where it cannot recommend."""
        if not hasattr(self.workload, "recommend") or not self.arrays.exists():
            return None
        answers = Answers(
            int(told.get("MODEL_VERSION", 0)), night=told.get("NIGHT", ""), workload=self.workload,
            model=self.model, samples=self.workload.dataset(self.arrays, "serve"), top=top, keep=keep,
        )  # fmt: skip
        return Deployed(answers, kept, endpoint=told.get("ENDPOINT", ""))

    def scores(self, numbers: Sequence[int]) -> list[float]:
        """Scores of samples; ValueError where there is no such sample."""
        if not all(0 <= number < len(self.tested) for number in numbers):
            raise ValueError(f"samples are numbered from 0 to {len(self.tested) - 1}")
        with torch.inference_mode():
            batch = placed(batch_of(self.tested, numbers), self.model)
            scores: list[float] = self.workload.score(self.model, batch).cpu().tolist()
        return scores


class Predictions:
    """What Vertex asks for. Made inside the event loop that serves."""

    def __init__(self, loaded: Loaded, told: Mapping[str, str], *, log: str) -> None:
        params, self.loaded = ServingParams.model_validate_json(told.get("SERVING", "{}")), loaded
        kept = open_log(log) if log else None
        self.keeper = loaded.keeper(kept, told, top=params.max_top, keep=params.keep_users)
        self.router = Router(kept, self.keeper, params) if self.keeper else None

    async def predict(self, instances: Any) -> list[Any]:
        """A prediction for each instance; of several, {"error": ...} for one that cannot be answered."""
        if not isinstance(instances, list) or not all(isinstance(one, dict) for one in instances):
            raise HTTPException(400, 'instances are missing; send {"instances": [{"user": "17850"}]}')
        if len(instances) > MAX_INSTANCES:
            told = f"{len(instances):,} instances, at most {MAX_INSTANCES:,} are answered at once"
            raise HTTPException(400, told)
        if any("sample" in one for one in instances):
            return await self._scores(instances)
        if self.router is None:
            name = type(self.loaded.workload).__qualname__
            raise HTTPException(
                400, f"{name} answers no users here: it scores samples only, or has no arrays"
            )
        router = self.router
        calls = (router.kept(one) if "exposure" in one else router.recommended(one) for one in instances)
        found = await asyncio.gather(*calls, return_exceptions=True)
        predictions: list[Any] = []
        for one in found:
            if isinstance(one, str):
                predictions.append(json.loads(one))
            elif isinstance(one, HTTPException) and len(found) > 1:
                predictions.append({"error": one.detail})  # the others are answered all the same
            else:
                raise one
        return predictions

    async def _scores(self, instances: Sequence[Mapping[str, Any]]) -> list[float]:
        try:
            numbers = [int(one["sample"]) for one in instances]
            return await asyncio.to_thread(self.loaded.scores, numbers)
        except (KeyError, TypeError, ValueError) as error:
            raise HTTPException(400, f"{type(error).__name__}: {error}; name samples alone") from None


def app(root: Path, told: Mapping[str, str], *, log: str) -> Any:
    """The routes that Vertex AI asks, for a server of ASGI."""

    @contextlib.asynccontextmanager
    async def life(made: FastAPI) -> AsyncIterator[None]:
        made.state.predictions = predictions = Predictions(Loaded(root), told, log=log)
        if predictions.keeper:
            await asyncio.to_thread(predictions.keeper.start)
        yield
        if predictions.router:
            await asyncio.to_thread(predictions.router.close)

    made = FastAPI(openapi_url=None, lifespan=life)

    async def well(request: Request) -> Response:
        router = made.state.predictions.router
        if router:
            state: Response = await router.health(request.receive)
            return state
        return JSONResponse({"ready": True, "champion": int(told.get("MODEL_VERSION", 0))})

    async def metrics(request: Request) -> Response:
        router = made.state.predictions.router
        return await router.metrics(request.receive) if router else Response(status_code=404)

    async def asked(request: Request) -> Response:
        try:
            body = await read(request.receive, within_s=BODY_S)
            return JSONResponse({"predictions": await made.state.predictions.predict(body.get("instances"))})
        except HTTPException as error:
            return sentence(error)

    made.add_route(told.get("AIP_HEALTH_ROUTE", "/health"), well, methods=["GET"])
    made.add_route(told.get("AIP_PREDICT_ROUTE", "/predict"), asked, methods=["POST"])
    made.add_route("/metrics", metrics, methods=["GET"])
    return Limits(made, token="", max_body_bytes=MAX_BYTES, max_requests_per_s=0)
