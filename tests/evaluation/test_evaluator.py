import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from toy import Toy

from daybreak.contract import records
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.record_types import Champion, Dataset, Evaluation, Training
from daybreak.contract.sections import EvaluateParams, RegisterParams
from daybreak.evaluation.evaluator import evaluate
from daybreak.evaluation.scores import read_scores
from daybreak.registry.weights import MODEL
from daybreak.storage.home import Home
from daybreak.workloads.metrics import AUC
from tests.minimal_records import minimal_night, minimal_training
from tests.toy.nights import NUM_SAMPLES, PARAMS, make_arrays, make_model
from tests.toy.own.card_payments import Payments
from tests.workloads.payments import trained

DAY = date(2025, 1, 10)
NAMED = RegisterParams()
BATCHES_OF_64 = EvaluateParams(batch_size=64)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_arrays(Path("data/arrays"), DAY)
    return tmp_path


def run(
    *,
    weight: float = 1.0,
    champion: float | None = None,
    seen: date = DAY - timedelta(2),
    trained: date = DAY - timedelta(1),
) -> Evaluation:
    """Evaluate a challenger, trained up to `trained`, against a champion of that weight, up to `seen`."""
    digest = make_model(Path("data/run/model"), weight, last_day=trained)
    served = None
    if champion is not None:
        digest_of_champion = make_model(Path("data/champion"), champion, last_day=seen)
        served = Champion(version=3, replaced=2, model_digest=digest_of_champion, night="before")
    return evaluate(
        dataset(), training(digest), served, Toy(), BATCHES_OF_64, registered=NAMED, home=Home(Path.cwd())
    )


def dataset() -> Dataset:
    return Dataset(digest="d", num_samples=1, num_bytes=1, first_day=DAY, last_day=DAY - timedelta(1))


def training(digest: str) -> Training:
    return minimal_training(model_digest=digest)


def test_both_models_score_every_held_out_sample(folder: Path) -> None:
    evaluation = run(weight=1.0, champion=0.5)
    scores = read_scores()
    assert scores is not None
    x, y = np.load("data/arrays/test_x.npy"), np.load("data/arrays/test_y.npy")
    np.testing.assert_allclose(scores["challenger"], 1 - np.abs(x - y), rtol=1e-6)
    np.testing.assert_allclose(scores["champion"], 1 - np.abs(0.5 * x - y), rtol=1e-6)
    assert evaluation.num_samples == NUM_SAMPLES
    assert evaluation.metrics["score"] == pytest.approx(scores["challenger"].mean())
    assert evaluation.metrics["champion_score"] == pytest.approx(scores["champion"].mean())
    assert set(evaluation.metrics) == {
        "score",
        "champion_score",
        "close@1",
        "champion/close@1",
        "baseline/popularity",
        "baseline/zero",
    }


def test_slices_partition_the_samples_and_hold_both_scores(folder: Path) -> None:
    evaluation = run(champion=0.5)
    assert {part.name for part in evaluation.slices} == {"small", "large"}
    assert sum(part.num_samples for part in evaluation.slices) == NUM_SAMPLES
    assert all(
        part.champion_score is not None and part.score > part.champion_score for part in evaluation.slices
    )


def test_a_metric_of_a_slice_is_averaged_over_its_samples(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "metric_slices", {"close@1": "small"}, raising=False)
    evaluation = run(champion=0.5)
    scores = read_scores()
    assert scores is not None
    small = scores["slice/small"]
    assert 0 < small.sum() < NUM_SAMPLES
    assert evaluation.metrics["close@1"] == pytest.approx(scores["metric/close@1"][small].mean())
    assert evaluation.metrics["champion/close@1"] == pytest.approx(scores["champion/close@1"][small].mean())


def test_a_metric_of_an_unknown_slice_is_refused_with_the_slices(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "metric_slices", {"close@1": "medium"}, raising=False)
    with pytest.raises(ParamsError, match="names the slice 'medium', but `slices` returns large, small"):
        run()


@pytest.mark.parametrize(("seen", "compared"), [(DAY - timedelta(1), True), (DAY, False)])
def test_a_champion_that_has_seen_the_held_out_day_is_not_compared(
    folder: Path, seen: date, compared: bool
) -> None:
    evaluation = run(champion=0.5, seen=seen)
    assert ("champion_score" in evaluation.metrics) is compared
    assert ("champion_has_seen" in evaluation.metrics) is not compared
    assert ("champion" in (read_scores() or {})) is compared


