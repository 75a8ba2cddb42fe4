"""Lists the batch sizes that a run may choose among on some machines, with the time of an update there.

All machines of a plan and of its fallbacks have the same sizes, as a checkpoint fits any of them; what
differs is how many samples fit a pass, and how long an update takes.
"""

from math import ceil

from daybreak.contract.record_parts import Size
from daybreak.planning.candidates import TrainingTask
from daybreak.planning.search import Candidate
from daybreak.prediction.update_time import updates

MOST_TIMES = 16  # largest batch as a multiple of the planned one; each is twice the one before
LEAST_UPDATES = 50  # that a run in batches of that size alone must have


def sizes(job: TrainingTask, candidate: Candidate) -> tuple[Size, ...]:
    """Returns the planned batch size and its doublings, as far as the number of updates allows.

    None where the batch stays, as on unlike machines, and where not even one sample fits the memory.
    """
    if not job.grows or candidate.rental.others:
        return ()
    rental, planned = candidate.rental, candidate.estimate.batch_size
    doublings = [planned << power for power in range(MOST_TIMES.bit_length())]
    offered = [planned, *(size for size in doublings[1:] if size * LEAST_UPDATES <= candidate.num_samples)]
    timed = updates(
        job.profile,
        job.at_hand if rental.is_local else candidate.machine,
        measured=job.at_hand,
        counts=(rental.num_machines,) * len(offered),
        batch_sizes=offered,
        num_workers=job.num_workers if rental.is_local else candidate.machine.num_workers,
        num_bytes=job.dataset.num_bytes,
        known=job.known,
    )
    if timed is None:
        return ()
    return tuple(
        Size(
            batch_size=size,
            micro_batch_size=ceil(timed.settings[place].micro_batch_size),
            update_s=timed.of(place).seconds,
        )
        for place, size in enumerate(offered)
    )
