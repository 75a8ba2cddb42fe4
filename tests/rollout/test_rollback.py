"""What a rollback goes back to, of any ledger; the rollback itself is in test_rolled_back_nights.py."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract import records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_parts import Record
from daybreak.contract.record_types import Action, Night, Refit, Release, Verdict, Version
from daybreak.rollout.rollback import promotion_of, steps_back, version_of
from daybreak.storage import branch, ledger
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home
from tests.rollout.ledgers import close, make_home


def history(*versions: int) -> list[Commit]:
    """The releases of nights given oldest first: what they promoted, -N: rolled back to N, 0: neither."""
    return [
        Commit(
            id=f"c{number}",
            parents=(),
            time=number,
            subject="",
            night=f"n{number}",
            rollback=version < 0,
            serves=abs(version),
        )
        for number, version in reversed(list(enumerate(versions)))
        if version
    ]


def test_one_step_back_is_the_promotion_before() -> None:
    assert steps_back(history(1, 2, 3), 1) == 2


def test_more_steps_go_further_back() -> None:
    assert steps_back(history(1, 2, 3), 2) == 1


def test_nights_that_promoted_nothing_are_no_step() -> None:
    assert steps_back(history(1, 0, 2, 0), 1) == 1


def test_the_step_after_a_rollback_goes_further_back_and_not_forth_again() -> None:
    assert steps_back(history(1, 2, 3, -2), 1) == 1


def test_a_promotion_after_a_rollback_goes_back_to_what_served_before_it() -> None:
    assert steps_back(history(1, 2, -1, 3), 1) == 1


@pytest.mark.parametrize("steps", [0, 2, 3])
def test_as_many_steps_as_there_were_no_promotions_are_refused(steps: int) -> None:
    with pytest.raises(ReleaseError, match=rf"cannot take back {steps} promotions?: .* are 1, 2; choose"):
        steps_back(history(1, 2), steps)


def test_where_nothing_was_promoted_there_is_no_step() -> None:
    with pytest.raises(ReleaseError, match=r"cannot take back 1 promotion: .* served are none"):
        steps_back(history(0), 1)


def test_a_ledger_of_many_promotions_is_gone_through_once() -> None:
    compared = []

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return int(self) == other

        __hash__ = int.__hash__

    releases = [replace(commit, serves=Counted(commit.serves)) for commit in history(*range(1, 1001))]
    assert steps_back(releases, 1) == 999
    assert len(compared) < 5_000


@given(st.integers(2, 8), st.data())
def test_steps_one_at_a_time_lead_where_all_at_once_lead(num_versions: int, data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, num_versions - 1))
    versions = list(range(1, num_versions + 1))
    at_once = steps_back(history(*versions), steps)
    for _ in range(steps):
        versions.append(-steps_back(history(*versions), 1))
    assert -versions[-1] == at_once


def test_the_promotion_of_a_version_is_its_night_and_not_the_rollback_to_it() -> None:
    assert promotion_of(history(1, 2, -1), 1).id == "c0"


def test_a_version_that_was_never_promoted_is_refused_with_those_that_were() -> None:
    with pytest.raises(ReleaseError, match="version 7 was never promoted; choose one of: 1, 3"):
        promotion_of(history(3, 0, 1), 7)


def version_named(number: int, night: Night) -> Version:
    return Version(name="m", number=number, night=night.id, data_digest="", model_digest="", run_id="")


def decided(number: int, action: Action) -> Verdict:
    return Verdict(action=action, champion=0, challenger=number, reason="")


def test_a_night_is_named_for_the_refit_that_it_released_and_a_day_for_what_it_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(tmp_path, monkeypatch)
    first = branch.ledger_tip(Home.here())
    close(1, after=first)
    home, night = Home.here(), ledger.history(Home.here(), limit=1)[0].night

    def closed(name: str, *made: Record, release: Release | None = None) -> None:
        for path in records.RUN.glob("*.json"):
            path.unlink()
        tonight = replace(night, id=name, day=date(2025, 2, 1), previous=branch.newest_entry(home))
        for record in (tonight, *made):
            records.write(record, records.RUN)
        ledger.commit_night(home, tonight, message=name, release=release)

    refit = Refit(judged=8, version=version_named(9, night))
    released = Release(version=9, replaced=0, night="refitted")
    closed("refitted", version_named(8, night), decided(8, "promote"), refit, release=released)
    closed("rejected", version_named(10, night), decided(10, "reject"))
    assert version_of(home, "refitted") == 9
    assert version_of(home, "2025-02-01") == 9
    assert version_of(home, "rejected") == 10
    assert promotion_of(ledger.releases(home), version_of(home, "2025-02-01")).night == "refitted"
