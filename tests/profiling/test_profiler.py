"""The profiler measures the job itself, and says what is wrong with a job in one sentence."""

import time
from datetime import date
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.record_types import Dataset, Profile
from daybreak.contract.records import dumps, loads
from daybreak.contract.sections import ProfileParams, TrainParams
from daybreak.profiling.profiler import profile
from daybreak.profiling.tuner import variants
from daybreak.storage.home import Home
from tests.profiling import test_memory

WIDTH, HIDDEN = 32, 1024
DATASET = Dataset(
    digest="d", num_samples=4096, num_bytes=1 << 20, first_day=date(2011, 1, 1), last_day=date(2011, 6, 1)
)
THIRTEEN = [
    "store the data more efficiently",
    "storage with higher throughput",
    "parallelise the reads",
    "faster accelerator",
    "newer generation",
    "TPU",
    "more memory per worker",
    "smaller batch",
    "simpler model",
    "cheaper activation",
    "fewer steps",
    "fewer layers",
    "smaller batch",
]
PARAMS = ProfileParams(batch_sizes=(16, 32, 64), steps=3)
TRAINING = TrainParams(batch_size=64)


SLEPT: list[tuple[int, float]] = []  # samples and seconds of each load: a busy machine sleeps longer


def slept_per_sample() -> float:
    return sum(seconds for _, seconds in SLEPT) / sum(num_samples for num_samples, _ in SLEPT)


class Rows(torch.utils.data.Dataset):
    """Samples of noise; loading one may be made slow."""

    def __init__(self, num_samples: int, load_s: float):
        self.num_samples, self.load_s = num_samples, load_s

    def __len__(self) -> int:
        return self.num_samples

    def __getitems__(self, indices: list[int]) -> Tensor:
        began = time.monotonic()
        time.sleep(self.load_s * len(indices))
        SLEPT.append((len(indices), time.monotonic() - began))
        return torch.randn(len(indices), WIDTH)


class Job:
    """A small network; arguments choose its bound and its faults."""

    def __init__(self, num_samples=4096, load_s=0.0, hidden=64, loss="per sample", step_s=0.0):
        self.num_samples, self.load_s, self.hidden = num_samples, load_s, hidden
        self.kind, self.step_s = loss, step_s

    def dataset(self, folder: Path, split: str) -> Rows:
        return Rows(self.num_samples, self.load_s)

    def model(self) -> nn.Module:
        hidden = self.hidden
        return nn.Sequential(nn.Linear(WIDTH, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1))

    def optimizer(self, parameters):
        return torch.optim.Adam(parameters)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        loss = (model(batch)[:, 0] - batch.sum(dim=1)) ** 2
        if self.kind == "scalar":
            return loss.mean()
        return loss * torch.nan if self.kind == "nan" else loss

    def score(self, model: nn.Module, batch: Tensor) -> Tensor:
        return -self.loss(model, batch)


@pytest.fixture(autouse=True, scope="module")
def _at_home(tmp_path_factory):
    """A home, in which the ceilings of this machine are measured once for all profiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAYBREAK_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    SLEPT.clear()


class Keeping(Job):
    """A job that freezes weights and keeps state of its own."""

    def trainable(self, model, progress):
        """Freezes none."""

    def state_dict(self):
        """Returns nothing."""
        return {}

    def load_state_dict(self, state):
        """Takes nothing."""


@pytest.fixture(scope="module")
def compute_bound() -> Profile:
    """Of such a job, with a batch so large that products take ten times as long as Adam's traffic."""
    params = PARAMS.model_copy(update={"batch_sizes": (128, 256, 512)})
    return profile(Home.here(), DATASET, Keeping(hidden=HIDDEN), params, TrainParams(batch_size=512))


@pytest.mark.alone
@pytest.mark.slow
def test_a_job_that_computes_is_bound_by_compute(compute_bound):
    assert compute_bound.bound == "compute"
    assert compute_bound.evidence["load_share"] < 0.5
    assert compute_bound.evidence["counterfactual"]["agrees"]


@pytest.mark.alone
@pytest.mark.slow
def test_a_profile_says_what_its_class_wants_of_workers(compute_bound):
    assert compute_bound.wants_whole
    assert compute_bound.wants_one_worker


@pytest.mark.alone
@pytest.mark.slow
def test_a_job_that_waits_for_its_data_is_bound_by_io():
    measured = profile(Home.here(), DATASET, Job(load_s=0.0005), PARAMS, TRAINING)
    assert measured.bound == "io"
    assert measured.load_s.per_sample == pytest.approx(slept_per_sample(), rel=0.5)
    applying = {remedy.name for remedy in measured.remedies if remedy.applies}
    assert "parallelise the reads" in applying
    assert "faster accelerator" not in applying


