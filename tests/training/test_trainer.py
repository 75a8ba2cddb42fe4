"""The loop: each sample once per epoch whatever happens, and an end in time."""

import math
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import Placement, Rental, Size, Tuning
from daybreak.training import checkpoint, sample_order
from daybreak.training.recipe import Progress, Recipe
from daybreak.training.sampling import Sampling
from daybreak.training.trainer import RunOutcome, Trainer
from tests.fakes import AtOnce, CountingEngine
from tests.training.recipes import NEVER, recipe


class Run:
    """A trainer on a counting engine, told to stop after `stop_after` updates."""

    def __init__(
        self,
        folder: Path,
        engine: CountingEngine,
        made: Recipe,
        *,
        epoch_samples: int = 40,
        stop_after: float = math.inf,
        block: int = 1,
        least_batch: int = 1,
    ) -> None:
        self.heartbeats: list[Progress] = []
        self.trainer = Trainer(
            engine,
            made,
            folder=folder,
            epoch_samples=epoch_samples,
            sampling=Sampling(block=block),
            told_to_stop=lambda: len(engine.rates) + 1 >= stop_after,
            report=self.heartbeats.append,
            clock=engine.clock,
            executor=AtOnce(),
            least_batch=least_batch,
        )
        path = checkpoint.newest(folder, identity=made.identity)
        if path:
            self.trainer.resume(path)

    def run(self) -> RunOutcome:
        return self.trainer.run()


@pytest.mark.slow
@settings(max_examples=25)
@given(
    stops=st.lists(st.integers(1, 9), max_size=5),
    num_samples=st.integers(1, 300),
    batch_size=st.integers(1, 64),
    epoch_samples=st.integers(1, 120),
)
def test_each_sample_once_per_epoch_however_often_it_is_ended(stops, num_samples, batch_size, epoch_samples):
    made = recipe(num_samples=num_samples, batch_size=batch_size)
    with TemporaryDirectory() as folder:
        for stop_after in [*stops, math.inf]:
            engine = CountingEngine(num_samples=epoch_samples)
            run = Run(Path(folder), engine, made, epoch_samples=epoch_samples, stop_after=stop_after)
            outcome = run.run()
    assert outcome.stopped_by == "finished"
    assert engine.count.sum() == outcome.seen == num_samples
    epochs, rest = divmod(num_samples, epoch_samples)
    assert sorted(engine.count.tolist()) == [epochs] * (epoch_samples - rest) + [epochs + 1] * rest


def run_world(folder: Path, made: Recipe, *, world_size: int, save_every: int, **ends: float) -> Trainer:
    """Worker 0's trainer after all workers took the same updates, worker 0 last."""
    engine = None
    for rank in reversed(range(world_size)):
        engine = CountingEngine(
            num_samples=40, rank=rank, world_size=world_size, save_every=save_every, before=engine
        )
        run = Run(folder, engine, made, stop_after=ends.get("terminated", math.inf))
        if "killed" in ends:
            killed(run, ends["killed"])
        elif run.run().stopped_by == "finished":
            run.trainer.save()
    return run.trainer


def killed(run: Run, after: float) -> None:
    """Run until the job is killed, after so many updates."""
    step = run.trainer.engine.step

    def fatal(*given: Any, **options: Any) -> Any:
        if len(run.trainer.engine.rates) >= after:
            raise ConnectionAbortedError
        return step(*given, **options)

    run.trainer.engine.step = fatal
    with suppress(ConnectionAbortedError):
        run.trainer.run()


