from dataclasses import replace

from pipeline.experiment.traffic import holdback_name, is_holdback
from pipeline.storage.traffic_log import Traffic

HELD = Traffic(champion=3, challenger=2, share=0.05, experiment=holdback_name(2))


def test_a_holdback_is_known_by_the_version_that_users_are_held_back_on() -> None:
    assert is_holdback(HELD)
    assert is_holdback(replace(HELD, champion=9))
    assert not is_holdback(replace(HELD, challenger=9))


def test_a_holdback_of_the_release_before_is_known_by_both_versions() -> None:
    assert is_holdback(replace(HELD, experiment="holdback-3-2"))
    assert not is_holdback(replace(HELD, experiment="holdback-2-3"))


def test_an_experiment_of_a_night_is_no_holdback_whatever_the_night_is_called() -> None:
    assert not is_holdback(Traffic())
    assert not is_holdback(replace(HELD, experiment="2025-01-11"))
    assert not is_holdback(replace(HELD, experiment="holdback-of-monday"))
