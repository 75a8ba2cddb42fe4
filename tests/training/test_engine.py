"""One update is the same on any number of workers, in any number of passes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from daybreak.contract import records
from daybreak.contract.errors import DataError, JobError, ParamsError
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import TrainingProgress
from daybreak.training import accumulation, checkpoint
from daybreak.training.checkpoint import TrainingState
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.recipe import WarmStart
from daybreak.training.tuning import to
from daybreak.training.worker import _start_warm
from tests.fakes import LineWorkload, write_curve
from tests.training import short_of_memory, unlike
from tests.training.nights import ROOT
from tests.training.recipes import recipe
from tests.training.steps import BATCHES, KINDS, SHORT, SPARSE, OwnTable, Tied, steps, tuning_of

SHARE = np.arange(8)


def engine(folder: Path, *, seed: int = 0, **arguments) -> TorchEngine:
    workload = LineWorkload(**arguments)
    return TorchEngine(
        workload, workload.dataset(folder, "train"), seed=seed, micro_batch_size=3, tuning=Tuning()
    )


def close_to(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], rtol=1e-6, atol=1e-6)


def step(made: TorchEngine, share: np.ndarray = SHARE) -> float:
    return made.step(share, batch_size=len(share), rate=0.1, signals=Signals()).loss


class Normalised(LineWorkload):
    def model(self):
        parts = super().model()
        parts["net"].insert(1, torch.nn.BatchNorm1d(self.width))
        return parts


@pytest.mark.parametrize(("micro_batch_size", "num_samples", "sizes"), [(10, 11, [6, 5]), (2, 3, [3])])
def test_passes_through_batch_norm_are_even_and_none_has_one_sample(
    folder, micro_batch_size, num_samples, sizes
):
    workload = Normalised()
    data = workload.dataset(folder, "train")
    made = TorchEngine(workload, data, seed=0, micro_batch_size=micro_batch_size, tuning=Tuning())
    seen: list[int] = []
    made.model["net"][1].register_forward_hook(lambda _module, taken, _answer: seen.append(len(taken[0])))
    assert np.isfinite(step(made, np.arange(num_samples)))
    assert seen == sizes


@pytest.mark.parametrize("sparse", [False, True])
def test_the_size_of_passes_changes_nothing(folder, sparse):
    whole = steps(folder, sparse=sparse, micro_batch_size=100)
    close_to(steps(folder, sparse=sparse, micro_batch_size=3).model.state_dict(), whole.model.state_dict())


@pytest.mark.slow
def test_uneven_and_empty_shares_of_two_workers_change_nothing(folder):
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.training.steps"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", *command, str(folder)], env=environment, check=True, cwd=ROOT)
    for kind in ("dense", "sparse", "tied", "own table"):
        alone = steps(folder, sparse=kind != "dense", kind=KINDS[kind]).model.state_dict()
        together = torch.load(folder / f"{kind}.pt")
        close_to(together["model"], alone)
        cut = 1 + len(BATCHES[0]) // 4  # of shares as unlike as these
        assert together["noise"][0] == pytest.approx(
            noise_by_hand(folder, cut=cut, kind=KINDS[kind]), rel=1e-3
        )
        assert [one is None for one in together["noise"]] == [
            False,
            False,
            True,
            False,
        ]  # one share was empty
    for kind in ("clipped", "clipped sparse"):
        alone = steps(folder, sparse="sparse" in kind, clipping=SHORT)
        together = torch.load(folder / f"{kind}.pt")
        close_to(together["model"], alone.model.state_dict())
        assert together["score"] == pytest.approx(
            alone.mean_score(np.arange(30), alive=lambda: None), abs=1e-6
        )
    for kind in ("alternating", "alternating sparse", "only rows", "frozen"):
        alone = steps(folder, sparse=kind in SPARSE, kind=KINDS[kind]).model.state_dict()
        close_to(torch.load(folder / f"{kind}.pt")["model"], alone)
    alone = steps(folder, tuning=tuning_of("float16")).model.state_dict()
    for name, weight in torch.load(folder / "float16.pt")["model"].items():  # shares are rounded otherwise
        torch.testing.assert_close(weight, alone[name], rtol=1e-3, atol=1e-3)
    for kinds in (
        ("dense", "sharded"),
        ("clipped", "clipped sharded"),
        ("alternating", "alternating sharded"),
        ("frozen", "frozen sharded"),
        ("float16", "float16 sharded"),
    ):
        whole, sharded = (torch.load(folder / f"{kind}.pt") for kind in kinds)
        # Moments are numbered as they came to be, which is later for weights that thaw.
        for part in ("model",) if "frozen" in kinds else ("model", "optimizer"):
            assert all(torch.equal(value, sharded[part][name]) for name, value in whole[part].items())


@pytest.mark.slow
def test_a_slowed_worker_takes_less_and_the_model_is_the_same(folder, tmp_path):
    """Ended after 40 updates of two workers, and brought to its end by one."""
    alone = tmp_path / "alone"
    write_curve(alone, num_samples=unlike.NUM_SAMPLES)
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.training.unlike"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", *command, str(folder)], env=environment, check=True, cwd=ROOT)
    fast, slow = (json.loads((folder / f"worker-{rank}.json").read_text()) for rank in (0, 1))
    assert (fast["taken"][0], slow["taken"][0]) == (16, 16)
    assert [a + b for a, b in zip(fast["taken"], slow["taken"], strict=True)] == [unlike.BATCH] * 40
    assert slow["taken"][-1] < 16 < fast["taken"][-1]
    rest, counted = unlike.train(folder)
    counts = np.array(fast["count"]) + slow["count"] + counted.count
    assert counts.tolist() == [unlike.EPOCHS] * unlike.NUM_SAMPLES
    close_to(rest.model.state_dict(), unlike.train(alone)[0].model.state_dict())


@pytest.mark.slow
def test_a_worker_short_of_memory_halves_the_passes_of_all(folder):
    write_curve(folder, num_samples=short_of_memory.BATCH)
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    exact = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **exact}
    subprocess.run(
        [sys.executable, "-m", *command, "-m", "tests.training.short_of_memory", str(folder)],
        env=environment,
        check=True,
        cwd=ROOT,
    )
    assert int((folder / "shrunk").read_text()) == short_of_memory.BATCH // 4  # a share is half of the batch
    unsplit = short_of_memory.updates(folder, short=False)
    halved = torch.load(folder / "gradients.pt")
    for name, gradient in short_of_memory.gradients(unsplit).items():
        assert (halved[name] - gradient).norm() <= 1e-6 * gradient.norm()


def noise_by_hand(folder: Path, *, cut: int, kind: type[LineWorkload] = LineWorkload) -> tuple[float, float]:
    """From the first batch in two parts: an unbiased |g|^2 and tr(Sigma) at the weights of the beginning."""
    workload = kind(dropout=0.0)
    data = workload.dataset(folder, "train")
    torch.manual_seed(1)
    model = workload.model()

    def gradient(samples: np.ndarray) -> torch.Tensor:
        loss = workload.loss(model, data.__getitems__(samples.tolist())).mean()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    batch = BATCHES[0]
    parts = [gradient(batch[:cut]), gradient(batch[cut:])]
    inverse = (1 / cut + 1 / (len(batch) - cut)) / 2
    local = sum(float(part.square().sum()) for part in parts) / 2
    total = float(gradient(batch).square().sum())
    variance = (local - total) / (inverse - 1 / len(batch))
    return local - variance * inverse, variance


@pytest.mark.parametrize("micro_batch_size", [10, 4])
def test_the_first_pass_tells_the_noise_and_changes_no_weight(folder, micro_batch_size, monkeypatch):
    """A whole pass is halved for it; of several the first one is known anyway."""
    options = {"micro_batch_size": micro_batch_size, "tuning": Tuning()}
    plain = steps(folder, **options)
    assert plain.noises == [None] * len(BATCHES)
    monkeypatch.setattr(accumulation, "HALVE_EVERY", 1)
    monkeypatch.setattr(accumulation, "LOOK_EVERY", 1)
    looked = steps(folder, **options)
    close_to(looked.model.state_dict(), plain.model.state_dict())
    first = 5 if micro_batch_size == 10 else 4
    local, total = (squared(folder, BATCHES[0][:cut]) for cut in (first, 10))
    variance = (local - total) / (1 / first - 1 / 10)
    assert looked.noises[0] == pytest.approx((total - variance / 10, variance), rel=1e-3)
    assert looked.noises[2] is None  # of one sample


@pytest.mark.parametrize("kind", [Tied, OwnTable])
def test_the_noise_does_not_depend_on_whether_gradients_are_sparse(folder, kind, monkeypatch):
    monkeypatch.setattr(accumulation, "HALVE_EVERY", 1)
    monkeypatch.setattr(accumulation, "LOOK_EVERY", 1)
    sparse, dense = (
        TorchEngine(
            workload, workload.dataset(folder, "train"), seed=1, micro_batch_size=4, tuning=Tuning()
        ).step(SHARE, batch_size=8, rate=0.1, signals=Signals())
        for workload in (kind(sparse=True, dropout=0.0), kind(sparse=False, dropout=0.0))
    )
    assert sparse.noise == pytest.approx(dense.noise, rel=1e-4)


def squared(folder: Path, samples: np.ndarray) -> float:
    """|mean gradient|^2 of samples at the weights of the beginning."""
    made = engine(folder, seed=1, dropout=0.0)
    made.step(samples, batch_size=len(samples), rate=0.0, signals=Signals())
    return sum(float(p.grad.square().sum()) for p in made.model.parameters())


@pytest.mark.parametrize("kind", ["AdamW", "Adagrad", "SGD"])
def test_an_optimizer_takes_the_rule_of_its_kind_and_takes_it_back(folder, kind, monkeypatch):
    if kind == "SGD":
        monkeypatch.setattr(LineWorkload, "optimizer", lambda self, given: torch.optim.SGD(given, lr=1.0))
    made = engine(folder, sparse=kind == "Adagrad")
    (group,) = made.optimizer.param_groups
    before = {name: group.get(name) for name in ("betas", "eps")}
    rule = made.rescale(batch_size=32, base_size=8, rule="by_optimizer")
    assert rule.rate == {"AdamW": 2, "Adagrad": 1, "SGD": 4}[kind]
    assert group["lr"] == before.get("lr", group["lr"])
    if kind == "AdamW":
        assert group["betas"] == pytest.approx((0.6, 0.996))
        assert group["eps"] == pytest.approx(before["eps"] / 2)
    step(made)
    other = engine(folder, sparse=kind == "Adagrad")
    other.load(made.save())
    other.rescale(batch_size=8, base_size=8, rule="by_optimizer")
    assert {name: other.optimizer.param_groups[0].get(name) for name in before} == before


class Strange(torch.optim.Optimizer):
    """An optimizer that no rule is known of."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1.0})


