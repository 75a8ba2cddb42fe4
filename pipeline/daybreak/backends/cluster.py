"""A team's own cluster as a backend, with machines from a file or from the cluster's nodes."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from daybreak.backends.place import AT_ONCE, Refused, RetryPolicy, Unreachable
from daybreak.backends.renting import Renting
from daybreak.contract.backend import label
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Strategy
from daybreak.machines import nodes, own_machines
from daybreak.machines.nodes import Node
from daybreak.machines.own_machines import OwnMachine
from daybreak.storage.home import Home

FILE = "machines.csv"


class Cluster(Renting):
    """Jobs on a cluster of the team's."""

    def __init__(
        self, *, machines: str, bucket: str = "", retry: RetryPolicy = AT_ONCE, home: Home | None = None
    ) -> None:
        """Keeps the file of the team's machines; "" is `machines.csv`, or the nodes where there is none."""
        super().__init__(bucket=bucket, retry=retry, home=home)
        self.file, self._is_named = Path(machines or FILE), bool(machines)

    @abstractmethod
    def nodes(self) -> Sequence[Node]:
        """Returns the nodes that take jobs; raises Unreachable or Refused where the cluster does not say."""

    @property
    @abstractmethod
    def joins(self) -> bool:
        """Returns whether a job may have machines of several kinds."""

    def machines(self) -> Sequence[Machine]:
        """Returns the machines of the team's file, or those that the nodes are."""
        joins = self.joins
        return tuple(replace(each.machine, joins=joins) for each in self.own())

    def own(self) -> tuple[OwnMachine, ...]:
        """Returns them with the words for each."""
        if self.has_nodes_for_machines:
            return self._of_nodes
        return tuple(each for each in own_machines.read(self.file) if not each.machine.is_local)

    @property
    def has_nodes_for_machines(self) -> bool:
        """Returns whether the team has no file of machines."""
        return not self._is_named and not self.file.exists()

    def options(self, machine: str, strategy: Strategy) -> tuple[str, ...]:
        """Returns the words with which the cluster is asked for a machine."""
        own = {each.machine.name: each for each in self.own()}
        return own[machine].words(strategy)

    @property
    def cluster(self) -> str:
        """Returns a name that tells this cluster from others of its kind."""
        return self.place

    @cached_property
    def _of_nodes(self) -> tuple[OwnMachine, ...]:
        name = f"{label(self.cluster)}.json"
        kept = self.home.var / "nodes" / name if self.home else None
        return nodes.machines(self._read, kept=kept, place=self.place, file=self.file)

    def _read(self) -> Sequence[Node]:
        hint = f"its nodes are its machines: try again, or write your machines in {self.file}"
        try:
            return self.nodes()
        except Unreachable as error:
            raise Unreachable(f"{error}; {hint}") from error
        except Refused as error:
            raise Refused(f"{self.place} does not list its nodes ({error}); {hint}") from error
