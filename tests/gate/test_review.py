"""A person's answer to a verdict: who waits, its limits, and its record."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak import cli
from daybreak.contract import params, records
from daybreak.contract.errors import NothingToDo, NotYet, ReleaseError
from daybreak.contract.record_parts import MeasuredEffect
from daybreak.contract.record_types import Approval, Champion, Night, Release, Verdict, Version
from daybreak.contract.sections import ReleaseParams
from daybreak.extensions.care import audit
from daybreak.extensions.lineage import provenance
from daybreak.gate import review
from daybreak.gate.verdict import decide
from daybreak.registry import approval
from daybreak.report import page, publisher, version_page
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.minimal_records import answer_to, minimal_night
from tests.toy.nights import make_night
from tests.toy.stages import Released, client, close_night, judge_night, promote_only, serving

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

UNTIL = datetime(2025, 1, 11, tzinfo=UTC)
ACTIONS = ("promote", "reject", "wait", "no data")


def verdict_of(action: Any, *, inconclusive: bool = False, until: datetime | None = None) -> Verdict:
    return Verdict(
        action=action,
        champion=1,
        challenger=2,
        effect=MeasuredEffect(mean=0.1, low=0.0, high=0.2),
        num_samples=9,
        reason="why",
        inconclusive=inconclusive,
        approve_until=until,
    )


def answer_of(verdict: Verdict, *, approved: bool = True) -> Approval:
    return answer_to(verdict, approved=approved, reason="seen", answered_at=UNTIL - timedelta(hours=1))


def ended(verdict: Verdict, answer: Approval | None, *, now: datetime) -> str:
    """How a promotion of the version would go on."""
    night = minimal_night(UNTIL)
    try:
        approval.check_promotion(night, verdict, answer, now=now)
    except NotYet:
        return "waits"
    except NothingToDo:
        return "stays"
    return "promoted"


@pytest.mark.parametrize(
    ("when", "asked"),
    [("never", []), ("inconclusive", ["inconclusive"]), ("always", ["inconclusive", "promote"])],
)
def test_who_is_asked_is_what_params_say_and_never_for_what_failed(when: Any, asked: list[str]) -> None:
    release = ReleaseParams(approval=when)
    limits = {
        action: approval.request_approval(verdict_of(action), release, until=UNTIL).approve_until
        for action in ACTIONS
    }
    unproven = approval.request_approval(verdict_of("reject", inconclusive=True), release, until=UNTIL)
    limits["inconclusive"] = unproven.approve_until
    assert sorted(action for action, until in limits.items() if until) == asked


@given(
    action=st.sampled_from(ACTIONS),
    inconclusive=st.booleans(),
    waits=st.booleans(),
    said=st.sampled_from([None, True, False]),
    elsewhere=st.booleans(),
    hours=st.integers(-2, 2),
)
def test_only_a_proof_or_a_persons_word_on_this_verdict_promotes(
    action: Any, inconclusive: bool, waits: bool, said: bool | None, elsewhere: bool, hours: int
) -> None:
    verdict = verdict_of(action, inconclusive=inconclusive, until=UNTIL if waits else None)
    answer = None if said is None else answer_of(verdict, approved=said)
    if answer and elsewhere:
        answer = replace(answer, challenger=7)
    how = ended(verdict, answer, now=UNTIL + timedelta(hours=hours))
    on_this = said if not elsewhere else None
    if action == "promote" or (action == "reject" and inconclusive and waits):
        expected = {True: "promoted", False: "stays", None: "waits" if hours < 0 else "stays"}[on_this]
        assert how == (expected if waits else "promoted")
    else:
        assert how == "stays"


@pytest.fixture
def waiting(home: Path, released: Released) -> Callable[..., Verdict]:
    """The second night, judged but not promoted; whoever decides has two hours."""

    def waiting(when: str, *, weight: float = 1.0, gated: str = "samples: 0", proven: bool = True) -> Verdict:
        released(1.0)
        champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
        os.chdir(make_night(home, 1, weight=weight, champion=champion))
        text = Path("params.yaml").read_text().replace("samples: 0", gated)
        another = "" if proven else "train: {rate: 0.5}\ngate: {min_nights: 1}\n"  # a recipe, judged tonight
        Path("params.yaml").write_text(f"{text}{another}release: {{approval: {when}}}\n")
        now = datetime.now(UTC).replace(microsecond=0)
        records.write(
            replace(records.read(Night, records.RUN), decide_until=now + timedelta(hours=2)), records.RUN
        )
        return judge_night()

    return waiting


def promoted() -> Release:
    try:
        return promote_only()
    finally:
        publisher.publish_night(Home.here(), Path())


def approve(**given: Any) -> Approval:
    said = review.approve(
        Home.here(),
        records.read(Night, records.RUN),
        records.read(Version, records.RUN),
        records.read(Verdict, records.RUN),
        **given,
    )
    publisher.publish_night(Home.here(), Path())
    return said


def described(number: int) -> tuple[str, dict[str, str]]:
    version = client().get_model_version("daybreak", str(number))
    return version.description, version.tags


@pytest.mark.slow
def test_an_inconclusive_night_waits_is_approved_with_a_reason_only_and_is_kept_everywhere(
    home: Path, waiting: Any
) -> None:
    verdict = waiting("inconclusive", proven=False)
    assert (verdict.action, verdict.inconclusive) == ("reject", True)
    night = records.read(Night, records.RUN)
    assert verdict.approve_until == night.decide_until
    text, tags = described(2)
    assert "**Version 2 waits for a person until" in text
    assert "| arms swapped | ok |" in text
    assert tags["status"] == "challenger"
    assert "![effect](get-artifact?path=effect.svg&run_uuid=" in text
    run_id = records.read(Version, records.RUN).run_id
    shown = {file.path for file in client().list_artifacts(run_id)}
    assert {"effect.svg", "report.html"} <= shown  # before anybody has decided
    with pytest.raises(NotYet, match="waits for a person"):
        promoted()
    with pytest.raises(ReleaseError, match="say by --reason why"):
        approve()
    assert serving() == (1, 1)
    assert cli.main(["approve", "--reason", "a sale\nbegins", "--by", "Ada"]) == 0
    assert approve(reason="again", by="Bob").by == "Ada"
    with pytest.raises(ReleaseError, match=r"was approved by Ada .* the first answer stands"):
        approve(reject=True)
    assert promoted() == promoted()
    assert serving() == (2, 2)
    text, tags = described(2)
    assert "was approved by Ada at" in text
    assert ": a sale begins.**" in text
    assert tags["approval"].startswith("was approved by Ada at ")
    assert tags["approval"].endswith(": a sale begins")
    assert tags["status"] == "serving"
    assert len(tags) <= 8
    close_night()
    (entry,) = ledger.history(Home.here(), 1)
    assert ": promote: inconclusive" in entry.subject
    assert approval.ending(verdict, entry.approval).startswith("promote: inconclusive")
    assert approval.ending(verdict, entry.approval).endswith(": a sale begins")
    facts = dict(provenance.why(Home.here(), "2"))
    assert facts["verdict"].startswith("reject: inconclusive")
    assert facts["approved"].startswith("it was approved by Ada at")
    assert facts["approved"].endswith("a sale begins")
    assert branch.read_at(Home.here(), branch.ledger_tip(Home.here()), Approval) == records.read(
        Approval, records.RUN
    )
    shown_page = (Path(records.RUN) / "report.html").read_text()
    assert "Promoted: version 2 replaces version 1." in shown_page
    assert "was approved by Ada" in shown_page
    assert described(2)[1]["ledger"] == branch.ledger_tip(Home.here())
    checks = {check.name: check for check in audit.audit(Home.here(), params.load(home))}
    assert checks["releases"].ok, checks["releases"].text


@pytest.mark.slow
def test_a_promotion_that_waits_may_be_rejected_or_left_and_the_champion_stays(waiting: Any) -> None:
    verdict = waiting("always")
    assert verdict.action == "promote"
    with pytest.raises(NotYet):
        promoted()
    late = replace(verdict, approve_until=datetime.now(UTC))
    records.write(late, records.RUN)
    with pytest.raises(NothingToDo, match="was to be approved until"):
        approve()
    with pytest.raises(NothingToDo, match="was approved by nobody until"):
        promoted()
    assert described(2)[1]["status"] == "rejected"
    assert "approved by nobody" in described(2)[0]
    records.write(verdict, records.RUN)
    said = approve(reject=True, reason="not on a Friday", by="Ada")
    assert not said.approved
    with pytest.raises(NothingToDo, match=r"was rejected by Ada at .*: not on a Friday"):
        promoted()
    assert serving() == (1, 1)
    close_night()
    assert "was rejected by Ada" in dict(provenance.why(Home.here(), "2"))["approved"]
    headline = page.page(Home.here(), Path(), ledger.history(Home.here()))
    assert "Version 2 was rejected by Ada at" in headline
    assert "version 1 stays" in headline


@pytest.mark.slow
def test_a_failed_gate_cannot_be_overridden_and_a_closed_night_not_reopened(waiting: Any) -> None:
    verdict = waiting("always", weight=0.2)
    assert (verdict.action, verdict.approve_until) == ("reject", None)
    with pytest.raises(ReleaseError, match=r"cannot be approved, a failed gate stands: reject: .*worse"):
        approve(reason="I want it")
    forged = replace(verdict, approve_until=records.read(Night, records.RUN).decide_until)
    records.write(forged, records.RUN)
    with pytest.raises(ReleaseError, match="a failed gate stands"):
        approve(reason="I want it")
    records.write(answer_of(forged), records.RUN)
    with pytest.raises(NothingToDo, match="the champion stays"):
        promoted()
    records.path_of(Approval, records.RUN).unlink()
    records.write(replace(forged, inconclusive=True), records.RUN)
    ledger.commit_night(
        Home.here(), records.read(Night, records.RUN), message="closed"
    )  # without having failed
    with pytest.raises(NothingToDo, match="is closed, and its champion stays"):
        approve(reason="I want it")
    assert serving() == (1, 1)


@pytest.mark.slow
def test_what_is_put_to_a_person_is_fit_to_serve_and_what_is_not_is_not_put(waiting: Any) -> None:
    verdict = waiting("inconclusive", proven=False, gated="max_memory_bytes: 1")
    assert verdict.reason.startswith("not fit to serve: memory")
    assert "it would have been put to a person" in verdict.reason
    assert (verdict.action, verdict.inconclusive, verdict.approve_until) == ("reject", False, None)
    with pytest.raises(ReleaseError, match="a failed gate stands"):
        approve(reason="I want it")
    assert "| memory | **failed** |" in described(2)[0]


@pytest.mark.slow
def test_without_approval_nobody_is_asked(waiting: Any) -> None:
    verdict = waiting("never")
    assert verdict.approve_until is None
    with pytest.raises(NothingToDo, match="is promoted without a person"):
        approve()
    assert promoted().version == 2


@pytest.mark.slow
def test_what_nobody_is_asked_for_says_which_key_asks(waiting: Any) -> None:
    assert waiting("never", proven=False).inconclusive
    with pytest.raises(ReleaseError, match=r"set release\.approval: inconclusive and open a new night"):
        approve(reason="a sale begins")


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["write", "tell"])
def test_an_answer_that_was_cut_short_is_given_again(
    waiting: Any, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    waiting("always")

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((records, "write") if stop == "write" else (version_page, "show_verdict")), killed)
        with pytest.raises(KeyboardInterrupt):
            approve(by="Ada")
    assert approve(by="Ada").by == "Ada"
    assert promoted().version == 2
    assert described(2)[1]["approval"].startswith("was approved by Ada at ")


def test_a_broken_guardrail_is_no_want_of_proof() -> None:
    import numpy as np

    from daybreak.statistics.paired import Rules
    from tests.toy.nights import NUM_SAMPLES, make_evaluation, make_version

    rng = np.random.default_rng(0)
    base = rng.random(NUM_SAMPLES).astype(np.float32)
    noisy = (base + rng.normal(0, 0.3, NUM_SAMPLES)).astype(np.float32)
    columns = {"challenger": noisy, "champion": base, "metric/recall": base - 0.5, "champion/recall": base}
    given: dict[str, Any] = {
        "evaluation": make_evaluation("m"),
        "version": make_version(4, model_digest="m", night="n"),
        "champion": Champion(version=3, replaced=2, model_digest="c", night="before"),
        "rules": Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=True),
    }
    assert decide(columns, **given).inconclusive
    verdict = decide(columns, **given, guardrails={"recall": 0.01})
    assert (verdict.action, verdict.inconclusive) == ("reject", False)
    assert verdict.reason.startswith("refresh: guardrail recall: worse than")
