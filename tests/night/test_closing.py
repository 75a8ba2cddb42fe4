"""What `close` says of a night that ends, on a real ledger."""

from datetime import date
from pathlib import Path

import pytest

from daybreak import runner
from daybreak.contract import records
from daybreak.contract.record_types import Night, Release, Verdict
from daybreak.contract.sections import LiveSections
from daybreak.night import closing
from daybreak.storage import ledger
from daybreak.storage.home import Home


@pytest.fixture
def night(repository: Path) -> Night:
    opened = runner.run(Home.here(), "open", day=date(2025, 1, 2), night="n")
    assert isinstance(opened, Night)
    return opened


def closed(night: Night) -> Verdict:
    home = Home.here()
    params = home.params_of(home.tonight)
    closing.close(home, night, params.only(LiveSections), params.backend)
    return records.read(Verdict, home.records)


def left(stage: str, why: str) -> None:
    records.replace_text(records.RUN / f"{stage}.error", f"{why}\n")


def test_a_call_of_close_that_failed_is_no_failure_of_the_night_that_a_later_call_closes(
    night: Night, caplog: pytest.LogCaptureFixture
) -> None:
    left("close", "the disk / is full")
    verdict = closed(night)
    assert (verdict.reason, verdict.failed) == ("the night was ended before its gate", "")
    assert "close failed" not in caplog.text


def test_where_predictions_fail_after_a_promotion_the_new_version_is_said_to_serve(
    night: Night, caplog: pytest.LogCaptureFixture
) -> None:
    release = Release(version=1, replaced=0, night=night.id)
    ledger.commit_night(Home.here(), night, message="promote", release=release)
    left("predict", "table predictions cannot be written")
    closed(night)
    assert "version 1 serves; write the predictions with: daybreak predict --night n" in caplog.text
    assert "champion stays" not in caplog.text


def test_where_a_stage_fails_before_any_promotion_no_version_is_said_to_serve(
    night: Night, caplog: pytest.LogCaptureFixture
) -> None:
    left("train", "no machine is left")
    assert closed(night).failed == "train"
    assert (
        "train failed: no machine is left\n"
        "no version serves; go on with: daybreak night --day 2025-01-02 --night n"
    ) in caplog.text