def test_an_optimizer_without_a_rule_is_told(folder, monkeypatch):
    monkeypatch.setattr(LineWorkload, "optimizer", lambda self, parameters: Strange(parameters))
    with pytest.raises(
        ParamsError, match=r"train.scaling: by_optimizer has no rule for Strange, and batches"
    ):
        engine(folder).rescale(batch_size=32, base_size=8, rule="by_optimizer")


def test_a_sample_too_large_for_the_memory_is_told(folder, monkeypatch):
    made = engine(folder)
    monkeypatch.setattr(LineWorkload, "loss", lambda self, model, batch: np.empty(1 << 50))
    with pytest.raises(JobError, match="memory does not suffice for a step on one sample; train a smaller"):
        step(made)


def test_the_loss_is_the_mean_per_sample(folder):
    made = engine(folder, dropout=0.0)
    workload = LineWorkload(dropout=0.0)
    data = workload.dataset(folder, "train")
    expected = workload.loss(made.model, data.__getitems__(SHARE.tolist())).mean().item()
    assert step(made) == pytest.approx(expected, rel=1e-6)


def test_what_was_saved_goes_on_bit_equal_with_dropout(folder, tmp_path):
    one, other = engine(folder), engine(folder, seed=0)
    step(one)
    state = one.save()
    path = checkpoint.save(tmp_path / "c", state, seen=8, identity="j")
    assert path
    other.load(checkpoint.load(path))
    assert step(one, SHARE + 8) == step(other, SHARE + 8)
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name])


