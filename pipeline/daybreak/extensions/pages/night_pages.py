"""Serves the nights of all models as pages, read-only: the board, running nights as they move, closed ones.

    GET /nights                    the board: ?model= ?outcome= ?month= ?q= ?sort= ?page=, and
                                   ?format=csv or json for the nights that were asked for
    GET /nights/months             what months cost and brought: ?model= ?month= ?format=csv or json
    GET /nights/compare            two nights beside each other: ?night=MODEL/NIGHT, twice
    GET /nights/live               a stream of running nights (server-sent events): ?model= ?night= for one
    GET /nights/MODEL/NIGHT/       a night: live while it runs, the report while a person is asked and after
                                   the night is closed
    GET /nights/MODEL/NIGHT/docs/  Data Docs of that night, without scripts
    GET /now                       what stands now, of all models, for the person on call
    GET /health                    whether it answers

It is a process of its own, so that no user waits while a page is made, and has the router's stack: the same
limits, connections and token. A browser gives the token as the password of its login, with any name. Pages
load nothing from anywhere, which a policy tells the browser too. On loopback and without a token, requests
that name another host are refused: they come from a page of somebody else's.
"""

import asyncio
import base64
import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from starlette.middleware.gzip import GZipMiddleware

from daybreak.contract import records
from daybreak.contract.errors import PipelineError
from daybreak.contract.record_types import Cards
from daybreak.data.data_docs import DOCS
from daybreak.extensions.pages import board, comparison, export, fleet_rows, live, months, on_call
from daybreak.extensions.pages.board import Model
from daybreak.extensions.pages.fleet_rows import FleetRows
from daybreak.extensions.pages.live import RunningPage
from daybreak.extensions.pages.selection import query_of
from daybreak.extensions.router import server
from daybreak.extensions.router.limits import RequestLimiter
from daybreak.extensions.router.settings import RouterParams
from daybreak.report import links
from daybreak.report.night_rows import NightRow
from daybreak.storage import branch, homes
from daybreak.storage.home import Home
from daybreak.storage.homes import FleetHome

log = logging.getLogger(__name__)

STREAM_S = 50.0  # less than a connection may last (connections.REQUEST_S); a browser connects again
LOOK_S = 1.0  # between two looks at what runs
HOMES_S = 30.0  # between two looks at which homes there are
EVENTS = "text/event-stream"
LIVE = f"{links.NIGHTS}/live"


