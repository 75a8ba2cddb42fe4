"""Implements the command `init` (daybreak/cli.py)."""

import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract.formats import counted

if TYPE_CHECKING:
    from daybreak.extensions.init.survey import Survey

log = logging.getLogger("daybreak")


def init(
    folder: str,
    *,
    from_: str,
    time: str = "",
    time_format: str = "",
    label: str = "",
    unit: str = "",
    ripe_after: float = -1.0,
    zone: str = "UTC",
    table: str = "",
    regression: bool = False,
    without: list[str] | None = None,
    nulls: str = "",
    thousands: str = "",
    clock: str = "",
    encoding: str = "",
    model: str = "",
) -> int:
    """Write a repository for a model of your data, with table, limits and params, as a starting point.

    Of several tables, as in a folder with a folder or file of each, or in a whole database, written URL#,
    one has the rows to learn from; others are joined to these as of time, where both tell how.

    Args:
        folder: a new folder, or an empty one
        from_: URL of parquet, CSV or JSON (file, folder, glob or {day}), or of a database, as URL#table
        time: column whose day a row belongs to; the only time if left out
        time_format: strptime format of the time where it is text, day or month first; found if left out
        label: column to predict; one named label, target or y if left out
        unit: column of what is independent of each other, as accounts
        ripe_after: days until a label is known; as the newest days without labels say, if left out
        zone: time zone in which a day of the data begins, as Europe/Berlin, for times with an offset
        table: of several, the table whose rows are learned from; the one that has the label if left out
        regression: predict the label as a number, also where it could be a class, as counts and stars
        without: column to leave out; may be given several times
        nulls: words that stand for no value in numbers, as n.a.,missing; NA, N/A, ?, - and None are known
        thousands: sign between thousands; of 1,234 as 1234 it is a comma, as 1.234 a point; found if left out
        clock: column of the time of day, where the time is a date alone; the only one if left out
        encoding: of CSV, as cp1252 or utf-16-le; found if left out
        model: network, lightgbm or xgboost; of the first two the better on the newest days, if left out
    """
    from daybreak.extensions.init import new_home
    from daybreak.extensions.init.survey_rows import Options

    options = Options(
        time=time,
        time_format=time_format,
        label=label,
        unit=unit,
        ripe_days=ripe_after,
        zone=zone,
        table=table,
        regression=regression,
        without=without or (),
        nulls=nulls,
        thousands=thousands,
        clock=clock,
        encoding=encoding,
    )
    _show(folder, new_home.write(Path(folder), from_, options, model=model))
    return 0


def _show(folder: str, survey: "Survey") -> None:
    """Prints what was found in the data, and what was guessed."""
    from daybreak.extensions.init import survey_columns

    size = f"{counted(survey.num_days, 'day')} of {counted(round(survey.rows_per_day), 'row')}"
    known = survey.table.label
    late = f", labels {known.ripe_after.days} days late" if known and known.ripe_after else ""
    print(f"{folder}: {len(survey.table.columns)} columns, {size}{late}")
    for line in survey_columns.lines(survey.columns):
        print(f"  {line}")
    print(survey.label)
    if survey.model:
        print(f"{survey.model[0].upper()}{survey.model[1:]}.")
    print(f"Guessed: {'; '.join(survey.guesses)}.")
    for sentence in survey.joined:
        print(f"{sentence}; to change it, edit source.tables in {folder}/params.yaml")
    for sentence in (*survey.apart, *survey.notes):
        log.warning("%s", sentence)
    print(f"Next: cd {shlex.quote(str(folder))} && daybreak try")
