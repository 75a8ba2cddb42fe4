"""When a refit is due, and how far its outputs may be from the judged version's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daybreak.contract import params
from daybreak.contract.record_types import Refit
from daybreak.contract.sections import Params
from daybreak.extensions.care.audit import release_faults
from daybreak.gate import refit as stage
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home
from tests.rollout.ledgers import close, make_home, release_of
from tests.rollout.test_promote import NIGHT, VERDICT, VERSION

DRAWN = np.random.default_rng(0)
PREDICTED = {"prediction/amount": DRAWN.normal(size=2000), "prediction/odds": DRAWN.random((2000, 2))}


def asked(**gate: Any) -> Params:
    return params.check(
        {
            "source": "tests.fakes:TwoDays",
            "workload": "tests.fakes:Nothing",
            "backend": "tests.fakes:Nothing",
            "gate": gate,
        }
    )


def called(loaded: Params, **changed: Any) -> Refit | None:
    nothing: Any = None
    given = {
        "version": VERSION,
        "verdict": VERDICT,
        "backend": nothing,
        "workload": nothing,
        "params": loaded,
        "limits": loaded.plan,
        "scoring": loaded.evaluate,
    } | changed
    return stage.refit(NIGHT, nothing, nothing, nothing, nothing, **given, home=Home.here())


def test_no_refit_is_made_unless_one_is_asked_for() -> None:
    assert called(asked()) is None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("verdict", [replace(VERDICT, action="reject"), replace(VERDICT, challenger=5)])
def test_what_is_not_to_be_promoted_is_not_refitted(verdict: Any) -> None:
    assert called(asked(refit_epochs=1.0), verdict=verdict) is None


def test_what_was_decided_of_a_version_stays_decided() -> None:
    before = Refit(judged=VERSION.number, why_not="it was late")
    assert called(asked(refit_epochs=1.0), before=before) == before
    assert before.in_place_of(VERSION.number) is None


@pytest.mark.usefixtures("home")
def test_a_night_that_was_overtaken_refits_nothing() -> None:
    close(9, after="", release=release_of(9))
    assert called(asked(refit_epochs=1.0)) is None


@pytest.mark.parametrize(
    ("ours", "ok"),
    [
        (PREDICTED, True),
        ({name: values + 0.05 for name, values in PREDICTED.items()}, True),
        ({name: -values - 2 for name, values in PREDICTED.items()}, False),
        ({name: np.full_like(values, np.nan) for name, values in PREDICTED.items()}, False),
    ],
)
def test_predictions_that_are_elsewhere_fail(ours: dict[str, np.ndarray], ok: bool) -> None:
    check = stage._drift(object(), ours, PREDICTED, margin=0.5)
    assert (check.name, check.ok) == ("predictions", ok), check.text


def test_scores_are_compared_where_nothing_is_predicted_by_name() -> None:
    scores = {"challenger": DRAWN.random(500).astype(np.float32)}
    assert stage._drift(object(), scores, scores, margin=0.5).ok
    assert not stage._drift(object(), {"challenger": scores["challenger"] - 2}, scores, margin=0.5).ok


def _made(number: int, digest: str) -> dict[str, Any]:
    return {"number": number, "model_digest": digest}


@pytest.mark.parametrize(
    ("why_not", "released", "faults"),
    [
        ("", _made(5, "refitted"), 0),
        ("it was late", _made(4, "judged"), 0),
        ("", _made(4, "judged"), 1),
        ("it was late", _made(5, "refitted"), 2),
        ("", _made(5, "another"), 1),
    ],
)
def test_audit_holds_a_release_to_the_refit_of_what_was_judged(
    why_not: str, released: dict[str, Any], faults: int
) -> None:
    commit = Commit(id="c" * 40, parents=(), time=0, subject="", night="n", rollback=False, serves=5)
    content = {
        "version": _made(4, "judged"),
        "verdict": {"challenger": 4, "action": "promote"},
        "refit": {"judged": 4, "version": _made(5, "refitted"), "why_not": why_not},
        "release": {"version": released["number"], "replaced": 0, "model_digest": released["model_digest"]},
    }
    assert len(list(release_faults([commit], [content]))) == faults
