"""A challenger in the shadow of the champion, in a real router: what users see, and what the log has."""

from dataclasses import replace
from pathlib import Path

import pytest

from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.extensions.router import shadow
from daybreak.extensions.router.shadow import difference
from daybreak.storage.exposures import ShadowedExposure
from daybreak.storage.traffic_row import Traffic
from tests.extensions.router.running import Running, running, until

EXPERIMENT = "a night in the shadow"
SHADOW = LiveTestParams(shadow=1.0)


def begin(router: Running, experiment: str = EXPERIMENT) -> None:
    """Let version 3 challenge version 2, which nobody meets yet."""
    moved = router.log.traffic.change(
        lambda now: Traffic(revision=now.revision, champion=2, challenger=3, experiment=experiment)
    )
    until(lambda: router.manager.standing.revision >= moved.revision and router.manager.standing.challenger)


def shadows(router: Running, number: int, experiment: str = EXPERIMENT) -> list[ShadowedExposure]:
    """What is in the shadow of the answers, once there are so many."""
    until(lambda: len(list(router.log.exposures.shadowed(experiment))) >= number)
    return list(router.log.exposures.shadowed(experiment))


def test_a_challenger_is_asked_beside_the_champion_and_nobody_is_shown_its_answer(home: Path) -> None:
    with running(home, limits=SHADOW) as router:
        begin(router)
        shown = [router.recommend(f"u{number}") for number in range(1, 9)]
        assert {answer["version"] for answer in shown} == {2}
        seen = shadows(router, 8)
        assert {one.shadow.version for one in seen} == {3}
        assert [one.shadow.exposure for one in seen] == [answer["exposure"] for answer in shown]
        assert {one.shadow.difference for one in seen} == {1.0}  # each version names its own items
        assert all(one.shadow.latency_s > 0 and not one.shadow.error for one in seen)
        moved = router.log.traffic.change(lambda now: replace(now, share=0.5))  # users meet it from now on
        until(lambda: router.manager.standing.revision >= moved.revision)
        for number in range(10):
            router.recommend(f"u{number}")
        router.log.traffic.change(lambda now: Traffic(revision=now.revision))
    assert len(list(router.log.exposures.shadowed(EXPERIMENT))) == 8


def test_a_challenger_that_fails_in_the_shadow_is_logged_and_users_see_no_error(home: Path) -> None:
    experiment = "a night that fails in the shadow"
    with running(home, limits=SHADOW) as router:
        begin(router, experiment)
        answer = router.recommend("u700")  # which version 3 does not answer
        assert (answer["version"], answer["items"][0]) == (2, "2/u700/0")
        (one,) = shadows(router, 1, experiment)
        assert one.shadow.error and not one.error
        router.log.traffic.change(lambda now: Traffic(revision=now.revision))


def test_requests_that_find_the_challenger_busy_are_dropped_and_counted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "MAX_ASKED", 0)
    experiment = "a night that is busy"
    with running(home, limits=SHADOW) as router:
        begin(router, experiment)
        assert router.recommend("u1")["version"] == 2
        (one,) = shadows(router, 1, experiment)
        assert (one.shadow.dropped, one.shadow.difference) == (True, None)
        router.log.traffic.change(lambda now: Traffic(revision=now.revision))


def test_without_the_key_nothing_is_put_to_the_challenger(home: Path) -> None:
    experiment = "a night without a shadow"
    with running(home) as router:
        begin(router, experiment)
        router.recommend("u1")
        until(lambda: list(router.log.exposures.of(experiment)))
        router.log.traffic.change(lambda now: Traffic(revision=now.revision))
    assert list(router.log.exposures.shadowed(experiment)) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "apart"),
    [
        ([{"chance": 0.5, "class": "a"}], [{"chance": 0.5, "class": "a"}], 0.0),
        ([{"chance": 0.5, "class": "a"}], [{"chance": 0.5, "class": "b"}], 0.5),
        ([{"chance": 1.0}], [{"chance": -1.0}], 1.0),
        ([{"chances": [0.25, 0.75]}], [{"chances": [0.75, 0.25]}], 0.5),
        ([{"chance": 0.5}], [{"other": 0.5}], 1.0),
        ([], [], 0.0),
    ],
)
def test_the_difference_of_two_predictions_is_a_share(ours: object, theirs: object, apart: float) -> None:
    assert difference(ours, theirs) == apart
