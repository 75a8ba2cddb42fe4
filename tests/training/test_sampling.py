"""Samples come by weight and near others of their length, at any position by itself, and the audit knows."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.workload import GROUP, collated
from daybreak.training.micro_batch import MicroBatches
from daybreak.training.sample_audit import SampleAudit
from daybreak.training.sampling import SampleOrder, Sampling, expect_by_number
from tests.fakes import Curve, LineWorkload, write_curve
from tests.training.nights import ROOT
from tests.training.recipes import recipe
from tests.training.stoppable import StoppableRun

N = 500
LENGTHS = np.random.default_rng(0).geometric(0.05, N)


def of_lengths(*, by_tokens: bool = False, batch_size: int = 8, first_sample: int = 0) -> SampleOrder:
    return SampleOrder(
        seed=3,
        num_samples=N - first_sample,
        first_sample=first_sample,
        sampling=Sampling(lengths=LENGTHS),
        batch_size=batch_size,
        by_tokens=by_tokens,
    )


def batches(order: SampleOrder, *, until: int, size: int = 8) -> list[np.ndarray]:
    """The samples of each batch from the start on."""
    found, position = [], 0
    while position < until:
        after = min(until, position + (order.batch_at(position) if order.batch_at else size))
        found.append(order.samples(position, after))
        position = after
    return found


@given(
    num_samples=st.integers(1, 200),
    batch_size=st.integers(1, 9),
    by_tokens=st.booleans(),
    lengths=st.lists(st.integers(1, 50), min_size=200, max_size=200),
    cut=st.integers(0, 400),
)
def test_each_sample_comes_once_an_epoch_whatever_its_length(
    num_samples, batch_size, by_tokens, lengths, cut
):
    order = SampleOrder(
        seed=5,
        num_samples=num_samples,
        sampling=Sampling(lengths=np.array(lengths)),
        batch_size=batch_size,
        by_tokens=by_tokens,
    )
    both = order.samples(0, 2 * num_samples)
    assert [sorted(epoch) for epoch in np.split(both, 2)] == [list(range(num_samples))] * 2
    cut = min(cut, 2 * num_samples)
    halves = [order.samples(0, cut), order.samples(cut, 2 * num_samples)]
    assert np.concatenate(halves).tolist() == both.tolist()


@given(weights=st.lists(st.floats(0, 100), min_size=1, max_size=60).filter(any), seed=st.integers(0, 99))
def test_a_sample_comes_as_often_as_its_weight_says_rounded_up_or_down(weights, seed):
    n = len(weights)
    order = SampleOrder(seed=seed, num_samples=n, sampling=Sampling(weights=np.array(weights)))
    due = n * np.array(weights) / sum(weights)
    for epoch in range(3):
        counts = np.bincount(order.samples(epoch * n, (epoch + 1) * n), minlength=n)
        assert (abs(counts - due) < 1 + 1e-6).all()
        every = np.concatenate(list(order.of_epoch(epoch)))
        assert np.bincount(every, minlength=n).tolist() == counts.tolist()


def test_equal_weights_and_no_weights_have_each_sample_once():
    order = SampleOrder(seed=1, num_samples=N, sampling=Sampling(weights=np.full(N, 0.1)))
    assert sorted(order.samples(N, 2 * N)) == list(range(N))


def test_what_is_rounded_differs_from_epoch_to_epoch_and_is_right_on_average():
    weights = np.array([1.0] * 9 + [0.3])
    order = SampleOrder(seed=1, num_samples=10, sampling=Sampling(weights=weights))
    counts = np.bincount(order.samples(0, 10_000), minlength=10)
    assert counts / 1000 == pytest.approx(10 * weights / weights.sum(), abs=0.05)


@pytest.mark.parametrize("by_tokens", [False, True])
def test_samples_of_a_batch_are_of_like_length_in_another_order_each_epoch(by_tokens):
    order = of_lengths(by_tokens=by_tokens)

    def padding(parts: list[np.ndarray]) -> float:
        padded = sum(len(part) * LENGTHS[part].max() for part in parts)
        return 1 - sum(LENGTHS[part].sum() for part in parts) / padded

    own = batches(order, until=3 * N)
    plain = batches(SampleOrder(seed=3, num_samples=N), until=3 * N)
    assert padding(own) < 0.2 < 0.5 < padding(plain)
    longest = [int(LENGTHS[part].max()) for part in own[:40]]
    assert longest != sorted(longest)
    assert order.samples(0, N).tolist() != order.samples(N, 2 * N).tolist()


def test_batches_by_tokens_take_as_many_as_batches_of_samples_on_average():
    order = of_lengths(by_tokens=True)
    most = 8 * LENGTHS.mean()
    own = batches(order, until=N)
    taken = [len(part) * LENGTHS[part].max() for part in own]
    assert max(each for each, part in zip(taken, own, strict=True) if len(part) > 1) <= most
    assert len(own) <= 1.3 * N / 8
    assert max(map(len, own)) > 16


def test_weights_and_lengths_of_the_newest_samples_are_their_own():
    order = of_lengths(first_sample=100)
    assert sorted(order.samples(0, 400)) == list(range(100, N))
    weights = np.arange(N) >= 450.0
    drawn = SampleOrder(seed=1, num_samples=400, first_sample=100, sampling=Sampling(weights=weights * 1.0))
    assert set(drawn.samples(0, 400).tolist()) == set(range(450, N))


@pytest.mark.parametrize("kind", ["weights", "lengths"])
def test_the_audit_knows_what_is_due_and_sees_one_sample_in_place_of_another(kind):
    weights = np.random.default_rng(1).uniform(0, 3, N)
    sampling = Sampling(weights=weights) if kind == "weights" else Sampling(lengths=LENGTHS)
    order = SampleOrder(seed=3, num_samples=N, sampling=sampling, batch_size=8)
    for stop in (N, 2 * N, N + 40):
        right = order.samples(0, stop)
        audit = SampleAudit(order)
        audit.add(0, right)
        audit.settle(seen=stop, total=lambda own: own)
        assert sum(epoch.num_samples for epoch in audit.proven()) == stop
        wrong = right.copy()
        wrong[-1] = (wrong[-1] + 1) % N
        audit = SampleAudit(order)
        audit.add(0, wrong)
        audit.settle(seen=stop, total=lambda own: own)
        with pytest.raises(JobError, match="was trained on other samples than are due"):
            audit.prove()


def test_a_saved_audit_is_read_without_the_data_set():
    order = SampleOrder(seed=3, num_samples=N, sampling=Sampling(lengths=LENGTHS), batch_size=8)
    audit = SampleAudit(order)
    audit.add(0, order.samples(0, N + 40))
    audit.settle(seen=N + 40, total=lambda own: own)
    audit.prove()
    assert SampleAudit.load(json.loads(json.dumps(audit.save()))).proven() == audit.proven()


class Ragged:
    """Lists of points, read one by one, of which some come more often."""

    def __init__(self, folder: Path) -> None:
        self.points = Curve(folder, delay_s=0.0, poison=-1)
        self.lengths = 1 + np.arange(len(self)) % 7
        self.weights = 1.0 + (np.arange(len(self)) % 3 == 0)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Any:
        return self.points.__getitems__(list(range(index, min(len(self), index + int(self.lengths[index])))))

    def collate(self, samples: list[Any]) -> Any:
        lengths = torch.tensor([len(each["x"]) for each in samples])
        return {
            "length": lengths,
            **{name: pad_sequence([each[name] for each in samples], True) for name in ("x", "y")},
        }


class Lists(LineWorkload):
    """Fits the sum of a list."""

    def dataset(self, folder: Path, split: str) -> Any:
        return Ragged(folder)

    def loss(self, model: Any, batch: Any) -> Any:
        there = torch.arange(batch["x"].shape[1]) < batch["length"][:, None]
        answers = model["net"](batch["x"][..., None])[..., 0]
        return ((answers - batch["y"]) * there).sum(1).square()


@pytest.mark.parametrize("batch_by", ["samples", "tokens"])
def test_ragged_weighted_samples_are_the_same_after_a_kill_and_in_passes(tmp_path, batch_by):
    made = recipe(num_samples=150, batch_size=8, batch_by=batch_by, peak=0.01)

    def run(folder: str) -> StoppableRun:
        if not (tmp_path / folder).exists():
            write_curve(tmp_path / folder, num_samples=64)
        return StoppableRun(tmp_path / folder, Lists(), made, epoch_samples=64, micro_batch_size=8)

    alone = run("alone")
    weights = alone.until()
    for update in (5, 11, math.inf):
        resumed = run("stopped").until(update)
    assert all(torch.equal(resumed[name], weight) for name, weight in weights.items())
    alone.trainer.save()
    assert [epoch.num_samples for epoch in alone.trainer.audit.proven()] == [64, 64, 22]


def test_the_classes_of_the_docs_weigh_and_collate():
    page = (ROOT / "docs/own-data.md").read_text()
    section = page[page.index("### Weighted and balanced") : page.index("### Losses over a batch")]
    names: dict[str, Any] = {"TableWorkload": object, "np": np, "torch": torch, "pad_sequence": pad_sequence}
    names["GROUP"] = GROUP
    names["read"] = lambda folder: [[1, 2], [3], [4, 5, 6]]
    for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(code, names)
    score, clicked = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([1.0, 0.0, 1.0])
    batch = {"clicked": clicked, names["GROUP"]: torch.tensor([7, 7, 8])}
    encoded = names["Results"]().encode(lambda _: score[:, None], batch)
    lost = names["Results"]().batch_loss(encoded)
    assert lost.tolist() == pytest.approx([math.log(1 + math.e), 0, 0])
    assert names["Payments"]().weights(lambda name: np.array([1, 0])).tolist() == [20.0, 1.0]
    lists = names["Histories"](None)
    assert Sampling.of(lists).lengths.tolist() == [2, 1, 3]  # type: ignore[union-attr]
    assert collated(lists, [lists[1], lists[2]])["items"].tolist() == [[3, 0, 0], [4, 5, 6]]


def test_passes_have_more_samples_where_these_are_short():
    lengths = np.array([10] * 8 + [2] * 40)
    passes = MicroBatches(4, lengths=lengths, on_shrink=lambda size: None)
    assert [len(part) for part in passes.split(np.arange(8))] == [4, 4]
    assert [len(part) for part in passes.split(np.arange(8, 48))] == [20, 20]


@given(
    groups=st.lists(st.integers(-3, 9), min_size=1, max_size=120),
    batch_size=st.integers(1, 40),
    least=st.integers(1, 2),
    first_sample=st.integers(0, 3),
)
def test_rows_of_a_group_are_in_the_same_batch_in_every_epoch(groups, batch_size, least, first_sample):
    number = len(groups) - first_sample
    if number < 1:
        return
    order = SampleOrder(
        seed=2,
        num_samples=number,
        first_sample=first_sample,
        sampling=Sampling(groups=np.array(groups)),
        batch_size=batch_size,
        least=least,
    )
    own = batches(order, until=3 * number)
    assert all(len(part) >= least for part in own) or number < least
    for epoch in range(3):
        positions = np.cumsum([len(part) for part in own])
        assert (epoch + 1) * number in positions  # no batch goes on into the next epoch
    of_batch = [set(np.array(groups)[part]) for part in own]
    ends = np.cumsum([len(part) for part in own]) <= number
    first_epoch = [of for of, is_first in zip(of_batch, ends, strict=True) if is_first]
    assert sum(map(len, first_epoch)) == len(set(groups[first_sample:]))
    every = np.concatenate(own).reshape(3, number)
    assert [sorted(epoch) for epoch in every] == [list(range(first_sample, len(groups)))] * 3
    halves = [order.samples(0, number // 2), order.samples(number // 2, number)]
    assert np.concatenate(halves).tolist() == every[0].tolist()


def test_batches_of_groups_have_as_many_samples_on_average_in_another_order_each_epoch():
    groups = np.repeat(np.arange(400), np.random.default_rng(4).integers(1, 20, 400))
    number = len(groups)
    order = SampleOrder(seed=2, num_samples=number, sampling=Sampling(groups=groups), batch_size=64)
    own = batches(order, until=2 * number)
    assert np.mean([len(part) for part in own]) == pytest.approx(64, rel=0.02)
    assert max(map(len, own)) <= 64 + 20
    assert order.samples(0, number).tolist() != order.samples(number, 2 * number).tolist()


class Searches(Curve):
    """Points of searches, of one to six results each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, delay_s=0.0, poison=-1)
        ends = np.cumsum(np.random.default_rng(1).integers(1, 7, 64))
        self.groups = np.random.default_rng(2).permutation(64)[np.searchsorted(ends, np.arange(64), "right")]

    def __getitems__(self, indices: Any) -> Any:
        places = np.asarray(indices)
        return super().__getitems__(indices) | {"search": torch.as_tensor(self.groups[places])}


