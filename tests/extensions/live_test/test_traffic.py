from dataclasses import replace

from daybreak.storage.traffic_row import Traffic, holdback_name

HELD = Traffic(champion=3, challenger=2, share=0.05, experiment=holdback_name(2))


def test_a_holdback_is_known_by_the_version_that_users_are_held_back_on() -> None:
    assert HELD.is_holdback
    assert replace(HELD, champion=9).is_holdback
    assert not replace(HELD, challenger=9).is_holdback


def test_an_experiment_of_a_night_is_no_holdback_whatever_the_night_is_called() -> None:
    assert not Traffic().is_holdback
    assert not replace(HELD, experiment="2025-01-11").is_holdback
    assert not replace(HELD, experiment="holdback-of-monday").is_holdback
