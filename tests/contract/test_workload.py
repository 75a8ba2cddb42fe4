"""What a model's features need is kept in files that every place can store and send."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.errors import ParamsError
from daybreak.contract.sections import WorkloadPlug
from daybreak.contract.workload import STATE, _name, _stem, read_state, write_state
from daybreak.workloads.adopted import AdoptedModel

ANY_NAME = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(ANY_NAME | ANY_NAME.map("xn--".__add__))
def test_the_file_of_an_array_has_an_ascii_name_that_tells_the_arrays(name: str) -> None:
    assert _stem(name).isascii()
    assert not set("/\\%#?") & set(_stem(name))
    assert _name(_stem(name)) == name


def test_a_state_of_columns_in_any_script_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = {f"values_{name}": np.arange(3) for name in ("Gebäude", "m³/h", "東京", "kind", "Störung?")}
    write_state(tmp_path, state)
    assert all(path.name.isascii() for path in (tmp_path / STATE).iterdir())
    assert sorted(read_state(tmp_path)) == sorted(state)


def test_a_long_column_in_another_alphabet_fits_into_the_name_of_a_file(tmp_path: Path) -> None:
    column = "Средняя температура воздуха в помещении за последние сутки по датчикам"
    write_state(tmp_path, {f"values_{column}": np.zeros(1)})
    assert read_state(tmp_path).keys() == {f"values_{column}"}


class Deep:
    """A class that offers itself with fewer layers."""

    metrics = ()

    def __init__(self, layers: int = 4) -> None:
        self.layers = self.table = layers

    def variants(self) -> dict[str, "Deep"]:
        return {"fewer layers": Deep(self.layers // 2)}


def test_the_class_that_a_model_is_adopted_for_may_be_a_variant() -> None:
    arguments = {"layers": 6, "variant": "fewer layers"}
    adopted = AdoptedModel(of=f"{__name__}:Deep", arguments=arguments, flavour="sklearn")
    assert adopted.table == 3


class OwnVariant:
    """A class whose argument has the name by which variants are asked for."""

    def __init__(self, variant: str) -> None:
        self.variant = variant


class PassesOn(OwnVariant):
    """One that hands it to its parent."""

    def __init__(self, **given: str) -> None:
        super().__init__(**given)


class OfItsOwn(OwnVariant):
    """One that takes nothing, though its parent takes that argument."""

    def __init__(self) -> None:
        super().__init__("parent's")

    def variants(self) -> dict[str, Deep]:
        return {"smaller": Deep()}


def test_a_variant_is_made_by_its_name_from_the_class_with_the_other_arguments() -> None:
    def layers(**arguments: object) -> int:
        made = WorkloadPlug(use=f"{__name__}:Deep", **arguments).make()  # type: ignore[arg-type]
        return int(made.layers)

    assert layers(layers=6, variant="fewer layers") == 3
    assert layers(layers=6, variant="") == layers(layers=6) == 6
    with pytest.raises(ParamsError, match=r"offers no variant 'smaller'; there are fewer layers \(key work"):
        layers(variant="smaller")
    made = WorkloadPlug(use=f"{__name__}:Deep", variant="fewer layers").make()  # type: ignore[call-arg]
    assert made.variants() == {}  # no key would name them
    assert type(WorkloadPlug(use=f"{__name__}:OfItsOwn", variant="smaller").make()) is Deep  # type: ignore[call-arg]
    for name in ("OwnVariant", "PassesOn"):
        assert WorkloadPlug(use=f"{__name__}:{name}", variant="smaller").make().variant == "smaller"  # type: ignore[call-arg]
