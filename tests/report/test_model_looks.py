"""The charts of a model on the page of a night: how it learned, its chances, and the nights."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from markupsafe import escape

from daybreak.contract import records
from daybreak.contract.record_parts import ListChange
from daybreak.contract.record_types import ChangedLists
from daybreak.report import model_nights
from daybreak.report.model_looks import model_looks
from daybreak.report.page import page, write_with_copy
from daybreak.storage.home import Home
from tests.report.nights import ODD_NAME, lay, only, sixty, whole
from tests.report.test_page import text_of

PARAMS = "source: a:B\nworkload: a:B\nbackend: a:B\n"


def test_the_old_curve_is_that_of_the_night_that_made_the_champion() -> None:
    night, history = whole(61), sixty()[1:]
    made = next(one for one in history if one.release and one.release.version == 60)
    assert model_nights.trained_before(night, history) == made.training
    assert model_nights.trained_before(night, history[5:]) is None
    shown = model_looks(night, history).learning
    assert shown
    assert "Dashed: version 60, the champion." in shown.words


def test_a_night_of_no_curve_shows_none() -> None:
    night = whole()
    assert night.training
    bare = replace(night, training=replace(night.training, losses=(), validations=()))
    assert model_looks(bare, []).learning is None
    assert model_looks(only(whole(), "batch"), []).nights == ()


def test_the_effect_over_nights_is_pooled_by_their_spread() -> None:
    night, history = whole(62), sixty()
    effects = model_nights.effects(night, history, most=60)
    assert [one.day for one in effects] == sorted(one.day for one in effects)
    mean, half = model_nights.pooled(effects) or (0.0, 0.0)
    assert mean == pytest.approx(sum(one.mean for one in effects) / len(effects))
    assert mean - half < mean < mean + half
    assert model_nights.pooled(effects[:2]) is None


def test_later_nights_and_rollbacks_are_on_no_earlier_page() -> None:
    history = sixty()
    at = next(at for at, one in enumerate(history) if at > 20 and one.verdict and one.verdict.effect)
    entry = history[at]
    days = [one.day for one in model_nights.effects(entry, history, most=60)]
    assert max(days) == entry.night.day
    back = replace(history[at + 1], rollback=True)
    without = model_nights.effects(entry, [*history[: at + 1], back], most=60)
    assert [one.day for one in without] == [entry.night.day]


def test_each_metric_has_its_slices_over_the_nights_with_intervals() -> None:
    by_metric = model_nights.slices_over_nights(whole(62), sixty(), most=28)
    assert by_metric.keys() == {"score", "hit_rate"}
    points = by_metric["hit_rate"][ODD_NAME]
    assert len(points) == 28
    assert (points[-1].mean, points[-1].half) == (0.5, pytest.approx(1.96 * 0.04))
    assert points[-1].day - points[0].day >= timedelta(days=27)


def test_the_page_has_all_of_it_with_tables_and_escapes_names(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS)
    html = page(Home.here(), lay(whole(62), tmp_path), sixty())
    text = text_of(html)
    for words in (
        "How it learned",
        "Are its chances right?",
        "What samples of each class were taken for",
        "Effect over the nights",
        "hit_rate, by slice over the nights",
    ):
        assert words in text
    assert f"taken for {ODD_NAME}" in text
    assert ODD_NAME not in html
    assert 'aria-label="Importance of columns: item' in html


def test_lists_that_changed_are_on_the_page_in_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS)
    lay(whole(62), tmp_path)
    (tmp_path / records.LOOKS).mkdir(parents=True)
    change = ListChange(before=("22423", "85123A"), after=("85123A", ODD_NAME))
    records.write(ChangedLists(lists=(change,)), tmp_path / records.LOOKS)
    path, copy = write_with_copy(Home.here(), tmp_path, [])
    own = path.read_text()
    assert "<s>22423</s>" in own
    assert f"<b>{escape(ODD_NAME)}</b>" in own
    assert "812" in text_of(copy)  # what all lists reach
    assert "22423" not in copy
