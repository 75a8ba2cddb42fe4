"""The charts of a model on the page of a night: how it learned, its chances, and the nights."""

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from markupsafe import escape

from daybreak.contract import records
from daybreak.contract.record_parts import Judged, ListChange, Live, MeasuredEffect
from daybreak.contract.record_types import ChangedLists, Training
from daybreak.report import model_nights
from daybreak.report.model_looks import model_looks
from daybreak.report.page import page, write_with_copy
from daybreak.report.tabled_chart import TabledChart
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from tests.report.nights import ODD_NAME, lay, only, sixty, whole
from tests.report.test_page import text_of

START_DAY = date(2011, 9, 10)
PARAMS = "source: a:B\nworkload: a:B\nbackend: a:B\n"


def test_the_old_curve_is_that_of_the_night_that_made_the_champion() -> None:
    night, history = of_recipe(whole(61)), sixty()[1:]
    made = next(one for one in history if one.release and one.release.version == 60)
    before = model_nights.trained_before(night, history)
    assert before
    assert before.training == made.training
    assert before.are_scores_alike
    assert model_nights.trained_before(night, history[5:]) is None
    shown = model_looks(night, history).learning
    assert shown
    assert shown.words.endswith("Dashed: the loss and validation scores of version 60, the champion.")
    assert shown.chart.count("stroke-dasharray: 3.3,1.65") == 2


def test_the_margin_is_told_of_where_it_is_drawn() -> None:
    night, history = whole(61), sixty()[1:]
    assert night.verdict
    assert "margin" not in over_nights(night, history).words
    with_margin = replace(night, verdict=replace(night.verdict, margin=0.03))
    shown = over_nights(with_margin, history)
    assert "Filled: promoted. Dashed: the margin. Together" in shown.words
    assert shown.rows[0][3] == "0.03"


def over_nights(night: Entry, history: list[Entry]) -> TabledChart:
    (shown,) = [one for one in model_looks(night, history).nights if one.title == "Effect over the nights"]
    return shown


def test_validation_scores_of_one_metric_with_values_of_samples_are_alike_in_any_recipe() -> None:
    history = [judged_first_by(one, "hit_rate") if one.evaluation else one for one in sixty()[1:]]
    before = model_nights.trained_before(judged_first_by(whole(61), "hit_rate"), history)
    assert before
    assert before.are_scores_alike
    shown = model_looks(judged_first_by(whole(61), "hit_rate"), history).learning
    assert shown
    assert "the two losses may be in different units" in shown.words


@pytest.mark.parametrize("first_metrics", [("", ""), ("AUC", "AUC"), ("hit_rate", ""), ("", "hit_rate")])
def test_old_validation_scores_that_may_be_in_another_unit_are_left_out_and_that_is_said(
    first_metrics: tuple[str, str],
) -> None:
    """Without a first metric, or by one of a set, they are those of `score`, which a recipe may change."""
    ours, theirs = first_metrics
    night, history = of_recipe(whole(61), before="0ther"), sixty()[1:]
    other = judged_first_by(night, ours) if ours else night
    history = [judged_first_by(one, theirs) if theirs and one.evaluation else one for one in history]
    shown = model_looks(other, history).learning
    assert shown
    assert shown.chart.count("stroke-dasharray: 3.3,1.65") == 1
    assert "Dashed: the loss of version 60, the champion. Its recipe is not known" in shown.words
    assert "Its validation scores are left out, as they may be in another unit" in shown.words


def test_curves_that_are_not_drawn_are_not_told_of() -> None:
    night, history = of_recipe(whole(61)), sixty()[1:]
    assert night.training

    def words(ours: Training, **theirs: object) -> str:
        made = [with_training(one, **theirs) if one.training else one for one in history]
        shown = model_looks(replace(night, training=ours), made).learning
        assert shown
        return shown.words

    old_ones = words(night.training, losses=())  # of before losses were kept
    assert old_ones.endswith("Dashed: validation scores of version 60, the champion.")
    one_point = words(night.training, losses=((496, 0.5),), validations=((496, 0.3),))
    assert one_point == "Mean loss of the samples since the point before, and the validation scores."
    assert "validation" not in words(replace(night.training, validations=()))
    assert words(replace(night.training, losses=())).startswith("The validation scores. Dashed: validation")
    unlike = model_looks(
        of_recipe(night, before="0ther"),
        [with_training(one, losses=()) if one.training else one for one in history],
    ).learning
    assert unlike
    assert "Validation scores of version 60, the champion, are left out" in unlike.words
    assert "Dashed" not in unlike.words


def with_training(night: Entry, **changed: object) -> Entry:
    assert night.training
    return replace(night, training=replace(night.training, **changed))  # type: ignore[arg-type]


