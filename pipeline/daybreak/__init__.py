"""Daybreak: a model retrained every night, within a deadline and a budget, promoted only on proof.

`__all__` is all that a team's own code imports, from here alone: `from daybreak import Table, TableWorkload`.
params.yaml may name a class of it as `daybreak:Files`. What else lies in this package is internal, and may
move. A name is loaded when it is first asked for, so that importing Daybreak costs nothing.
"""

import importlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # and for `_origins`, which reads them
    from daybreak.backends.faults import COMMON as COMMON_FAULTS
    from daybreak.backends.faults import Fault
    from daybreak.backends.local import Local
    from daybreak.backends.place import JobRequest, NotDone, Refused, Rented, RetryPolicy, Unreachable
    from daybreak.backends.renting import Renting
    from daybreak.backends.several import Several
    from daybreak.contract.backend import Backend, Job, JobState, LiveJob, OutOfTime
    from daybreak.contract.data_source import Source
    from daybreak.contract.errors import (
        DataError,
        JobError,
        NothingToDo,
        NotYet,
        ParamsError,
        PipelineError,
        PlanError,
        ReleaseError,
        SourceUnreachable,
    )
    from daybreak.contract.machine import Machine
    from daybreak.contract.params import load as load_params
    from daybreak.contract.record_parts import Rental
    from daybreak.contract.table import (
        Bool,
        Bytes,
        Category,
        Float,
        Id,
        Int,
        Label,
        Table,
        Text,
        Time,
        days,
        hours,
    )
    from daybreak.contract.workload import (
        EPOCH,
        GROUP,
        UNIT,
        Batch,
        Prepared,
        Split,
        State,
        TrainingProgress,
        Window,
        Workload,
    )
    from daybreak.data.as_of import AsOf
    from daybreak.data.casts import conform
    from daybreak.data.database import Database
    from daybreak.data.features import Past, rows_of
    from daybreak.data.image_files import ImageFiles
    from daybreak.data.partitions import PART
    from daybreak.data.source import Files, write_partition
    from daybreak.extensions.adapters.lightning_workload import LightningWorkload
    from daybreak.extensions.adapters.transformers_workload import TransformersWorkload
    from daybreak.extensions.bag.folder import BAGS, Bag, bags
    from daybreak.extensions.kubernetes.kubernetes import Kubernetes
    from daybreak.extensions.notebooks.opened import OpenHome, open
    from daybreak.extensions.notebooks.versions import OpenVersion
    from daybreak.extensions.router.assigner import Assigner, Assignment
    from daybreak.extensions.slurm.slurm import Slurm
    from daybreak.extensions.trial.rehearsal import rehearse
    from daybreak.extensions.vertex.endpoint import Endpoint
    from daybreak.extensions.vertex.vertex import Vertex
    from daybreak.gate.all_metrics import judge_metrics
    from daybreak.gate.judge import rules_of
    from daybreak.machines.catalog import rented as rented_machines
    from daybreak.machines.own_machines import read as read_machines
    from daybreak.statistics.ranking import ndcg
    from daybreak.statistics.result import Conclusion, Status
    from daybreak.storage.home import home_folder
    from daybreak.storage.pretrained import pretrained
    from daybreak.workloads.calibrators import IsotonicCalibration, TemperatureScaling
    from daybreak.workloads.estimator_workload import EstimatorWorkload
    from daybreak.workloads.image_columns import ImageModel, decodes, pixels
    from daybreak.workloads.metrics import (
        AUC,
        F1,
        MAPE,
        AbsoluteError,
        Accuracy,
        Calibration,
        ClassLogLoss,
        LogLoss,
        Metric,
        Perplexity,
        Pinball,
        SquaredError,
    )
    from daybreak.workloads.samples import Samples
    from daybreak.workloads.table_model import TableModel
    from daybreak.workloads.table_workload import TableWorkload

