"""Writes a home, the git repository of a team's model, from what its data looks like: `init`.

    daybreak init FOLDER --from URL

What it writes belongs to the team from then on; nothing writes it again.
"""

import contextlib
import importlib.machinery
import importlib.util
import json
import keyword
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak import dvc_file
from daybreak.contract.errors import JobError, ParamsError, PipelineError, ReleaseError
from daybreak.contract.formats import one_line
from daybreak.contract.table import AnyColumn, Float, Int, Table
from daybreak.storage.checkout import git

if TYPE_CHECKING:
    from daybreak.extensions.init.survey import Survey
    from daybreak.extensions.init.survey_rows import Options

WIDTH = 88  # of lines of Python, as ruff format has it where nothing else is said
UPDATES = 3000  # of a cold start, about
NUM_TREES = 100  # as the libraries of trees have it
NETWORK = "network"
GITIGNORE = """\
.venv
__pycache__/
.pytest_cache/
/nights/
/var/
/data/*
!/data/expectations.yaml
"""
DVC = {
    ".dvc/config": "[core]\n    analytics = false\n    check_update = false\n",
    ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
    ".dvcignore": "/nights\n/var\n/.venv\n__pycache__\n",
}


def write(folder: Path, url: str, options: "Options | None" = None, *, model: str = NETWORK) -> "Survey":
    """Writes the home to a folder that is empty or not there, and commits it; returns what was found.

    `notes` of the result also have the findings of `try` on the newest day. Nothing is left behind on
    failure. Raises ParamsError or DataError with the remedy.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ParamsError(f"{folder} is not empty; name a folder that is, or a new one")
    registered_name(folder.resolve().name)  # rather than refuse it after the data was read
    _expect_known(model)
    from daybreak.extensions.init.survey import survey

    surveyed = survey(url, options)
    if surveyed.images and model != NETWORK:
        raise ParamsError(f"{model} takes no images, and the data has some; leave --model out, for a network")
    name = module_name(folder.resolve().name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.resolve().parent))
    try:
        for path, text in files(surveyed, name, title=folder.resolve().name, model=model).items():
            (fresh / path).parent.mkdir(parents=True, exist_ok=True)
            (fresh / path).write_text(text)
        (fresh / dvc_file.FILE).write_text(dvc_file.text(fresh))
        _commit(fresh)
        surveyed = replace(surveyed, notes=(*surveyed.notes, *_judged(fresh)))
        fresh.chmod(0o755)
        fresh.replace(folder.resolve())
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return surveyed


def _judged(home: Path) -> tuple[str, ...]:
    """Returns the objections of `try` to a new home, before the home is moved into place."""
    from daybreak.extensions.trial.rehearsal import rehearse

    with tempfile.TemporaryFile("w+") as lines:
        try:
            return rehearse(home, lines=lines)
        except JobError as error:
            lines.seek(0)
            said = [line for line in lines.read().splitlines() if line.strip()]
            return (f"`daybreak try` stops there: {one_line(said[-1]) if said else error}",)
        except PipelineError as error:
            return (f"`daybreak try` stops there: {error}",)


def module_name(folder: str) -> str:
    """Returns the name of the module for a folder: one that nothing else has that Python can import here.

    >>> module_name("card-fraud"), module_name("json"), module_name("2025")
    ('card_fraud', 'json_model', 'model_2025')
    """
    name = re.sub(r"\W+", "_", folder.lower(), flags=re.ASCII).strip("_") or "model"
    name = f"model_{name}" if name[0].isdigit() else name
    paths = [path for path in sys.path if Path(path or ".").resolve() != Path.cwd()]
    taken = importlib.machinery.PathFinder.find_spec(name, paths) or name in sys.stdlib_module_names
    return f"{name}_model" if taken or keyword.iskeyword(name) else name


def registered_name(folder: str) -> str:
    """Returns the name in MLflow of the model of a folder; ParamsError where no letter or digit is left.

    >>> registered_name("card fraud"), registered_name("2025")
    ('card-fraud', '2025')
    """
    name = re.sub(r"[^\w.-]+", "-", folder, flags=re.ASCII)
    if not re.search("[A-Za-z0-9]", name):  # all such folders would be one model
        raise ParamsError(
            f"the folder {folder!r} gives the model no name in MLflow; use letters of A to Z or digits in it"
        )
    return name


def _expect_known(model: str) -> None:
    """Raises ParamsError where a model is not known, or not installed; before the data was read."""
    if model not in (NETWORK, *ESTIMATORS):
        raise ParamsError(f"--model {model} is not known; choose {', '.join([NETWORK, *ESTIMATORS])}")
    for needed in (model, "sklearn") if model != NETWORK else ():
        if importlib.util.find_spec(needed) is None:
            raise ParamsError(f"{needed} is not installed; pip install 'daybreak[estimators]'")


def files(survey: "Survey", name: str, *, title: str, model: str = NETWORK) -> dict[str, str]:
    """Returns the texts of the files of a home but dvc.yaml, by path."""
    return {
        "params.yaml": params_text(survey, name, title=title, model=model),
        f"{name}.py": module_text(survey, name, model=model),
        f"test_{name}.py": TEST,
        "data/expectations.yaml": expectations_text(survey),
        "README.md": readme_text(survey, name, title=title),
        ".gitignore": GITIGNORE,
        **DVC,
    }


def _commit(folder: Path) -> None:
    git("init", "--quiet", folder=folder)
    git("add", "--all", folder=folder)
    try:
        git("var", "GIT_COMMITTER_IDENT", folder=folder)
        identity = []
    except ReleaseError:  # as in a container
        identity = ["-c", "user.name=Daybreak", "-c", "user.email=daybreak@localhost"]
    message = "Begin with what the data looks like"
    git(*identity, "-c", "commit.gpgsign=false", "commit", "--quiet", "-m", message, folder=folder)


TEST = '''\
"""One day goes through every step, as `daybreak try` shows it."""

from pathlib import Path

from daybreak import rehearse


def test_one_day_goes_through_every_step() -> None:
    rehearse(Path(__file__).parent)
'''


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


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def module_text(survey: "Survey", name: str, *, model: str = NETWORK) -> str:
    """Returns the team's module: the table as found, and a model for its kind of label."""
    label = _literal(_label(survey.table))
    kinds = {type(column).__name__ for column in survey.table.columns.values()} | {"Label", "Table"}
    late = survey.table.label is not None and bool(survey.table.label.ripe_after)
    imports, methods = _body(survey, model).replace("CLASSES", str(survey.num_classes)).split("# ---\n")
    names = {*kinds, *(["days"] if late else [])}
    imports = re.sub(
        "from daybreak import (.*)\n", lambda found: _import({*found[1].split(", "), *names}), imports
    )
    # All at once and last, since a column's name may hold any of these words.
    literals = {'"LABEL"': label, '"IMAGE"': _literal(survey.images.column) if survey.images else ""}
    methods = re.sub('"LABEL"|"IMAGE"', lambda found: literals[found[0]], methods)
    return (
        f'"""Predicts {label[1:-1]}; written by `daybreak init`, and yours from now on."""\n\n'
        f"{imports}"
        f"class {_class_name(name)}({'TableWorkload' if model == NETWORK else 'EstimatorWorkload'}):\n"
        f"{_table_text(survey.table)}{methods}"
    )


