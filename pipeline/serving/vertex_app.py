"""Serves a version on Vertex AI with the router's own answers, a list of instances at a time.

    {"instances": [{"user": "17850", "top": 10}]}
        ->  {"predictions": [{"items": [...], "exposure": ID, "version": 8}]}
    {"instances": [{"exposure": ID, "items": ["22423"]}]}
        ->  {"predictions": [{"kept": true}]}

It is the router of `python -m pipeline serve` with one version, over the arrays of that version's own night;
an instance is the body of a user's request there, and the endpoint has drawn which version answers it
(pipeline/serving/deployed.py). Without a log there are no exposures and no outcomes. A version that predicts
rows takes these as instances, of any units, since the endpoint draws by request; they are one exposure:

    {"instances": [{"ts": "2025-01-31T09:30:00", "amount": 12.5}]}
        ->  {"predictions": [{"prediction": 0.02, "exposure": ID, "version": 8}]}
    {"instances": [{"exposure": ID, "labels": [0]}]}
        ->  {"predictions": [{"kept": true}]}

With any other workload, instances {"sample": 3} name samples of the arrays' test split, and predictions are
their scores.
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
from pipeline.registry.row_packaging import read_example
from pipeline.registry.weights import batch_of, load_model, load_rows, placed
from pipeline.serving.answers import Answers, Predictor
from pipeline.serving.deployed import Deployed
from pipeline.serving.limits import Limits
from pipeline.serving.router import Router, read, sentence
from pipeline.storage.traffic_log import Log, open_log
from pipeline.workloads.served_rows import serves_rows

MAX_BYTES = 1_500_000  # of a request, Vertex's own limit
MAX_INSTANCES = 1_000
BODY_S = 10.0  # longest time to receive a body


class Loaded:
    """A version, and the arrays that it answers from."""

    def __init__(self, root: Path) -> None:
        folder = root / "version" / "artifacts" / "model"
        facts = json.loads((folder / "model.json").read_text())
        self.workload: Any = Plug(use=facts["workload"], **facts["arguments"]).make()
        self.rows = load_rows(self.workload, folder.parent) if serves_rows(self.workload) else None
        self.model = self.rows.model if self.rows else load_model(self.workload, folder)
        self.example = read_example(root / "version")
        self.arrays = root / "arrays"

    @cached_property
    def tested(self) -> Any:
        """Returns the samples that were held out."""
        return self.workload.dataset(self.arrays, "test")

    def deployed(
        self, log: Log | None, variables: Mapping[str, str], *, top: int, keep: int
    ) -> Deployed | None:
        """Returns the version for a router; None if it neither recommends nor predicts rows."""
        number, endpoint = int(variables.get("MODEL_VERSION", 0)), variables.get("ENDPOINT", "")
        if self.rows:
            predictor = Predictor(number, self.rows)
            predictor.warm(self.example)
            return Deployed(predictor, log, endpoint=endpoint)
        if not hasattr(self.workload, "recommend") or not self.arrays.exists():
            return None
        answers = Answers(
            number, night=variables.get("NIGHT", ""), workload=self.workload,
            model=self.model, samples=self.workload.dataset(self.arrays, "serve"), top=top, keep=keep,
        )  # fmt: skip
        return Deployed(answers, log, endpoint=endpoint)

    def scores(self, numbers: Sequence[int]) -> list[float]:
        """Returns the scores of samples; ValueError if there is no such sample."""
        if not all(0 <= number < len(self.tested) for number in numbers):
            raise ValueError(f"samples are numbered from 0 to {len(self.tested) - 1}")
        with torch.inference_mode():
            batch = placed(batch_of(self.tested, numbers), self.model)
            scores: list[float] = self.workload.score(self.model, batch).cpu().tolist()
        return scores


class Predictions:
    """Answers the requests of Vertex; created inside the event loop that serves."""

    def __init__(self, loaded: Loaded, variables: Mapping[str, str], *, log: str) -> None:
        params, self.loaded = ServingParams.model_validate_json(variables.get("SERVING", "{}")), loaded
        traffic_log = open_log(log) if log else None
        self.deployed = loaded.deployed(traffic_log, variables, top=params.max_top, keep=params.keep_users)
        self.router = Router(traffic_log, self.deployed, params) if self.deployed else None

    async def predict(self, instances: Any) -> list[Any]:
        """Returns a prediction for each instance; among several, {"error": ...} for one that fails."""
        if not isinstance(instances, list) or not all(isinstance(one, dict) for one in instances):
            raise HTTPException(400, 'instances are missing; send {"instances": [{"user": "17850"}]}')
        if len(instances) > MAX_INSTANCES:
            raise HTTPException(
                400, f"{len(instances):,} instances, at most {MAX_INSTANCES:,} are answered at once"
            )
        if (
            self.router
            and self.loaded.rows
            and not any({"exposure", "labels"} <= set(one) for one in instances)
        ):
            answer = json.loads(await self.router.predicted({"rows": instances}, one_unit=False))
            return [{**one, **answer} for one in answer.pop("predictions")]
        if not self.loaded.rows and any("sample" in one for one in instances):
            return await self._scores(instances)
        if self.router is None:
            name = type(self.loaded.workload).__qualname__
            raise HTTPException(
                400, f"{name} answers no users here: it scores samples only, or has no arrays"
            )
        router = self.router
        calls = (router.record(one) if "exposure" in one else router.recommended(one) for one in instances)
        results = await asyncio.gather(*calls, return_exceptions=True)
        predictions: list[Any] = []
        for result in results:
            if isinstance(result, str):
                predictions.append(json.loads(result))
            elif isinstance(result, HTTPException) and len(results) > 1:
                predictions.append({"error": result.detail})  # the others are answered all the same
            else:
                raise result
        return predictions

    async def _scores(self, instances: Sequence[Mapping[str, Any]]) -> list[float]:
        try:
            numbers = [int(one["sample"]) for one in instances]
            return await asyncio.to_thread(self.loaded.scores, numbers)
        except (KeyError, TypeError, ValueError) as error:
            raise HTTPException(400, f"{type(error).__name__}: {error}; name samples alone") from None


def app(root: Path, variables: Mapping[str, str], *, log: str) -> Any:
    """Returns the ASGI app with the routes that Vertex AI requests."""

    @contextlib.asynccontextmanager
    async def life(made: FastAPI) -> AsyncIterator[None]:
        made.state.predictions = predictions = Predictions(Loaded(root), variables, log=log)
        if predictions.deployed:
            await asyncio.to_thread(predictions.deployed.start)
        yield
        if predictions.router:
            await asyncio.to_thread(predictions.router.close)

    made = FastAPI(openapi_url=None, lifespan=life)

    async def health(request: Request) -> Response:
        router = made.state.predictions.router
        if router:
            state: Response = await router.health(request.receive)
            return state
        return JSONResponse({"ready": True, "champion": int(variables.get("MODEL_VERSION", 0))})

    async def metrics(request: Request) -> Response:
        router = made.state.predictions.router
        return await router.metrics(request.receive) if router else Response(status_code=404)

    async def predict(request: Request) -> Response:
        try:
            body = await read(request.receive, within_s=BODY_S)
            return JSONResponse({"predictions": await made.state.predictions.predict(body.get("instances"))})
        except HTTPException as error:
            return sentence(error)

    made.add_route(variables.get("AIP_HEALTH_ROUTE", "/health"), health, methods=["GET"])
    made.add_route(variables.get("AIP_PREDICT_ROUTE", "/predict"), predict, methods=["POST"])
    made.add_route("/metrics", metrics, methods=["GET"])
    return Limits(made, token="", max_body_bytes=MAX_BYTES, max_requests_per_s=0)
