"""Nights of the real shop on samples that are made once, trained by the product's own loop.

The samples of a day are made the night in which it is the newest, by the shop's own code from the clean rows
of that day and of those before, cancellations as they were known by then: so no sample can hold anything of
a later day, whichever model is trained on it. The days before the first night are made as that night makes
them. A night trains on the samples of the days before its own and is judged on those of its own, as by
`prepare.test_days: 1`. Two things differ from nights in full: those make all samples again each night, so
that a purchase is no label any more once it was cancelled (0.3 % of the lines), and their profile may tune
the steps, which are plain float32 here.

Samples, and each model that was trained, are kept in a folder of the temporary directory, named by a digest
of the code and the params: a run that was cut goes on from there.
"""

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks import frame
from benchmarks.bench_nights import SOURCE
from benchmarks.policies import Trained
from daybreak.contract import records
from daybreak.contract.record_parts import Tuning
from daybreak.contract.record_types import Champion, Dataset, Night
from daybreak.contract.sections import Params
from daybreak.contract.workload import UNIT, Window
from daybreak.data.casts import conform
from daybreak.data.corrections import reach
from daybreak.data.features import rows_of
from daybreak.data.partition_scan import PartitionScan
from daybreak.data.partitions import PART, part_of
from daybreak.data.prepare import write_whole
from daybreak.data.source import Files
from daybreak.data.suite import load, rules_of
from daybreak.storage.source_code import frame_digest, source_digest
from daybreak.training import checkpoint
from daybreak.training.engine import TorchEngine
from daybreak.training.recipe import CHAMPION, Recipe, WarmStart, course
from daybreak.training.trained_model import write_facts
from daybreak.training.trainer import Trainer
from tests.training.recipes import recipe

BASELINE = "baseline/"
PARSED_AT_ONCE = 256  # samples


class Samples:
    """Samples that were made before; a batch is a dict of tensors, as the shop's data set makes it."""

    def __init__(self, columns: dict[str, Tensor], start: int, stop: int) -> None:
        self._columns = {name: column[start:stop] for name, column in columns.items()}
        self._num_samples = stop - start

    def __len__(self) -> int:
        return self._num_samples

    def __getitems__(self, indices: Any) -> dict[str, Tensor]:
        rows = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        return {name: column.index_select(0, rows) for name, column in self._columns.items()}


