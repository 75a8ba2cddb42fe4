"""How well do four corners predict the other twelve? On Scavenger's grid (Tyagi & Sharma, CCGrid'23).

Hours of training to a quality for ResNet-18 and ResNet-50, four batch sizes by four sizes of a cluster, read
off its figures. Fitted to the corners alone, each model for itself; errors are of the hours of the other
twelve. The ranges of the prior were chosen with this grid in view, its numbers were not.
"""

import json

import numpy as np

from pipeline.prediction.quality import Run, Scale, TimeToQuality
from tests.benchmarks import frame

Z90 = 1.6449


def grid(model: str) -> list[Run]:
    """The runs of a model."""
    told = json.loads((frame.DATA / "papers" / "scavenger_grid.json").read_text())
    return [
        Run(scale=Scale(batch_size=int(batch), num_workers=workers), hours=hours)
        for batch, row in told["T_hours"][model].items()
        for workers, hours in zip(told["K"], row, strict=True)
    ]


def corners(runs: list[Run]) -> list[Run]:
    """The runs with the smallest or largest batch on the smallest or largest cluster."""
    batches = [run.scale.batch_size for run in runs]
    workers = [run.scale.num_workers for run in runs]
    ends = ({min(batches), max(batches)}, {min(workers), max(workers)})
    return [run for run in runs if run.scale.batch_size in ends[0] and run.scale.num_workers in ends[1]]


def main() -> None:
    """Predict twelve from four for both models, and hold the errors against their targets."""
    figures: dict[str, float] = {}
    targets: dict[str, frame.Target] = {}
    covered = []
    for model in ("resnet18", "resnet50"):
        runs = grid(model)
        known = corners(runs)
        forecast = TimeToQuality([run.scale for run in runs]).given(known)
        rest = np.array([run not in known for run in runs])
        actual = np.array([run.hours for run in runs])
        errors = np.abs(forecast.hours / actual - 1)[rest]
        covered.append((np.abs(np.log(actual / forecast.hours)) <= Z90 * forecast.spread)[rest].mean())
        figures |= {f"{model} mean %": 100 * errors.mean(), f"{model} worst %": 100 * errors.max()}
        targets |= {f"{model} mean %": ("<=", 3), f"{model} worst %": ("<=", 8)}
        print(f"{model}: {forecast.prior}")
    figures["coverage of 90 % %"] = 100 * float(np.mean(covered))
    frame.finish("grid", figures, targets)


if __name__ == "__main__":
    main()
