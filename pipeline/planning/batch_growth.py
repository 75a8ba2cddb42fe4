"""Lists the batch sizes that a run may grow to on the machine of the plan, with the time of an update."""

from math import ceil

from pipeline.contract.records import Size
from pipeline.planning.candidates import Job
from pipeline.planning.search import Candidate
from pipeline.prediction.update_time import update

MOST_TIMES = 16  # largest batch as a multiple of the planned one; each is twice the one before
LEAST_UPDATES = 50  # that a run in batches of that size alone must have


def sizes(job: Job, best: Candidate) -> tuple[Size, ...]:
    """Returns the planned batch size and its doublings, as far as memory and the number of updates allow."""
    here = best.rental.is_local
    planned = best.estimate
    grown: list[Size] = []
    for power in range(MOST_TIMES.bit_length()):
        size = planned.batch_size << power
        timed = update(
            job.profile,
            job.at_hand if here else best.machine,
            measured=job.at_hand,
            num_machines=best.rental.num_machines,
            batch_size=size,
            num_workers=job.num_workers if here else best.machine.num_workers,
            num_bytes=job.dataset.num_bytes,
            known=job.known,
        )
        if timed is None or (grown and size * LEAST_UPDATES > best.num_samples):
            break
        micro = ceil(timed.setting.micro_batch_size)
        grown.append(Size(batch_size=size, micro_batch_size=micro, update_s=timed.seconds))
    return tuple(grown)