@pytest.mark.slow
def test_a_job_beyond_the_memory_of_its_container_is_bound_by_memory(monkeypatch, tmp_path):
    test_memory.cgroup(monkeypatch, tmp_path, limits={"memory.max": 128 << 20})
    measured = profile(Home.here(), DATASET, Job(), PARAMS, TRAINING)
    assert (measured.bound, measured.evidence["memory"]["kind"]) == ("memory", "capacity")
    assert "more memory per worker" in {remedy.name for remedy in measured.remedies if remedy.applies}


class Offering(Job):
    """A job that offers one with a smaller network."""

    def variants(self) -> dict[str, Job]:
        return {"simpler model": Job(hidden=16)}


@pytest.mark.alone
@pytest.mark.slow
def test_a_variant_that_the_workload_offers_is_timed_and_never_kept():
    params = PARAMS.model_copy(update={"batch_sizes": (128, 256, 512), "quality_remedies": "allow"})
    training = TrainParams(batch_size=512, epochs=5000)  # long enough that every trial may be worth its time
    measured = profile(Home.here(), DATASET, Offering(hidden=HIDDEN), params, training)
    (remedy,) = (each for each in measured.remedies if each.name == "simpler model")
    assert (remedy.applied, remedy.kept) == (True, False), remedy.note
    assert remedy.measured_gain > 0.5
    assert "the gate judges it" in remedy.note


def test_a_variant_of_an_unknown_name_is_refused():
    job = Job()
    job.variants = lambda: {"smaller": Job()}
    with pytest.raises(ParamsError, match="names 'smaller'; name one of simpler model"):
        variants(job)


@pytest.mark.slow
def test_of_a_job_with_long_updates_smaller_batches_are_measured():
    """An update of the job's batch takes 0.6 s, and a profile of it about a hundred of them."""
    measured = profile(Home.here(), DATASET, Job(load_s=0.01), PARAMS, TRAINING, limit_s=10)
    assert max(measured.evidence["measured"]["batch_sizes"]) < 16
    assert measured.evidence["measured"]["too_slow"] == 16
    assert measured.load_s(64) == pytest.approx(64 * slept_per_sample(), rel=0.5)
    assert measured.bound == "io"


@pytest.mark.slow
def test_parameters_are_exchanged_in_four_bytes_each(compute_bound):
    num_parameters = (WIDTH + 1) * HIDDEN + (HIDDEN + 1) * HIDDEN + HIDDEN + 1
    assert compute_bound.sync_bytes(512) == 4 * num_parameters


@pytest.mark.slow
def test_operations_are_those_of_three_products_per_layer_less_the_unneeded(compute_bound):
    forward = 2 * (WIDTH * HIDDEN + HIDDEN * HIDDEN + HIDDEN)
    backward = 2 * forward - 2 * WIDTH * HIDDEN  # weights and inputs of all layers but the first's inputs
    assert compute_bound.flops_per_sample == pytest.approx(forward + backward, rel=0.01)


@pytest.mark.slow
def test_memory_holds_weights_gradients_and_moments(compute_bound):
    assert compute_bound.memory_bytes.fixed >= 2 * compute_bound.sync_bytes.fixed
    assert compute_bound.memory_bytes(512) > 3 * compute_bound.sync_bytes(512)


@pytest.mark.slow
def test_all_thirteen_remedies_are_there_in_the_order_of_the_thread(compute_bound):
    names = [remedy.name for remedy in compute_bound.remedies]
    assert [name for name in names if name in THIRTEEN] == THIRTEEN
    assert len({remedy.name for remedy in compute_bound.remedies if remedy.quality}) == 7  # bands too
    assert not any(remedy.applied for remedy in compute_bound.remedies if remedy.quality)


@pytest.mark.slow
def test_a_profile_survives_its_file(compute_bound):
    assert loads(Profile, dumps(compute_bound)) == compute_bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "error", "reason"),
    [
        (
            Job(loss="scalar"),
            ParamsError,
            r"a loss of shape \[\] for 16 samples; return one value per sample",
        ),
        (Job(loss="nan"), DataError, "not finite for 16 of 16 samples; look for NaN"),
        (Job(num_samples=0), DataError, "has 0 samples in its training split; look at"),
    ],
)
def test_a_broken_job_is_told_in_one_sentence(job, error, reason):
    with pytest.raises(error, match=reason):
        profile(Home.here(), DATASET, job, PARAMS, TRAINING)


@pytest.mark.slow
def test_a_data_set_smaller_than_every_batch_is_measured_with_what_it_has():
    measured = profile(Home.here(), DATASET, Job(num_samples=7), PARAMS, TRAINING)
    assert measured.evidence["measured"]["batch_sizes"] == [3, 7]
    assert measured.evidence["batch_size"] == 7