@pytest.mark.slow
@given(
    phases=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 5), st.sampled_from(["terminated", "killed"])), max_size=5
    ),
    batch_size=st.integers(1, 40),
    save_every=st.integers(1, 4),
)
@settings(max_examples=12, deadline=None)
def test_each_sample_once_per_epoch_on_changing_worlds_and_batches(phases, batch_size, save_every):
    """The samples that workers kept add up, as the audit proves; samples lost by a kill count in neither."""
    made = recipe(batch_size=batch_size)
    with TemporaryDirectory() as folder:
        for world_size, updates, end in phases:
            run_world(Path(folder), made, world_size=world_size, save_every=save_every, **{end: updates})
        trainer = run_world(Path(folder), made, world_size=3, save_every=save_every)
        path = checkpoint.newest(Path(folder), identity=made.identity)
        assert path
        count = checkpoint.load(path).tensors["model"]["count"]
    assert trainer.seen == 100
    assert sorted(count.tolist()) == [2] * 20 + [3] * 20
    assert [(epoch.num_samples, epoch.whole) for epoch in trainer.audit.proven()] == [
        (40, True),
        (40, True),
        (20, False),
    ]


def test_no_last_batch_of_a_loss_over_a_batch_has_one_sample_to_compare(tmp_path):
    engine = CountingEngine(num_samples=40)
    Run(tmp_path, engine, recipe(num_samples=17), least_batch=2).run()
    assert engine.sizes == [8, 9]


@pytest.mark.parametrize("num_samples", [17, 18, 19, 25])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_no_share_of_a_model_with_batch_norm_has_one_sample(tmp_path, num_samples, world_size):
    """Whichever workers go on with the last batch: the run is ended after its first update."""
    made = recipe(num_samples=num_samples)
    for stop_after in (1, math.inf):
        engines: list[CountingEngine] = []
        for rank in reversed(range(world_size)):
            before = engines[-1] if engines else None
            engine = CountingEngine(
                num_samples=40, rank=rank, world_size=world_size, before=before, least_share=2
            )
            run = Run(tmp_path, engine, made, stop_after=stop_after)
            outcome = run.run()
            engines.append(engine)
        shares = [size for each in engines for size in each.sizes]
        assert 1 not in shares
    assert outcome.seen == num_samples == 8 + sum(shares)
    assert [sum(update) for update in zip(*(each.sizes for each in engines), strict=True)] == {
        17: [9],
        18: [8, 2],
        19: [8, 3],
        25: [8, 9],
    }[num_samples]


@pytest.mark.parametrize("wrong", [8, 32])
def test_a_batch_that_was_given_twice_is_no_epoch(tmp_path, wrong):
    """The ledger is of the samples that were given to a step, not of `seen`."""
    run = Run(tmp_path, CountingEngine(num_samples=40), recipe(num_samples=40))
    right = run.trainer._share
    run.trainer._share = lambda at: (at, *right(0 if at == wrong else at)[1:])
    assert run.run().seen == 40
    with pytest.raises(JobError, match=r"^epoch 1 was trained on other samples than are due: 40 with"):
        run.trainer.save()
    assert not list(tmp_path.iterdir())


def test_neighbours_of_a_block_are_trained_on_in_the_same_window(tmp_path):
    engine, window = CountingEngine(num_samples=10_000), sample_order.WINDOW * 4
    Run(tmp_path, engine, recipe(num_samples=window), epoch_samples=10_000, block=4).run()
    blocks = engine.count.reshape(-1, 4)
    assert (blocks.sum(1) == 4).sum() == sample_order.WINDOW
    assert engine.count.sum() == window


def test_it_ends_before_the_deadline_with_the_rate_brought_down(tmp_path):
    engine = CountingEngine(num_samples=40, step_s=0.5)
    until = datetime.fromtimestamp(60, UTC)
    made = recipe(num_samples=10_000, batch_size=8, train_until=until)
    outcome = Run(tmp_path, engine, made).run()
    assert outcome.stopped_by == "deadline"
    assert 50 < engine.now < 60
    assert engine.rates[80] > 0.5  # stable until late
    assert engine.rates[-1] < 0.05
    assert engine.rates[-20:] == sorted(engine.rates[-20:], reverse=True)


