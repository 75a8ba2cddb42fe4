"""A real router in front of a real registry, whose versions predict rows."""

import asyncio
import json
import re
import shutil
import weakref
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import torch
from fastapi import HTTPException

from daybreak.contract.workload import read_state
from daybreak.extensions.router import answers
from daybreak.extensions.router.answers import AT_ONCE, Predictor
from daybreak.extensions.router.settings import RouterParams
from daybreak.extensions.vertex.vertex_app import Loaded, VertexReplies
from daybreak.registry.weights import load_rows
from daybreak.serving import version_process
from daybreak.serving.recorded import case_of
from daybreak.serving.version_worker import LoadedVersion
from daybreak.statistics.assignment import CHALLENGER, arm_of
from daybreak.storage.traffic_log import Log
from daybreak.workloads.served_rows import as_records
from tests.conftest import make_repository
from tests.extensions.router.conftest import live_in
from tests.extensions.router.homes import add_version
from tests.extensions.router.running import Running, running, until
from tests.extensions.router.test_router import kept, move
from tests.toy.nights import PARAMS, files_of_version
from tests.toy.own.card_payments import PastPayments
from tests.workloads.payments import rows_of, trained

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

USE = "card_payments:PastPayments"
TODAY = date(2025, 1, 12)  # both nights have its eve
EXPERIMENT = "2025-01-13"


