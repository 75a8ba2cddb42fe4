"""What a model's features need is kept in files that every place can store and send."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.workload import STATE, _name, _stem, read_state, write_state

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