def test_an_early_end_survives_a_restart(tmp_path):
    until = datetime.fromtimestamp(60, UTC)
    made = recipe(num_samples=10_000, batch_size=8, train_until=until)
    first = CountingEngine(num_samples=40, step_s=0.5)
    stopped = Run(tmp_path, first, made, stop_after=95)
    assert stopped.run().stopped_by == "terminated"
    second = CountingEngine(num_samples=40, step_s=0.5)
    second.now = first.now
    again = Run(tmp_path, second, made)
    assert again.trainer.end == stopped.trainer.end < 10_000
    assert again.run().stopped_by == "deadline"
    assert again.trainer.end == stopped.trainer.end
    assert second.now < 60


@pytest.mark.slow
def test_an_early_end_is_put_off_on_a_faster_machine(tmp_path):
    made = recipe(num_samples=40_000, batch_size=8, train_until=datetime.fromtimestamp(600, UTC))
    first = CountingEngine(num_samples=40, step_s=0.5)
    stopped = Run(tmp_path, first, made, stop_after=900)
    assert stopped.run().stopped_by == "terminated"
    assert stopped.trainer.end < 10_000
    for step_s, least in ((0.03, 40_000), (0.06, 22_000)):
        second = CountingEngine(num_samples=40, step_s=step_s)
        second.now = first.now
        outcome = Run(tmp_path, second, made).run()
        assert outcome.seen >= least
        assert second.now < 600
        assert second.rates[-1] < 0.05


def test_a_pause_is_not_taken_for_the_speed_of_all_that_is_left(tmp_path):
    """A restart near the end whose first update takes long, as one that is compiled does."""
    made = recipe(num_samples=10_000, batch_size=8, train_until=datetime.fromtimestamp(3600, UTC))
    first = Run(tmp_path, CountingEngine(num_samples=40, step_s=0.5), made, stop_after=900)
    assert first.run().seen == 7200
    engine = CountingEngine(num_samples=40, step_s=0.5)
    engine.now = 900.0
    step = engine.step

    def slow_at_first(*given: Any, **options: Any) -> Any:
        engine.now += 0.0 if engine.rates else 200.0
        return step(*given, **options)

    engine.step = slow_at_first
    run = Run(tmp_path, engine, made)
    assert run.run().stopped_by == "finished"
    assert any(beat.end < 10_000 for beat in run.heartbeats)
    assert engine.now < 1500


def test_past_the_deadline_it_ends_with_the_next_update(tmp_path):
    engine = CountingEngine(num_samples=40)
    made = recipe(train_until=datetime.fromtimestamp(-1, UTC))
    assert Run(tmp_path, engine, made).run() == RunOutcome(seen=8, num_updates=1, stopped_by="deadline")


def test_heartbeats_come_at_most_once_a_second_and_tell_speed_and_loss(tmp_path):
    engine = CountingEngine(num_samples=40, step_s=0.3)
    run = Run(tmp_path, engine, recipe(num_samples=80))
    run.run()
    assert [beat.seen for beat in run.heartbeats] == [32, 64, 80]
    assert run.heartbeats[0].samples_per_s == pytest.approx(32 / 1.2)
    assert run.heartbeats[0].loss == 1


def test_checkpoints_come_after_each_interval(tmp_path):
    engine = CountingEngine(num_samples=40, step_s=1)
    Run(tmp_path, engine, recipe(every_s=3)).run()
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == ["seen=000000000000064", "seen=000000000000096"]


