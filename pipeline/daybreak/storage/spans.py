"""Keeps in a night's folder, in `data/run/spans.json`, when its stages were called.

A stage that waits is called again and again; these calls are one span, so that a night of hours has a line
a stage. The ledger takes the file with the other records. No stage fails because this cannot be written.
"""

import logging
from dataclasses import replace
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.errors import PipelineError
from daybreak.contract.formats import one_line
from daybreak.contract.record_parts import StageSpan
from daybreak.contract.record_types import Spans
from daybreak.storage.journal import alone

LONGEST = 300  # characters of a sentence
log = logging.getLogger(__name__)


def extended(spans: tuple[StageSpan, ...], call: StageSpan) -> tuple[StageSpan, ...]:
    """Returns the spans with one more call, which goes on with the span of a stage that waited.

    >>> from datetime import datetime, timedelta
    >>> at = datetime(2011, 9, 1, 2)
    >>> call = StageSpan(stage="gate", began_at=at, last_call_at=at, ended_at=at, end="waits", why="1 of 3 h")
    >>> in_an_hour = at + timedelta(hours=1)
    >>> later = replace(call, began_at=in_an_hour, last_call_at=in_an_hour, end="done", why="")
    >>> [span] = extended((call,), later)
    >>> span.began_at == at, span.last_call_at == in_an_hour, span.num_calls, span.end, span.why
    (True, True, 2, 'done', '1 of 3 h')
    """
    waited = next((at for at, one in reversed([*enumerate(spans)]) if one.stage == call.stage), None)
    if waited is None or spans[waited].end != "waits":
        return (*spans, call)
    before = spans[waited]
    longer = replace(
        call,
        began_at=before.began_at,
        num_calls=before.num_calls + call.num_calls,
        why=call.why or before.why,
    )
    return (*spans[:waited], longer, *spans[waited + 1 :])


def add(call: StageSpan, folder: Path) -> None:
    """Adds a call of a stage to those of the night in a folder."""
    run = folder / records.RUN
    call = replace(call, why=one_line(call.why)[:LONGEST])
    try:
        with alone(records.path_of(Spans, run).with_suffix(".lock")):
            known = records.find(Spans, run)
            records.write(Spans(stages=extended(known.stages if known else (), call)), run)
    except (PipelineError, OSError) as error:
        log.warning("when %s was called is not kept: %s", call.stage, error)
