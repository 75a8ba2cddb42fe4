"""Writes a team's module, by the table as found, for a network or for trees."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daybreak.contract.table import AnyColumn, Table
from daybreak.extensions.init.names import class_name, literal

if TYPE_CHECKING:
    from daybreak.extensions.init.survey import Survey

WIDTH = 88  # of lines of Python, as ruff format has it where nothing else is said
NETWORK = "network"
NUM_TREES = 100  # as the libraries of trees have it
ESTIMATORS = {  # the classifier of a library, its regressor, and the arguments that are its defaults
    "lightgbm": ("LGBMClassifier", "LGBMRegressor", "num_leaves=31, learning_rate=0.1"),
    "xgboost": ("XGBClassifier", "XGBRegressor", "max_depth=6, learning_rate=0.3"),
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The model to write, and the reason in a sentence."""

    model: str = NETWORK
    epochs: int | None = None  # None: as many as the number of rows suggests
    reason: str = ""


def module_text(survey: "Survey", name: str, *, model: str = NETWORK) -> str:
    """Returns the team's module: the table as found, and a model for its kind of label."""
    label = literal(survey.label_column)
    kinds = {type(column).__name__ for column in survey.table.columns.values()} | {"Label", "Table"}
    late = survey.table.label is not None and bool(survey.table.label.ripe_after)
    imports, methods = _body(survey, model).replace("CLASSES", str(survey.num_classes)).split("# ---\n")
    names = {*kinds, *(["days"] if late else [])}
    imports = re.sub(
        "from daybreak import (.*)\n", lambda found: _import({*found[1].split(", "), *names}), imports
    )
    # All at once and last, since a column's name may hold any of these words.
    literals = {'"LABEL"': label, '"IMAGE"': literal(survey.images.column) if survey.images else ""}
    methods = re.sub('"LABEL"|"IMAGE"', lambda found: literals[found[0]], methods)
    return (
        f'"""Predicts {label[1:-1]}; written by `daybreak init`, and yours from now on."""\n\n'
        f"{imports}"
        f"class {class_name(name)}({'TableWorkload' if model == NETWORK else 'EstimatorWorkload'}):\n"
        f"{_table_text(survey.table)}{methods}"
    )


def _body(survey: "Survey", model: str) -> str:
    """Returns the imports and the methods of the module for a kind of label, and for images."""
    images = survey.images
    if model != NETWORK:
        return _of_estimator(survey, *ESTIMATORS[model])
    if images is None or not survey.num_classes:
        return CLASSES if survey.num_classes else BINARY if survey.binary else NUMBER
    body = IMAGES.replace("SIZE", str(images.size)).replace("COLOR", str(images.color))
    return body.replace("CHANNELS", "3" if images.color else "1")


def _of_estimator(survey: "Survey", classifier: str, regressor: str, arguments: str) -> str:
    """Returns the imports and the methods of a module whose model is of a library of trees."""
    kind = regressor if not survey.num_classes and not survey.binary else classifier
    metrics = "SquaredError, AbsoluteError"
    if survey.num_classes:
        metrics = "ClassLogLoss, Accuracy"
    elif survey.binary:
        metrics = "LogLoss, AUC, Calibration"
    made = ", ".join(f"{metric}()" for metric in metrics.split(", "))
    library = "lightgbm" if kind.startswith("LGBM") else "xgboost"
    return TREES.format(metrics=metrics, made=made, library=library, kind=kind, arguments=arguments)


def _import(names: Iterable[str]) -> str:
    """Returns the import from Daybreak, as a formatter sorts and breaks it: AUC, Table, days."""
    ordered = sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name.lower()))
    line = f"from daybreak import {', '.join(ordered)}"
    listed = "".join(f"    {name},\n" for name in ordered)
    return f"{line}\n" if len(line) <= WIDTH else f"from daybreak import (\n{listed})\n"


def _table_text(table: Table) -> str:
    columns = "".join(_column_text(name, column) for name, column in table.columns.items())
    unit = f"        unit={literal(table.unit)},\n" if table.unit else ""
    zone = f"        zone={literal(table.zone)},\n" if table.zone != "UTC" else ""
    label = table.label
    assert label is not None
    after = label.ripe_after.total_seconds() / 86_400
    arguments = [literal(label.column)]
    arguments += [f"ripe_after=days({after:g})"] if after else []
    arguments += [_listed("classes=(", map(literal, label.classes), depth=3)] if label.classes else []
    return (
        f"    table = Table(\n        time={literal(table.time)},\n{unit}"
        f"        columns={{\n{columns}        }},\n"
        f"        {_listed('label=Label(', arguments, depth=2)},\n{zone}    )\n"
    )


