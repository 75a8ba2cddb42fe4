"""Which batch sizes may a run grow to on the machine of the plan, and how long is an update of each?"""

from math import ceil

from pipeline.contract.records import Size
from pipeline.planning.candidates import Job
from pipeline.planning.search import Candidate
from pipeline.prediction.update_time import update

MOST_TIMES = 16  # of the planned batch; each is twice the one before
LEAST_UPDATES = 50  # that a run of that size alone would have


def sizes(job: Job, best: Candidate) -> tuple[Size, ...]:
    """The planned batch size and its doublings, as far as memory and the number of updates allow."""
    here = best.rental.is_local
    planned = best.estimate
    found: list[Size] = []
    for power in range(MOST_TIMES.bit_length()):
        size = planned.batch_size << power
        taken = update(
            job.profile,
            job.at_hand if here else best.machine,
            measured=job.at_hand,
            num_machines=best.rental.num_machines,
            batch_size=size,
            num_workers=job.num_workers if here else best.machine.num_workers,
            known=job.known,
        )
        if taken is None or (found and size * LEAST_UPDATES > best.num_samples):
            break
        micro = ceil(taken.setting.micro_batch_size)
        found.append(Size(batch_size=size, micro_batch_size=micro, update_s=taken.seconds))
    return tuple(found)
