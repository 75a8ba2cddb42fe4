"""Reports simulated nights: a table, a JSON document and a picture."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract.errors import ParamsError
from daybreak.contract.units import HOUR_S
from daybreak.extensions.simulation.simulator import OPTIMUM, POLICIES, PolicyNight

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class PolicyRow:
    """All nights of one policy."""

    policy: str
    num_nights: int
    num_missed: int
    usd: float  # of a night, mean
    usd_p95: float
    over_optimum: float  # share of what was paid beyond it, over nights that were not missed
    num_losses: int
    num_moves: int
    on_demand_hours: float  # of a night, mean
    waited_hours: float
    least_spare_hours: float  # before a deadline that was met


LEGEND = (
    "missed: deadlines; over: the optimum; lost: machines preempted or failed; moved: between zones; "
    "bought: on demand; spare: the least time before a deadline"
)


def rows(policy_nights: Sequence[PolicyNight]) -> list[PolicyRow]:
    """Returns one row a policy, by missed deadlines, then by dollars."""
    import numpy as np

    optimum = {each.night: each for each in policy_nights if each.policy == OPTIMUM}
    summaries = []
    for policy in (*POLICIES, OPTIMUM):
        own = [each for each in policy_nights if each.policy == policy]
        usd = np.array([each.usd for each in own])
        done = [each for each in own if not each.missed and not optimum[each.night].missed]
        least = sum(optimum[each.night].usd for each in done)
        summaries.append(
            PolicyRow(
                policy=policy,
                num_nights=len(own),
                num_missed=sum(each.missed for each in own),
                usd=float(usd.mean()),
                usd_p95=float(np.quantile(usd, 0.95)),
                over_optimum=sum(each.usd for each in done) / least - 1 if least else 0.0,
                num_losses=sum(each.num_losses for each in own),
                num_moves=sum(each.num_moves for each in own),
                on_demand_hours=float(np.mean([each.on_demand_s for each in own])) / HOUR_S,
                waited_hours=float(np.mean([each.waited_s for each in own])) / HOUR_S,
                least_spare_hours=min((each.spare_s for each in done), default=0.0) / HOUR_S,
            )
        )
    return sorted(summaries, key=lambda row: (row.num_missed, row.usd))


def table(summaries: Sequence[PolicyRow]) -> "Table":
    """Returns a table for the terminal; hours are a night's mean, except for the least hours to spare."""
    from rich.table import Table

    titles = ("policy", "missed", "$/night", "over", "lost", "moved", "bought", "waited", "spare")
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        shown.add_column(title, justify="left" if title == "policy" else "right", no_wrap=True)
    for row in summaries:
        cells = [row.policy, str(row.num_missed), f"{row.usd:,.2f}"]
        if row.policy == OPTIMUM:  # it is a bound, not a policy
            shown.add_row(*cells, *[""] * (len(titles) - len(cells)))
            continue
        shown.add_row(
            *cells,
            f"{row.over_optimum:+.1%}",
            str(row.num_losses),
            str(row.num_moves),
            f"{row.on_demand_hours:.1f} h",
            f"{row.waited_hours:.1f} h",
            f"{row.least_spare_hours:.1f} h",
        )
    return shown


def document(
    summaries: Sequence[PolicyRow], policy_nights: Sequence[PolicyNight], *, about: dict[str, object]
) -> str:
    """Returns everything as JSON: what was simulated, a row a policy, and each night."""
    nights = [asdict(each) for each in policy_nights]
    return json.dumps(
        {**about, "policies": [asdict(row) for row in summaries], "policy_nights": nights}, indent=1
    )


def check_picture(name: str) -> None:
    """Raises ParamsError for a picture that could not be written, before any night is played; "" for none."""
    from matplotlib.backend_bases import FigureCanvasBase

    if not name:
        return
    path, endings = Path(name), FigureCanvasBase.get_supported_filetypes()
    if not path.parent.is_dir():
        raise ParamsError(f"--plot {name} is in no folder that exists; make {path.parent} first")
    if path.suffix.removeprefix(".") not in endings:
        raise ParamsError(f"--plot {path} does not end as a picture; end it with one of {', '.join(endings)}")


def plot(policy_nights: Sequence[PolicyNight], path: Path) -> None:
    """Draws what was paid beyond the optimum as nights go by, and the spread of a night's dollars.

    The file's ending decides the format.
    """
    import matplotlib as mpl
    import matplotlib.figure
    import numpy as np

    usd = {
        name: np.array(
            [
                0.0 if each.missed and name == OPTIMUM else each.usd
                for each in policy_nights
                if each.policy == name
            ]
        )
        for name in (*POLICIES, OPTIMUM)
    }
    missed = {name: sum(each.missed for each in policy_nights if each.policy == name) for name in usd}
    names = sorted(usd, key=lambda name: usd[name].sum())
    labels = [f"{name}, {missed[name]} missed" if missed[name] else name for name in names]
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        figure = mpl.figure.Figure(figsize=(10, 4), layout="constrained")
        beyond, spread = figure.subplots(1, 2)
        nights = np.arange(1, len(usd[OPTIMUM]) + 1)
        for place, (name, label) in enumerate(zip(names, labels, strict=True)):
            if name != OPTIMUM:  # two policies that did the same show as a line within a line
                width = 5 - 0.7 * place
                beyond.plot(nights, np.cumsum(usd[name] - usd[OPTIMUM]), label=label, linewidth=width)
        beyond.set(xlabel="nights", ylabel="dollars beyond the optimum, added up", yscale="log")
        figure.legend(loc="outside upper left", ncols=len(names), frameon=False)
        spread.boxplot(
            [usd[name] for name in names],
            orientation="horizontal",
            tick_labels=labels,
            whis=(5, 95),
            showfliers=False,
        )
        spread.set(xlabel="dollars a night (box: quartiles, whiskers: 5 and 95 %)", xlim=(0, None))
        spread.invert_yaxis()
        figure.savefig(path)
