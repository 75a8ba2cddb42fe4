"""Keys of params.yaml that mean nothing to an estimator are refused, each with what to do."""

from typing import Any

import pytest

from daybreak.contract import params
from daybreak.contract.errors import ParamsError
from daybreak.contract.sections import Params
from daybreak.training.estimator_keys import expect_all_samples, expect_applicable
from tests.training.nights import ROOT


def given(**changed: Any) -> Params:
    """Params with the sections that count here at their defaults, but for some keys."""
    loaded = params.load(ROOT)
    sections: dict[str, Any] = {}
    for name in ("train", "plan", "gate", "profile"):
        kind = type(getattr(loaded, name))
        own = {key.partition("__")[2]: value for key, value in changed.items() if key.startswith(name)}
        sections[name] = kind(**({"cold_every": 1} if name == "train" else {}) | own)
    return loaded.model_copy(update=sections)


def test_what_init_writes_is_applicable() -> None:
    expect_applicable(given(train__epochs=100, train__validation=0.1, train__checkpoint_every_s=60))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"train__rate": 0.1}, r"train\.rate is for networks.*leave it out"),
        ({"train__batch_size": 64, "train__ema": 0.9}, r"train\.batch_size, train\.ema are for networks"),
        ({"profile__batch_sizes": (64,)}, r"profile\.batch_sizes is for networks"),
        ({"train__cold_every": 7}, r"set train\.cold_every: 1, as trees are grown anew"),
        ({"train__epochs": 1.5}, r"set train\.epochs to a whole number"),
        ({"plan__batch_sizes": (64,)}, r"set plan\.batch_sizes to none"),
        ({"plan__max_machines": 2}, r"set plan\.max_machines: 1"),
        ({"plan__objective": "quality"}, r"set plan\.objective to another than quality"),
        ({"gate__refit_epochs": 1.0}, r"set gate\.refit_epochs: 0"),
    ],
)
def test_what_is_of_networks_is_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParamsError, match=sentence):
        expect_applicable(given(**changed))


@pytest.mark.parametrize("what", ["weights", "lengths", "groups"])
def test_samples_that_are_to_be_drawn_are_refused(what: str) -> None:
    class Samples(list[int]):
        """As many samples as numbers."""

    samples = Samples([1, 2, 3])
    expect_all_samples(None, samples)
    setattr(samples, what, [1, 2, 3])
    with pytest.raises(ParamsError, match=f"has {what}, by which samples are drawn, and an") as refused:
        expect_all_samples(None, samples)
    assert ("give the class weights" in str(refused.value)) == (what == "weights")
