"""Lists the homes that share one Airflow, MLflow and router: this home, and the members in fleet.yaml.

    homes: [../payments, ../meters]

The home with fleet.yaml leads: its Airflow runs the nights of all homes, its MLflow keeps all versions, and
its router answers for each model at /models/NAME. A member keeps its own repository, params, ledger and
folders, so that a night writes nothing to another model's. `join` writes the name of the leading home to each
member; without fleet.yaml a home is by itself. A member with a fault, such as a params.yaml that cannot be
read, is left out with a warning: the others go on.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract.errors import ParamsError, PipelineError
from daybreak.storage import checkout, mlflow_client
from daybreak.storage.checkout import Membership, membership
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from daybreak.contract.fleet import Fleet

log = logging.getLogger(__name__)

MODEL = r"[A-Za-z0-9][A-Za-z0-9._-]*"


@dataclass(frozen=True, kw_only=True)
class FleetHome:
    """A home of a fleet, and the model that it trains."""

    folder: Path
    model: str
    leads: bool  # or is by itself
    own_registry: bool = False  # its versions are in an MLflow of its own

    @property
    def home(self) -> Home:
        """Returns the home itself."""
        return Home(self.folder)


def fleet(lead: Path) -> "Fleet":
    """Returns fleet.yaml of a home; that of a home by itself where there is none."""
    from daybreak.contract import fleet as contract

    return contract.load(lead)


def homes(lead: Path) -> tuple[FleetHome, ...]:
    """Returns the home and its members without the faulty ones; logs each fault."""
    members, faults = _examined(lead)
    for fault in faults:
        log.warning("%s", fault)
    return members


def faults(lead: Path) -> tuple[str, ...]:
    """Returns why members of fleet.yaml are left out, a sentence each."""
    return _examined(lead)[1]


def examined(lead: Path) -> tuple[tuple[FleetHome, ...], tuple[str, ...]]:
    """Returns what `homes` does, and a sentence for each home that has a fault, for pages that show both.

    A home whose own params.yaml cannot be read is among them, under its last name, and hides no member.
    """
    try:
        return _examined(lead)
    except PipelineError as error:
        fault, name = str(error), lead.name
    try:
        name = Home(lead).last_params(lead).register_.name
        members, others = _examined(lead, model=name)
    except PipelineError as error:  # of fleet.yaml, or of git
        return (FleetHome(folder=lead, model=name, leads=True),), tuple(dict.fromkeys((fault, str(error))))
    return members, (fault, *others)


def lead_of(home: Path) -> Path:
    """Returns the home that leads the fleet of a home: the home itself if it is not a member."""
    member = membership(home)
    return Path(member.lead) if member else home


def shared(home: Path) -> "tuple[Path, str, Fleet] | None":
    """Returns the home that leads, the model of this one, and fleet.yaml, where machines are shared."""
    lead = lead_of(home)
    shares = fleet(lead)
    if not shares.machines:
        return None
    model = next((each.model for each in homes(lead) if each.folder.resolve() == home.resolve()), "")
    if not model and home.resolve() in [(lead / text).resolve() for text in shares.homes]:
        member = checkout.membership(home)  # whose params.yaml broke while its night was under way
        model = member.model if member else ""
    return (lead, model, shares) if model else None


def join(lead: Path) -> tuple[FleetHome, ...]:
    """Makes the homes of fleet.yaml members of this one, and returns all of them, as `homes` does."""
    if other := membership(lead):
        raise ParamsError(
            f"{lead} is a member of {other.lead}, so it leads no fleet; run this there, or remove "
            f"{lead / checkout.LEAD}"
        )
    members = homes(lead)
    for home in members[1:]:
        member = Membership(
            lead=str(lead.resolve()),
            member=str(home.folder),
            model=home.model,
            own_registry=home.own_registry,
        )
        if checkout.kept_membership(home.folder) != member:  # a router may read a home, and not write to it
            member.write(home.folder)
    return members


def _examined(lead: Path, *, model: str = "") -> tuple[tuple[FleetHome, ...], tuple[str, ...]]:
    """Returns the home with its members, and a sentence for each member that is left out.

    `model` is what the home trains, where its params.yaml is not to be read.
    """
    members, faults = [FleetHome(folder=lead, model=model or _model(lead), leads=True)], []
    for text in fleet(lead).homes:
        folder = (lead / text).resolve()
        if folder == lead.resolve():
            continue  # that it leads is known
        try:
            home = _member(folder, lead)
            if other := next((each for each in members if each.model == home.model), None):
                raise ParamsError(
                    f"{other.folder} and {folder} both train {home.model}; give one another register.name"
                )
        except PipelineError as error:
            faults.append(f"{text} is left out of the fleet: {error}")
            continue
        members.append(home)
    return tuple(members), tuple(faults)


def _member(folder: Path, lead: Path) -> FleetHome:
    """Returns the member in a folder; ParamsError where it cannot be one."""
    before = checkout.kept_membership(folder)
    if before and before.member != str(folder) and Path(before.member).exists():
        raise ParamsError(
            f"{folder} is a copy of {before.member}, a member of {before.lead}; remove "
            f"{folder / checkout.LEAD} and give it another register.name"
        )
    if before and before.lead != str(lead.resolve()) and _stays(folder, before):
        raise ParamsError(
            f"{folder} is a member of {before.lead}, by fleet.yaml or MLflow there; leave it there, or "
            f"remove {folder / checkout.LEAD} if it has no version yet"
        )
    model = _model(folder)
    if not re.fullmatch(MODEL, model) or model == mlflow_client.EXPERIMENT:
        raise ParamsError(
            f"{folder} trains {model}, which cannot name a DAG and an experiment of its own; set "
            f"register.name there to letters, digits, dots, dashes and underscores, and not to "
            f"{mlflow_client.EXPERIMENT}"
        )
    own = before.own_registry if before else (folder / "var" / "mlflow.db").exists()
    return FleetHome(folder=folder, model=model, leads=False, own_registry=own)


def _stays(folder: Path, before: Membership) -> bool:
    """Returns whether a member is still one of the fleet before, as where its lead was copied."""
    lead = Path(before.lead)
    return not before.own_registry or folder in [(lead / text).resolve() for text in fleet(lead).homes]


def _model(folder: Path) -> str:
    try:
        return Home(folder).params.register_.name
    except (PipelineError, OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{folder} is not a home: {error}") from None
