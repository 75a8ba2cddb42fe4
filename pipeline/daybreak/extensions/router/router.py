"""Serves users: a FastAPI app that answers each of them with the champion, or with its challenger.

    POST /recommend {"user": "17850", "top": 20}      items, the exposure's id and the version
    POST /predict   {"rows": [{...}, ...]}            predictions for each row, an exposure's id, the version
    POST /outcomes  {"exposure": ID, "user": "17850", "items": [...]}  items that the user took; answered once
                                                      they are on the disk
                    {"exposure": ID, "user": UNIT, "labels": [...]}    labels of the rows
    POST /assignment   {"user": "17850"}              the version by which a team's own serving is to answer
    POST /observations {"rows": [{...}, ...]}         exposures and outcomes of a team's own serving
    GET  /health    what is loaded; 503 until something serves
    GET  /metrics   for Prometheus
    GET  /docs      this list, for people; /openapi.json for programs

A version recommends or predicts. A user whom the version does not know, or whom its model does not answer in
time or at all, is shown the popular items: the exposure says so (`fallback`, `error`), and the user sees no
error. For rows there is nothing to fall back on: the client gets a 503, and the exposure says why. The rows
of a request are of one unit, by which the arm is drawn; the version's own process computes, never the event
loop. The router uses nothing else of a workload, so it knows no workload by name.
"""

import asyncio
import contextlib
import html
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from daybreak.contract.errors import DataError, JobError, ReleaseError
from daybreak.contract.workload import MAX_NAME
from daybreak.extensions.live_test import own_serving
from daybreak.extensions.live_test.live_score import METRIC
from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.extensions.router.answers import Answer, Answers, Busy, Predictor, list_of
from daybreak.extensions.router.assigner import Assignment
from daybreak.extensions.router.batcher import Batcher
from daybreak.extensions.router.bodies import (
    MAX_NESTING,
    MAX_ROWS,
    TOP,
    AssignmentBody,
    ObservationsBody,
    OutcomeBody,
    PredictBody,
    RecommendBody,
)
from daybreak.extensions.router.exposure_ids import ID, ExposureIds
from daybreak.extensions.router.kill_switch import KillSwitch
from daybreak.extensions.router.limits import Message, Receive, RequestLimiter, Send
from daybreak.extensions.router.loading import VersionLoader
from daybreak.extensions.router.model_manager import ModelManager, ServedVersions
from daybreak.extensions.router.night_metrics import NightMetrics
from daybreak.extensions.router.prometheus import Metrics, Together
from daybreak.extensions.router.settings import RouterParams
from daybreak.extensions.router.shadow import ShadowRequests
from daybreak.extensions.router.writer import FLUSH_S, NoLog, Writer
from daybreak.registry.host import NoAnswer
from daybreak.serving.version_process import answer_s
from daybreak.statistics.assignment import CHALLENGER, propensity
from daybreak.storage import erasures
from daybreak.storage.exposures import Exposure, Outcome, attributes_of
from daybreak.storage.home import Home
from daybreak.storage.kept_rows import KeptRows, place_of
from daybreak.storage.live_servers import RouterState
from daybreak.storage.traffic_log import Log

JSON = "application/json"
BODIES: dict[str, type[BaseModel]] = {
    "recommend": RecommendBody,
    "predict": PredictBody,
    "outcomes": OutcomeBody,
    "assignment": AssignmentBody,
    "observations": ObservationsBody,
}
USED = tuple(f"/{path}" for path in BODIES)
UNKNOWN = (
    "there is no such exposure of this user; give the id that came with the answer, and as user whom it \
was for, or the unit of its rows"
)
TOO_DEEP = f"the body is nested more than {MAX_NESTING} deep; send what /docs describes"

log = logging.getLogger(__name__)


class VersionSource(Protocol):
    """Decides which versions serve, and picks the version for a request."""

    fault: str

    @property
    def standing(self) -> ServedVersions:
        """Returns what serves now."""

    def draw(self, user: str, now: ServedVersions) -> tuple[str, str, ServedVersions]:
        """Returns the unit and the arm of a user's request, and what the unit's slot is served."""

    def stop(self, experiment: str, why: str) -> None:
        """Lets nobody meet the challenger of the experiment any more."""

    def state(self) -> RouterState:
        """Returns what serves, for the log."""

    def close(self) -> None:
        """Stops its threads."""