def test_a_loss_that_is_not_finite_leaves_the_model_as_it_was(folder):
    made = engine(folder, poison=5)
    before = {name: weight.clone() for name, weight in made.model.state_dict().items()}
    assert np.isnan(step(made))
    assert all(torch.equal(weight, before[name]) for name, weight in made.model.state_dict().items())


def test_a_champion_of_another_shape_is_not_started_from(folder):
    made, wide = engine(folder), engine(folder, width=32)
    assert not made.begin_from(dict(wide.model.state_dict()))
    assert made.begin_from(dict(engine(folder, seed=5).model.state_dict()))
    assert torch.equal(made.model["table"].weight, engine(folder, seed=5).model["table"].weight)


def test_a_warm_start_takes_the_bytes_that_it_has_compared(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "champion"
    model.mkdir()
    (model / "model.json").write_text("{}")
    save_file(dict(engine(folder, seed=5).model.state_dict()), model / "model.safetensors")
    asked = recipe(warm_start=WarmStart(folder=str(model), digest=records.digest(model)))
    assert _start_warm(engine(folder), asked.warm_start)
    save_file(dict(engine(folder, seed=6).model.state_dict()), model / "model.safetensors")
    with pytest.raises(DataError, match=r"has digest .*, and the night began with .*; open the night anew"):
        _start_warm(engine(folder), asked.warm_start)


def test_batches_of_any_make_are_moved(folder):
    batch = {"a": (torch.ones(1), [torch.ones(2)]), "b": "name"}
    assert to(batch, torch.device("meta"))["a"][1][0].device.type == "meta"
    assert to(batch, torch.device("cpu"))["b"] == "name"


def test_a_state_of_pure_numbers_needs_no_optimizer_tensors():
    tensors, tree = checkpoint.pack(
        {"state": {}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}]}
    )
    assert tensors == {}
    assert checkpoint.unpack({}, tree)["param_groups"][0]["betas"] == (0.9, 0.99)
    assert TrainingState(tensors={}).scalars == {}