__all__ = [  # noqa: RUF022 ordered by what they are for
    # What a row is
    "Table",  # the columns of a row, which of them is its time, its unit, its label
    "Label",  # the column to predict, its classes, and when it is known
    "Float",  # a number with a fraction
    "Int",  # a whole number
    "Bool",  # true or false
    "Category",  # a text of which there are few
    "Id",  # a text that names one thing
    "Text",  # a text to read
    "Time",  # a moment
    "Bytes",  # a file's content, such as an image
    "days",  # a length of time, for `Label` and `Past`
    "hours",  # the same in hours
    # What is trained
    "TableWorkload",  # base class: a table, a model, a loss, a prediction
    "EstimatorWorkload",  # base class: a table, and a model of LightGBM, XGBoost or scikit-learn
    "LightningWorkload",  # base class: a table, and a LightningModule
    "TransformersWorkload",  # base class: a table, and a model of Hugging Face's transformers
    "Workload",  # the protocol behind it, for a class with arrays or a data set of its own
    "TableModel",  # a network for the features that a table has by itself
    "ImageModel",  # a network for images
    "pixels",  # images of a column as arrays of pixels
    "decodes",  # rule of a suite: the images decode
    "pretrained",  # files that a package downloads, held to their digest
    "Samples",  # prepared partitions as one data set
    "Past",  # what `features` may know of earlier days
    "Window",  # the days that `arrays` makes samples of
    "Prepared",  # what `arrays` returns
    "State",  # what `fit` returns, and `features` and `model` are given
    "TrainingProgress",  # where a run is, for a `loss` that asks for it
    "Batch",  # samples together, as the data set makes them
    "Split",  # "train", "test" or "serve"
    "UNIT",  # name of the array that says which samples are of the same unit
    "GROUP",  # name of the array that says which samples are of the same group, and so of the same batch
    "EPOCH",  # day 0 of days in arrays
    # How good it is
    "Metric",  # base class of a metric of your own
    "LogLoss",  # of chances of yes or no; the lower the better
    "AUC",  # area under the ROC curve
    "F1",  # of yes or no, at a threshold
    "Calibration",  # how far chances are from what happened
    "ClassLogLoss",  # of chances of several classes
    "Accuracy",  # share of classes that are right
    "AbsoluteError",  # of numbers
    "SquaredError",  # of numbers
    "MAPE",  # absolute error as a percentage
    "Pinball",  # of quantiles
    "Perplexity",  # of the tokens of a text
    "ndcg",  # of a ranking
    # How its chances are calibrated
    "TemperatureScaling",  # by one number
    "IsotonicCalibration",  # by a line that never falls
    # Where the data comes from; params.yaml names the first four as daybreak:Files
    "Files",  # parquet, CSV or JSON at any URL
    "ImageFiles",  # folders of images
    "Database",  # a table of a SQL database
    "AsOf",  # several tables joined, each row with what was known at its time
    "Source",  # the protocol of a source of your own
    "write_partition",  # writes a day's rows to the folder that `fetch` is given
    "PART",  # name of that file
    "home_folder",  # the home whose night runs, for files beside params.yaml
    "BAGS",  # folder of bags in a home
    "Bag",  # a command that runs over many seeds
    "bags",  # the bags of a home
    # Where jobs run and models serve; params.yaml names the first six as daybreak:Local
    "Local",  # this machine
    "Vertex",  # Vertex AI
    "Slurm",  # a Slurm cluster
    "Kubernetes",  # a Kubernetes cluster
    "Several",  # many backends as one, which a list in params.yaml stands for
    "Endpoint",  # an endpoint of Vertex AI
    "Backend",  # base class of a place that costs nothing and never queues
    "Renting",  # base class of a place that bills or queues
    "Job",  # what `submit` is given
    "JobState",  # what `state` returns
    "LiveJob",  # a job that costs money
    "JobRequest",  # what `make` of `Renting` is given
    "Rented",  # a job as its place has it
    "Machine",  # what can be rented, with its prices
    "Rental",  # machines of a job, and how they are rented
    "read_machines",  # machines of your own, from a CSV file
    "rented_machines",  # machines of the catalog
    "RetryPolicy",  # deadlines of calls to a place
    "Fault",  # why a job ended
    "COMMON_FAULTS",  # those of every place
    "Unreachable",  # raised where the place does not answer
    "NotDone",  # raised where it has certainly done nothing
    "Refused",  # raised where it answers that it will not
    "OutOfTime",  # raised where training has to end before a job could run
    # Which version answers a user, where your own servers serve
    "Assigner",  # asks the traffic log
    "Assignment",  # its answer
    # What notebooks read
    "open",  # a home, whose nights, verdicts, metrics, costs and forecasts are data frames
    "OpenHome",  # that home
    "OpenVersion",  # one of its versions, which predicts a data frame
    # Errors: one sentence of what happened, then ; and what to do
    "PipelineError",  # base class of what a person can fix
    "ParamsError",  # fixed in params.yaml
    "DataError",  # fixed in the data
    "SourceUnreachable",  # the source does not answer: the night tries again
    "PlanError",  # fixed by relaxing a limit
    "JobError",  # fixed by trying again
    "ReleaseError",  # fixed in the registry or the ledger
    "NotYet",  # no error: asked again later
    "NothingToDo",  # no error: no new data, nothing to promote
    # What tests ask
    "rehearse",  # takes one day through all of a night in little, as `daybreak try`
    "conform",  # delivered rows as the columns of a table
    "rows_of",  # rows of a day as later ones leave them
    "load_params",  # params.yaml of a home
    "rules_of",  # what the gate goes by
    "judge_metrics",  # what it says of the metrics of two models
    "Conclusion",  # what that says, with its effect
    "Status",  # better, no worse, worse or not known
]

# Read once, when torch loads its threads. Threads that spin while they wait cost more than they save on a
# machine with other work: three times as much, measured on the profile of the default night.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def __getattr__(name: str) -> Any:
    """Loads a name of the API; AttributeError for others, ImportError where its extension is absent."""
    if name not in __all__:
        raise AttributeError(f"daybreak has no {name}; dir(daybreak) lists what it has", name=name)
    module, inner = _origins()[name]
    room, _, extension = module.lstrip(".").rpartition(".")[0].partition(".")
    if room == "extensions" and not (Path(__file__).parent / room / extension / "__init__.py").exists():
        raise ImportError(
            f"daybreak.{name} needs the extension {extension}, which is not in this installation; restore "
            f"pipeline/daybreak/extensions/{extension}",
            name=name,
        )
    # Relative, since versions carry copies of this package under names of their own.
    value = globals()[name] = getattr(importlib.import_module(module, __name__), inner)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


@cache
def _origins() -> dict[str, tuple[str, str]]:
    """Returns the module of each name of the API, and its name there, by the imports at the top."""
    import ast

    imports = (
        node for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.ImportFrom)
    )
    return {
        alias.asname or alias.name: (f".{module}", alias.name)
        for node in imports
        if (module := (node.module or "").removeprefix("daybreak.")) != node.module
        for alias in node.names
    }