class Accepted(Response):
    """A JSON text for a request that is answered; made in a third of the time that any response takes."""

    def __init__(self, text: str) -> None:
        self.status_code, self.background, self.body = 200, None, text.encode()
        self.raw_headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", JSON.encode())]


class _Drawn(NamedTuple):  # each request makes one, for a third of what a frozen dataclass takes
    """A user's unit and arm, and the version that answers there."""

    now: ServedVersions
    user: str
    unit: str
    arm: str
    answers: Answers | Predictor
    attributes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class RowsAsked:
    """A request for predictions of rows, which are text while they wait: as objects they take far more."""

    drawn: _Drawn
    answers: Predictor
    rows: str  # a list as JSON
    num_rows: int
    began: float  # by time.perf_counter


class Router:
    """Handles the paths, in the event loop that it is created in; records nothing without a log."""

    def __init__(
        self,
        log: Log | None,
        versions: VersionSource,
        params: RouterParams,
        limits: LiveTestParams | None = None,
        *,
        model: str = "",
        home: Home | None = None,
        has_token: bool = False,
    ) -> None:
        """`has_token`: callers have shown it."""
        self.versions, self._params, self._log, self._home = versions, params, log, home
        limits = limits or LiveTestParams()
        self._metric = limits.metric
        self._kill_switch = KillSwitch(max_errors=limits.max_errors, max_rise_s=limits.max_p99_rise_s)
        self._metrics, self.nights = Metrics(model), NightMetrics(model, home) if home else None
        self.beside: tuple[Router, ...] = ()  # of other models, behind the same port
        self._batcher, self._writer = Batcher(), Writer(log.exposures) if log else NoLog()
        self._shadow = ShadowRequests(
            limits.shadow if log else 0.0, self._batcher, self._writer, timeout_s=params.timeout_s
        )
        self.has_log, self._has_token = log is not None, has_token
        self._now = log.now if log else time.time
        self._ids = ExposureIds(log.exposure_key if log else secrets.token_bytes(32))

    async def end(self) -> None:
        """Waits for nobody's shadow any more, and closes."""
        await self._shadow.close()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Writes what waits to the log, and ends the threads."""
        self.versions.close()
        self._writer.close()

    async def recommend(self, receive: Receive) -> Response:
        """Answers POST /recommend."""
        return Accepted(await self.recommended(await self._read(receive)))

    async def recommended(self, body: dict[str, Any]) -> str:
        """Returns items for a user, as JSON; HTTPException says why there are none."""
        began = time.perf_counter()  # a slow client is not the version's fault
        user, top = _user_of(body), body.get("top", TOP)
        if type(top) is not int or not 1 <= top <= self._params.max_top:
            raise HTTPException(422, f"top is {top!r:.50}; ask for 1 to {self._params.max_top} items")
        drawn = self._drawn(lambda _: user, attributes=_attributes_of(body))
        answers = drawn.answers
        if not isinstance(answers, Answers):
            raise HTTPException(404, f"version {answers.version} recommends nothing; POST rows to /predict")
        metrics = self._metrics.arms[drawn.arm]
        answer, error = answers.cached(user), ""
        if answer is None:
            metrics.computed.inc()
            answer, error = await self._computed(answers, user)
        items, text = answer.items, answer.text
        if len(items) > top:
            items = items[:top]
            text = list_of(items)
        shown = self._expose(drawn, items=items, began=began, error=error, fallback=answer.fallback)
        self._shadow.recommend(drawn.now, shown, user)
        return f'{{"items": {text}{self._name(shown)}, "version": {answers.version}}}'

    def _drawn(
        self,
        user_of: Callable[[Answers | Predictor], str],
        *,
        attributes: tuple[tuple[str, str], ...] = (),
    ) -> _Drawn:
        """Returns the version that answers a user, whom the champion may name; for "" by an arm by chance."""
        now = self.versions.standing
        if now.champion is None:
            raise HTTPException(503, f"no version serves: {self.versions.fault}")
        user = user_of(now.champion)
        unit, arm, seen = self.versions.draw(user or secrets.token_hex(8), now)
        answers = seen.challenger if arm == CHALLENGER and seen.challenger else now.champion
        return _Drawn(now=seen, user=user, unit=unit, arm=arm, answers=answers, attributes=attributes)

    async def assignment(self, receive: Receive) -> Response:
        """Answers POST /assignment."""
        user = _user_of(await self._read(receive))
        drawn = self._drawn(lambda _: user)
        assignment = Assignment(
            unit=drawn.unit,
            arm=drawn.arm,
            version=drawn.answers.version,
            experiment=drawn.now.experiment,
            share=drawn.now.share,
        )
        return Accepted(json.dumps(asdict(assignment)))

    async def observations(self, receive: Receive) -> Response:
        """Answers POST /observations, once all rows are on the disk; none is kept where one is malformed."""
        rows = (await self._read(receive)).get("rows")
        if self._log is None or self._metric is None:
            raise HTTPException(
                404, "users are not scored by rows of a team's own; name live_test.metric in params.yaml"
            )
        if not self._has_token:  # unlike an outcome, a row names any user and any version
            raise HTTPException(
                403,
                "whoever sends rows decides a live test; start the router with DAYBREAK_TOKEN, and send it",
            )
        if not isinstance(rows, list) or not 0 < len(rows) <= MAX_ROWS:
            raise HTTPException(422, f"rows is {rows!r:.50}; list 1 to {MAX_ROWS:,} rows, each an object")
        try:
            erased = await asyncio.to_thread(erasures.units, self._home) if self._home else None
        except (DataError, ReleaseError) as error:
            raise HTTPException(
                503, f"the rows are not kept, since it is not known who was erased: {error}; send them again"
            ) from None
        try:
            await asyncio.to_thread(
                own_serving.take_in, self._log, rows, now=datetime.now(UTC), erased=erased
            )
        except DataError as error:
            raise HTTPException(422, f"{error}; none of these rows is kept, send all of them again") from None
        except JobError:
            raise HTTPException(
                503, "the rows are not kept, the log does not answer; send them again"
            ) from None
        return Accepted('{"kept": true}')

    async def predict(self, receive: Receive) -> Response:
        """Answers POST /predict."""
        asked = self.asked(await self._read(receive))
        return Accepted(await self.predicted(asked))

    def asked(self, body: dict[str, Any], *, one_unit: bool = True) -> RowsAsked:
        """Returns a request for predictions of rows; HTTPException where it is not of the form.

        `one_unit` is false where something else has drawn the arm of the request.
        """
        began = time.perf_counter()
        rows = body.get("rows")
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            raise HTTPException(422, f"rows is {rows!r:.50}; list at least one row, each an object")
        if len(rows) > MAX_ROWS:
            raise HTTPException(422, f"there are {len(rows):,} rows; send at most {MAX_ROWS:,} at once")
        drawn = self._drawn(
            lambda champion: _unit_of(
                rows, champion.unit if isinstance(champion, Predictor) and one_unit else ""
            ),
            attributes=_attributes_of(body),
        )
        answers = drawn.answers
        if not isinstance(answers, Predictor):
            raise HTTPException(404, f"version {answers.version} predicts no rows; POST a user to /recommend")
        return RowsAsked(drawn=drawn, answers=answers, rows=json.dumps(rows), num_rows=len(rows), began=began)

    async def predicted(self, asked: RowsAsked) -> str:
        """Returns what the model predicts of rows, as JSON; HTTPException says why it does not."""
        drawn, answers = asked.drawn, asked.answers
        text, kept, error, late = "", None, "", False
        try:
            async with asyncio.timeout(self._params.timeout_s):
                text, kept = await answers.in_turn(asked.rows)
        except DataError as refused:
            raise HTTPException(422, str(refused)) from None
        except TimeoutError:
            error, late = f"no answer within {self._params.timeout_s:g} s", True
        except Busy as busy:  # says nothing of the version, so that no exposure does
            metrics = self._metrics.arms[drawn.arm]
            metrics.requests.inc()
            metrics.errors.inc()
            raise HTTPException(
                503, f"version {answers.version} is not asked: {busy}; send it again"
            ) from None
        except NoAnswer as failed:  # the version's fault, not the router's
            log.warning("version %d does not predict %d rows: %s", answers.version, asked.num_rows, failed)
            error = str(failed)
        shown = self._expose(
            drawn, items=(), began=asked.began, error=error, predicted=kept, rows=asked.rows, answered=text
        )
        if not late:  # a late request is not made again for the shadow
            self._shadow.predict(drawn.now, shown, asked.rows, text)
        if error:
            raise HTTPException(503, f"version {answers.version} does not answer: {error}; send it again")
        return f'{{"predictions": {text}{self._name(shown)}, "version": {answers.version}}}'

    def _expose(
        self,
        drawn: _Drawn,
        *,
        items: tuple[str, ...],
        began: float,
        error: str,
        fallback: bool = False,
        predicted: str | None = None,
        rows: str = "",
        answered: str = "",
    ) -> Exposure:
        """Logs and counts an answer, and returns it."""
        latency_s, now = time.perf_counter() - began, drawn.now
        exposure_id, at, answers = self._ids.make(drawn.user), self._now(), drawn.answers
        kept = None
        if answered and isinstance(answers, Predictor) and place_of(exposure_id) < self._params.keep_rows:
            day = datetime.fromtimestamp(at, ZoneInfo(answers.zone)).date()
            kept = KeptRows(day=str(day), rows=json.loads(rows), predictions=answered)
        exposure = Exposure(
            id=exposure_id,
            time=at,
            experiment=now.experiment,
            unit=drawn.unit,
            arm=drawn.arm,
            version=answers.version,
            share=now.share,
            propensity=propensity(drawn.arm, now.share),
            items=items,
            latency_s=latency_s,
            error=error,
            fallback=fallback,
            predicted=predicted,
            attributes=drawn.attributes,
            kept=kept,
        )
        self._writer.expose(exposure)
        if why := self._kill_switch.why_stop(exposure):
            self.versions.stop(now.experiment, why)
        metrics = self._metrics.arms[drawn.arm]
        metrics.requests.inc()
        metrics.latency_s.observe(latency_s)
        if fallback:
            metrics.fallbacks.inc()
        if error:
            metrics.errors.inc()
        return exposure

    def _name(self, exposure: Exposure) -> str:
        """Returns the id of an exposure as a part of the answer's JSON, "" where none is kept."""
        return f', "exposure": "{exposure.id}"' if self.has_log else ""

    async def outcomes(self, receive: Receive) -> Response:
        """Answers POST /outcomes."""
        return Accepted(await self.record(await self._read(receive)))

    async def record(self, body: dict[str, Any]) -> str:
        """Records what a user took, or the labels of rows; returns JSON once it is on the disk.

        HTTPException says why it is not.
        """
        if not self.has_log:
            raise HTTPException(404, "no log of exposures is kept here; name one by serving.endpoint.log")
        exposure, tells_labels = body.get("exposure"), "labels" in body and "items" not in body
        if not isinstance(exposure, str) or not ID.fullmatch(exposure):
            raise HTTPException(422, f"exposure is {exposure!r:.50}; give the id that came with the answer")
        items = _texts_of(body["labels"]) if tells_labels else _items_of(body.get("items"))
        if not self._ids.belongs(exposure, _text(body.get("user"))):
            self._metrics.unknown.inc()
            raise HTTPException(404, UNKNOWN)
        try:
            async with asyncio.timeout(self._params.timeout_s):
                outcome = Outcome(exposure=exposure, items=tuple(items), time=self._now())
                known = await self._writer.outcome(outcome)
                if not known:  # another router may have answered, and not written the exposure yet
                    await asyncio.sleep(2 * FLUSH_S)
                    known = await self._writer.outcome(outcome)
        except TimeoutError:
            raise HTTPException(503, "the outcome may not be kept yet; send it again") from None
        except JobError:
            raise HTTPException(
                503, "the outcome is not kept, the log does not answer; send it again"
            ) from None
        if not known:
            self._metrics.unknown.inc()
            raise HTTPException(404, UNKNOWN)
        self._metrics.outcomes.inc()
        return '{"kept": true}'

    async def health(self, receive: Receive) -> Response:
        """Answers GET /health with what is loaded."""
        state = self.versions.state()
        champion = self.versions.standing.champion
        health = {
            "ready": champion is not None,
            "champion": state.champion,
            "challenger": state.challenger,
            "share": state.share,
            "experiment": self.versions.standing.experiment,
            "beside": [
                {"challenger": one.challenger.version, "share": one.share, "experiment": one.experiment}
                for one in self.versions.standing.beside
                if one.challenger
            ],
            "loaded": state.loaded,
            "arrays": champion.night if champion else "",
            "router": state.id,
            "fault": "; ".join(filter(None, (state.fault, self._writer.fault))),
        }
        return Response(json.dumps(health), status_code=200 if champion else 503, media_type=JSON)

    async def metrics(self, receive: Receive) -> Response:
        """Answers GET /metrics, with those of the other models behind the same port."""
        routers = (self, *self.beside)
        await asyncio.gather(
            *(asyncio.to_thread(router.nights.refresh) for router in routers if router.nights)
        )
        parts = [part for router in routers for part in (router.metrics_now(), router.nights) if part]
        text = Together(parts).text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def metrics_now(self) -> Metrics:
        """Returns the metrics, with the gauges as they are now."""
        state, now, metrics = self.versions.state(), self.versions.standing, self._metrics
        metrics.share.set(sum(one.share for one in now.tests) / now.num_slots)
        metrics.lost.set(self._writer.num_lost)
        metrics.champion.set(state.champion)
        metrics.challenger.set(state.challenger)
        return metrics

    async def _read(self, receive: Receive) -> dict[str, Any]:
        return await read(receive, within_s=self._params.timeout_s)

    async def _computed(self, answers: Answers, user: str) -> tuple[Answer, str]:
        """Returns the model's answer, or the popular items and why."""
        try:
            async with asyncio.timeout(self._params.timeout_s):
                return await self._batcher.ask(answers, user), ""
        except TimeoutError:
            return answers.popular, f"no answer within {self._params.timeout_s:g} s"
        except NoAnswer as error:
            return answers.popular, str(error)


