"""Runs the stage `plan`: reads the newest prices and the earlier nights, and plans tonight.

`planner.plan` decides, without a clock or a network, for the hours that are left since the night's day was
there. A home that shares machines with others of a fleet plans with its share of them, by the hook `share`,
and is called again until the share begins.
"""

from collections.abc import Sequence

from daybreak import hooks
from daybreak.contract.backend import Backend
from daybreak.contract.errors import ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.record_types import Batch, Champion, Dataset, Night, Plan, Profile
from daybreak.contract.sections import PlanSections
from daybreak.contract.units import HOUR_S
from daybreak.machines.catalog import rented
from daybreak.machines.pricelist import REFRESHED
from daybreak.planning import planner
from daybreak.planning.candidates import everything
from daybreak.prediction import ledger_history, scorecard
from daybreak.storage import homes, ledger
from daybreak.storage.home import Home


def plan(
    home: Home,
    night: Night,
    dataset: Dataset,
    profile: Profile,
    champion: Champion | None,
    *,
    backend: Backend,
    params: PlanSections,
    batch: Batch | None = None,
) -> Plan:
    """Returns the plan of the night; raises PlanError with the least that helps if nothing is feasible.

    What the night waited for its day, as `batch` has it, is no time to train. Raises ParamsError where a job
    could not move among the places that params name.
    """
    if fault := backend.cannot_move(params.train.checkpoints):
        raise ParamsError(fault)
    for_its_day_s = batch.waited_hours * HOUR_S if batch else 0.0
    entries = ledger.before(home, night, limit=scorecard.NIGHTS)
    available, listed = backend.machines(), rented(home.folder / REFRESHED)
    machines = everything(available, listed)
    known = ledger_history.calibration_of(entries, machines=machines, num_workers=params.train.num_workers)

    def planned(params: PlanSections, available: Sequence[Machine], *, waited_s: float = 0.0) -> Plan:
        return planner.plan(
            night,
            dataset,
            profile,
            champion,
            params,
            available=available,
            # All that params.yaml may name; those beyond `available` are only weighed.
            listed=[machine for machine in machines if not machine.is_local],
            known=known,
            explored_usd=ledger_history.explored_usd(entries),
            waited_s=for_its_day_s + waited_s,
        )

    if not homes.shared(home.folder):
        return planned(params, available)
    for share in hooks.functions("share"):
        plan: Plan = share(home, night, profile, planned, available=available, params=params)
        return plan
    raise ParamsError(
        "fleet.yaml names machines that its homes share, and no extension here divides them; restore "
        "pipeline/daybreak/extensions, or remove `machines` there"
    )
