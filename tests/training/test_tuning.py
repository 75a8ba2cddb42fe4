"""A tuning changes how a step is taken, not what is learned."""

import pytest
import torch
from torch import nn

from daybreak.contract.record_parts import Tuning
from daybreak.training.tuning import (
    Columns,
    ShardedOptimizer,
    Tuner,
    blocks,
    read,
    same_if_sparse,
    tables,
    tensors,
)
from tests.fakes import Curve
from tests.training.steps import steps

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    "tuning",
    [
        Tuning(num_loaders=4),
        Tuning(in_memory=True),
        Tuning(in_memory=True, num_loaders=4),
        Tuning(recompute=True),
        Tuning(pinned=True),
        Tuning(sharded=True),  # a worker alone has nobody to share with
    ],
)
def test_moving_data_and_recomputing_change_no_bit(folder, tuning):
    plain, tuned = (steps(folder, tuning=each).model.state_dict() for each in (Tuning(), tuning))
    assert all(torch.equal(weight, tuned[name]) for name, weight in plain.items())


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_a_fused_optimizer_differs_by_rounding_only(folder, sparse):
    tuning = Tuning(fused=not sparse)  # there is no fused kernel for sparse gradients
    plain, tuned = (
        steps(folder, sparse=sparse, tuning=each).model.state_dict() for each in (Tuning(), tuning)
    )
    for name, weight in plain.items():
        torch.testing.assert_close(weight, tuned[name], rtol=1e-4, atol=1e-4)


def learned(tuning: Tuning, make) -> dict[str, torch.Tensor]:
    """The weights after some updates that look up few rows of a large table."""
    torch.manual_seed(0)
    tuner = Tuner(tuning, CPU)
    model = tuner.model(nn.Sequential(nn.Embedding(1 << 16, 16), nn.Flatten(), nn.Linear(64, 1)))
    optimizer = tuner.optimizer(make(model.parameters()))
    for _ in range(5):
        optimizer.zero_grad()
        (model(torch.randint(1 << 16, (8, 4))) - 1).square().mean().backward()
        assert model[0].weight.grad.is_sparse == tuning.sparse
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)]
)
def test_sparse_gradients_learn_the_same_where_the_optimizer_leaves_other_rows_alone(make):
    dense, sparse = learned(Tuning(), make), learned(Tuning(sparse=True), make)
    for name, weight in dense.items():
        torch.testing.assert_close(weight, sparse[name], rtol=1e-6, atol=1e-7)
    assert same_if_sparse(make(nn.Linear(1, 1).parameters()))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.Adagrad(p, weight_decay=0.1),
        torch.optim.Adam,
        torch.optim.AdamW,
    ],
)
def test_optimizers_that_move_every_row_are_not_the_same_with_sparse_gradients(make):
    assert not same_if_sparse(make(nn.Linear(1, 1).parameters()))


def test_tables_whose_weights_are_shared_or_small_keep_dense_gradients():
    large, small = nn.Embedding(1 << 16, 16), nn.Embedding(100, 16)
    tied = nn.Linear(16, 1 << 16, bias=False)
    assert tables(nn.Sequential(large, small)) == [large]
    tied.weight = large.weight
    assert tables(nn.Sequential(large, tied)) == []
    assert tables(nn.Sequential(nn.Embedding(1 << 16, 16, max_norm=1.0))) == []


def test_products_in_bfloat16_learn_weights_in_float32(folder):
    made = steps(folder, tuning=Tuning(precision="bfloat16"))
    plain = steps(folder).model.state_dict()
    for name, weight in made.model.state_dict().items():
        assert weight.dtype == torch.float32
        torch.testing.assert_close(weight, plain[name], rtol=0.1, atol=0.1)
        assert name.startswith("table") or not torch.equal(weight, plain[name])


def test_the_optimizer_stays_fused_after_a_restart(folder):
    made = steps(folder, tuning=Tuning(fused=True))
    plain = steps(folder)
    made.load(plain.save())
    assert all(group["fused"] for group in made.optimizer.param_groups)


