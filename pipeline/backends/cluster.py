"""A team's own cluster as a place to rent from: its machines are a file, with the options for each."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.backends.place import AT_ONCE, RetryPolicy
from pipeline.backends.renting import Renting
from pipeline.contract.machine import Machine
from pipeline.contract.records import Rental
from pipeline.machines import own_machines


class Cluster(Renting):
    """Jobs on a cluster of the team's."""

    def __init__(self, *, machines: str, bucket: str = "", retry: RetryPolicy = AT_ONCE) -> None:
        """Keeps the file of the team's machines."""
        super().__init__(bucket=bucket, retry=retry)
        self.file = Path(machines)

    def machines(self) -> Sequence[Machine]:
        """Returns the machines of the team's file."""
        return tuple(each.machine for each in own_machines.read(self.file))

    def options(self, rental: Rental) -> tuple[str, ...]:
        """Returns the words with which the cluster is asked for a machine."""
        own = {each.machine.name: each for each in own_machines.read(self.file)}
        return own[rental.machine].words(rental.strategy)