def _listed(opening: str, items: Iterable[str], *, depth: int) -> str:
    """Returns items in parentheses, with the line breaks of a formatter; a tuple has one item per line."""
    listed, indent = list(items), "    " * depth
    line = ", ".join(listed)
    if len(f"{indent}{opening}{line}),") <= WIDTH and "\n" not in line:
        return f"{opening}{line})"
    if len(f"{indent}    {line}") <= WIDTH and "\n" not in line and not opening.endswith("=("):
        return f"{opening}\n{indent}    {line}\n{indent})"
    return f"{opening}\n" + "".join(f"{indent}    {one},\n" for one in listed) + f"{indent})"


def _column_text(name: str, column: AnyColumn) -> str:
    line, indent = f"{literal(name)}: {_code(column)},", " " * 12
    if len(indent + line) <= WIDTH or line.endswith("(),"):
        return f"{indent}{line}\n"
    opening, _, given = line.removesuffix("),").partition(f"{type(column).__name__}(")
    return f"{indent}{opening}{type(column).__name__}(\n{indent}    {given}\n{indent}),\n"


def _code(column: AnyColumn) -> str:
    arguments = {
        "min": getattr(column, "min", None),
        "max": getattr(column, "max", None),
        "size": getattr(column, "size", 0) or None,
        "symbol": getattr(column, "symbol", "") or None,
        "nullable": column.nullable or None,
    }
    given = [
        f"{key}={literal(value) if isinstance(value, str) else repr(value)}"
        for key, value in arguments.items()
        if value is not None
    ]
    if column.off:
        given.append(f"off=({', '.join(map(literal, column.off))}{',' if len(column.off) == 1 else ''})")
    return f"{type(column).__name__}({', '.join(given)})"


BINARY = """\
from daybreak import AUC, Batch, Calibration, LogLoss, State, TableModel, TableWorkload
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits


# ---
    metrics = (LogLoss(), AUC(), Calibration())  # the first decides

    def model(self, state: State) -> nn.Module:
        return TableModel(state)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        label = batch["LABEL"].float()
        logit = model(batch)[:, 0]
        return binary_cross_entropy_with_logits(logit, label, reduction="none")

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"prediction": model(batch)[:, 0].sigmoid()}
"""
TREES = """\
from daybreak import EstimatorWorkload, State, {metrics}
from {library} import {kind}


# ---
    metrics = ({made})  # the first decides

    def estimator(self, state: State) -> {kind}:
        return {kind}({arguments})  # train.epochs is how many trees
"""
CLASSES = """\
from daybreak import Accuracy, Batch, ClassLogLoss, State, TableModel, TableWorkload
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


# ---
    metrics = (ClassLogLoss(), Accuracy())  # the first decides

    def model(self, state: State) -> nn.Module:
        return TableModel(state, num_outputs=CLASSES)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch), batch["LABEL"].long(), reduction="none")

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"prediction": model(batch).softmax(dim=1)}

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        return {f"class {n}": batch["LABEL"] == n for n in range(CLASSES)}
"""
IMAGES = """\
from daybreak import Accuracy, Batch, ClassLogLoss, ImageModel, State, TableWorkload, pixels
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


# ---
    metrics = (ClassLogLoss(), Accuracy())  # the first decides

    def fit(self, rows) -> State:
        return {}

    def features(self, rows, state, past):
        return {"pixels": pixels(rows["IMAGE"], size=SIZE, color=COLOR)}

    def model(self, state: State) -> nn.Module:
        return ImageModel(num_outputs=CLASSES, channels=CHANNELS)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["pixels"])
        return cross_entropy(logits, batch["LABEL"].long(), reduction="none")

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"prediction": model(batch["pixels"]).softmax(dim=1)}

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        return {f"class {n}": batch["LABEL"] == n for n in range(CLASSES)}
"""
NUMBER = '''\
import numpy as np
import torch
from daybreak import AbsoluteError, Batch, SquaredError, State, TableModel, TableWorkload
from torch import Tensor, nn


# ---
    metrics = (SquaredError(), AbsoluteError())  # the first decides

    def fit(self, rows) -> State:
        label = rows["LABEL"]
        figures = rows.agg(mean=label.mean(), deviation=label.std()).to_pyarrow()
        deviation = figures["deviation"][0].as_py() or 1.0  # of one row there is none
        scale = [figures["mean"][0].as_py(), deviation]
        return {**super().fit(rows), "scale": np.array(scale)}

    def model(self, state: State) -> nn.Module:
        return _Scaled(state)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return ((model(batch) - batch["LABEL"]) / model.scale[1]).square()

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"prediction": model(batch)}


class _Scaled(nn.Module):
    """The default network, whose output is in the unit of the label."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.table = TableModel(state)
        scale = torch.tensor(state["scale"], dtype=torch.float32)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        return self.scale[0] + self.scale[1] * self.table(batch)[:, 0]
'''