async def read(receive: Receive, *, within_s: float) -> dict[str, Any]:
    """Returns the JSON object in a request's body; HTTPException if there is none, or it takes longer."""
    body = b""
    try:
        async with asyncio.timeout(within_s):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HTTPException(400, "the body ended too early; send it whole")
                body += message.get("body", b"")
                more = message.get("more_body", False)
        document = json.loads(body)
    except TimeoutError:
        raise HTTPException(408, f"the body took more than {within_s:g} s") from None
    except ValueError:
        raise HTTPException(400, "the body is not JSON; send an object") from None
    except RecursionError:
        raise HTTPException(400, TOO_DEEP) from None
    if not isinstance(document, dict):
        raise HTTPException(400, "the body is not a JSON object; send one")
    if body.count(b"[") + body.count(b"{") > MAX_NESTING and _is_too_deep(document):
        raise HTTPException(400, TOO_DEEP)
    return document


def _is_too_deep(document: dict[str, Any]) -> bool:
    level: list[Any] = [document]
    for _ in range(MAX_NESTING):
        level = [
            value
            for one in level
            for value in (one.values() if isinstance(one, dict) else one)
            if isinstance(value, dict | list)
        ]
        if not level:
            return False
    return True


class ShortCut:
    """Routes the paths of users around FastAPI's layers, which cost as much as the answer itself."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handles one request, or one message of the server's own."""
        if scope["type"] != "http" or scope["path"] not in USED or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        router: Router = self.app.state.router
        try:
            response = await getattr(router, scope["path"].removeprefix("/"))(receive)
        except HTTPException as error:
            response = error_response(error)
        await response(scope, receive, send)


