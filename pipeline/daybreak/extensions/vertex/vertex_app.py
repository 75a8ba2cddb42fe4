"""Serves a version on Vertex AI with the router's own answers, a list of instances at a time.

    {"instances": [{"user": "17850", "top": 10}]}
        ->  {"predictions": [{"items": [...], "exposure": ID, "version": 8}]}
    {"instances": [{"exposure": ID, "user": "17850", "items": ["22423"]}]}
        ->  {"predictions": [{"kept": true}]}

It is the router of `daybreak serve` with one version, over the arrays of that version's own night; an
instance is the body of a user's request, for which the endpoint has drawn a version (`router/deployed.py`).
Without a log there are no exposures and no outcomes. A version that predicts rows takes rows of any units as
instances, since the endpoint draws by request; all rows are one exposure:

    {"instances": [{"ts": "2025-01-31T09:30:00", "amount": 12.5}]}
        ->  {"predictions": [{"prediction": 0.02, "exposure": ID, "version": 8}]}
    {"instances": [{"exposure": ID, "labels": [0]}]}
        ->  {"predictions": [{"kept": true}]}

With any other workload, instances {"sample": 3} name samples of the arrays' test split, and predictions are
their scores. The version runs in a process of its own, without the secrets of the container.
"""

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from daybreak.extensions.router.deployed import Deployed
from daybreak.extensions.router.limits import RequestLimiter
from daybreak.extensions.router.loading import served
from daybreak.extensions.router.router import Router, error_response, read
from daybreak.extensions.router.settings import RouterParams
from daybreak.registry.host import NoAnswer
from daybreak.serving.recorded import case_of
from daybreak.serving.version_process import VersionProcess, answer_s
from daybreak.storage.traffic_log import Log, open_log

MAX_BYTES = 1_500_000  # of a request, Vertex's own limit
MAX_INSTANCES = 1_000
NOT_FINITE = "the version's score of this sample is not a finite number"
BODY_S = 10.0  # longest time to receive a body


class Loaded:
    """A version, in a process of its own, and the arrays that it answers from."""

    def __init__(self, root: Path, *, params: RouterParams, number: int = 0) -> None:
        arrays = root / "arrays"
        case = case_of(root / "version", arrays if arrays.exists() else None, online=False)
        self._params, self.number = params, number
        self.process = VersionProcess(number, case, answer_s=answer_s(params.timeout_s))
        self.answers = str(self.process.about.get("answers"))

    def deployed(self, log: Log | None, variables: Mapping[str, str]) -> Deployed | None:
        """Returns the version for a router; None if it neither recommends nor predicts rows."""
        if self.answers == "samples":
            return None
        answers = served(
            self.process,
            self.number,
            night=variables.get("NIGHT", ""),
            top=self._params.max_top,
            keep=self._params.keep_users,
        )
        return Deployed(answers, log, endpoint=variables.get("ENDPOINT", ""))

    def scores(self, numbers: Sequence[int]) -> list[float]:
        """Returns the scores of samples; NoAnswer if there is no such sample."""
        scores = self.process.ask("score", samples=list(numbers)).get("scores")
        if not isinstance(scores, list) or not all(isinstance(score, float) for score in scores):
            raise NoAnswer(f"it has {scores!r:.50} where a list of numbers is due")
        return scores


def params_of(variables: Mapping[str, str]) -> RouterParams:
    """Returns the limits of params.yaml that the container was given."""
    return RouterParams.model_validate_json(variables.get("SERVING", "{}"))


class VertexReplies:
    """Answers the requests of Vertex; created inside the event loop that serves."""

    def __init__(self, loaded: Loaded, variables: Mapping[str, str], *, log: str) -> None:
        self.loaded = loaded
        traffic_log = open_log(log) if log else None
        self.deployed = loaded.deployed(traffic_log, variables)
        self.router = Router(traffic_log, self.deployed, params_of(variables)) if self.deployed else None

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
            and self.loaded.answers == "rows"
            and not any({"exposure", "labels"} <= set(one) for one in instances)
        ):
            asked = self.router.asked({"rows": instances}, one_unit=False)
            del instances  # nor has the caller them: they wait as text
            answer = json.loads(await self.router.predicted(asked))
            return [{**one, **answer} for one in answer.pop("predictions")]
        if self.loaded.answers != "rows" and any("sample" in one for one in instances):
            return await self._scores(instances)
        if self.router is None:
            name = self.loaded.process.about.get("workload")
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

    async def _scores(self, instances: Sequence[Mapping[str, Any]]) -> list[Any]:
        try:
            numbers = [int(one["sample"]) for one in instances]
            scores = await asyncio.to_thread(self.loaded.scores, numbers)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise HTTPException(400, f"{type(error).__name__}: {error}; name samples alone") from None
        except NoAnswer as error:
            raise HTTPException(400, f"{error}; name samples alone") from None
        if len(scores) == 1 and not math.isfinite(scores[0]):
            raise HTTPException(503, NOT_FINITE)
        return [score if math.isfinite(score) else {"error": NOT_FINITE} for score in scores]


def app(root: Path, variables: Mapping[str, str], *, log: str) -> Any:
    """Returns the ASGI app with the routes that Vertex AI requests."""

    @contextlib.asynccontextmanager
    async def life(made: FastAPI) -> AsyncIterator[None]:
        number = int(variables.get("MODEL_VERSION", 0))
        loaded = Loaded(root, params=params_of(variables), number=number)
        made.state.predictions = predictions = VertexReplies(loaded, variables, log=log)
        if predictions.deployed:
            await asyncio.to_thread(predictions.deployed.start)
        yield
        if predictions.router:
            await asyncio.to_thread(predictions.router.close)
        loaded.process.close()

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
            answered = made.state.predictions.predict(
                (await read(request.receive, within_s=BODY_S)).get("instances")
            )
            return JSONResponse({"predictions": await answered})
        except HTTPException as error:
            return error_response(error)

    made.add_route(variables.get("AIP_HEALTH_ROUTE", "/health"), health, methods=["GET"])
    made.add_route(variables.get("AIP_PREDICT_ROUTE", "/predict"), predict, methods=["POST"])
    made.add_route("/metrics", metrics, methods=["GET"])
    return RequestLimiter(made, token="", max_body_bytes=MAX_BYTES, max_requests_per_s=0)