def serve(home: Home, *, host: str, port: int) -> None:
    """Serves the pages of a home's fleet until interrupted; JobError if the port is taken."""
    import uvicorn

    settings, token = home.params.section(RouterParams), os.environ.get("DAYBREAK_TOKEN", "")
    listening = server.listen(host, port)
    app = make_app(homes.lead_of(home.folder), settings, token=token, host=host)
    if not server.is_loopback(host) and not token:
        log.warning(
            "%s is reachable from outside and DAYBREAK_TOKEN is not set: anybody may read the nights", host
        )
    log.info(
        "The nights are at %s%s%s; end it by Ctrl-C",
        server.address_of(listening, host),
        links.NIGHTS,
        ", with DAYBREAK_TOKEN as the password" if token else "",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with contextlib.suppress(KeyboardInterrupt), listening:
        uvicorn.Server(server.config(app, settings)).run(sockets=[listening])


class NightPages:
    """Makes the pages; one at a time, in threads."""

    def __init__(self, lead: Path) -> None:
        self._lead = lead
        self._rows = FleetRows()
        self._alone = threading.Lock()
        self._homes: tuple[float, tuple[FleetHome, ...]] = (float("-inf"), ())
        self._look: tuple[float, list[RunningPage], str] = (float("-inf"), [], "")

    def board(self, asked: Mapping[str, str]) -> Response:
        """Returns the board that the parameters of an address ask for, or its nights as CSV or JSON."""
        query, form = query_of(asked), asked.get("format")
        if form in ("csv", "json"):
            values = board.nights_of(self._models(), query)
            write = export.as_csv if form == "csv" else export.as_json
            return write(values, name="nights")
        now = datetime.now(UTC)
        with self._alone:
            models = self._rows.models(self.homes(), pages=_pages)
            running = fleet_rows.running(self.homes(), now=now, pages=True)
        return _html(board.board(models, query=query, at=now, running=running, source=LIVE), scripts=True)

    def now(self) -> Response:
        """Returns the page of what stands now."""
        at = datetime.now(UTC)
        with self._alone:
            shown = fleet_rows.standing(self._rows, self._lead, at=at)
        return _html(on_call.page(shown, at=at), scripts=False)

    def months(self, asked: Mapping[str, str]) -> Response:
        """Returns the page of months, one of its tables as CSV (`machines`: the second), or both as JSON."""
        models, query, form = self._models(), query_of(asked), asked.get("format")
        if form in ("csv", "machines"):
            name = "months" if form == "csv" else "machines"
            return export.as_csv(months.months(models, query).values[name], name=name)
        if form == "json":
            return export.as_json(months.months(models, query).values, name="months")
        return _html(months.page(models, query), scripts=False)

    def look(self) -> tuple[list[RunningPage], str]:
        """Returns the running nights, and a text that changes with each commit of a ledger."""
        with self._alone:
            at, running, tips = self._look
            if time.monotonic() - at >= LOOK_S / 2:  # one look for all streams
                running = fleet_rows.running(self.homes(), now=datetime.now(UTC), pages=True)
                tips = " ".join(map(_tip, self.homes()))
                self._look = (time.monotonic(), running, tips)
            return running, tips

    def night(self, model: str, night: str) -> Response:
        """Returns the page of a night: live while the night runs, then the report, from here or from MLflow.

        While a person is asked to approve, it is the report that the gate wrote for the purpose.
        """
        with self._alone:
            home = self._home(model, night)
            if home is None:
                return PlainTextResponse(f"there is no night {night[:80]} of {model[:80]}; see /nights", 404)
            now = datetime.now(UTC)
            running = [
                one.state for one in fleet_rows.running([home], now=now) if one.state.night.id == night
            ]
            source = f"{LIVE}?{urlencode({'model': model, 'night': night})}"
            if running and not running[0].shows_evidence:
                cards = records.find(Cards, home.folder / "nights" / night / records.LOOKS)
                shown = RunningPage(state=running[0], model=model)
                page = live.page(shown, cards=cards, source=source, at=now)
                return _html(page, scripts=True)
            rows = [row for row in self._rows.models([home], pages=_pages)[0].rows if not row.is_rollback]
            path = home.folder / "nights" / night / links.PAGE
            if path.exists():
                around = _around(model, night, rows)
                if (home.folder / "nights" / night / DOCS / "index.html").exists():
                    around["Data Docs"] = "docs/index.html"
                page = links.at_server(path.read_text(), around)
                if running:
                    return _html(live.evidence(page, source=source), scripts=True)
                return _html(page, scripts=False)
            kept = next((links.kept_page(row) for row in rows if row.night == night), "")
        return RedirectResponse(kept) if kept else PlainTextResponse("that night has no page here", 404)

    def comparison(self, asked: Sequence[str]) -> Response:
        """Returns the page that compares two nights, each named as MODEL/NIGHT."""
        models = self._models()
        nights = {
            f"{model.name}/{row.night}": (model.name, row)
            for model in models
            for row in model.rows
            if not row.is_rollback
        }
        chosen = [nights[name] for name in asked if name in nights]
        if len(chosen) != 2:
            return PlainTextResponse("tick two nights of the board, and compare them", 422)
        return _html(comparison.page(*reversed(chosen)), scripts=False)  # the older one first

    def data_docs(self, model: str, night: str, path: str) -> Response:
        """Returns a page of a night's Data Docs."""
        with self._alone:
            home = self._home(model, night)
        missing = PlainTextResponse("there is no such page of Data Docs", 404)
        if home is None:
            return missing
        try:
            docs = (home.folder / "nights" / night / DOCS).resolve()
            page = (docs / path).resolve()
            return _html(page.read_text(), scripts=False) if page.is_relative_to(docs) else missing
        except (OSError, ValueError):  # no file, no name that a file can have, or no text
            return missing

    def _models(self) -> list[Model]:
        with self._alone:
            return self._rows.models(self.homes(), pages=_pages)

    def homes(self) -> tuple[FleetHome, ...]:
        """Returns the homes of the fleet."""
        at, known = self._homes
        if time.monotonic() - at >= HOMES_S:
            known, _ = homes.examined(self._lead)
            self._homes = (time.monotonic(), known)
        return known

    def _home(self, model: str, night: str) -> FleetHome | None:
        """Returns the home of a model; None where there is none of that name, or the night cannot be one."""
        if not records.names_folder(night):
            return None
        return next((home for home in self.homes() if home.model == model), None)


def _around(model: str, night: str, rows: Sequence[NightRow]) -> dict[str, str]:
    """Returns links of a night's page to the board and to the nights before and after, by their words."""
    nights = [row.night for row in rows]
    at = nights.index(night) if night in nights else -1
    around = {"Board": links.NIGHTS}
    if at < len(nights) - 1:  # before one that is not closed, too
        around["Previous night"] = links.served(model, nights[at + 1])
    if at > 0:
        around["Next night"] = links.served(model, nights[at - 1])
    return around


def _pages(home: FleetHome, rows: Sequence[NightRow]) -> dict[str, str]:
    """Returns the address of each night's page: here, or MLflow's copy."""
    nights, addresses = home.folder / "nights", {}
    here = {path.name for path in nights.glob("*")}  # few of the ledger's, which are not looked up one by one
    for row in rows:
        if row.night in here and (nights / row.night / links.PAGE).exists():
            addresses[row.night] = links.served(home.model, row.night)
        elif kept := links.kept_page(row):
            addresses[row.night] = kept
    return addresses


def _tip(member: FleetHome) -> str:
    """Returns the newest commit of a ledger; "" where it cannot be read."""
    with contextlib.suppress(PipelineError):
        return branch.ledger_tip(member.home)
    return ""


def make_app(
    lead: Path, settings: RouterParams, *, token: str = "", host: str = "127.0.0.1"
) -> RequestLimiter:
    """Returns the app of the pages of a home and its fleet, which listens on `host`."""
    app, pages = FastAPI(title="Daybreak's nights", docs_url=None, openapi_url=None), NightPages(lead)

    @app.exception_handler(PipelineError)
    async def sentence(request: Request, error: PipelineError) -> Response:
        return PlainTextResponse(str(error), 503)

    @app.get("/")
    async def root() -> Response:
        return RedirectResponse(links.NIGHTS)

    @app.get("/favicon.ico")  # which browsers ask for by themselves
    async def icon() -> Response:
        return Response(status_code=204)

    @app.get("/health")
    async def health() -> Response:
        return PlainTextResponse("ok")

    registry = CollectorRegistry()
    requests = Counter("daybreak_page_requests", "Pages that were asked for", registry=registry)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    def count() -> None:
        requests.inc()

    counted = APIRouter(dependencies=[Depends(count)])
    _add_pages(counted, pages)
    app.include_router(counted)
    app.add_middleware(GZipMiddleware)
    return RequestLimiter(
        app,
        token=token,
        browser=True,
        names=server.own_names(host, settings, token=token),
        max_body_bytes=settings.max_body_bytes,
        max_requests_per_s=settings.max_requests_per_s,
    )


def _add_pages(app: APIRouter, pages: NightPages) -> None:
    @app.get(links.NIGHTS)
    async def overview(request: Request) -> Response:
        return await asyncio.to_thread(pages.board, request.query_params)

    @app.get("/now")
    async def what_is_now() -> Response:
        return await asyncio.to_thread(pages.now)

    @app.get(f"{links.NIGHTS}/months")
    async def months(request: Request) -> Response:
        return await asyncio.to_thread(pages.months, request.query_params)

    @app.get(f"{links.NIGHTS}/compare")
    async def compare(request: Request) -> Response:
        return await asyncio.to_thread(pages.comparison, request.query_params.getlist("night"))

    @app.get(LIVE)
    async def stream(request: Request, model: str = "", night: str = "") -> Response:
        events = _events(pages.look, request, model=model, night=night)
        return StreamingResponse(events, media_type=EVENTS, headers={"cache-control": "no-store"})

    @app.get(links.NIGHTS + "/{model}/{night}/")
    async def one_night(model: str, night: str) -> Response:
        return await asyncio.to_thread(pages.night, model, night)

    @app.get(links.NIGHTS + "/{model}/{night}/docs/{path:path}")
    async def data_docs(model: str, night: str, path: str) -> Response:
        return await asyncio.to_thread(pages.data_docs, model, night, path)


async def _events(
    look: Callable[[], tuple[list[RunningPage], str]], request: Request, *, model: str, night: str
) -> AsyncIterator[str]:
    """Yields what has changed, as server-sent events: the part with the running nights, the ledger's tips."""
    sent: dict[str, str] = {}
    end = time.monotonic() + STREAM_S
    while time.monotonic() < end and not await request.is_disconnected():
        running, tips = await asyncio.to_thread(look)
        if night:
            running = [s for s in running if s.state.night.id == night and s.model in ("", model)]
        events = {"running": live.part(running, at=datetime.now(UTC)), "ledger": tips}
        if night:
            events["page"] = live.page_of(running[0].state if running else None)
        for name, data in events.items():
            if sent.get(name) != data:
                sent[name] = data
                lines = "".join(f"data: {line}\n" for line in (data.splitlines() or [""]))
                yield f"event: {name}\n{lines}retry: 1000\n\n"
        await asyncio.sleep(LOOK_S)


def _html(text: str, *, scripts: bool) -> Response:
    return HTMLResponse(
        text,
        headers={
            "content-security-policy": _policy(scripts=scripts),
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        },
    )


def _policy(*, scripts: bool) -> str:
    """Returns what a browser may do for a page: run the one script of ours, and ask this server."""
    digest = base64.b64encode(hashlib.sha256(str(live.script()).encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" if scripts else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