def make_app(
    log: Log,
    params: RouterParams,
    *,
    name: str,
    home: Home,
    token: str = "",
    limits: LiveTestParams | None = None,
    names: Collection[str] = (),
) -> RequestLimiter:
    """Returns the app of a router for the model of that name, with its log and the limits of live tests.

    It may be asked by these `names` of the machine, by any if there are none.
    """

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        models = VersionLoader(
            name, home=home, top=params.max_top, keep=params.keep_users, answer_s=answer_s(params.timeout_s)
        )
        manager = ModelManager(log, models, home=home)
        router = Router(log, manager, params, limits, model=name, home=home, has_token=bool(token))
        app.state.router = router
        manager.start()
        yield
        await router.end()

    app = FastAPI(title="Daybreak", lifespan=life, docs_url=None, redoc_url=None)
    for path in (*BODIES, "health", "metrics"):
        about = (getattr(Router, path).__doc__ or "").partition("\n")[0]
        extra = {"requestBody": _schema(BODIES[path])} if path in BODIES else None
        app.add_api_route(
            f"/{path}",
            _endpoint(app, path),
            methods=["POST" if path in BODIES else "GET"],
            summary=path,
            description=about,
            openapi_extra=extra,
            response_class=Response,
        )
    app.add_api_route("/docs", lambda: HTMLResponse(_docs(app)), include_in_schema=False)
    return RequestLimiter(
        ShortCut(app),
        token=token,
        names=names,
        max_body_bytes=params.max_body_bytes,
        max_requests_per_s=params.max_requests_per_s,
    )