@pytest.mark.parametrize(("rank", "world_size"), [(0, 0), (2, 2), (-1, 1)])
def test_a_world_of_nobody_is_refused(folder, monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    with pytest.raises(JobError, match=rf"^worker {rank} of a world of {world_size} .*train\.num_workers"):
        engine(folder)


class Hungry(torch.optim.SGD):
    """An optimizer that keeps more than there is."""

    def step(self, closure=None):
        torch.empty(1 << 50)


def test_an_update_without_memory_is_told_in_one_sentence(folder, monkeypatch):
    monkeypatch.setattr(LineWorkload, "optimizer", lambda self, parameters: Hungry(parameters))
    with pytest.raises(JobError, match=r"what the optimizer keeps.*; take one that keeps less"):
        engine(folder).step(SHARE, batch_size=8, rate=0.1, signals=Signals())


class Groups(LineWorkload):
    """The table learns at a tenth of the rate of the net."""

    def optimizer(self, parameters):
        table, *net = parameters
        return torch.optim.SGD([{"params": net}, {"params": [table], "lr": 0.03}], lr=0.3, momentum=0.9)


def test_groups_of_an_optimizer_keep_the_ratio_of_their_rates(folder):
    """Also from a checkpoint, which has the rates of its last update."""
    workload = Groups(dropout=0.0)
    data = workload.dataset(folder, "train")
    first, resumed = (
        TorchEngine(workload, data, seed=0, micro_batch_size=8, tuning=Tuning()) for _ in range(2)
    )
    step(first)
    resumed.load(first.save())
    step(resumed)
    for made in (first, resumed):
        assert [group["lr"] for group in made.optimizer.param_groups] == pytest.approx([0.1, 0.01])


class Frozen(LineWorkload):
    def model(self):
        return super().model().requires_grad_(False)


class WithExtraState(LineWorkload):
    def model(self):
        parts = super().model()
        parts["net"].append(Remembers())
        return parts


class Remembers(torch.nn.Identity):
    def get_extra_state(self):
        return {"seen": {1}}

    def set_extra_state(self, state):
        pass


class SecondOrder(LineWorkload):
    def optimizer(self, parameters):
        return torch.optim.LBFGS(parameters)


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        (Frozen(), "all are frozen .*; set requires_grad"),
        (
            WithExtraState(),
            r"net\.4\._extra_state, which is a dict that JSON .*; return numbers",
        ),
        (SecondOrder(), "LBFGS computes .*; take an optimizer whose step needs no closure"),
    ],
)
def test_what_cannot_be_trained_or_saved_is_refused_before_it_begins(folder, workload, sentence):
    with pytest.raises(ParamsError, match=sentence):
        TorchEngine(workload, workload.dataset(folder, "train"), seed=0, micro_batch_size=8, tuning=Tuning())


class Drawn:
    """Samples that are drawn."""

    def __len__(self):
        return 8

    def __getitem__(self, sample):
        return {"x": torch.rand(()), "y": torch.tensor(0.0), "key": torch.tensor(sample)}


