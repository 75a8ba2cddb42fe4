"""Keeps in a night's folder, in `data/run/spans.json`, when its stages were called.

A stage that waits is called again and again; these calls are one span, so that a night of hours has a line
a stage. So are calls that fail for the same reason, and, once a stage has many spans, for any. A night is
opened once: of `open`, the first call counts. The ledger takes the file with the other records. No stage
fails because this cannot be written.
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
MANY = 30  # spans of a stage, from which on failures are told apart no more
log = logging.getLogger(__name__)


def extended(spans: tuple[StageSpan, ...], call: StageSpan) -> tuple[StageSpan, ...]:
    """Returns the spans with one more call, which goes on with the span of a stage that waited or failed so.

    >>> from datetime import datetime, timedelta
    >>> at = datetime(2011, 9, 1, 2)
    >>> call = StageSpan(stage="gate", began_at=at, last_call_at=at, ended_at=at, end="waits", why="1 of 3 h")
    >>> in_an_hour = at + timedelta(hours=1)
    >>> later = replace(call, began_at=in_an_hour, last_call_at=in_an_hour, end="done", why="")
    >>> [span] = extended((call,), later)
    >>> span.began_at == at, span.last_call_at == in_an_hour, span.num_calls, span.end, span.why
    (True, True, 2, 'done', '1 of 3 h')
    """
    own = [at for at, one in enumerate(spans) if one.stage == call.stage]
    if not own:
        return (*spans, call)
    if call.stage == "open":
        return spans  # the night was open already: the hours since then are not this call's
    at, before = own[-1], spans[own[-1]]
    waited = before.end == "waits"
    again = before.end == call.end == "failed" and (before.why == call.why or len(own) >= MANY)
    if not (waited or again):
        return (*spans, call)
    longer = replace(
        call,
        began_at=before.began_at,
        num_calls=before.num_calls + call.num_calls,
        num_waits=call.num_waits + (before.num_calls if waited else before.num_waits),
        why=call.why or before.why,
    )
    # A failure after waiting may be that of the span before.
    return (*extended(spans[:at], longer), *spans[at + 1 :])


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
