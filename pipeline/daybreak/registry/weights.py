"""Loads a model's weights into its workload, and makes batches of held-out samples for it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak import hooks
from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.workload import Workload, collated, make_model, read_state
from daybreak.data.partitions import part_of, partitions
from daybreak.workloads.served_rows import ServedRows

if TYPE_CHECKING:
    from torch import nn

MODEL = records.RUN / "model"
PAST = "past"  # folder of the clean rows that a version looks back on, beside its model


def load_model(workload: Workload, folder: Path) -> "nn.Module":
    """Returns the workload's model with the weights of the folder, ready to score on the fastest device.

    Raises DataError where the weights do not fit the workload.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Else a GPU rounds the factors of convolutions to 10 bits (TF32), and scores are not those of a CPU.
    torch.backends.cudnn.allow_tf32 = False
    model = _model(workload, folder)
    path = folder / "model.safetensors"
    try:
        model.load_state_dict(load_file(path))
    except (RuntimeError, OSError, SafetensorError) as error:
        message = " ".join(str(error).split())[:300]
        raise DataError(
            f"{path} does not fit {type(workload).__qualname__}: {message}; "
            f"restore the workload's code that trained it, or train again"
        ) from None
    return model.to(device).eval()


def _model(workload: Workload, folder: Path) -> "nn.Module":
    """Returns the model of a folder without its weights, band-limited by the rate of its training."""
    facts = folder / "model.json"
    rate = json.loads(facts.read_text()).get("band_rate", 0.0) if facts.exists() else 0.0
    model = make_model(workload, read_state(folder))
    limits = hooks.functions("band_limit") if rate else []
    if rate and not limits:
        raise DataError(
            f"the model in {folder} leaves out {rate:.0%} of the spectrum, and no extension here has such "
            f"convolutions; restore pipeline/daybreak/extensions"
        )
    for limit in limits:
        model = limit(model, rate)
    return model


def load_rows(workload: Workload, artifacts: Path, *, model: Path | None = None) -> ServedRows:
    """Returns what predicts raw rows, wholly in memory, of a version with these artifacts.

    `model` is the folder of the model, where that is not among them yet.
    """
    import pyarrow.parquet as pq

    folder, past = model or artifacts / MODEL.name, artifacts / PAST
    parts = {
        day: pq.read_table(part_of(day, past), partitioning=None, page_checksum_verification=True)
        for day in partitions(past)
    }
    return ServedRows(
        workload=workload,
        model=load_model(workload, folder),
        state=read_state(folder),
        days=tuple(parts),
        read=parts.__getitem__,
    )


def batch_of(samples: Any, indices: Sequence[int]) -> Any:
    """Returns the samples at these indices as one batch."""
    if hasattr(samples, "__getitems__"):
        return samples.__getitems__(indices)
    return collated(samples, [samples[i] for i in indices])


def placed(batch: Any, model: "nn.Module") -> Any:
    """Returns the batch, a tensor or a dict or tuple of tensors, on the model's device."""
    device = next((parameter.device for parameter in model.parameters()), None)
    if isinstance(batch, Mapping):
        return {key: placed(value, model) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(placed(value, model) for value in batch)
    return batch.to(device) if device is not None and hasattr(batch, "to") else batch


def check_digest(folder: Path, expected: str, *, record: str) -> None:
    """Raises DataError unless the model folder has the digest that the record gives."""
    if not folder.is_dir():
        raise DataError(f"{folder} is missing, but {record} names its model; run the stage that brings it")
    if (digest := records.digest(folder)) != expected:
        raise DataError(
            f"{folder} has digest {digest}, but {record} says {expected}; "
            f"the model is not the one on record, run the stage that brings it again"
        )
