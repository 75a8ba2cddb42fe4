"""What nights and a rollback commit to the ledger as events, by their own stages."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from daybreak import cli
from daybreak.contract import params, records
from daybreak.contract.record_types import Events, Release
from daybreak.contract.user import user
from daybreak.rollout import night_events, rollback
from daybreak.storage import branch, events, ledger
from daybreak.storage.home import Home
from tests.toy.nights import PARAMS, make_night
from tests.toy.stages import close_night, judge_night, promote_night

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]


def judge(home: Path, number: int, weight: float) -> str:
    """Judge night `number`, whose model has this weight, and return the action of its verdict."""
    os.chdir(
        make_night(
            home,
            number,
            weight=weight,
            champion=ledger.champion_at(Home.here(), branch.ledger_tip(Home.here())),
        )
    )
    Path("params.yaml").write_text(PARAMS)
    return judge_night().action


def test_the_ledger_has_each_event_once_whatever_was_killed_and_records_say_the_same(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(home, 0, 0.6) == "promote"
    promote_night()
    promoted = ledger.history(Home.here())[0].events
    for _ in range(2):
        close_night()
    assert judge(home, 1, 1.0) == "promote"
    promote_night()
    records.path_of(Release, records.RUN).unlink()  # as if killed once the ledger was moved
    records.path_of(Events, records.RUN).unlink()
    close_night()
    assert [event.kind for event in events.read(Path())] == ["opened", "planned", "late", "promoted"]
    assert judge(home, 2, -3.0) == "reject"
    close_night()
    os.chdir(home)
    rollback.rollback(Home.here(), params.load(Path()).register_, steps=1, reason="complaints", by="ann")
    rollback.rollback(Home.here(), params.load(Path()).register_, to=2, reason="better than none")
    forth, back, refused, second, first = ledger.history(Home.here())
    assert first.events == promoted
    assert second.events and second.events.events[-1].version == 2
    assert refused.events
    assert [event.kind for event in refused.events.events] == ["opened", "planned", "late", "refused"]
    assert refused.events.events[3].champion == 2
    (event,) = night_events.of_entry(back)
    assert (event.kind, event.version, event.champion, event.by) == ("rolled back", 1, 2, "ann")
    assert (event.night, event.reason) == ("2025-01-10", "complaints")
    assert night_events.of_entry(forth)[0].by == user()
    assert back.training is back.plan is back.evaluation is None  # it borrows no figure of a night
    for entry in (refused, second, first):
        derived = night_events.of_entry(replace(entry, events=None))
        kept = night_events.of_entry(entry)
        assert [(e.kind, e.version, e.champion, e.reason) for e in derived] == [
            (e.kind, e.version, e.champion, e.reason) for e in kept
        ]
    assert cli.main(["events", "--last", "2", "--json"]) == 0
    newest, before = json.loads(capsys.readouterr().out)
    assert (newest["kind"], newest["reason"]) == ("rolled back", "better than none")
    assert (before["kind"], before["by"]) == ("rolled back", "ann")
    assert cli.main(["events", "--night", "2025-01-12"]) == 0
    assert "2025-01-12  refused: version 3 beside version 2, by gate: reject: " in capsys.readouterr().out