class Shop:
    """The trading days of the shop, each with a night; a day is named by its number."""

    def __init__(self, params: Params, *, first: int, num_days: int) -> None:
        self.params, self.first = params, first
        self.workload = params.workload.make()
        self._source = Files(**{key: value for key, value in SOURCE.items() if key != "use"})
        self._all_days = tuple(self._source.days())
        self.days = self._all_days[:num_days]
        suite = (frame.ROOT / params.validate_.suite).read_text()
        made_of = (
            params.workload.model_dump_json(),
            params.train.model_dump_json(),
            suite,
            str(first),
            source_digest(params.workload.use),
            frame_digest("contract", "data", "training"),
        )
        key = hashlib.md5("\0".join(made_of).encode(), usedforsecurity=False).hexdigest()[:12]
        self.scratch = Path(tempfile.gettempdir()) / f"daybreak-nights-{key}"
        (self.scratch / "samples").mkdir(parents=True, exist_ok=True)
        (self.scratch / "models").mkdir(exist_ok=True)
        self.baselines: dict[int, dict[str, NDArray[np.float32]]] = {}
        self._ends = np.zeros(len(self.days) + 1, dtype=np.int64)  # samples before each day
        self._columns = self._read()

    def known(self, place: int) -> Samples:
        """Returns the samples of the days before that one, on which its night trains."""
        return Samples(self._columns, 0, int(self._ends[place]))

    def held_out(self, place: int) -> Samples:
        """Returns the samples of that day, on which its night judges."""
        return Samples(self._columns, int(self._ends[place]), int(self._ends[place + 1]))

    def trained(self, night: Night, champion: Champion | None, model: Path | None) -> Trained:
        """Returns the model of a night: from the champion's in `model`, or cold, as nights decide."""
        place = self.days.index(night.day)
        samples = self.known(place)
        dataset = Dataset(
            digest=f"{self.scratch.name}/{night.day}",
            num_samples=len(samples),
            num_bytes=0,
            first_day=self.days[0],
            last_day=self.days[place - 1],
        )
        with tempfile.TemporaryDirectory(prefix="daybreak-") as name, contextlib.chdir(name):
            if model:
                CHAMPION.parent.mkdir()
                CHAMPION.symlink_to(model)
            tonight = course(night, dataset, champion, self.params.workload, self.params.train)
        train, plug = self.params.train, self.params.workload
        job = recipe(
            night="",
            workload=plug.use,
            arguments=plug.model_extra or {},
            data_digest=dataset.digest,
            last_day=dataset.last_day,
            source_digest=source_digest(plug.use),
            seed=train.seed,
            warm_start=WarmStart(folder="", digest=champion.model_digest)
            if champion and tonight.warm
            else None,
            first_sample=tonight.first_sample,
            num_samples=tonight.num_samples,
            peak=tonight.rate,
            batch_size=train.batch_size,
            micro_batch_size=train.batch_size,
            warmup=train.warmup,
            decay=train.decay,
            scaling=train.scaling,
        )
        folder = self.scratch / "models" / job.identity[:16]
        result = folder.with_suffix(".json")
        if not result.exists():  # written last
            cpu_s = self._train(job, samples, folder, warm_from=model if tonight.warm else None)
            facts = {"digest": records.digest(folder), "cold": not tonight.warm, "cpu_s": cpu_s}
            records.replace_text(result, json.dumps(facts))
        return Trained(folder=folder, **json.loads(result.read_text()))

    def _train(self, job: Recipe, samples: Samples, folder: Path, *, warm_from: Path | None) -> float:
        """Trains as a worker does, writes the model to the folder, and returns the CPU seconds it took."""
        began_s = time.process_time()
        engine = TorchEngine(
            self.workload, samples, seed=job.seed, micro_batch_size=job.micro_batch_size, tuning=Tuning()
        )
        if warm_from and not engine.begin_from(load_file(warm_from / "model.safetensors")):
            raise RuntimeError(f"the model in {warm_from} has other shapes")
        trainer = Trainer(
            engine,
            job,
            folder=folder,
            epoch_samples=len(samples),
            told_to_stop=lambda: False,
            report=lambda progress: None,
        )
        outcome = trainer.run()
        cpu_s = time.process_time() - began_s
        folder.mkdir(exist_ok=True)
        checkpoint.write_tensors(folder / "model.safetensors", engine.weights())
        write_facts(folder, job, seen=outcome.seen)
        engine.close()
        return cpu_s

    def _read(self) -> dict[str, Tensor]:
        """Returns the samples of all days in columns, and makes those that are missing."""
        parts = []
        for place in (None, *range(self.first, len(self.days))):
            name = "before" if place is None else str(self.days[place])
            path = self.scratch / "samples" / f"{name}.safetensors"
            if not path.exists():
                unfinished = path.with_suffix(".unfinished")
                save_file(
                    self._made(self.first, "train") if place is None else self._made(place, "test"),
                    unfinished,
                )
                unfinished.replace(path)
            part = load_file(path)
            if place is not None:
                self.baselines[place] = {
                    key.removeprefix(BASELINE): part.pop(key).numpy()
                    for key in list(part)
                    if key.startswith(BASELINE)
                }
            parts.append(part)
        sizes = [len(part[UNIT]) for part in parts]
        self._ends[self.first :] = np.cumsum(sizes)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _made(self, place: int, split: str) -> dict[str, Tensor]:
        """Returns the samples of a split in a day's night; held-out ones with the scores of baselines."""
        window = Window(train=self.days[:place], test=(self.days[place],))
        rows = pa.concat_tables(self._rows(place))
        with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
            folder = Path(name)
            write_whole(folder, self.workload.arrays(ibis.memtable(rows), window), window)
            dataset = self.workload.dataset(folder, split)
            starts = range(0, len(dataset), PARSED_AT_ONCE)
            batches = [
                dataset.__getitems__(range(start, min(start + PARSED_AT_ONCE, len(dataset))))
                for start in starts
            ]
            made = {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
            if split == "test":
                made |= {
                    f"{BASELINE}{key}": values for key, values in self.workload.baselines(folder).items()
                }
        return made

    def _rows(self, place: int) -> Iterator[pa.Table]:
        """Yields the rows of each day as they stood in the night of the day at `place`."""
        last = self.days[place - 1]
        for day in self.days[: place + 1]:
            if last - day >= reach(self.workload):
                yield self._settled(day)
            else:
                yield rows_of(
                    self.workload, day, self.days[: place + 1], last=last, read=self._clean.__getitem__
                )

    @lru_cache(maxsize=512)  # noqa: B019 - there is one shop
    def _settled(self, day: date) -> pa.Table:
        """Returns the rows of a day once all days that may correct it are over."""
        last = day + reach(self.workload)
        return rows_of(self.workload, day, self._all_days, last=last, read=self._clean.__getitem__)

    @cached_property
    def _clean(self) -> dict[date, pa.Table]:
        """The rows of each day that the rules of the suite leave."""
        table, suite = self.workload.table, load(frame.ROOT / self.params.validate_.suite)
        clean = {}
        with tempfile.TemporaryDirectory(prefix="daybreak-") as name, contextlib.chdir(name):
            scan = PartitionScan(table, suite, rules_of(suite, table))
            for day in self._all_days:
                part = part_of(day)
                self._source.fetch(day, part.parent)
                rows = conform(pq.ParquetFile(part).read(), table, origin=PART)
                pq.write_table(rows, part)
                clean[day] = rows.filter(pa.array(scan.judge(day).good()))
        return clean
