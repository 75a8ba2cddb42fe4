import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.record_parts import (
    ColumnUse,
    DifferingSamples,
    Epoch,
    JobForecast,
    Line,
    MeasuredEffect,
    Taken,
)
from daybreak.contract.record_types import Training
from daybreak.report.evidence import STOPPED
from daybreak.report.page import page, write
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from daybreak.storage.night_folders import entry_of
from tests.report.nights import lay, only, sixty, whole

FACTS = ("commit", "subject", "rollback", "night")  # of an entry, beside its other records
PARAMS = "source: a:B\nworkload: a:B\nbackend: a:B\ngate: {margin: 0.0271}\n"
VOID = {"meta", "br", "path", "use", "rect", "line", "circle", "image"}


class Balanced(HTMLParser):
    """Checks that tags are closed in order, and collects ids and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def parsed(html: str) -> Balanced:
    reader = Balanced()
    reader.feed(html)
    assert not reader.open
    return reader


def text_of(html: str) -> str:
    return " ".join(parsed(html).text.replace("\N{NO-BREAK SPACE}", " ").split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text(PARAMS)
    return tmp_path


def made(entry: Entry, history: Sequence[Entry], folder: Path) -> str:
    (folder / "params.yaml").write_text(PARAMS)
    return page(Home.here(), lay(entry, folder), history)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a night with all records, before which there was none."""
    return made(whole(), [], tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def latest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same after sixty nights."""
    return made(whole(62), sixty(), tmp_path_factory.mktemp("latest"))


def test_the_page_asks_nothing_of_the_network(latest: str) -> None:
    assert "://" not in re.sub('<a href="[^"]*"', "", latest)
    assert not re.search(r"<(script|link|img|iframe)|@import|url\((?!#)", latest)


def test_the_page_is_small_and_well_formed(latest: str) -> None:
    assert len(latest.encode()) < 500_000
    ids = parsed(latest).ids
    assert len(ids) == len(set(ids))
    for referred in re.findall(r'(?:href="#|url\(#)([^")]+)', latest):
        assert referred in ids


def test_the_verdict_comes_first(first: str) -> None:
    text = text_of(first)
    assert text.index("Promoted: version 12 replaces version 11.") < text.index("proven no worse") < 400


def test_a_refit_that_nobody_asked_for_is_skipped(first: str) -> None:
    text = text_of(first)
    assert "✓ gate ○ refit ✓ promote" in text


def test_a_first_version_is_held_against_a_rule_and_no_margin_is_drawn(first: str, folder: Path) -> None:
    assert "Challenger minus champion on the same 400" in text_of(first)
    assert "margin −" in text_of(first)
    night = whole()
    assert night.verdict
    alone = text_of(made(replace(night, verdict=replace(night.verdict, champion=0)), [], folder))
    assert "Challenger minus the rule that a first version has to beat on the same 400" in alone
    assert "margin −" not in alone


FIGURES = (
    "2,478",
    "2,441",
    "1.5 %",
    "29",
    "price_is_positive",
    "2011-11-06",  # the data
    "0.392 of 0.35",
    "3 of 4 rules hold",
    "2,478 rows, 59 days before: 4,471",  # its drift and rules
    "16,543",
    "18.8 MB",  # the arrays
    "33.7 %",
    "compute",
    "1.83 M floating",
    "parallel loaders",
    "27.4 %",
    "highly",  # what binds
    "49,629",
    "n1-standard-4 at $0.51",
    "1 min 10 s to 1 min 31 s",
    "$0.42",
    "31.5 s",  # the plan
    "deadline 18 h",
    "$50.00",
    "2 x NVIDIA L4, after 194 updates and 1 restart",  # what was used
    "none came twice or was left out: 3 whole epochs of 16,543; digests 0",
    "9ac8" * 4,
    "+0.0142",
    "−0.0051 to +0.0335",
    "margin −0.0271",
    "recall@20",
    "0.310",
    "0.313",  # is it better
    "customer: known",
    "c0de" * 10,
    "aa" * 16,
    "bb" * 16,
    "cc" * 16,
    "dd" * 16,
    "daybreak 12",  # the lineage
    "0123456789abcdef0123456789abcdef",
    "ee" * 16,
)


def test_many_late_days_are_told_as_ranges(folder: Path) -> None:
    entry = only(whole(), "batch", "report")
    assert entry.batch
    late = tuple(entry.night.day - timedelta(days=n) for n in (*range(2, 152), 200, 300, 400))
    text = text_of(
        page(Home.here(), lay(replace(entry, batch=replace(entry.batch, late_days=late)), folder), [])
    )
    assert "late or restated: 2011-06-10 to 2011-11-06, 2011-04-22, 2011-01-12 and 1 more." in text


def test_no_key_of_a_program_is_on_the_page_but_names_of_rules_and_metrics(first: str) -> None:
    keys = set(re.findall(r">[^<]*?([a-z]+(?:_[a-z0-9]+)+)", first[first.index("<body>") :]))
    named = {"price_is_positive", "quantity_is_not_zero", "rows_as_usual", "hit_rate"}
    assert keys - named == {"own_counts", "item_knn"}  # rules of the workload


def test_the_ledger_of_samples_is_told_in_a_sentence_and_not_where_none_was_kept(folder: Path) -> None:
    night = only(whole(), "plan", "training")
    assert night.training
    epochs = [Epoch(num_samples=20, whole=True, digest=f"{n:016x}") for n in range(9)]
    part = Epoch(num_samples=7, whole=False, digest="f" * 16)
    with_epochs = replace(night, training=replace(night.training, epochs=(*epochs, part)))
    text = text_of(page(Home.here(), lay(with_epochs, folder), []))
    assert (
        f"left out: 9 whole epochs of 20, 7 of another; digests {0:016x}, {1:016x}, {2:016x}, ..., f" in text
    )
    none = replace(night, training=replace(night.training, epochs=()))
    assert "sample audit" not in text_of(page(Home.here(), lay(none, folder), []))


def test_the_fallbacks_that_training_took_are_told_with_their_cost_and_reason(
    folder: Path, first: str
) -> None:
    entry = only(whole(), "plan", "training")
    assert entry.training
    fallback = Taken(
        time=entry.night.started_at, name="scale up", usd=2.5, reason="1 x b takes 7,077 s at most"
    )
    with_fallbacks = replace(entry, training=replace(entry.training, fallbacks=(fallback,)))
    text = text_of(page(Home.here(), lay(with_fallbacks, folder), []))
    assert "training took these, each a fallback:" in text
    assert "scale up, for $2.50 more; 1 x b takes 7,077 s at most." in text
    assert "training took these" not in text_of(first)


@pytest.mark.parametrize("stopped_by", get_args(Training.__dataclass_fields__["stopped_by"].type))
def test_whatever_ended_training_is_told_with_its_validations(folder: Path, stopped_by: str) -> None:
    entry = only(whole(), "plan", "training")
    assert entry.training
    ended = replace(entry.training, stopped_by=stopped_by, validations=((500, -0.5), (1000, -0.25)))
    text = text_of(page(Home.here(), lay(replace(entry, training=ended), folder), []))
    assert f"Training ended {STOPPED[stopped_by]}" in text
    assert "2 validations on the newest training days: −0.500 after 500 samples, −0.250 after 1,000" in text


def test_a_learning_curve_says_where_more_samples_did_not_help(folder: Path) -> None:
    entry = only(whole(), "plan", "training")
    assert entry.training

    def told(best: int, stopped_by: str = "finished") -> str:
        curve = tuple((100 * n, -1.0 - abs(n - best)) for n in range(1, 11))
        ended = replace(entry.training, stopped_by=stopped_by, validations=curve)
        return page(Home.here(), lay(replace(entry, training=ended), folder), [])

    in_vain = "What was trained on after 400 samples brought nothing better"
    assert told(4).count("; validation score from") == 1
    assert f"{in_vain}: with train.patience, or less of it, such a run ends earlier" in text_of(told(4))
    assert f"{in_vain}." in text_of(told(4, stopped_by="validation"))
    assert in_vain.partition(" 400")[0] not in text_of(told(9))


def test_every_record_has_its_figures_on_the_page(first: str) -> None:
    text = text_of(first)
    assert [figure for figure in FIGURES if figure not in text] == []


def test_the_page_shows_why_the_models_differ(folder: Path) -> None:
    text = text_of(page(Home.here(), lay(whole(), folder), []))
    assert "challenger −0.0412 where device is tablet; item matters most" in text
    assert "device is tablet71−0.0412+0.0169" in text
    assert "item+0.1102+0.1004" in text
    assert "No time was left for referrer." in text


def test_text_from_outside_is_escaped(folder: Path) -> None:
    evil = '<script>alert("x")</script>$a$ & "q"'
    entry = whole()
    assert entry.verdict and entry.evaluation and entry.report and entry.profile
    assert entry.evaluation.differences
    entry = replace(
        entry,
        night=replace(entry.night, trigger=f"manual: {evil}"),
        verdict=replace(entry.verdict, reason=evil),
        evaluation=replace(
            entry.evaluation,
            slices=tuple(replace(s, name=evil) for s in entry.evaluation.slices),
            differences=replace(
                entry.evaluation.differences,
                columns=(ColumnUse(column=evil, challenger=0.1),),
                left_out=(evil,),
                samples=(DifferingSamples(name=evil, num_samples=1, difference=0.1, elsewhere=0.0),),
            ),
        ),
        report=replace(entry.report, drift=tuple(replace(d, column=evil) for d in entry.report.drift)),
        profile=replace(entry.profile, device=evil, evidence={evil: evil}),
    )
    html = page(Home.here(), lay(entry, folder, scores=False), [])
    assert "<script" not in html
    assert text_of(html).count("alert(") > 5


@pytest.mark.slow
@pytest.mark.parametrize("num_records", range(12))
def test_any_number_of_records_makes_a_page(folder: Path, num_records: int) -> None:
    names = [name for name in Entry.__dataclass_fields__ if name not in FACTS]
    text = text_of(page(Home.here(), lay(only(whole(), *names[:num_records]), folder), sixty()[:3]))
    assert "Lineage" in text
    assert ("Bottleneck" in text) == ("profile" in names[:num_records])


def test_the_profile_is_explained_and_its_timeline_is_drawn_not_listed(first: str) -> None:
    text = text_of(first)
    assert "The job is bound by compute: the operations of each step." in text
    assert 'aria-label="Timeline of loads and steps' in first
    assert "timeline before" not in text


def test_a_night_that_failed_says_where_and_why(folder: Path) -> None:
    entry = only(whole(), "batch", "champion")
    html = page(
        Home.here(), lay(entry, folder, validate="6.2 % of 2,478 rows are quarantined; look at price"), []
    )
    text = text_of(html)
    assert "The night failed at validate; version 11 stays." in text
    assert "6.2 % of 2,478 rows are quarantined" in text
    assert "✕ validate" in text
    assert "– promote" in text


def test_a_night_without_new_data_says_so(folder: Path) -> None:
    lay(only(whole(), "champion"), folder)
    (folder / records.RUN / "predict.skipped").write_text("predict.to is empty, so that nothing is predicted")
    text = text_of(page(Home.here(), folder, []))
    assert "Nothing new to judge" not in text and "predict" not in text  # no predictions were asked for
    (folder / records.RUN / "ingest.skipped").write_text("no new data for 2011-11-08")
    text = text_of(page(Home.here(), folder, []))
    assert "Nothing new to judge; version 11 stays." in text
    assert "no new data for 2011-11-08" in text


def test_the_first_night_has_no_champion(folder: Path) -> None:
    entry = whole(1)
    assert entry.verdict and entry.release and entry.evaluation
    metrics = {k: v for k, v in entry.evaluation.metrics.items() if not k.startswith("champion")}
    entry = replace(
        entry,
        champion=None,
        verdict=replace(entry.verdict, champion=0, effect=None, reason="no champion yet"),
        release=replace(entry.release, replaced=0),
        evaluation=replace(
            entry.evaluation,
            metrics=metrics,
            slices=tuple(replace(s, champion_score=None) for s in entry.evaluation.slices),
        ),
    )
    text = text_of(page(Home.here(), lay(entry, folder, scores=False), []))
    assert "Promoted: version 1 is the first champion." in text
    assert "There was no champion to compare with." in text
    assert "own_counts" in text


def test_a_refused_night_names_who_stays(folder: Path) -> None:
    refused = only(whole(action="reject"), "version", "champion", "verdict")
    text = text_of(page(Home.here(), lay(refused, folder), []))
    assert "Champion kept: version 12 is rejected, version 11 stays." in text


@pytest.mark.slow
def test_too_few_samples_are_told_from_no_new_data(folder: Path) -> None:
    entry = whole(action="reject")
    assert entry.verdict
    entry = replace(entry, verdict=replace(entry.verdict, action="no data", effect=None, reason="18 samples"))
    text = text_of(page(Home.here(), lay(entry, folder), []))
    assert "Too little evidence for version 12; version 11 stays." in text


def test_the_trend_shows_sixty_nights(latest: str) -> None:
    assert "Trend over 60 nights: 49 promoted, 3 failed" in latest


@pytest.mark.slow
def test_tonight_is_in_the_trend_once_whether_or_not_the_ledger_has_it(folder: Path) -> None:
    history = sixty()
    tonight = lay(whole(99, history[0].night.day), folder)
    assert "Trend over 60 nights" in page(Home.here(), tonight, history)
    assert "Trend over 60 nights" in page(Home.here(), tonight, history[1:])
    assert entry_of(tonight, history).commit == history[0].commit


def test_zeros_are_drawn_like_other_numbers(folder: Path) -> None:
    entry = whole()
    assert entry.plan and entry.training and entry.evaluation and entry.profile and entry.verdict
    nothing = Line(fixed=0, per_sample=0, fixed_error=0, per_sample_error=0)
    entry = replace(
        entry,
        night=replace(entry.night, budget_usd=0),
        plan=replace(entry.plan, forecast=JobForecast(expected_usd=0, expected_s=0, interval=(0, 0))),
        training=replace(entry.training, cost_usd=0, elapsed_s=0),
        profile=replace(entry.profile, load_s=nothing, step_s=nothing),
        evaluation=replace(entry.evaluation, metrics={"score": 0, "champion_score": 0}, slices=()),
        verdict=replace(entry.verdict, effect=MeasuredEffect(mean=0, low=0, high=0)),
    )
    text = text_of(
        page(Home.here(), lay(entry, folder, scores=False), [entry, replace(entry, night=whole(11).night)])
    )
    assert "$0.00 of $0.00 planned" in text


@pytest.mark.slow
def test_forty_slices_with_long_names_are_all_in_the_table(folder: Path) -> None:
    entry = whole()
    assert entry.evaluation
    first = entry.evaluation.slices[0]
    many = tuple(replace(first, name=f"{n} {'very ' * 20}long", num_samples=n) for n in range(40))
    html = page(
        Home.here(),
        lay(replace(entry, evaluation=replace(entry.evaluation, slices=many)), folder, scores=False),
        [],
    )
    assert len(re.findall("(?:very ){20}long</th>", html)) == 40
    assert len(re.findall(">[0-9]+ very [a-z ]+…</text>", html)) == 24


@pytest.mark.slow
def test_the_bytes_of_a_page_are_the_same_every_time(folder: Path) -> None:
    lay(whole(62), folder)
    assert page(Home.here(), folder, sixty()) == page(Home.here(), folder, sixty())


def test_the_page_is_written_beside_the_records(folder: Path) -> None:
    path = write(Home.here(), lay(only(whole(), "training"), folder), [])
    assert path == folder / "data/run/report.html"
    assert path.read_text().startswith("<!doctype html>")


def test_without_params_the_margin_is_left_out(tmp_path: Path) -> None:
    judged = only(whole(), "evaluation", "verdict")
    assert "margin −" not in text_of(page(Home.here(), lay(judged, tmp_path), []))
    assert "margin −" in text_of(made(judged, [], tmp_path))


def test_without_a_night_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"night\.json is missing"):
        page(Home.here(), tmp_path, [])


def test_a_page_is_written_without_the_libraries_that_take_seconds_to_import(folder: Path) -> None:
    """`close` writes it in a process of its own, on nights that did little else too."""
    lay(whole(62), folder)
    code = (
        "import sys; from pathlib import Path; from daybreak.report.page import write; "
        "from daybreak.storage.home import Home; "
        f"write(Home.here(), Path({str(folder)!r}), []); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "mlflow", "great_expectations", "pandas", "sklearn", "scipy.stats", "dvc"}
    assert heavy.isdisjoint(done.stdout.split())


@pytest.mark.slow
def test_drawing_again_is_quick(folder: Path) -> None:
    lay(whole(62), folder)
    page(Home.here(), folder, sixty())
    start = time.process_time()
    page(Home.here(), folder, sixty())
    assert time.process_time() - start < 4  # it takes half a second on an idle core


def test_the_page_shows_how_good_the_predictions_of_earlier_nights_were(latest: str) -> None:
    text = text_of(latest)
    assert "How good were the predictions?" in text
    assert re.search(r"The 90 % interval held on [\d.]+ % of the last \d+ nights; the median night", text)
    assert re.search(r"took [\d.]+ % (longer|shorter) than predicted", text)


def test_the_start_up_that_a_plan_predicts_counts_in_the_actual_time_of_table_and_chart(
    folder: Path,
) -> None:
    night = only(whole(), "plan", "training")
    assert night.training
    slow = replace(night, training=replace(night.training, elapsed_s=83.4, start_s=209.0))
    text = text_of(page(Home.here(), lay(slow, folder), []))
    assert "4 min 52 s3.73, outside" in text
    assert "4 min 52 s of 1 min 18 s planned, outside its interval" in text
    assert "took 273 % longer than predicted" in text


def test_the_page_warns_of_intervals_that_do_not_hold(folder: Path) -> None:
    slow = [
        replace(e, training=replace(e.training, elapsed_s=2 * e.training.elapsed_s)) if e.training else e
        for e in sixty()
    ]
    text = text_of(page(Home.here(), lay(only(whole(62), "plan", "training"), folder), slow))
    assert "Intervals that do not hold: the 90 % interval held on 1.8 % of the last" in text
    assert "times as wide from now on" in text


def test_a_first_night_has_no_picture_of_predictions(first: str, latest: str) -> None:
    assert "The first night that can be compared took" in text_of(first)
    assert "Actual over predicted time" not in first
    assert "Actual over predicted time" in latest
