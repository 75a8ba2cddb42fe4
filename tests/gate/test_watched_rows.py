"""What the watch says of rows that a real router predicted: fed as in training, or otherwise."""

import json
import re
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from daybreak.contract import clock, params, records
from daybreak.contract.record_types import ServedDays, Watch
from daybreak.gate import served_notices, watch
from daybreak.report import publisher
from daybreak.storage.home import Home
from daybreak.storage.traffic_database import EXPOSURES, KEPT_ROWS, PREDICTIONS
from daybreak.storage.traffic_log import Log
from daybreak.workloads.served_rows import as_records
from tests.conftest import make_repository
from tests.extensions.router.conftest import live_in
from tests.extensions.router.homes import add_version
from tests.extensions.router.running import Running, running, until
from tests.toy.nights import PARAMS
from tests.toy.own.card_payments import Payments
from tests.workloads.payments import rows_of, trained

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

USE = "card_payments:PastPayments"
NUM = 130  # requests of a day
PROMOTED_DAYS_AGO = 5


@pytest.fixture(scope="module")
def home_of_weeks(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A home whose version 1 predicts payments, made of sixteen days."""
    made = make_repository(tmp_path_factory.mktemp("served") / "home", store=empty_store)
    (made / "params.yaml").write_text(PARAMS)
    with pytest.MonkeyPatch.context() as patch:
        live_in(made, patch)
        booted_at = time.time() - clock.since_boot()
        patch.setattr(clock, "_CLOCK", clock.Clock(_booted_at=booted_at - PROMOTED_DAYS_AGO * 86_400))
        add_version(made, 1, alter=trained(USE, seed=1, num_days=16))
    return made


@pytest.fixture(scope="module")
def keeping(home_of_weeks: Path) -> Iterator[Running]:
    """A router that keeps all rows."""
    with pytest.MonkeyPatch.context() as patch:
        live_in(home_of_weeks, patch)
        with running(home_of_weeks, keep_rows=1.0) as serving:
            yield serving


@pytest.fixture
def router(keeping: Running, home_of_weeks: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    """That router, of whose requests nothing is known."""
    live_in(home_of_weeks, monkeypatch)
    with sa.create_engine(keeping.log.url).begin() as connection:
        for table in (EXPOSURES, PREDICTIONS, KEPT_ROWS):
            connection.execute(table.delete())
    records.path_of(ServedDays, home_of_weeks / "var").unlink(missing_ok=True)
    return keeping


def serve(router: Running, day: date, *, num: int = NUM, **fed: Any) -> None:
    """Have rows of a day predicted, each by a request, some of whose columns are fed otherwise."""
    sent = as_records(rows_of(day, num).drop(["is_fraud"]))
    before = sum(one.num_requests for one in router.log.kept_rows.days(1))
    for row in sent:
        status, _ = router.post("predict", {"rows": [{**row, **{name: fed[name](row) for name in fed}}]})
        assert status == 200
    until(lambda: sum(one.num_requests for one in router.log.kept_rows.days(1)) == before + num)


def pass_days(log: Log, num: int) -> None:
    """Let what was served today have been served so many days ago, from the beginning of the day on."""
    zone = ZoneInfo(Payments.table.zone)
    today = datetime.now(zone).date()
    began = datetime.combine(today - timedelta(days=num), datetime.min.time(), zone)
    moved = {"day": str(began.date()), "at": began.timestamp() + 60, "today": str(today)}
    with sa.create_engine(log.url).begin() as connection:
        of_today = "(select exposure from kept_rows where day = :today)"
        connection.execute(sa.text(f"update exposures set time = :at where id in {of_today}"), moved)
        connection.execute(sa.text("update kept_rows set day = :day where day = :today"), moved)


def watched() -> Watch:
    home = Home.here()
    settings = params.load(home.folder)
    return watch.watch(home, settings, settings.watch)


def test_rows_as_in_training_are_like_it_and_each_day_is_compared_once(router: Running) -> None:
    serve(router, date(2025, 1, 12))
    assert watched().served is None  # the day is not over
    pass_days(router.log, 1)
    seen = watched()
    assert seen.served
    assert (seen.served.num_requests, seen.served.drift, seen.served.fault) == (NUM, (), "")
    expected = {"ts", "amount", "mcc", "country", "country nulls", "retries", "retries nulls"}
    assert set(seen.served.compared) == expected | {"(prediction)", "(parts)"}
    assert re.search(
        r"served rows of [\d-]+ \(130 requests\) are like the days that version 1 was made of", seen.reason
    )
    with sa.create_engine(router.log.url).begin() as connection:
        connection.execute(sa.text("delete from exposures"))  # it is not looked at again
    serve(router, date(2025, 1, 13), num=3)
    assert watched().served == seen.served


def test_a_column_in_another_unit_from_the_first_day_on_is_told(router: Running, home_of_weeks: Path) -> None:
    serve(router, date(2025, 1, 12), amount=lambda row: 1000 * row["amount"])
    pass_days(router.log, 1)
    seen = watched()
    assert seen.served
    (amount, *others) = seen.served.drift
    assert (amount.column, amount.since) == ("amount", None)
    assert {one.column for one in others} <= {"(prediction)", "(parts)"}
    assert re.fullmatch(r"amount has the median \d\d,\d{3}, not \d\d\.\d+", amount.words)
    assert "; so on each served day: amount" in seen.reason
    settings = home_of_weeks / "params.yaml"
    text = settings.read_text()
    settings.write_text(f"{text}notify: {{command: cat >> told.txt}}\n")
    for _ in range(2):
        publisher.publish_home(Home.here())
    settings.write_text(text)
    (told,) = Path("told.txt").read_text().splitlines()
    (notice,) = served_notices.notices(Home.here())
    assert notice.startswith("served rows of ") and amount.words in notice
    consequence = "version 1 serves on; whoever keeps the home should see to it before the next night"
    assert told == f"Daybreak: {notice}; {consequence}"


def test_a_column_that_comes_to_be_missing_has_drifted_since_the_day_before(router: Running) -> None:
    serve(router, date(2025, 1, 12))
    pass_days(router.log, 2)
    first = watched().served
    assert first and not first.drift
    serve(router, date(2025, 1, 13), country=lambda row: None)
    pass_days(router.log, 1)
    seen = watched()
    assert seen.served
    assert {one.column: one.since for one in seen.served.drift} == {"country nulls": first.day}
    assert re.search(r"country is missing in 100 % of the rows, not \d+\.?\d* %", seen.reason)


def test_a_day_before_the_promotion_is_not_compared(router: Running) -> None:
    """As of a challenger that some users met, or of a version that served before a rollback."""
    serve(router, date(2025, 1, 12), amount=lambda row: 1000 * row["amount"])
    pass_days(router.log, PROMOTED_DAYS_AGO + 1)
    assert watched().served is None


def test_few_requests_are_said_to_be_too_few(router: Running) -> None:
    serve(router, date(2025, 1, 12), num=20, amount=lambda row: 1000 * row["amount"])
    pass_days(router.log, 1)
    seen = watched()
    assert seen.served and not seen.served.drift and not seen.served.compared
    assert "20 requests are too few, 100 are compared; raise serving.keep_rows" in seen.reason


def test_with_drift_off_only_predictions_are_compared(router: Running, home_of_weeks: Path) -> None:
    suite = home_of_weeks / "data" / "expectations.yaml"
    suite.parent.mkdir(exist_ok=True)
    suite.write_text(json.dumps({"drift": "off"}))
    serve(router, date(2025, 1, 12), amount=lambda row: 1000 * row["amount"])
    pass_days(router.log, 1)
    seen = watched()
    suite.unlink()
    assert seen.served and set(seen.served.compared) == {"(prediction)", "(parts)"}


def test_a_column_that_clean_days_have_no_more_is_not_compared(router: Running, home_of_weeks: Path) -> None:
    parts = sorted(home_of_weeks.glob("nights/*/data/clean/day=*/part.parquet"))
    whole = {part: part.read_bytes() for part in parts}
    for part in parts:
        pq.write_table(pq.read_table(part, partitioning=None).drop(["retries"]), part)
    serve(router, date(2025, 1, 12), amount=lambda row: 1000 * row["amount"])
    pass_days(router.log, 1)
    seen = watched()
    for part, content in whole.items():
        part.write_bytes(content)
    assert seen.served and "retries" not in seen.served.compared
    assert [one.column for one in seen.served.drift] == ["amount"]
    assert "the predictions are not compared: version 1 does not predict rows" in seen.served.fault