class Ranking(LineWorkload):
    """Compares each result with the others of its search, and counts what it saw of each."""

    def dataset(self, folder: Path, split: str) -> Any:
        data = Searches(folder)
        self.sizes = np.bincount(data.groups)
        return data

    def encode(self, model: Any, batch: Any) -> Any:
        score = model["net"](batch["x"][:, None])[:, 0]
        return {"score": score, "y": batch["y"], "search": batch["search"]}

    def batch_loss(self, encoded: Any) -> Any:
        alike = encoded["search"][:, None] == encoded["search"]
        assert alike.sum(1).tolist() == self.sizes[encoded["search"].numpy()].tolist()
        apart = encoded["score"] - encoded["score"][:, None] - encoded["y"] + encoded["y"][:, None]
        return (apart.square() * alike).mean(1)

    def loss(self, model: Any, batch: Any) -> Any:
        return self.batch_loss(self.encode(model, batch))


def test_a_loss_that_ranks_has_whole_groups_in_passes_and_after_a_kill(tmp_path):
    made = recipe(num_samples=192, batch_size=12, peak=0.01)

    def run(folder: str, micro_batch_size: int) -> StoppableRun:
        if not (tmp_path / folder).exists():
            write_curve(tmp_path / folder, num_samples=64)
        return StoppableRun(
            tmp_path / folder, Ranking(dropout=0.0), made, epoch_samples=64, micro_batch_size=micro_batch_size
        )

    alone = run("alone", 5)
    weights = alone.until()
    for update in (4, 9, math.inf):
        resumed = run("stopped", 5).until(update)
    assert all(torch.equal(resumed[name], weight) for name, weight in weights.items())
    whole = run("whole", 64).until()
    for each in (weights, whole):
        del each["net.3.bias"]  # which a difference of scores cancels
    torch.testing.assert_close(whole, weights, rtol=1e-5, atol=1e-6)
    alone.trainer.save()
    assert [epoch.num_samples for epoch in alone.trainer.audit.proven()] == [64, 64, 64]


