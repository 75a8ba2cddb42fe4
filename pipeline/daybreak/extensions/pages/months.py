"""Sums the nights of calendar months: cost, outcomes, and quality of the versions that served. Pure.

A month holds the nights of its days, of one model or of all. Quality is the mean, over nights, of

    score of the version that serves  -  score of the version it is compared with

on the same held-out samples, for nights whose records have both. The version it is compared with is the
chain's anchor; as long as that is the first version of the ledger, it was never retrained, and the difference
is what all retraining since has gained. A version that was taken back does not count as serving. Dollars
saved by spot are those of the same machine hours at the on-demand price of the plan, less what they cost, of
nights that lost no machine, moved to no other, and had no job that failed.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Literal

from daybreak.extensions.pages import board
from daybreak.extensions.pages.board import Model
from daybreak.extensions.pages.selection import Query, month_of
from daybreak.report import links
from daybreak.report.night_rows import NightRow, RentedMachines
from daybreak.report.templates import render

HERE = "this machine"
UNPLANNED = "without a plan"
Ending = Literal["promoted", "taken back", "refused", "held", "failed", "not decided"]


@dataclass(frozen=True, kw_only=True)
class Month:
    """The nights of a month of one model, or of all."""

    month: str  # as 2026-11
    model: str  # "": all models
    num_nights: int
    # How each night ended, once each.
    num_promoted: int  # and not taken back
    num_taken_back: int  # promoted, and rolled back later
    num_refused: int  # by the gate or a person
    num_held: int  # by a person's hold on the recipe
    num_failed: int
    num_undecided: int  # stopped, without an answer or enough evidence, or nothing was new
    num_late: int
    usd: float
    usd_per_promoted: float | None  # None: none was promoted
    over_anchor: float | None  # mean effect of what served; None: not on record
    over_first: float | None  # against the first version, never retrained; None: not on record
    spot_hours: float  # of machines
    spot_saved_usd: float | None  # None: of no night on spot it is known
    spot_saved_hours: float | None  # of the same machines on demand, which these dollars would pay for

    @property
    def name(self) -> str:
        """Returns the month in words."""
        return f"{date.fromisoformat(f'{self.month}-01'):%B %Y}"


@dataclass(frozen=True, kw_only=True)
class MachineCost:
    """The cost of machines of one kind and place, rented in one way."""

    machine: str
    place: str
    strategy: str
    num_nights: int  # that had them; a night that moved had several
    hours: float  # of machines
    usd: float
    share: float | None  # of all dollars; None where nothing cost anything


@dataclass(frozen=True, kw_only=True)
class Months:
    """The months that were asked for, newest first, and their cost by machine and place, dearest first."""

    months: tuple[Month, ...]
    machines: tuple[MachineCost, ...]
    known: tuple[str, ...]  # all months with a night, newest first

    @property
    def values(self) -> dict[str, Any]:
        """Returns what the page shows as JSON values."""
        return {"months": [asdict(one) for one in self.months], "machines": [*map(asdict, self.machines)]}


def months(models: Sequence[Model], query: Query) -> Months:
    """Returns the months of the model and the month that are asked for; of each model too, where several."""
    nights = [(model, row) for model in models for row in model.rows if not row.is_rollback]
    chosen = [
        (model, row)
        for model, row in nights
        if query.model in ("", model.name) and month_of(row).startswith(query.month)
    ]
    first = {model.name: _first(model.rows) for model in models}
    taken = {(model.name, version) for model in models for version in board.taken_back(model.rows)}
    named = {model.name for model, _ in chosen}
    groups: dict[tuple[str, str], list[tuple[str, NightRow]]] = {}
    for model, row in chosen:
        for name in {"", model.name} if len(named) > 1 else {model.name}:
            groups.setdefault((month_of(row), name), []).append((model.name, row))
    ordered = sorted(sorted(groups, key=lambda key: key[1]), key=lambda key: key[0], reverse=True)
    return Months(
        months=tuple(_month(*key, groups[key], first, taken) for key in ordered),
        machines=tuple(_machines([row for _, row in chosen])),
        known=tuple(sorted({month_of(row) for _, row in nights}, reverse=True)),
    )


def page(models: Sequence[Model], query: Query) -> str:
    """Returns the page of months."""
    shown = months(models, query)
    whole = [one for one in shown.months if one.model == ""] or shown.months
    return render(
        "pages/months.html",
        query=query,
        nights=links.NIGHTS,
        models=[model.name for model in models],
        shown=shown,
        whole=whole,
        has_first=any(one.over_first is not None for one in shown.months),
        has_spot=any(one.spot_hours for one in shown.months),
        faults={model.name: model.fault for model in models if model.fault},
    )


def _first(rows: Sequence[NightRow]) -> int:
    """Returns the first version of a ledger that came to serve; 0 where that is not on record."""
    first = next((row.release for row in reversed(rows) if row.release), None)
    return first[0] if first and not first[1] else 0


def _ending(row: NightRow, *, is_taken_back: bool) -> Ending:
    if row.outcome == "promoted":
        return "taken back" if is_taken_back else "promoted"
    if row.outcome == "failed":
        return "failed"
    if row.is_on_hold:
        return "held"
    return "refused" if row.verdict == "rejected" or row.is_declined else "not decided"


def _month(
    month: str,
    model: str,
    nights: Sequence[tuple[str, NightRow]],
    first: Mapping[str, int],
    taken: Collection[tuple[str, int]],
) -> Month:
    rows = [row for _, row in nights]
    gone = {row.commit for name, row in nights if row.release and (name, row.release[0]) in taken}
    ended = Counter(_ending(row, is_taken_back=row.commit in gone) for row in rows)
    promoted = ended["promoted"]
    usd = sum(row.usd or 0.0 for row in rows)
    saved = [(row.spot_saved_usd, row.on_demand_usd) for row in rows if row.spot_saved_usd is not None]
    never = [row for name, row in nights if first[name] and row.anchor == first[name]]
    return Month(
        month=month,
        model=model,
        num_nights=len(rows),
        num_promoted=promoted,
        num_taken_back=ended["taken back"],
        num_refused=ended["refused"],
        num_held=ended["held"],
        num_failed=ended["failed"],
        num_undecided=ended["not decided"],
        num_late=sum(row.is_late for row in rows),
        usd=usd,
        usd_per_promoted=usd / promoted if promoted else None,
        # Scores of different models have no mean.
        over_anchor=_over_anchor(rows, gone) if len({name for name, _ in nights}) == 1 else None,
        over_first=_over_anchor(never, gone) if len({name for name, _ in nights}) == 1 else None,
        spot_hours=sum(row.spot_hours for row in rows),
        spot_saved_usd=sum(usd for usd, _ in saved) if saved else None,
        spot_saved_hours=sum(usd / price for usd, price in saved if price) if saved else None,
    )


def _over_anchor(rows: Sequence[NightRow], gone: Collection[str]) -> float | None:
    """Returns the mean difference of what serves and the anchor, over nights that have both scores.

    For the commits of nights whose version was taken back, `gone`, the champion of the night counts.
    """
    scores = [
        (row.champion_score if row.commit in gone else row.served_score, row.anchor_score) for row in rows
    ]
    differences = [score - anchor for score, anchor in scores if score is not None and anchor is not None]
    return sum(differences) / len(differences) if differences else None


def _machines(rows: Sequence[NightRow]) -> Iterator[MachineCost]:
    groups: dict[tuple[str, str, str], list[RentedMachines]] = {}
    for row in rows:
        for use in row.rented or (RentedMachines(UNPLANNED, "", "", 0.0, row.usd or 0.0),):
            place = use.place or (HERE if row.rented else "")
            groups.setdefault((use.machine, place, use.strategy), []).append(use)
    costs = {key: sum(use.usd for use in group) for key, group in groups.items()}
    whole = sum(costs.values())
    for key in sorted(groups, key=lambda key: -costs[key]):
        machine, place, strategy = key
        yield MachineCost(
            machine=machine,
            place=place,
            strategy=strategy,
            num_nights=len(groups[key]),
            hours=sum(use.hours for use in groups[key]),
            usd=costs[key],
            share=costs[key] / whole if whole else None,
        )