def _literal(value: Any) -> str:
    """Returns a name of the data as a string of Python or YAML: what it holds ends no string, and is not run.

    YAML reads JSON, but not pairs of escapes for letters beyond U+FFFF, so these letters are written plainly.
    Unprintable characters are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _label(table: Table) -> str:
    assert table.label is not None
    return table.label.column


def _import(names: Iterable[str]) -> str:
    """Returns the import from Daybreak, as a formatter sorts and breaks it: AUC, Table, days."""
    ordered = sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name.lower()))
    line = f"from daybreak import {', '.join(ordered)}"
    listed = "".join(f"    {name},\n" for name in ordered)
    return f"{line}\n" if len(line) <= WIDTH else f"from daybreak import (\n{listed})\n"


def _table_text(table: Table) -> str:
    columns = "".join(_column_text(name, column) for name, column in table.columns.items())
    unit = f"        unit={_literal(table.unit)},\n" if table.unit else ""
    zone = f"        zone={_literal(table.zone)},\n" if table.zone != "UTC" else ""
    label = table.label
    assert label is not None
    after = label.ripe_after.total_seconds() / 86_400
    arguments = [_literal(label.column)]
    arguments += [f"ripe_after=days({after:g})"] if after else []
    arguments += [_listed("classes=(", map(_literal, label.classes), depth=3)] if label.classes else []
    return (
        f"    table = Table(\n        time={_literal(table.time)},\n{unit}"
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
    line, indent = f"{_literal(name)}: {_code(column)},", " " * 12
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
        f"{key}={_literal(value) if isinstance(value, str) else repr(value)}"
        for key, value in arguments.items()
        if value is not None
    ]
    if column.off:
        given.append(f"off=({', '.join(map(_literal, column.off))}{',' if len(column.off) == 1 else ''})")
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
ESTIMATORS = {  # the classifier of a library, its regressor, and the arguments that are its defaults
    "lightgbm": ("LGBMClassifier", "LGBMRegressor", "num_leaves=31, learning_rate=0.1"),
    "xgboost": ("XGBClassifier", "XGBRegressor", "max_depth=6, learning_rate=0.3"),
}
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
        return Scaled(state)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return ((model(batch) - batch["LABEL"]) / model.scale[1]).square()

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"prediction": model(batch)}


class Scaled(nn.Module):
    """The default network, whose output is in the unit of the label."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.table = TableModel(state)
        scale = torch.tensor(state["scale"], dtype=torch.float32)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        return self.scale[0] + self.scale[1] * self.table(batch)[:, 0]