def _docs(app: FastAPI) -> str:
    """Returns the page of what may be asked; FastAPI's own has its scripts from elsewhere."""
    parts = ["<!doctype html><meta charset=utf-8><title>Daybreak</title><h1>Daybreak</h1>"]
    for path, methods in app.openapi()["paths"].items():
        for method, about in methods.items():
            parts += [f"<h2>{method.upper()} {path}</h2><p>{html.escape(about['description'])}</p>"]
            if body := about.get("requestBody"):
                parts += [f"<pre>{html.escape(json.dumps(body['content'][JSON]['schema'], indent=2))}</pre>"]
    return "\n".join(parts)


def _schema(body: type[BaseModel]) -> dict[str, Any]:
    """Returns how OpenAPI describes a request with this body."""
    return {"required": True, "content": {JSON: {"schema": body.model_json_schema()}}}


def _user_of(body: dict[str, Any]) -> str:
    """Returns the user that a request names; HTTPException where it names none."""
    user = body.get("user")
    if not isinstance(user, str) or not 0 < len(user) <= MAX_NAME:
        raise HTTPException(422, f"user is {user!r:.50}; name one by 1 to {MAX_NAME} characters")
    return user


def _attributes_of(body: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns what a request says of its user; HTTPException where that is not of the form."""
    try:
        return attributes_of(body.get("attributes"))
    except ValueError as error:
        raise HTTPException(422, str(error)) from None


def _unit_of(rows: list[dict[str, Any]], column: str) -> str:
    """Returns the unit of the rows, "" without a unit column; HTTPException if rows have several units."""
    if not column:
        return ""
    units = dict.fromkeys(_text(row.get(column)) for row in rows)
    if len(units) > 1:
        raise HTTPException(
            422, f"the rows are of {len(units):,} values of {column}; send those of one in a request"
        )
    return next(iter(units))


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _items_of(items: Any) -> list[str]:
    """Returns codes of items; HTTPException where they are not, or would pass for a team's own metric."""
    if not isinstance(items, list) or not all(isinstance(i, str) and len(i) <= MAX_NAME for i in items):
        raise HTTPException(422, f"items is {items!r:.50}; list the codes of the items that were taken")
    if any(item.startswith(METRIC) for item in items):
        raise HTTPException(422, f"items is {items!r:.50}; rows of /observations tell a metric, not items")
    return items


def _texts_of(labels: Any) -> list[str]:
    """Returns labels of rows as JSON texts; HTTPException where they are not a list of plain values."""
    plain = isinstance(labels, list) and not any(isinstance(label, list | dict) for label in labels)
    if not plain or len(labels) > MAX_ROWS:
        raise HTTPException(422, f"labels is {labels!r:.50}; list a number, text or null for each row")
    texts = [json.dumps(label) for label in labels]
    if long := next((text for text in texts if len(text) > MAX_NAME), ""):
        raise HTTPException(
            422, f"labels has {long:.50}...; a label has at most {MAX_NAME} characters as JSON"
        )
    return texts


def _endpoint(app: FastAPI, path: str) -> Any:
    async def endpoint(request: Request) -> Response:
        answered: Response = await getattr(app.state.router, path)(request.receive)
        return answered

    return endpoint


def error_response(error: HTTPException) -> Response:
    """Returns the response with the error's message as JSON."""
    return Response(json.dumps({"error": error.detail}), status_code=error.status_code, media_type=JSON)