class Data(list[int]):
    """A data set of three samples."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__([1, 2, 3])
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"weights": [1, 2]}, r"weights of a data set of 3 samples have shape \[2\] or values"),
        ({"weights": [1, 2, -1]}, r"give each sample a finite number from 0 on"),
        ({"weights": [1, 2, math.nan]}, r"give each sample a finite number from 0 on"),
        ({"lengths": [1.0, 2, 3]}, r"give each sample a whole number from 1 on"),
        ({"lengths": [0, 2, 3]}, r"give each sample a whole number from 1 on"),
        (
            {"groups": [1.0, 2, 3]},
            r"groups of a data set of 3 samples have shape \[3\] or values that are none",
        ),
        ({"groups": [1, 2, 3], "weights": [1, 1, 2]}, r"has groups, .* and weights, .*; leave one out"),
    ],
)
def test_weights_and_lengths_that_are_none_are_refused(attributes, sentence):
    with pytest.raises(ParamsError, match=sentence):
        Sampling.of(Data(**attributes))


def test_what_no_order_can_follow_is_refused():
    with pytest.raises(ParamsError, match="the weights of the 3 samples to train on are 0"):
        SampleOrder(seed=0, num_samples=3, sampling=Sampling.of(Data(weights=[0, 0, 0])))
    with pytest.raises(ParamsError, match=r"train\.batch_growth changes the batch .* set .* to none"):
        SampleOrder(seed=0, num_samples=3, sampling=Sampling.of(Data(groups=[1, 1, 2])), grows=True)
    with pytest.raises(ParamsError, match=r"train\.batch_by is tokens, and the data set has no lengths"):
        SampleOrder(seed=0, num_samples=3, by_tokens=True)


def test_groups_that_are_larger_than_a_batch_on_average_are_named():
    ten = Sampling(groups=np.repeat(np.arange(4), [30, 1, 1, 8]))
    told = "groups have 10 samples on average, more than a batch (9), .* set train.batch_size to 10 or"
    assert re.match(told.replace("(9)", r"\(9\)"), ten.too_large(9))
    assert ten.too_large(10) == Sampling().too_large(1) == ""


@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize("num_samples", [1, 10, 63, 64, 65, 100])
def test_fewer_samples_than_a_batch_have_an_order_in_every_epoch(num_samples, by_tokens):
    lengths = np.random.default_rng(0).integers(1, 100, num_samples)
    order = SampleOrder(
        seed=1,
        num_samples=num_samples,
        sampling=Sampling(lengths=lengths),
        batch_size=64,
        by_tokens=by_tokens,
    )
    for epoch in range(5):
        own = order.samples(epoch * num_samples, (epoch + 1) * num_samples)
        assert sorted(own) == list(range(num_samples))


@pytest.mark.parametrize("num_samples", [64 * 8 + 1, N, 3])
def test_a_batch_by_tokens_has_as_many_samples_as_the_model_needs(num_samples):
    lengths = np.random.default_rng(3).geometric(0.05, num_samples)
    lengths[0] = 5_000  # which takes the tokens of many batches
    sampling = Sampling(lengths=lengths)
    made = dict(seed=1, num_samples=num_samples, sampling=sampling, batch_size=8, by_tokens=True)
    order = SampleOrder(**made, least=2)
    own = batches(order, until=2 * num_samples)
    assert min(map(len, own)) >= 2
    assert sorted(np.concatenate(own)) == sorted([*range(num_samples)] * 2)
    assert min(map(len, batches(SampleOrder(**made), until=2 * num_samples))) == 1


def test_a_pass_takes_no_more_than_the_planned_number_of_the_longest():
    passes = MicroBatches(1, lengths=np.array([66, 66, 66, 100]), on_shrink=lambda size: None)
    assert [len(each) for each in passes.split(np.arange(3))] == [1, 1, 1]


@pytest.mark.parametrize("name", ["weights", "lengths"])
def test_a_data_set_whose_weights_are_a_method_is_told_so(name):
    class Own(Curve):
        def __len__(self) -> int:
            return 4

    Own.weights = Own.lengths = None
    setattr(Own, name, lambda self: [1, 1, 1, 1])
    with pytest.raises(ParamsError, match=f"{name} of the data set is a method, and is read as an array"):
        Sampling.of(Own.__new__(Own))


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    "dataset",
    [Stream(), iter([1, 2, 3]), torch.utils.data.DataLoader([1, 2, 3])],
    ids=["stream", "iterator", "loader"],
)
def test_a_data_set_that_can_only_be_iterated_over_is_refused(dataset):
    with pytest.raises(ParamsError, match=r"A has a data set, .*, whose samples come in an order of its own"):
        expect_by_number(dataset, of="A")
    expect_by_number(Data(), of="A")
