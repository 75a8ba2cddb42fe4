"""What was measured stands in results.csv, a row a figure."""

from pathlib import Path

import pytest

from benchmarks import results


def measured(value: str, date: str, **columns: str) -> results.Row:
    row = {
        "bench": "night",
        "figure": "set-up",
        "unit": "s",
        "value": value,
        "date": date,
        "quick": "",
        "note": "",
    }
    return row | columns


def test_the_first_value_stays_beside_the_newest(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    for value, date in (("9", "2026-11-21"), ("8", "2026-11-22"), ("7", "2026-11-23")):
        results.add([measured(value, date, commit=f"c{value}")], file)
    [row] = results.read(file)
    newest, first = ("value", "date", "commit"), ("first", "first_date", "first_commit")
    assert [row[key] for key in newest] == ["7", "2026-11-23", "c7"]
    assert [row[key] for key in first] == ["9", "2026-11-21", "c9"]


def test_a_quick_value_stands_beside_the_full_one_until_that_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    results.add([measured("9", "2026-11-21")], file)
    results.add([measured("3", "2026-11-22", quick="yes")], file)
    assert [row["value"] for row in results.read(file)] == ["9", "3"]
    results.add([measured("8", "2026-11-23")], file)
    assert [(row["value"], row["first"]) for row in results.read(file)] == [("8", "9")]


def test_a_bench_stands_at_its_place_in_the_file_with_its_figures_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    results.add([measured("1", "2026-11-21", bench="spot"), measured("2", "2026-11-21", figure="z")], file)
    results.add([measured("3", "2026-11-22", figure="a"), measured("4", "2026-11-22", figure="z")], file)
    assert [(row["bench"], row["figure"]) for row in results.read(file)] == [
        ("night", "z"),
        ("night", "a"),
        ("spot", "set-up"),
    ]


@pytest.mark.parametrize(
    ("name", "figure", "unit"),
    [
        ("set-up s", "set-up", "s"),
        ("plan, CPU s", "plan", "CPU s"),
        ("nights judged", "nights judged", ""),
        ("coverage of 90 % %", "coverage of 90 %", "%"),
    ],
)
def test_a_unit_is_what_a_name_ends_with(name: str, figure: str, unit: str) -> None:
    assert results.split_unit(name) == (figure, unit)


def test_each_recorded_figure_is_of_a_bench_and_stands_once() -> None:
    rows = results.read()
    figures = [(row["bench"], row["figure"], row["unit"], row["quick"]) for row in rows]
    assert len(set(figures)) == len(figures) > 1000
    assert {row["bench"] for row in rows} <= {
        path.stem.removeprefix("bench_") for path in results.RESULTS.parent.glob("bench_*.py")
    }