@pytest.fixture(scope="module")
def home_of_rows(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A home whose versions 1 and 2 predict payments."""
    made = make_repository(tmp_path_factory.mktemp("predict") / "home", store=empty_store)
    (made / "params.yaml").write_text(PARAMS)
    with pytest.MonkeyPatch.context() as patch:
        live_in(made, patch)
        add_version(made, 1, alter=trained(USE, seed=1))
        add_version(made, 2, promoted=False, alter=trained(USE, seed=2))
    return made


@pytest.fixture(scope="module")
def router(home_of_rows: Path) -> Iterator[Running]:
    """A router whose champion is version 1."""
    with pytest.MonkeyPatch.context() as patch:
        live_in(home_of_rows, patch)
        with running(home_of_rows) as serving:
            yield serving


def payments_of(account: str) -> list[dict[str, Any]]:
    return [row for row in as_records(rows_of(TODAY).drop(["is_fraud"])) if row["account"] == account]


def expected(home: Path, rows: Any, night: str = "2025-01-11") -> Any:
    """What the model of a night predicts of rows, read from that night's folder."""
    folder = home / "nights" / night / "data"
    carried = home / "var" / f"artifacts {night}"
    shutil.copytree(folder / "clean", carried / "past", dirs_exist_ok=True)
    return load_rows(PastPayments(), carried, model=folder / "run" / "model").predict(rows)


def test_rows_are_predicted_as_the_model_does(router: Running, home_of_rows: Path) -> None:
    rows = payments_of("a3")
    status, answer = router.post("predict", {"rows": rows})
    assert (status, answer["version"], len(answer["predictions"])) == (200, 1, len(rows))
    for name, values in expected(home_of_rows, rows).items():
        np.testing.assert_allclose([one[name] for one in answer["predictions"]], values, rtol=0, atol=1e-6)
    logged = kept(router.log, answer["exposure"], "")
    assert (logged.version, logged.items, logged.error, logged.fallback) == (1, (), "", False)
    assert logged.unit == router.log.unit_of("a3")
    assert logged.latency_s > 0
    labels = [0, 1.5, None, "late"]
    assert router.post("outcomes", {"exposure": answer["exposure"], "labels": labels})[0] == 404
    outcome = {"exposure": answer["exposure"], "user": "a3", "labels": labels}
    assert router.post("outcomes", outcome) == (200, {"kept": True})
    assert kept(router.log, answer["exposure"], "").taken == ("0", "1.5", "null", '"late"')
    assert router.get("health").json()["champion"] == 1


ROW = {"ts": "2025-01-12T10:00:00Z", "account": "a1", "amount": 5.0, "mcc": "5411"}


@pytest.mark.parametrize(
    ("path", "body", "status", "why"),
    [
        ("predict", {}, 422, "rows is None; list at least one row"),
        ("predict", {"rows": []}, 422, "list at least one row"),
        ("predict", {"rows": [7]}, 422, "list at least one row"),
        ("predict", {"rows": [ROW] * 1001}, 422, "there are 1,001 rows; send at most 1,000 at once"),
        ("predict", {"rows": [ROW, {**ROW, "account": "a2"}]}, 422, "the rows are of 2 values of account"),
        (
            "predict",
            {"rows": [{"account": "a1", "amount": "5", "colour": 1}]},
            422,
            "these are not rows of the table: ts is missing; amount is to be a number (it is string); mcc is "
            "missing; there is no column colour; send ts (time)",
        ),
        ("predict", {"rows": [{**ROW, "ts": "0001-01-01T00:00:00"}]}, 422, "ts is to be a time"),
        ("recommend", {"user": "u1"}, 404, "version 1 recommends nothing; POST rows to /predict"),
        ("outcomes", {"exposure": "0" * 32, "labels": [{}]}, 422, "labels is [{}]"),
        ("outcomes", {"exposure": "0" * 32, "labels": [1]}, 404, "there is no such exposure"),
    ],
)
def test_what_is_asked_wrongly_is_refused_in_a_sentence(
    router: Running, path: str, body: Any, status: int, why: str
) -> None:
    answered, answer = router.post(path, body)
    assert (answered, why in answer["error"]) == (status, True), answer


def test_a_model_that_fails_has_no_answer_and_counts_as_an_error(router: Running) -> None:
    before = len(list(router.log.exposures.of("")))
    status, answer = router.post("predict", {"rows": [{**ROW, "mcc": "fails"}]})
    assert (status, answer["error"].partition(";")[0]) == (
        503,
        "version 1 does not answer: ParamsError: PastPayments.features fails: ValueError: mcc fails",
    )
    logged = kept_newest(router.log, before)
    assert logged.error == "ParamsError: PastPayments.features fails: ValueError: mcc fails; fix it"
    assert (logged.items, logged.fallback, logged.unit) == ((), False, router.log.unit_of("a1"))
    assert 'daybreak_errors_total{arm="champion",model="daybreak"} 1.0' in router.get("metrics").text


def kept_newest(log: Log, before: int) -> Any:
    until(lambda: len(list(log.exposures.of(""))) > before)
    return list(log.exposures.of(""))[-1]


def test_a_model_that_is_late_has_no_answer(home_of_rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live_in(home_of_rows, monkeypatch)
    with running(home_of_rows, timeout_s=0.2) as router:
        status, answer = router.post("predict", {"rows": [{**ROW, "mcc": "late"}]})
        assert (status, answer["error"]) == (
            503,
            "version 1 does not answer: no answer within 0.2 s; send it again",
        )
        assert router.get("health").status_code == 200  # it computes beside the event loop


class Row(dict[str, Any]):
    """A row that is counted."""

    alive: ClassVar[weakref.WeakSet["Row"]] = weakref.WeakSet()
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        self.alive.add(self)


def test_rows_for_a_version_that_hangs_wait_as_text_and_are_dropped_with_their_requests(
    home_of_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_WAITING_BYTES", 100 * len(json.dumps([ROW])))
    monkeypatch.setattr(version_process, "LEAST_ANSWER_S", 300.0)
    shutil.copytree(files_of_version(home_of_rows, 1), tmp_path / "version")

    async def asked() -> list[str]:
        params = RouterParams(timeout_s=0.5)
        loaded = Loaded(tmp_path, params=params, number=1)
        made = VertexReplies(loaded, {"SERVING": params.model_dump_json()}, log="")
        assert made.router
        version = made.router.versions.standing.champion
        assert isinstance(version, Predictor)

        async def outcome() -> str:
            try:
                await made.predict([Row(**ROW)])
            except HTTPException as error:
                return str(error.detail)
            return "answered"

        async def outcomes() -> list[str]:
            return await asyncio.gather(*(outcome() for _ in range(110)))

        first = psutil.Process(loaded.process.pid)
        hanging = [first, *first.children(recursive=True)]
        for each in hanging:
            each.suspend()
        asking = asyncio.create_task(outcomes())
        await asyncio.sleep(0.1)
        assert version._num_bytes_waiting > 0
        assert len(Row.alive) == 0
        seen = await asking
        assert version._num_bytes_waiting == 0
        for each in hanging:
            each.resume()
        while version._turns.locked():
            await asyncio.sleep(0.01)
        seen.append(await outcome())
        await asyncio.to_thread(made.router.close)
        loaded.process.close()
        return seen

    *seen, last = asyncio.run(asked())
    kinds = Counter("late" if "no answer within 0.5 s" in one else one.partition(":")[0] for one in seen)
    assert kinds == {"late": 100 + AT_ONCE, "version 1 is not asked": 10 - AT_ONCE}
    assert last == "answered"


def test_more_rows_than_may_wait_for_a_version_are_told_so_and_are_no_error_of_the_version(
    home_of_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_in(home_of_rows, monkeypatch)
    monkeypatch.setattr(answers, "MAX_WAITING_BYTES", 0)
    monkeypatch.setattr(answers, "AT_ONCE", 0)
    with running(home_of_rows) as router:
        before = list(router.log.exposures.of(""))
        assert router.post("predict", {"rows": [ROW]}) == (
            503,
            {"error": "version 1 is not asked: 0 MB of rows wait for it; send it again"},
        )
        counted = router.get("metrics").text
        assert re.search(r'daybreak_errors_total\{arm="champion",model="[^"]*"\} 1\.0', counted)
    assert list(router.log.exposures.of("")) == before


def test_a_version_has_predicted_its_example_before_anybody_asks(
    home_of_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_in(home_of_rows, monkeypatch)
    source = files_of_version(home_of_rows, 1)
    sizes: list[int] = []

    def seen(module: torch.nn.Module, given: Any, made: Any) -> None:
        if type(module).__name__ == "TableModel":
            sizes.append(len(made))

    hook = torch.nn.modules.module.register_module_forward_hook(seen)
    try:
        LoadedVersion(case_of(source, None))
        assert sizes == [5, 1]  # together, and alone
    finally:
        hook.remove()


def test_a_challenger_meets_its_share_of_accounts(router: Running, home_of_rows: Path) -> None:
    move(router, champion=1, challenger=2, share=0.5, experiment=EXPERIMENT)
    accounts = [f"b{number}" for number in range(40)]
    met = {}
    for account in accounts:
        status, answer = router.post("predict", {"rows": [{**ROW, "account": account}]})
        assert status == 200
        met[account] = answer["version"]
    arms = {name: arm_of(router.log.unit_of(name), experiment=EXPERIMENT, share=0.5) for name in accounts}
    assert met == {name: 2 if arm == CHALLENGER else 1 for name, arm in arms.items()}
    assert {1, 2} == set(met.values())
    move(router, champion=1, challenger=0, share=0.0, experiment="")


def test_the_page_of_documentation_has_the_requests(router: Running) -> None:
    page = router.get("docs").text
    assert "<h2>POST /predict</h2>" in page
    assert "<script" not in page
    paths = router.get("openapi.json").json()["paths"]
    requests = {"/recommend", "/predict", "/outcomes", "/assignment", "/observations"}
    assert set(paths) == {*requests, "/health", "/metrics"}
    body = paths["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["rows"]["maxItems"] == 1000


def test_a_container_of_vertex_predicts_rows(home_of_rows: Path, tmp_path: Path, log: Log) -> None:
    shutil.copytree(files_of_version(home_of_rows, 1), tmp_path / "version")
    assert "edges" in read_state(tmp_path / "version" / "artifacts" / "model")
    rows = as_records(rows_of(TODAY).drop(["is_fraud"]))

    async def answers() -> list[Any]:
        loaded = Loaded(tmp_path, params=RouterParams(timeout_s=30), number=7)
        made = VertexReplies(loaded, {}, log=str(log.url))
        predicted = await made.predict(rows)
        kept_ = await made.predict([{"exposure": predicted[0]["exposure"], "labels": [1]}])
        assert made.router
        await asyncio.to_thread(made.router.close)
        return [predicted, kept_]

    predicted, answered = asyncio.run(answers())
    assert answered == [{"kept": True}]
    assert {one["version"] for one in predicted} == {7}
    for name, values in expected(home_of_rows, rows).items():
        np.testing.assert_allclose([one[name] for one in predicted], values, rtol=0, atol=1e-6)
    (exposure,) = log.exposures.of(None)
    assert (exposure.version, exposure.taken) == (7, ("1",))