def of_recipe(night: Entry, *, before: str = "f00d") -> Entry:
    """The night of a recipe, against a champion of this or another one."""
    assert night.verdict
    assert night.champion
    champion = replace(night.champion, lineage={"recipe": before})
    return replace(night, verdict=replace(night.verdict, recipe="f00d"), champion=champion)


def test_a_night_of_no_curve_shows_none() -> None:
    night = whole()
    assert night.training
    bare = replace(night, training=replace(night.training, losses=(), validations=()))
    assert model_looks(bare, []).learning is None
    assert model_looks(only(whole(), "batch"), []).nights == ()


def test_the_effect_over_nights_is_pooled_by_their_spread() -> None:
    night, history = whole(62), sixty()
    effects, num_left_out = model_nights.effects(night, history, most=60)
    assert num_left_out == 0
    assert [one.day for one in effects] == sorted(one.day for one in effects)
    mean, half = model_nights.pooled(effects) or (0.0, 0.0)
    assert mean == pytest.approx(sum(one.mean for one in effects) / len(effects))
    assert mean - half < mean < mean + half
    three = [replace(effects[0], mean=value) for value in (-1.0, 0.0, 1.0)]
    assert model_nights.pooled(three) == (0.0, pytest.approx(4.303 / 3**0.5, rel=1e-3))  # Student's t
    assert model_nights.pooled(effects[:2]) is None


def test_later_nights_and_rollbacks_are_on_no_earlier_page() -> None:
    history = sixty()
    at = next(at for at, one in enumerate(history) if at > 20 and one.verdict and one.verdict.effect)
    entry = history[at]
    days = [one.day for one in model_nights.effects(entry, history, most=60)[0]]
    assert max(days) == entry.night.day
    back = replace(history[at + 1], rollback=True)
    without, _ = model_nights.effects(entry, [*history[: at + 1], back], most=60)
    assert [one.day for one in without] == [entry.night.day]


def test_a_night_that_is_made_up_for_later_stands_at_its_own_day() -> None:
    nights = [whole(number + 1, START_DAY + timedelta(days=number)) for number in range(9, 0, -1)]
    missed = nights.pop(4)
    late = nights[0].night.started_at + timedelta(hours=5)
    missed = replace(missed, night=replace(missed.night, started_at=late))
    effects, _ = model_nights.effects(missed, nights, most=60)
    assert [one.day for one in effects] == [START_DAY + timedelta(days=number) for number in range(1, 6)]
    points = model_nights.slices_over_nights(missed, nights, most=3)["score"][""]
    assert [one.day for one in points] == [START_DAY + timedelta(days=number) for number in (3, 4, 5)]
    assert missed.evaluation
    assert points[-1].mean == missed.evaluation.by_slice["score"][""][0]
    tonight = whole(11, START_DAY + timedelta(days=10))
    tonight = replace(tonight, night=replace(tonight.night, started_at=late + timedelta(days=1)))
    effects, _ = model_nights.effects(tonight, [missed, *nights], most=3)
    assert [one.day for one in effects] == [START_DAY + timedelta(days=number) for number in (8, 9, 10)]


def test_another_night_of_the_same_day_is_not_shown_as_tonight() -> None:
    first, again = whole(7, START_DAY), whole(8, START_DAY)
    later = first.night.started_at + timedelta(hours=3)
    again = replace(again, night=replace(again.night, id="again", started_at=later))
    points = model_nights.slices_over_nights(again, [first], most=28)["score"][""]
    assert again.evaluation
    assert [len(points), points[-1].mean] == [2, again.evaluation.by_slice["score"][""][0]]


def test_effects_that_are_in_another_unit_are_left_out_and_said() -> None:
    nights = [whole(number + 1, START_DAY + timedelta(days=number)) for number in range(9, 0, -1)]
    nights[2], nights[4] = judged_by_users(nights[2]), judged_first_by(nights[4], "AUC")
    effects, num_left_out = model_nights.effects(nights[0], nights[1:], most=60)
    assert (len(effects), num_left_out) == (7, 2)
    assert max(one.mean for one in effects) < 1
    [shown] = [one for one in model_looks(nights[0], nights[1:]).nights if one.title.startswith("Effect")]
    assert "Left out: 2 nights judged by users or by another first metric" in shown.words


def judged_by_users(night: Entry) -> Entry:
    """The night with an effect of clicks per user, say."""
    assert night.verdict
    effect = MeasuredEffect(mean=12.0, low=3.0, high=21.0)
    began = night.night.started_at
    live = Live(experiment="a", began_at=began, ends_at=began, foretold="", effect=effect)
    return replace(night, verdict=replace(night.verdict, effect=effect, live=live))


def judged_first_by(night: Entry, name: str) -> Entry:
    """The night of a workload that had another first metric."""
    assert night.evaluation
    first = Judged(name=name, role="success", margin=0.01, higher_is_better=True)
    return replace(night, evaluation=replace(night.evaluation, judged=(first,)))


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
        "Of the champion's items, shown by the challenger, too",
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