'''


def params_text(survey: "Survey", name: str, *, title: str, model: str = NETWORK) -> str:
    """Returns params.yaml, with sizes for the number of rows."""
    from daybreak.extensions.init.survey_source import MAX_QUARANTINED

    window = min(survey.num_days, 400)
    num_rows = survey.rows_per_day * window
    batch_size = 2 ** min(max(round(math.log2(max(num_rows, 1) / 400)), 5), 10)
    epochs = min(max(round(UPDATES * batch_size / max(num_rows, 1)), 1), 20)
    after = survey.table.label.ripe_after.days if survey.table.label else 0
    test_days = survey.test_days
    history = (max(survey.days) - min(survey.days)).days  # what the limits were proposed from
    window_days = max(history + 1, 400)  # as many days with rows, where some have none
    batch_sizes = ", ".join(str(batch_size * factor // 4) for factor in (1, 2, 4, 8))
    measured = f"profile:\n  batch_sizes: [{batch_sizes}]\n\n"
    trained = f"""\
  epochs: {epochs}
  batch_size: {batch_size}
  rate: 2.0e-3
  cold_every: 7                              # nights; between them training starts from the champion"""
    if model != NETWORK:
        measured, trained = (
            "",
            f"""\
  epochs: {NUM_TREES:<35}# trees
  cold_every: 1                              # nights; trees are grown anew each night""",
        )
    return f"""\
# What you decide; `daybreak check` examines it.

{_source_text(survey.plug)}
workload: {name}:{_class_name(name)}
backend: daybreak:Local

night:
  train_hours: 4                             # from the opening of the night to the end of training
  decide_hours: 6                            # from the opening to the decision
  budget_usd: 50

ingest:
  late_days: {after + 7:<32}# earlier days looked at again, for labels too
  history_days: {history:<29}# that the first night brings in
  wait_hours: 2                              # that the night's day may be late

validate:
  suite: data/expectations.yaml
  max_quarantined: {MAX_QUARANTINED:.2f}                      # share of tonight's rows; more stops the night

prepare:
  test_days: {test_days:<32}# newest days with labels, held out to judge by
  window_days: {window_days:<30}# up to the night's, with or without rows

{measured}plan:
  machines: [local]                          # names or patterns; daybreak prices lists them

train:
{trained}

evaluate: {{batch_size: 1024}}

register: {{name: {_literal(registered_name(title))}}}

gate:
  margin:                                    # empty: 1 % of the champion's value of the first metric
"""


def _source_text(plug: dict[str, Any]) -> str:
    """Returns the source as YAML: one line, or with joined tables a line for each thing to look at."""
    if "tables" not in plug:
        return f"source: {_flow(plug)}"
    lines = ["source:"]
    lines += [f"  {key}: {_flow(value)}" for key, value in plug.items() if key != "tables"]
    lines += ["  tables:                                    # joined as of time; docs/own-data.md says how"]
    for name, arguments in plug["tables"].items():
        lines += [f"    {_literal(name)}:"]
        lines += [
            f"      {key}: {_flow(value)}{'  # review' if key.endswith('_hours') else ''}"
            for key, value in arguments.items()
        ]
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    if not isinstance(value, dict):
        return _literal(value)
    plain = all(re.fullmatch(r"[A-Za-z_]+", key) for key in value)
    return (
        "{"
        + ", ".join(f"{key if plain else _literal(key)}: {_literal(of)}" for key, of in value.items())
        + "}"
    )


def expectations_text(survey: "Survey") -> str:
    """Returns the suite: limits that the history keeps with room to spare, each to be reviewed.

    Less than a year of history has not seen all seasons, so that room is ten times as much.
    """
    from daybreak.extensions.init.survey_days import A_YEAR

    room = 1 if (survey.days[-1] - survey.days[0]).days >= A_YEAR else 10
    usual = {"low": survey.least_rows // (2 * room), "high": _rounded_up(2.0 * room * survey.most_rows)}
    days = [_rule("a day has as many rows as usual", "num_rows", column="(rows)", **usual)]
    figures = []
    for name, share in survey.nulls.items():
        figure = f"nulls_of_{name}"
        quoted = name.replace('"', '""')
        share_of_nulls = f'avg(("{quoted}" IS NULL)::INT)'
        figures.append(f"  {_literal(figure)}: {_literal(share_of_nulls)}")
        high = min(1.0, _rounded_up(2 * share + 0.01 * room))
        days.append(_rule(f"{name} is null no more than usual", figure, column=name, high=high))
    rows = []
    for name, (low, high) in survey.ranges.items():
        column = survey.table.columns[name]
        span = room * ((high - low) or abs(high) or 1.0)
        bounded = isinstance(column, Int | Float) and column.min is not None
        below, above = _bound(span - low), _bound(high + span)
        least = None if bounded or below is None else -below
        if least is not None or above is not None:
            rows.append(_rule(f"{name} is in the range seen, widened", name, low=least, high=above))
    drift = [
        f"  {_literal(name)}: {'off' if limit is None else f'{limit:g}'}  # review"
        for name, limit in survey.drift.items()
    ]
    if survey.images:
        rows.append('  - {name: "the images decode", python: "daybreak:decodes"}')
    seen = f"{len(survey.days)} days, {survey.days[0]} to {survey.days[-1]}"
    groups = {"figures": figures, "days": days, "rows": rows, "drift": drift}
    written = "\n\n".join(f"{group}:\n" + "\n".join(lines) for group, lines in groups.items() if lines)
    return f"""\
# What must be true of the data before a model may learn from it. What follows from the types of the table
# (nulls, least values, known values) needs no rule. These limits are proposals from {seen}:
# look at each, then take its `# review` away. A rule is an expectation of Great Expectations.
#
#   figures  of a day, in SQL; num_rows is there anyway
#   days     rules on figures; a failure stops the night
#   rows     rules on rows; one that fails goes to quarantine
#   drift    how far a day may be from the last four same weekdays, from 0 (alike) to 1; more stops the night;
#            off where sound days are so far apart that no limit would hold at the stated rate of false alarms

{written}
"""


def _rule(
    name: str, of: str, *, column: str = "", low: float | None = None, high: float | None = None
) -> str:
    kwargs = {"column": of, "min_value": low, "max_value": high}
    given = ", ".join(f"{key}: {_literal(value)}" for key, value in kwargs.items() if value is not None)
    blamed = f" column: {_literal(column)}," if column else ""
    return (
        f"  - {{name: {_literal(name)}, type: expect_column_values_to_be_between,{blamed}\n"
        f"     kwargs: {{{given}}}}}  # review"
    )


def _rounded_up(value: float) -> float:
    """Returns the value, away from 0 to two digits; 0 for one that is next to nothing.

    >>> _rounded_up(1234), _rounded_up(0.0321), _rounded_up(-17.2), _rounded_up(5e-324)
    (1300, 0.033, -18, 0)
    """
    if abs(value) < 1e-300:  # a tenth of it might be no number any more
        return 0
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    rounded = math.copysign(math.ceil(abs(value) / step - 1e-9), value) * step
    return round(rounded) if abs(rounded) >= 10 else float(f"{rounded:.2g}")


def _bound(value: float) -> float | None:
    """Returns the value away from 0 to two digits; None where that is no finite number."""
    with contextlib.suppress(OverflowError, ValueError):
        return _rounded_up(value)
    return None


def readme_text(survey: "Survey", name: str, *, title: str) -> str:
    """Returns half a page on what is here and what to do next."""
    from daybreak.extensions.init.survey_columns import markdown

    label = one_line(_label(survey.table)).replace("`", "'")
    tables = "".join(f"\n- {one_line(sentence)}" for sentence in (*survey.joined, *survey.apart))
    if tables:
        tables = f"\nTables, of which `source` in `params.yaml` is to be looked at:\n{tables}\n"
    return f"""\
# {title}

Predicts `{label}`, retrained every night by Daybreak.

| file | what it is |
| --- | --- |
| `{name}.py` | the table, the model, the loss and what users get |
| `params.yaml` | where the data is, what a night may take and cost |
| `data/expectations.yaml` | what must be true of the data; limits with `# review` are proposals |
| `test_{name}.py` | runs one day through the code, as `try` does |
| `dvc.yaml` | the stages of a night; written by `python -m daybreak.dvc_file` |

One day and one batch through every step, in seconds:

```sh
daybreak try
```

A whole night: data in, judged, prepared; a model trained, compared with the one that serves, promoted if it
is better. It runs what is committed.

```sh
daybreak night
```
The columns, as they were when this was written:

{markdown(survey.columns)}
{tables}
Next: look at the types in `{name}.py`, as numbers that are codes are better `Category()` or `Id()`; then at
each limit with `# review`.
"""