def test_a_sample_is_read_once_and_comes_out_the_same(folder):
    data = Curve(folder, delay_s=0.0, poison=3)
    columns = Columns(data)
    for samples in ([5, 3, 5], [3, 8], list(range(100))):
        kept, plain = read(columns, samples), data.__getitems__(samples)
        for one, other in zip(tensors(kept), tensors(plain), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert columns.is_full == (len(samples) == len(data))
    data.__getitems__ = None  # type: ignore[method-assign]
    assert len(read(columns, [5, 99])["x"]) == 2


def test_samples_of_another_shape_are_read_as_before():
    class Ragged:
        def __len__(self) -> int:
            return 4

        def __getitems__(self, samples: list[int]) -> torch.Tensor:
            return torch.ones(len(samples), max(samples) + 1)

    columns = Columns(Ragged())
    assert read(columns, [0, 1]).shape == (2, 2)
    assert read(columns, [3, 0]).shape == (2, 4)
    assert read(columns, [0, 1]).shape == (2, 2)


def test_a_batch_is_whole_though_another_loader_gives_up_while_it_is_read():
    class Late:
        """Sample 9 has another shape; the first time 5 is read, another loader reads 9."""

        def __len__(self):
            return 10

        def __getitems__(self, samples):
            asked.append(list(samples))
            if 5 in samples and len(asked) == 2:
                columns.__getitems__([9])
            return torch.ones(len(samples), 2 if 9 in samples else 1)

    asked: list[list[int]] = []
    columns = Columns(Late())
    columns.__getitems__([0, 1, 2, 3])
    assert columns.__getitems__([2, 3, 4, 5]).shape == (4, 1)
    assert asked == [[0, 1, 2, 3], [4, 5], [9], [9], [2, 3, 4, 5]]
    assert columns.__getitems__([0, 1]).shape == (2, 1)
    assert asked[-1] == [0, 1]  # read, since nothing is kept any more


def test_images_lie_as_convolutions_read_them():
    tuner = Tuner(Tuning(channels_last=True), CPU)
    image = tuner.batch({"x": torch.ones(2, 3, 4, 4), "y": torch.ones(2)})["x"]
    assert image.is_contiguous(memory_format=torch.channels_last)
    model = tuner.model(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_layers_with_batchnorm_are_not_computed_again():
    plain = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    counted = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert blocks(nn.ModuleDict({"plain": plain, "counted": counted})) == [plain]


def test_recomputing_keeps_less_for_the_backward_pass():
    def kept_bytes(tuning: Tuning) -> int:
        model = Tuner(tuning, CPU).model(nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh())] * 16))
        total = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += tensor.nbytes if tensor.shape[0] == 1000 else 0
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(torch.ones(1000, 64, requires_grad=True))
        return total

    assert kept_bytes(Tuning(recompute=True)) < kept_bytes(Tuning()) / 2


def test_a_hook_that_clips_sees_the_whole_gradient_where_the_optimizer_is_sharded():
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)])
    optimizer, norms = torch.optim.SGD(model.parameters(), lr=0.1), []

    def clip(*_: object) -> None:
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))

    optimizer.register_step_pre_hook(clip)
    shards = ShardedOptimizer(optimizer, rank=0, world_size=2)
    model(torch.ones(4, 8)).square().sum().backward()
    whole = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    optimizer.step()
    assert norms == [whole]
    owned = [owner == 0 for owner in shards._owners]
    assert [p.grad is not None for p in model.parameters()] == owned


def test_parameters_are_divided_evenly():
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)])
    shards = ShardedOptimizer(torch.optim.Adam(model.parameters()), rank=0, world_size=2)
    sizes = [p.numel() for p in model.parameters()]
    own = sum(size for size, owner in zip(sizes, shards._owners, strict=True) if owner == 0)
    assert own == sum(sizes) / 2
