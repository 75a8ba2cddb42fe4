"""Decides where a job runs now, by its observed state: it waits, stays, or moves. Pure.

    lost or refused     to other machines, the cheapest first           escalation.py
    spot                spot, the same machines on demand, or waiting   the extension `spot`, by its hook
    late                to what is in time, as late as possible         escalation.py
    triggered           what a team asked for by a measured figure      moves.py
    undo, step down     back from a move that did not pay, or down      moves.py

What is forced comes first; only a job that runs, at a known rate, moves because that pays, or by a trigger.
When time or money is up, the reconciler ends the job.
"""

from daybreak.jobs import escalation, moves
from daybreak.jobs.escalation import FallbackChoice
from daybreak.jobs.observed_job import ObservedJob


def decide(job: ObservedJob) -> FallbackChoice:
    """Returns the placement to be on now: what is forced, else what a trigger asks for, else what pays."""
    forced = escalation.forced(job)
    stays = forced.placement is not None and forced.placement.rental == job.placement.rental
    if stays and (choice := moves.triggered(job)):
        return choice
    if not moves.may_move(job):
        return forced
    if stays:
        return moves.undo(job) or moves.step_down(job) or forced
    return (moves.undo(job) if forced.name == "scale up" else None) or forced
