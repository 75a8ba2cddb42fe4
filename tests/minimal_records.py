"""Makes records for tests, which name only the fields that they are about."""

from datetime import datetime
from typing import Any

from daybreak.contract.record_parts import MeasuredEffect
from daybreak.contract.record_types import Approval, Night, Report, Training, Verdict


def minimal_night(at: datetime, **fields: Any) -> Night:
    """Returns a night that is opened and has to be decided at the same moment."""
    return Night(
        **{
            "id": "n",
            "day": at.date(),
            "started_at": at,
            "train_until": at,
            "decide_until": at,
            "budget_usd": 1,
            "trigger": "test",
            "code_commit": "",
            "previous": "",
            **fields,
        }
    )


def minimal_report(**fields: Any) -> Report:
    """Returns the report on a row that is clean."""
    return Report(
        **{
            "num_rows": 1,
            "num_clean": 1,
            "num_quarantined": 0,
            "expectations": (),
            "drift": (),
            "digest": "",
            **fields,
        }
    )


def minimal_training(**fields: Any) -> Training:
    """Returns the record of a training of one update on one sample, at no cost."""
    return Training(
        **{
            "model_digest": "d",
            "num_samples": 1,
            "num_updates": 1,
            "num_restarts": 0,
            "elapsed_s": 1,
            "cost_usd": 0,
            "stopped_by": "finished",
            **fields,
        }
    )


def promotion(*, champion: int, challenger: int, **fields: Any) -> Verdict:
    """Returns the verdict that promotes the challenger in place of the champion."""
    return Verdict(
        **{
            "action": "promote",
            "champion": champion,
            "challenger": challenger,
            "effect": MeasuredEffect(mean=0.1, low=0.0, high=0.2),
            "num_samples": 10,
            "reason": "better",
            **fields,
        }
    )


def answer_to(verdict: Verdict, **fields: Any) -> Approval:
    """Returns a person's approval of a verdict, unless the fields say otherwise."""
    return Approval(
        **{
            "champion": verdict.champion,
            "challenger": verdict.challenger,
            "action": verdict.action,
            "approved": True,
            "by": "Ada",
            "reason": "why",
            **fields,
        }
    )
