"""When the watch takes a champion back on the days since; what it does then: test_watched_releases.py."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from daybreak.contract.record_parts import Chain, Difference
from daybreak.contract.record_types import Evaluation, Release, Verdict, Watch
from daybreak.contract.sections import GateParams
from daybreak.gate import watch
from daybreak.gate.watch import compare
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from tests.minimal_records import minimal_night
from tests.rollout.ledgers import close, make_home, release_of

SERVING = Release(version=4, replaced=3)
FIRST = date(2026, 1, 1)
ERROR = 0.004


def entry(number: int, chain: Chain | None, *, champion: int = 4, release: Release | None = None) -> Entry:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    night = minimal_night(at, id=str(number), day=FIRST + timedelta(days=number))
    verdict = Verdict(
        action="promote" if release else "reject",
        champion=champion,
        challenger=0,
        reason="",
        chain=chain,
    )
    return Entry(
        commit=str(number), subject="", rollback=False, night=night, verdict=verdict, release=release
    )


def chain(**differences: float) -> Chain:
    measured = {name: Difference(mean=mean, error=ERROR) for name, mean in differences.items()}
    return Chain(anchor=1, since=FIRST, margin=0.03, **measured)


def watched(
    *days: Chain, promoted: Chain | None = None, when_spent: str = "cold", alpha: float = 0.05
) -> Watch:
    """Returns the watch of a champion after these days, newest first, since the night of its promotion."""
    past = [entry(9 - number, one) for number, one in enumerate(days)]
    past.append(entry(0, promoted or chain(step=0.0, challenger=0.0), champion=3, release=SERVING))
    return compare(SERVING, past, GateParams(when_spent=when_spent, alpha=alpha))


def test_a_champion_is_kept_while_the_days_since_prove_nothing() -> None:
    seen = watched(chain(predecessor=-0.003, champion=0.0), chain(predecessor=0.002, champion=0.0))
    assert (seen.outcome, seen.serving, seen.predecessor) == ("kept", 4, 3)
    assert seen.reason.startswith("version 3 is not proven better than version 4: -0.0003 (from ")
    assert seen.reason.endswith("3 nights); a loss of the margin 0.03 shows after about 1 night")


def test_a_loss_that_one_day_does_not_show_is_shown_by_several() -> None:
    changed = chain(step=0.0)  # a changed recipe: it has no place in a chain
    lost = chain(predecessor=-0.01, champion=0.0)
    assert watched(lost, promoted=changed).outcome == "kept"
    assert watched(*[lost] * 8, promoted=changed).outcome == "rolled back"


def test_a_night_without_a_day_of_its_own_adds_nothing() -> None:
    changed = chain(step=0.0)
    lost = chain(predecessor=-0.01, champion=0.0)
    again = replace(lost, predecessor=replace(lost.predecessor, counts=False))
    assert watched(*[again] * 7, lost, promoted=changed).outcome == "kept"


def test_a_day_that_several_nights_hold_out_is_counted_once() -> None:
    def held_out(number: int, num_by_day: tuple[int, ...]) -> Evaluation:
        days = tuple(FIRST + timedelta(days=number + day) for day in range(3))
        return Evaluation(
            model_digest="",
            data_digest="",
            num_samples=30,
            metrics={},
            slices=(),
            days=days,
            num_by_day=num_by_day,
        )

    def num_samples(*num_by_day: int) -> int:
        lost = chain(predecessor=-0.01, champion=0.0)
        past = [replace(entry(n, lost), evaluation=held_out(n, num_by_day)) for n in (3, 2, 1)]
        past.append(entry(0, chain(step=0.0), champion=3, release=SERVING))
        return compare(SERVING, past, GateParams()).num_samples

    assert num_samples(10, 10, 10) == 50
    assert num_samples() == 30  # which samples are of which day is not known


def test_the_release_is_looked_back_on_however_long_ago_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, a refresh would have to be no worse at all."""
    make_home(tmp_path, monkeypatch)
    commits = [close(1, after="", release=release_of(1))]
    commits.append(close(2, after=commits[-1], release=release_of(2)))
    commits += [close(3, after=commits[-1])]
    commits += [close(4, after=commits[-1])]
    assert [one.commit for one in watch.since_release(Home.here())] == commits[:0:-1]
    monkeypatch.setattr(watch, "of_a_year", lambda newest_first, _: newest_first[:1])
    assert [one.commit for one in watch.since_release(Home.here())] == [commits[3], commits[1]]


def test_a_refresh_may_be_worse_by_less_than_the_margin() -> None:
    lost = chain(predecessor=-0.02, champion=0.0)
    assert watched(*[lost] * 9).outcome == "kept"
    worse = chain(predecessor=-0.08, champion=0.0)
    seen = watched(*[worse] * 9)
    assert (seen.outcome, seen.predecessor) == ("rolled back", 3)
    assert seen.reason.startswith("version 3 is better than version 4: -0.07")


def test_it_goes_back_to_the_anchor_where_that_is_better_by_more_than_the_margin() -> None:
    seen = watched(*[chain(predecessor=-0.005, champion=-0.05)] * 3)
    assert (seen.outcome, seen.predecessor) == ("rolled back", 1)
    assert "version 1, the anchor" in seen.reason


@pytest.mark.parametrize(("when_spent", "outcome"), [("cold", "kept"), ("anchor", "rolled back")])
def test_a_spent_chain_brings_the_anchor_back_where_params_say_so(when_spent: str, outcome: str) -> None:
    spent = replace(chain(predecessor=0.0, champion=-0.02), spent=True)
    assert watched(spent, when_spent=when_spent).outcome == outcome


def test_one_look_a_night_for_a_year_asks_for_more_than_a_single_look() -> None:
    changed = chain(step=-0.01)  # 2.5 standard errors
    assert watched(promoted=changed).outcome == "kept"
    assert watched(promoted=chain(step=-0.02)).outcome == "rolled back"
    assert watched(promoted=changed, alpha=0.99).outcome == "kept"


def test_without_a_night_that_compared_them_there_is_no_data() -> None:
    seen = compare(SERVING, [], GateParams())
    assert (seen.outcome, seen.effect) == ("no data", None)
    assert seen.reason == "no night has compared version 4 with version 3 yet"


def test_days_before_a_rollback_say_nothing_of_what_serves_since() -> None:
    past = [replace(entry(5, None), rollback=True), *[entry(4, chain(predecessor=-0.9))] * 3]
    assert compare(SERVING, past, GateParams()).outcome == "no data"