def test_an_update_repeated_for_memory_reads_the_samples_of_its_epoch():
    """A data set as small as a batch: each share that comes has the same samples, drawn otherwise."""

    class Short(LineWorkload):
        def loss(self, model, batch):
            drawn.append(batch["x"].tolist())
            if len(drawn) == 2:
                raise MemoryError
            return super().loss(model, batch)

    drawn: list[list[float]] = []
    made = TorchEngine(Short(dropout=0.0), Drawn(), seed=0, micro_batch_size=8, tuning=Tuning())
    shares = [np.arange(8), np.arange(8), np.arange(8)]
    for epoch, share in enumerate(shares):
        made.prepare(share, progress=TrainingProgress(epoch=epoch))
    for share in shares[:2]:
        step(made, share)
    first, short, *halves = drawn
    assert [number for half in halves for number in half] == pytest.approx(short)
    assert short != pytest.approx(first)


class Marked(LineWorkload):
    """Normalizes over a pass, counts its samples, and lacks memory for one pass of an update."""

    num_seen, num_calls = 0, 0

    def __init__(self, short_at: int = 0) -> None:
        super().__init__(dropout=0.0)
        self.short_at = short_at

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))

    def loss(self, model, batch):
        self.num_calls += 1
        self.num_seen += len(batch["x"])
        losses = (model(batch["x"][:, None])[:, 0] - batch["y"]).square()
        if self.num_calls == self.short_at:
            raise MemoryError
        return losses

    def state_dict(self):
        return {"num_seen": self.num_seen}

    def load_state_dict(self, state):
        self.num_seen = state["num_seen"]


class Odd(LineWorkload):
    """Drops one buffer at its first pass, and has a longer one at each."""

    def __init__(self, short_at: int = 0) -> None:
        super().__init__(dropout=0.0)
        self.short_at, self.num_calls = short_at, 0

    def model(self):
        made = super().model()
        made.register_buffer("once", torch.ones(2))
        made.register_buffer("longer", torch.zeros(1))
        return made

    def loss(self, model, batch):
        self.num_calls += 1
        model.once = None
        model.longer = torch.zeros(len(model.longer) + 1)
        if self.num_calls == self.short_at:
            raise MemoryError
        return super().loss(model, batch)


@pytest.mark.parametrize("short_at", [0, 1, 3])
def test_buffers_that_are_dropped_or_grow_are_as_after_the_passes_that_counted(folder, short_at):
    write_curve(folder, num_samples=16)
    workload = Odd(short_at)
    made = TorchEngine(
        workload, workload.dataset(folder, "train"), seed=0, micro_batch_size=8, tuning=Tuning()
    )
    for share in (np.arange(8), np.arange(8, 16), np.arange(8)):
        step(made, share)
    assert made.model.once is None
    assert len(made.model.longer) == 1 + workload.num_calls - (short_at > 0)


class Large(LineWorkload):
    """Keeps a state that takes longer to copy than an update may."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.kept, self.num_packed, self.num_calls = list(range(200_000)), 0, 0

    def loss(self, model, batch):
        self.num_calls += 1
        if self.num_calls == 4:
            raise MemoryError
        return super().loss(model, batch)

    def state_dict(self):
        self.num_packed += 1
        return {"kept": self.kept}

    def load_state_dict(self, state):
        self.kept = state["kept"]


def test_a_state_that_takes_long_to_copy_is_not_and_what_counts_twice_is_said(folder, caplog):
    write_curve(folder, num_samples=16)
    workload = Large()
    made = TorchEngine(
        workload, workload.dataset(folder, "train"), seed=0, micro_batch_size=8, tuning=Tuning()
    )
    before = workload.num_packed
    for _ in range(5):
        step(made, np.arange(8))
    assert workload.num_packed - before == 1
    assert "counts twice in Large.state_dict" in caplog.text


@pytest.mark.parametrize("short_at", [1, 2, 4])
def test_an_update_repeated_for_memory_has_its_side_effects_once(folder, short_at):
    write_curve(folder, num_samples=16)
    states = []
    for workload, micro in ((Marked(), 2), (Marked(short_at), 4)):
        made = TorchEngine(
            workload, workload.dataset(folder, "train"), seed=0, micro_batch_size=micro, tuning=Tuning()
        )
        for share in (np.arange(8), np.arange(8, 16)):
            step(made, share)
        assert workload.num_seen == 16
        states.append(made.model.state_dict())
    if short_at < 3:  # else the first update is taken in passes of another size
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert states[1]["1.num_batches_tracked"] == (8 if short_at < 3 else 6)
