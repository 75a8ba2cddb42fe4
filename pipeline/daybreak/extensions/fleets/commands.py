"""Implements the command `fleet` (daybreak/cli.py)."""

import json
from dataclasses import asdict

from daybreak.contract.errors import ParamsError
from daybreak.storage.home import Home


def fleet(home: Home, *, json_: bool = False) -> int:
    """Make the homes of fleet.yaml members of this home, and show all homes with their shares of machines.

    Args:
        home: whose nights these are
        json_: as JSON: a list of homes
    """
    from daybreak.extensions.fleets import evening
    from daybreak.storage import homes

    joined = homes.join(home.folder)  # logs whom it leaves out
    shares = evening.standing(homes.lead_of(home.folder))
    status = ParamsError.exit_status if homes.faults(home.folder) else 0
    if json_:
        print(json.dumps([asdict(one) | {"share": shares.get(one.model)} for one in joined], default=str))
        return status
    for one in joined:
        if one.leads:
            where = "Airflow retrain, router /"
        elif one.own_registry:
            where = f"Airflow retrain.{one.model}, router of its own"
        else:
            where = f"Airflow retrain.{one.model}, router /models/{one.model}"
        print(f"{one.model}: {one.folder}; {where}")
        if one.model in shares:
            print(f"    {shares[one.model]}")
    return status
