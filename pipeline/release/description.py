"""What does a reviewer need to decide? A version's page in the registry, as Markdown.

The first paragraph is the verdict, replaced when the gate has decided and when somebody rolls back; the
rest is written once, when the version is registered.
"""

from collections.abc import Iterable, Mapping

from pipeline.records import Champion, Dataset, Evaluation, Live, Night, Plan, Training, Verdict

LIVE = "**On live traffic:**"
AWAITED = "**Verdict: awaited.** The gate has not decided yet."


def describe(
    *,
    night: Night,
    dataset: Dataset,
    plan: Plan,
    training: Training,
    evaluation: Evaluation,
    champion: Champion | None,
    lineage: Mapping[str, str],
) -> str:
    """The page, its verdict still awaited."""
    against = f"version {champion.champion}" if champion else "none yet"
    lasted = "inside" if training.elapsed_s <= plan.interval[1] else "above"
    parts = [
        AWAITED,
        f"Night **{night.id}** ({night.trigger}), newest day {night.day}, "
        f"{evaluation.num_samples:,} held-out samples. Champion: {against}.",
        _table(["metric", "challenger", "champion"], _metrics(evaluation.metrics)),
        _table(["slice", "samples", "challenger", "champion"], _slices(evaluation)),
        _table(
            ["", "planned", "actual"],
            [
                ["seconds", f"{plan.expected_s:,.0f}", f"{training.elapsed_s:,.0f}"],
                ["dollars", f"{plan.expected_usd:,.2f}", f"{training.cost_usd:,.2f}"],
                ["samples", f"{plan.num_samples:,}", f"{training.num_samples:,}"],
            ],
        ),
        f"Trained on {plan.num_machines} x {plan.machine}, {training.num_restarts} restarts, stopped by "
        f"{training.stopped_by}; the time is {lasted} the plan's 90 % interval "
        f"({plan.interval[0]:,.0f} to {plan.interval[1]:,.0f} s). Budget ${night.budget_usd:,.2f}.",
        f"Data: {dataset.num_samples:,} training samples, {dataset.first_day} to {dataset.last_day}.",
        _table(["made of", ""], [[name, f"`{value}`"] for name, value in lineage.items() if value]),
    ]
    return "\n\n".join(part for part in parts if part)


def with_verdict(description: str, verdict: Verdict) -> str:
    """The page with this verdict as its first paragraph."""
    paragraph = f"**Verdict: {verdict.action}.** {verdict.reason}"
    page = with_first(description, paragraph)
    if verdict.live is None:
        return page
    first, _, rest = page.partition("\n\n")
    if rest.startswith(LIVE):  # told before
        rest = rest.partition("\n\n")[2]
    return f"{first}\n\n{LIVE} {' '.join(_in_live(verdict.live).split())}\n\n{rest}"


def _in_live(live: Live) -> str:
    effect = "not known"
    if live.effect is not None and live.low is not None and live.high is not None:
        effect = f"{live.effect:+.4f} ({live.low:+.4f} to {live.high:+.4f})"
    broken = [check.name for check in live.checks if not check.ok]
    return (
        f"{live.num_challenger:,} users met the challenger (at last {live.share:.0%} of the traffic) and "
        f"{live.num_champion:,} the champion; effect on the score {effect}; guardrails "
        f"{'broken: ' + ', '.join(broken) if broken else 'held'}. Foretold: {live.foretold}."
    )


def with_first(description: str, paragraph: str) -> str:
    """The page with another first paragraph."""
    _, _, rest = description.partition("\n\n")
    return f"{' '.join(paragraph.split())}\n\n{rest}"


def _metrics(metrics: Mapping[str, float]) -> Iterable[list[str]]:
    """Rows of challenger and champion; the baselines after them, in the challenger's column."""
    for name, value in metrics.items():
        if name.startswith("champion"):
            continue
        champion = metrics.get("champion_score" if name == "score" else f"champion/{name}")
        yield [name, f"{value:.4f}", "" if champion is None else f"{champion:.4f}"]


def _slices(evaluation: Evaluation) -> Iterable[list[str]]:
    for part in evaluation.slices:
        champion = "" if part.champion_score is None else f"{part.champion_score:.4f}"
        yield [part.name, f"{part.num_samples:,}", f"{part.score:.4f}", champion]


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table, or nothing without rows."""
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    if not lines:
        return ""
    return "\n".join(
        f"| {line} |" for line in [" | ".join(header), " | ".join("---" for _ in header), *lines]
    )