def test_the_interval_follows_what_a_save_takes(tmp_path):
    """Young's sqrt(2 x 4.2 s x 50 s) = 20.5 s after each save of 4.2 s, in place of the plan's 3 s."""
    engine = CountingEngine(num_samples=40, step_s=1)
    save = engine.save

    def slow() -> Any:
        engine.now += 4.2
        return save()

    engine.save = slow
    run = Run(tmp_path, engine, recipe(num_samples=800, every_s=3, mean_time_to_loss_s=50))
    run.run()
    assert sorted(int(path.name[5:]) // 8 for path in tmp_path.iterdir()) == [70, 92]  # of 4, 26, 48, ...


def test_a_checkpoint_that_the_disk_refused_is_tried_again_soon(tmp_path, caplog):
    place = tmp_path / "checkpoints"
    place.write_text("a file, where a folder should be")
    engine = CountingEngine(num_samples=40, step_s=10)
    run = Run(tmp_path / "none", engine, recipe(every_s=50))
    run.trainer.saver.folder = place
    assert run.run().stopped_by == "finished"
    assert caplog.text.count("no checkpoint at") >= 3


def test_a_loss_that_is_not_finite_names_the_update(tmp_path):
    engine = CountingEngine(num_samples=40)
    engine.loss = math.nan
    with pytest.raises(
        JobError, match=r"loss of update 1 \(positions 0 to 7\) is nan, on 8 samples: .* train\.rate"
    ):
        Run(tmp_path, engine, recipe()).run()


def test_samples_before_the_first_are_left_out(tmp_path):
    engine = CountingEngine(num_samples=40)
    Run(tmp_path, engine, recipe(num_samples=60, first_sample=10)).run()
    assert engine.count.tolist() == [0] * 10 + [2] * 30


@pytest.mark.slow
@given(
    speeds=st.lists(st.floats(0.5, 8), min_size=2, max_size=4),
    num_loaders=st.integers(0, 4),
    batch_size=st.integers(8, 64),
)
@settings(max_examples=25)
def test_shares_by_speed_lose_no_sample_and_repeat_none(speeds, num_loaders, batch_size):
    """All workers are told the same times, each from the shares of the update before."""
    made = recipe(
        num_samples=2000, batch_size=batch_size, tuning=Tuning(num_loaders=num_loaders), batching="by_speed"
    )
    world_size = len(speeds)
    with TemporaryDirectory() as folder:
        engines = [CountingEngine(num_samples=40, rank=n, world_size=world_size) for n in range(world_size)]
        trainers = [Run(Path(folder), engine, made).trainer for engine in engines]
        while trainers[0].seen < made.num_samples:
            times_s = tuple(n / speed for n, speed in zip(trainers[0]._sizes, speeds, strict=False))
            for engine, trainer in zip(engines, trainers, strict=True):
                engine.times_s = times_s
                trainer._reach = max(trainer._reach, trainer.seen)
                trainer._update()
    assert sum(engine.count for engine in engines).tolist() == [50] * 40
    assert len({trainer._batching.sizes for trainer in trainers}) == 1


def test_shares_are_even_unless_asked_for_by_speed(tmp_path):
    taken = {}
    for batching in ("even", "by_speed"):
        engine = CountingEngine(num_samples=40, world_size=2)
        engine.times_s = (4.0, 1.0)
        Run(tmp_path / batching, engine, recipe(batching=batching)).run()
        taken[batching] = engine.count.sum()
    assert taken["even"] == 50 > taken["by_speed"]


FREE = tuple(Size(batch_size=8 << n, micro_batch_size=4 << n, update_s=1.0) for n in range(3))


def test_batches_follow_noise_and_machine_at_the_same_updates_however_often_it_is_ended(tmp_path):
    """Updates that take as long whatever their size: it doubles after twenty looks at the noise, twice.

    After 50 updates the job goes on where each sample takes as long, in smaller passes: it shrinks.
    """
    moved_after = 50
    free = recipe(num_samples=2000, sizes=FREE, tuning=Tuning(num_loaders=3))
    by_sample = (replace(each, micro_batch_size=2, update_s=each.batch_size) for each in FREE)
    slow = free.on(
        Placement(
            rental=Rental(machine="d"),
            expected_s=1,
            expected_usd=1,
            latest_start=NEVER,
            micro_batch_size=2,
            sizes=tuple(by_sample),
        )
    )
    assert slow.identity == free.identity
    rates: dict[str, list[float]] = {}
    often = [1, 19, 21, 22, 23, 24, 40, moved_after, 51, 52, 55, 60, math.inf]
    for name, ends in (("whole", [moved_after, math.inf]), ("ended", often)):
        rates[name] = []
        for stop_after in ends:
            engine = CountingEngine(num_samples=40)
            engine.noise = (1.0, 8.0)
            before = len(rates[name])
            on = free if before < moved_after else slow
            run = Run(tmp_path / name, engine, on, stop_after=stop_after - before)
            run.run()
            rates[name] += engine.rates
        assert engine.count.tolist() == [50] * 40
        assert [size for _, size in run.trainer.batch_schedule.save()["sizes"]] == [8, 16, 32, 8]
    assert rates["ended"] == rates["whole"]
    assert engine.rescaled[-1] == (8, 2)
    # The rate is that of the size (linear, as of SGD), where it does not decay yet.
    assert max(rates["whole"][:moved_after]) == pytest.approx(4)
    assert max(rates["whole"][moved_after:]) <= 1


class Hurt(CountingEngine):
    """An engine whose loss is higher in batches of 32 and more."""

    def step(self, indices: Any, *, batch_size: int, rate: float, signals: Any) -> Any:
        self.loss = (1.3 if batch_size >= 32 else 1.0) + 0.01 * math.sin(self.count.sum())
        return super().step(indices, batch_size=batch_size, rate=rate, signals=signals)


def test_a_growth_that_hurts_the_loss_is_undone_at_the_same_update_however_often_it_is_ended(tmp_path):
    """Twenty looks at the noise let it grow twice; the losses of 32 updates tell that it hurts."""
    made = recipe(num_samples=4000, sizes=FREE, tuning=Tuning(num_loaders=3))
    rates: dict[str, list[float]] = {}
    taken: dict[str, list[tuple[int, int]]] = {}
    for name, ends in (("whole", []), ("ended", [1, 20, 21, 25, 40, 53, 54, 55, 56, 57, 58, 80])):
        rates[name] = []
        for stop_after in [*ends, math.inf]:
            engine = Hurt(num_samples=40)
            engine.noise = (1.0, 1e4)
            run = Run(tmp_path / name, engine, made, stop_after=stop_after - len(rates[name]))
            run.run()
            rates[name] += engine.rates
        assert engine.count.tolist() == [100] * 40
        taken[name] = run.trainer.batch_schedule.save()["sizes"]
    assert [size for _, size in taken["whole"]] == [8, 16, 32, 8]
    assert taken["ended"] == taken["whole"]
    assert rates["ended"] == rates["whole"]


def test_a_batch_that_is_not_the_one_of_the_rate_takes_the_rate_of_the_rule(tmp_path):
    engine = CountingEngine(num_samples=40)
    Run(tmp_path, engine, recipe(num_samples=800, batch_size=32, base_batch_size=8, peak=1.0)).run()
    assert max(engine.rates) == pytest.approx(4)  # linear, as of SGD
    assert engine.rescaled == [(32, None)]


def test_adascale_ends_when_it_has_stood_for_all_updates_with_the_rate_brought_down(tmp_path):
    """Of gradients that are nothing but noise four times the batch is worth four updates; else fewer."""
    sizes = {"num_samples": 6400, "base_samples": 1600, "batch_size": 32, "base_batch_size": 8}
    engine = CountingEngine(num_samples=40)
    engine.noise = (1.0, 8.0)  # a gain of (1 + 1) / (1 + 1/4)
    run = Run(tmp_path, engine, recipe(**sizes, scaling="adascale", warmup=0.0))
    outcome = run.run()
    assert outcome.stopped_by == "finished"
    assert outcome.num_updates == pytest.approx(1600 / 8 / 1.6, abs=2)
    assert max(engine.rates) == pytest.approx(1.6)
    assert engine.rates[-1] < 0.05
    assert outcome.noise_scale == pytest.approx(8)
