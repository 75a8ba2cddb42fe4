"""A life is from the first sign to the last, and ended by a preemption only if it was found lost."""

from datetime import UTC, datetime

from daybreak.jobs.observed_lifetimes import lifetimes, start_s


def at(seconds: float) -> dict[str, object]:
    return {"time": datetime.fromtimestamp(seconds, UTC).isoformat()}


def ask(seconds: float, **changes: object) -> dict[str, object]:
    return {"handle": "h", "time": seconds, "strategy": "spot"} | changes


def lives_of(*submissions, starts=(), heartbeats=(), losses=()):
    return lifetimes(
        submissions,
        starts=[at(s) for s in starts],
        heartbeats=[at(s) for s in heartbeats],
        losses=[{"time": s} for s in losses],
    )


def test_a_machine_that_was_lost_and_the_one_that_did_the_rest():
    lives = lives_of(ask(0), ask(500), starts=(60, 560), heartbeats=(100, 400, 900), losses=(480,))
    assert lives == ((340.0, True), (340.0, False))


def test_one_that_failed_or_was_left_is_censored():
    assert lives_of(ask(0), ask(500, strategy="on-demand"), starts=(60, 560), heartbeats=(400,)) == (
        (340.0, False),
    )


def test_a_job_that_goes_on_without_a_machine_had_it_taken_when_its_devices_became_fewer():
    devices = [
        "cpu",
        "2 x cpu",
        "4 x cpu",
        "3 x cpu",
        "4 x cpu",
    ]  # machines join, one is taken, another comes
    beats = [at(100.0 * (n + 1)) | {"device": device} for n, device in enumerate(devices)]
    lives = lifetimes([ask(0)], starts=[at(60)], heartbeats=beats, losses=[])
    assert lives == ((340.0, True),)
    assert lifetimes([ask(0)], starts=[at(60)], heartbeats=beats[:3], losses=[]) == ((240.0, False),)


def test_machines_on_demand_and_queues_that_were_left_have_no_life():
    assert lives_of(ask(0, strategy="on-demand"), starts=(5,), losses=(50,)) == ()
    assert lives_of(starts=(5,)) == ()
    assert lives_of(ask(0), ask(0, left=True), ask(90, strategy="on-demand"), starts=(100,)) == ()


def test_the_start_is_what_lay_between_asking_and_the_first_worker():
    assert start_s([ask(10), ask(500)], [at(130), at(560)]) == 120
    assert start_s([], [at(130)]) is None
    assert start_s([ask(10)], []) is None
