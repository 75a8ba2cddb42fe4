"""Explains a plan: a sentence, a table of the options, a plot of time and cost, and the portions of both.

It is for the terminal and the task log; the report draws the same from the same record.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import log

from daybreak.contract.formats import count, dollars, duration
from daybreak.contract.record_parts import Option, PriceSource, Sync
from daybreak.contract.record_types import BEFORE_TRAINING, Night, Plan
from daybreak.contract.units import HOUR_S
from daybreak.prediction.time_budget import TEST

ROWS = 12  # of the table
WIDTH, HEIGHT = 64, 12  # of the picture, in characters
BAR = 40  # characters of the longest bar


def rationale(plan: Plan, night: Night) -> str:
    """Returns the whole explanation as text."""
    return "\n".join(_lines(plan, night))


def _lines(plan: Plan, night: Night) -> Iterator[str]:
    yield from sentences(plan, night)
    options = plan.reasons.options
    if options:
        yield ""
        yield from _table(options)
    if len({(option.expected_s, option.expected_usd) for option in options}) > 1:
        yield ""
        yield from picture(options)
    if plan.forecast.portions:
        yield ""
        yield from _waterfall(plan, around(plan, night))


def sentences(plan: Plan, night: Night) -> Iterator[str]:
    """Yields the sentences of the report on the plan: the machines and why, the basis of the time, risks."""
    yield summary(plan, night)
    if plan.reasons.samples:
        yield f"{plan.reasons.samples}."
    if plan.num_left_out:
        yield (
            f"{count(plan.num_left_out)} samples of missed nights, which no version was trained on, are left "
            f"out for want of time or money; raise night.train_hours or night.budget_usd, or train cold."
        )
    if plan.reasons.basis:
        yield f"The time rests on {plan.reasons.basis}."
    if night.test_hours:
        yield _test(plan, night)
    if night.month:
        yield f"{night.month}; tonight may cost {dollars(night.budget_usd)} (night.usd_per_month)."
    if plan.reasons.share:
        yield f"Its share: {plan.reasons.share}."
    if plan.spot:
        yield f"On spot: {plan.spot.basis}."


def summary(plan: Plan, night: Night) -> str:
    """Returns the plan in two sentences: machines, time, dollars and chance, then the next best way."""
    forecast, runner_up = plan.forecast, plan.reasons.runner_up
    low, high = forecast.interval
    chance = ""
    if forecast.chance is not None:
        chance = f", in time with a chance of {chance_in_percent(forecast.chance)}"
    text = (
        f"{plan.rental}, batch {count(plan.batch_size)}{_averages(plan.sync)}: "
        f"{duration(forecast.expected_s)} ({duration(low)} to {duration(high)}) "
        f"for {dollars(forecast.expected_usd)} "
        f"of {dollars(night.budget_usd)}{chance}."
    )
    if plan.reasons.price and (plan.usd_per_hour or not plan.rental.is_local):
        text += f" {price(plan.usd_per_hour, plan.reasons.price)}."
    if plan.explore_usd and not plan.base_samples:
        more = "more" if plan.explore_usd > 0 else "less"
        return f"{text} Exploring, for {dollars(abs(plan.explore_usd))} {more}: {runner_up}."
    return f"{text} Next best: {runner_up}." if runner_up else text


def _averages(sync: Sync) -> str:
    return f", {sync}" if sync.every > 1 else ""


def _test(plan: Plan, night: Night) -> str:
    """Returns how much of the night users have to judge the challenger, and why not all that they need."""
    needed_s = night.test_hours * HOUR_S
    kept_s = sum(portion.expected_s for portion in plan.after if portion.name == TEST)
    text = f"Of the night {duration(kept_s)} are kept for the live test"
    if kept_s >= needed_s:
        return f"{text}, which by the traffic of the last days it needs."
    return (
        f"{text}, of {duration(needed_s)} that it needs by the traffic of the last days: no way of training "
        f"for at most {dollars(night.budget_usd)} is done sooner, so the test may stay inconclusive."
    )


def price(usd_per_hour: float | None, by: PriceSource) -> str:
    """Returns the price of one machine by the hour, with date and source."""
    return f"{dollars(usd_per_hour)} an hour as of {by.dated} ({by.source})"


def chance_in_percent(chance: float) -> str:
    """Returns a chance in percent, never rounded up to certainty.

    >>> chance_in_percent(0.9999), chance_in_percent(0.985), chance_in_percent(1.0), chance_in_percent(0.0)
    ('> 99.9 %', '98.5 %', '> 99.9 %', '< 0.1 %')
    """
    if chance > 0.999:
        return "> 99.9 %"
    return "< 0.1 %" if chance < 0.001 else f"{chance * 100:.1f} %"


def rows(options: Sequence[Option]) -> list[tuple[str, ...]]:
    """Returns the cells of the table: rental, region, batch, time, its interval, dollars, chance, why not."""
    return [
        (
            str(replace(option.rental.on_demand, region="")),
            "owned" if option.rental.is_local else option.rental.strategy,
            "here" if option.rental.is_local else option.rental.region,
            f"{count(option.batch_size)}{_averages(option.sync)}",
            duration(option.expected_s),
            f"{duration(option.interval[0])} to {duration(option.interval[1])}",
            dollars(option.expected_usd),
            chance_in_percent(option.chance),
            option.why_not or "the plan",
        )
        for option in options
    ]


HEAD = ("machine", "rented", "region", "batch", "time", "90 % interval", "cost", "in time", "why not")


def _table(options: Sequence[Option]) -> Iterator[str]:
    cells = [HEAD, *rows(options[:ROWS])]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if len(options) > ROWS:
        yield f"and {len(options) - ROWS} more in data/run/plan.json"


def picture(options: Sequence[Option]) -> list[str]:
    """Draws dollars over time, both logarithmic above zero: X the plan, o the frontier, · the others."""
    points = [(option.expected_s, option.expected_usd) for option in options]
    across, up = _scale([s for s, _ in points], WIDTH), _scale([usd for _, usd in points], HEIGHT)
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    ranked = sorted(options, key=lambda option: (not option.why_not, option.frontier))
    for option in ranked:  # the plan last, so that nothing covers it
        mark = "o" if option.frontier else "·"
        grid[HEIGHT - 1 - up(option.expected_usd)][across(option.expected_s)] = (
            mark if option.why_not else "X"
        )
    least, most = min(usd for _, usd in points), max(usd for _, usd in points)
    margin = max(len(dollars(least)), len(dollars(most)))
    labels = {0: dollars(most), HEIGHT - 1: dollars(least)}
    drawn = [f"{labels.get(n, ''):>{margin}} |{''.join(row).rstrip()}" for n, row in enumerate(grid)]
    begin, end = duration(min(s for s, _ in points)), duration(max(s for s, _ in points))
    axis = f"{'':{margin}} +{'-' * WIDTH}"
    return [
        *drawn,
        axis,
        f"{'':{margin}}  {begin}{end:>{WIDTH - len(begin)}}",
        f"{'':{margin}}  X the plan, o nothing is both faster and cheaper, · other options",
    ]


def _scale(values: Sequence[float], places: int) -> Callable[[float], int]:
    """Returns a map from values to so many places, logarithmic; the first is reserved for zero, if any."""
    above = [value for value in values if value > 0] or [1.0]
    low, high = min(above), max(above)
    first = 1 if any(value <= 0 for value in values) else 0

    def place(value: float) -> int:
        if value <= 0 or high <= low:
            return 0 if value <= 0 else first
        return first + round(log(value / low) / log(high / low) * (places - 1 - first))

    return place


def around(plan: Plan, night: Night) -> tuple[tuple[str, float, float | None], ...]:
    """Returns the rest of the night around the plan's portions: name, seconds, dollars (None: not billed)."""
    waited_s = plan.waited_s
    window_s = (night.train_until - night.started_at).total_seconds() - waited_s
    after_s = (night.decide_until - night.train_until).total_seconds()
    after = "kept for evaluation and gate"  # in plans of earlier nights, which did not predict them
    if plan.after:
        after_s -= sum(portion.expected_s for portion in plan.after)
        after = "left to the decision"
    if after_s < 0:  # training has to be done before its own deadline
        window_s, after_s = window_s + after_s, 0.0
    before_s, forecast = (window_s + waited_s) * BEFORE_TRAINING, plan.forecast
    left_s, left_usd = window_s - before_s - forecast.expected_s, night.budget_usd - forecast.expected_usd
    return (
        *([("waited for its day or for machines", waited_s, None)] if waited_s else ()),
        ("kept for the stages before", before_s, None),
        ("left to the deadline", left_s, left_usd),
        (after, after_s, None),
    )


def _waterfall(plan: Plan, rest: Sequence[tuple[str, float, float | None]]) -> Iterator[str]:
    """Yields a bar per portion of the time, each beginning where the last one ends; dollars beside it."""
    portions = (*plan.forecast.portions, *plan.after)
    total_s = sum(portion.expected_s for portion in portions) or 1.0
    wide = max(len(label) for label in [p.name for p in portions] + [label for label, _, _ in rest])
    begin_s = 0.0
    for portion in portions:
        start, end = (round(s / total_s * BAR) for s in (begin_s, begin_s + portion.expected_s))
        bar = " " * min(start, BAR - 1) + "#" * max(1, end - start)
        amounts = f"{duration(portion.expected_s):>12} {dollars(portion.expected_usd):>10}"
        yield f"{portion.name:<{wide}}  {bar:<{BAR}} {amounts}"
        begin_s += portion.expected_s
    for label, seconds, usd in rest:
        amounts = f"{duration(seconds):>12} {dollars(usd) if usd is not None else '':>10}"
        yield f"{label:<{wide}}  {'':<{BAR}} {amounts}".rstrip()
