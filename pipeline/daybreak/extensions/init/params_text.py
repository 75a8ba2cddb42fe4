"""Writes params.yaml of a new home, with sizes for the number of rows."""

import math
import re
from typing import TYPE_CHECKING, Any

from daybreak.extensions.init.module_text import NETWORK, Choice
from daybreak.extensions.init.names import class_name, literal, registered_name
from daybreak.extensions.init.survey_source import MAX_QUARANTINED

if TYPE_CHECKING:
    from daybreak.extensions.init.survey import Survey

UPDATES = 3000  # of a cold start, about


def batch_size_of(survey: "Survey") -> int:
    """Returns the samples of an update of a network, by the number of rows."""
    return 1 << min(max(round(math.log2(max(_num_rows(survey), 1) / 400)), 5), 10)


def epochs_of(survey: "Survey") -> int:
    """Returns the epochs of a network of which no trial says how many, by the number of rows."""
    return min(max(round(UPDATES * batch_size_of(survey) / max(_num_rows(survey), 1)), 1), 20)


def _num_rows(survey: "Survey") -> float:
    return survey.rows_per_day * min(survey.num_days, 400)


def params_text(survey: "Survey", name: str, choice: Choice, *, title: str) -> str:
    """Returns params.yaml, for the chosen model and the number of rows."""
    after = survey.table.label.ripe_after.days if survey.table.label else 0
    test_days = survey.test_days
    history = (max(survey.days) - min(survey.days)).days  # what the limits were proposed from
    window_days = max(history + 1, 400)  # as many days with rows, where some have none
    batch_size = batch_size_of(survey)
    batch_sizes = ", ".join(str(batch_size * factor // 4) for factor in (1, 2, 4, 8))
    measured = f"profile:\n  batch_sizes: [{batch_sizes}]\n\n"
    trained = f"""\
  epochs: {choice.epochs or epochs_of(survey)}
  batch_size: {batch_size}
  rate: 2.0e-3
  cold_every: 7                              # nights; between them training starts from the champion"""
    if choice.model != NETWORK:
        measured = ""
        trained = f"""\
  epochs: {choice.epochs:<35}# trees
  cold_every: 1                              # nights; trees are grown anew each night"""
    return f"""\
# What you decide; `daybreak check` examines it.

{_source_text(survey.plug)}
workload: {name}:{class_name(name)}
backend: daybreak:Local

night:
  train_hours: 4                             # from when a night is due to the end of training
  decide_hours: 6                            # from then to the decision
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

register: {{name: {literal(registered_name(title))}}}

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
        lines += [f"    {literal(name)}:"]
        lines += [
            f"      {key}: {_flow(value)}{'  # review' if key.endswith('_hours') else ''}"
            for key, value in arguments.items()
        ]
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    if not isinstance(value, dict):
        return literal(value)
    plain = all(re.fullmatch(r"[A-Za-z_]+", key) for key in value)
    return (
        "{" + ", ".join(f"{key if plain else literal(key)}: {literal(of)}" for key, of in value.items()) + "}"
    )