@pytest.mark.parametrize(
    ("champion_saw", "challenger_saw", "num_left_out"),
    [(4, 4, 0), (3, 4, 1), (4, 2, 2), (1, 3, 3), (0, 4, None)],
)
def test_models_are_compared_on_the_days_since_both_have_seen_one(
    folder: Path, champion_saw: int, challenger_saw: int, num_left_out: int | None
) -> None:
    """Of four held-out days; numbers are how many days ago a model saw its last one."""
    make_arrays(Path("data/arrays"), DAY, num_days=4)
    evaluation = run(
        champion=0.5, seen=DAY - timedelta(champion_saw), trained=DAY - timedelta(challenger_saw)
    )
    scores = read_scores()
    assert scores is not None
    y = np.load("data/arrays/test_y.npy")
    left = num_left_out or 0
    assert [len(evaluation.seen_days), len(evaluation.days)] == [left, 4 - left]
    assert evaluation.num_samples == len(scores["challenger"]) == len(y) * (4 - left) // 4
    assert (
        ("champion" in scores)
        is (num_left_out is not None)
        is not evaluation.metrics.get("champion_has_seen")
    )
    zero = np.float32(1) - np.abs(y[len(y) * left // 4 :])
    np.testing.assert_allclose(scores["baseline/zero"], zero, rtol=1e-6)


def test_a_workload_that_does_not_tell_days_apart_is_not_compared_on_some_of_them(folder: Path) -> None:
    make_arrays(Path("data/arrays"), DAY, num_days=4)
    Path("data/arrays/test_day.npy").unlink()
    evaluation = run(champion=0.5, seen=DAY - timedelta(2))
    assert evaluation.metrics["champion_has_seen"]
    assert evaluation.num_samples == NUM_SAMPLES


def test_scores_that_are_not_finite_leave_no_mean_behind(folder: Path) -> None:
    evaluation = run(weight=float("nan"))
    assert "score" not in evaluation.metrics
    assert evaluation.metrics["num_not_finite"] == NUM_SAMPLES
    assert records.loads(Evaluation, records.dumps(evaluation)) == evaluation


def payments(held_out: Callable[[np.ndarray], Any]) -> Evaluation:
    """Evaluates a model of payments, with held-out labels as changed by `held_out`."""
    at = datetime(2025, 1, 11, tzinfo=UTC)
    records.write(
        minimal_night(at, day=DAY),
        records.RUN,
    )
    Path("params.yaml").write_text(PARAMS)
    MODEL.mkdir(parents=True)
    digest = trained("card_payments:Payments")(Path())
    for day in json.loads(Path("data/arrays/meta.json").read_text())["test_days"]:
        path = Path(f"data/arrays/day={day}/samples.npy")
        samples = np.load(path)
        samples["is_fraud"] = held_out(samples["is_fraud"])
        np.save(path, samples)
    return evaluate(
        dataset(), training(digest), None, Payments(), BATCHES_OF_64, registered=NAMED, home=Home(Path.cwd())
    )


def test_held_out_samples_of_both_labels_judge_a_model(folder: Path) -> None:
    assert payments(lambda labels: labels).cannot_judge == ""


@pytest.mark.parametrize(("label", "other"), [(0, 1), (1, 0)])
def test_held_out_samples_of_one_label_judge_no_model(folder: Path, label: int, other: int) -> None:
    reason = payments(lambda labels: label).cannot_judge
    assert reason.startswith(f"the held-out days have no sample whose label is {other}, so that their ")
    assert reason.endswith(f"always answers {label}; hold out more days (prepare.test_days)")


def test_a_metric_without_a_value_for_sound_predictions_judges_no_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AUC, "values", lambda self, prediction, label: np.full(len(label), np.nan))
    evaluation = payments(lambda labels: labels)
    assert evaluation.cannot_judge.startswith("AUC of the held-out samples is not a number, though")
    assert evaluation.metrics["num_not_finite"] == evaluation.num_samples


def test_a_model_that_is_not_the_one_on_record_is_refused(folder: Path) -> None:
    digest = make_model(Path("data/run/model"), 1.0, last_day=DAY)
    save_file({"weight": torch.tensor([2.0])}, "data/run/model/model.safetensors")
    with pytest.raises(DataError, match=f"training.json says {digest}"):
        evaluate(
            dataset(), training(digest), None, Toy(), BATCHES_OF_64, registered=NAMED, home=Home(Path.cwd())
        )


def test_weights_that_do_not_fit_the_workload_are_one_sentence(folder: Path) -> None:
    make_model(Path("data/run/model"), 1.0, last_day=DAY)
    save_file({"other": torch.tensor([2.0])}, "data/run/model/model.safetensors")
    digest = records.digest(Path("data/run/model"))
    with pytest.raises(DataError, match=r"does not fit Toy: .*; restore the workload's code"):
        evaluate(
            dataset(), training(digest), None, Toy(), BATCHES_OF_64, registered=NAMED, home=Home(Path.cwd())
        )


def test_a_score_that_is_already_reduced_is_refused_with_its_shape(folder: Path) -> None:
    digest = make_model(Path("data/run/model"), 1.0, last_day=DAY)
    with pytest.raises(ParamsError, match=r"challenger of Toy has shape \[\] for 64 samples"):
        evaluate(
            dataset(),
            training(digest),
            None,
            Toy(wrong_shape=True),
            BATCHES_OF_64,
            registered=NAMED,
            home=Home(Path.cwd()),
        )


def test_a_champion_without_its_facts_is_refused(folder: Path) -> None:
    digest = make_model(Path("data/run/model"), 1.0, last_day=DAY)
    make_model(Path("data/champion"), 1.0, last_day=DAY)
    Path("data/champion/model.json").write_text(json.dumps({"seen": 1}))
    served = Champion(version=3, replaced=2, model_digest=records.digest(Path("data/champion")), night="x")
    with pytest.raises(DataError, match=r"model.json does not say what the model is"):
        evaluate(
            dataset(), training(digest), served, Toy(), BATCHES_OF_64, registered=NAMED, home=Home(Path.cwd())
        )


def test_the_scores_do_not_depend_on_the_batch_size(folder: Path) -> None:
    run(champion=0.5)
    one = read_scores()
    digest = records.digest(Path("data/run/model"))
    evaluate(
        dataset(),
        training(digest),
        None,
        Toy(),
        EvaluateParams(batch_size=7),
        registered=NAMED,
        home=Home(Path.cwd()),
    )
    other = read_scores()
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one["challenger"], other["challenger"])
