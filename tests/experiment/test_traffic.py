from dataclasses import replace

from pipeline.experiment.traffic import holdback_name, is_holdback
from pipeline.storage.traffic_log import Traffic

HELD = Traffic(champion=3, challenger=2, share=0.05, experiment=holdback_name(serving=3, replaced=2))


def test_a_row_that_holds_users_back_is_known_by_its_own_versions() -> None:
    assert HELD.experiment == "holdback-3-2"  # as the release before wrote it
    assert is_holdback(HELD)


def test_an_experiment_of_a_night_is_no_holdback_whatever_the_night_is_called() -> None:
    assert not is_holdback(Traffic())
    assert not is_holdback(replace(HELD, experiment="2025-01-11"))
    assert not is_holdback(replace(HELD, experiment="holdback-of-monday"))
