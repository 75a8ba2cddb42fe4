"""Writes a version's page in the registry, in Markdown: what a reviewer needs to decide.

Above the rule stands the verdict: what the gate decided, and what a person answered. Its first paragraph is
replaced by a rollback. The part below the rule is written once, when the version is registered. MLflow shows
artifacts of the run by their address, so the interval is a picture (tried with 3.17).
"""

import re
from collections.abc import Iterable, Mapping

from pipeline.contract.formats import counted, one_line
from pipeline.contract.records import (
    Approval,
    Champion,
    Dataset,
    Evaluation,
    Live,
    Night,
    Plan,
    Profile,
    Training,
    Verdict,
    Version,
)
from pipeline.profiling.explain import explain
from pipeline.registry import approval as approvals

AWAITED = "**Verdict: awaited.** The gate has not decided yet."
RULE = "\n\n---\n\n"
INTERVAL = "effect.svg"  # artifact of the night's run
REPORT = "report.html"


def describe(
    *,
    night: Night,
    dataset: Dataset,
    plan: Plan,
    training: Training,
    evaluation: Evaluation,
    champion: Champion | None,
    profile: Profile | None,
    lineage: Mapping[str, str],
    run_id: str,
) -> str:
    """Returns the page of a new version, whose verdict is still awaited."""
    against = f"version {champion.version}" if champion else "none yet"
    lasted = "inside" if training.elapsed_s <= plan.interval[1] else "above"
    parts = [
        f"Night **{night.id}** ({plain(night.trigger)}), newest day {night.day}, "
        f"{evaluation.num_samples:,} held-out samples. Champion: {against}. "
        f"[The night's report](#/experiments/0/runs/{run_id}/artifacts/{REPORT}).",
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
        f"Trained on {plan.rental}{_device(training)}, "
        f"{training.num_restarts} restarts, stopped by "
        f"{training.stopped_by}; the time is {lasted} the plan's 90 % interval "
        f"({plan.interval[0]:,.0f} to {plan.interval[1]:,.0f} s). Budget ${night.budget_usd:,.2f}.",
        f"Bottleneck: {explain(profile)}" if profile else "",
        f"Data: {dataset.num_samples:,} training samples, {dataset.first_day} to {dataset.last_day}.",
        _table(["made of", ""], [[name, _code(value)] for name, value in lineage.items() if value]),
    ]
    return AWAITED + RULE + "\n\n".join(part for part in parts if part)


def with_verdict(
    description: str,
    version: Version,
    verdict: Verdict,
    approval: Approval | None = None,
    *,
    over: bool = False,
) -> str:
    """Returns the page with this verdict and a person's answer to it; `over`: nobody can answer any more."""
    _, rule, rest = description.partition(RULE)
    if not rule:  # a version of an earlier form
        rest = description.partition("\n\n")[2]
    words, needs_answer = approvals.words(verdict, approval, over=over), verdict.approve_until is not None
    said = f" **Version {verdict.challenger} {plain(words)}.**" if needs_answer else ""
    if needs_answer and approval is None and not over:
        said += (
            f" Answer in Airflow, task `review` of the night, or by "
            f"`python -m pipeline approve --night {version.night} --reason TEXT [--reject]`."
        )
    parts = [
        f"**Verdict: {verdict.action}.** {plain(verdict.reason)}.{said}",
        f"![effect](get-artifact?path={INTERVAL}&run_uuid={version.run_id})"
        if verdict.effect is not None
        else "",
        _table(
            ["looked at", "", "what was seen"],
            [
                [plain(check.name), "ok" if check.ok else "**failed**", plain(check.text)]
                for check in verdict.checks
            ],
        ),
        " ".join(in_the_long_run(verdict)),
        _in_live(verdict.live) if verdict.live else "",
    ]
    return "\n\n".join(part for part in parts if part) + RULE + rest


def of_refit(description: str, *, judged: int) -> str:
    """Returns the page of a refit: that of the judged version, and whose scores these are."""
    verdict, _, rest = description.partition("\n\n")
    mark = (
        f"**A refit of version {judged}**, which was trained on the held-out days too once it was judged. "
        f"The verdict and all scores on this page are those of version {judged}, before the refit."
    )
    return f"{verdict}\n\n{mark}\n\n{rest}"


def in_the_long_run(verdict: Verdict) -> list[str]:
    """Returns what is known beyond tonight's comparison, a sentence each: of the chain, of chances."""
    sentences, chain = [], verdict.chain
    if chain and chain.level is not None and chain.half_width is not None:
        nights = "tonight" if chain.num_nights == 1 else f"the newest {chain.num_nights} nights"
        sentences.append(
            f"Refreshes since version {chain.anchor} ({chain.since}) stand at {chain.level:+.4f} beside it, "
            f"give or take {chain.half_width:.4f}, by {nights}; they may lose {chain.margin:g} in all"
            f"{', which is spent' if chain.spent else ''}."
        )
    if chain and chain.nights_to_show is not None and verdict.action == "promote":
        nights = counted(chain.nights_to_show, "night")
        sentences.append(
            f"If it were worse by the margin {chain.margin:g}, the watch would show it after about {nights} "
            "like this one."
        )
    if chain and chain.renewed is not None and verdict.action == "promote":
        sentences.append(f"Version {verdict.challenger} is what later refreshes are held against.")
    if verdict.false_promotion_chance is not None:
        sentences.append(
            f"A changed recipe that is no better had a chance of {verdict.false_promotion_chance:.1%} "
            "to be promoted tonight (gate.false_promotions_per_year)."
        )
    return sentences


def _in_live(live: Live) -> str:
    effect = "not known"
    if live.effect is not None and live.low is not None and live.high is not None:
        effect = f"{live.effect:+.4f} ({live.low:+.4f} to {live.high:+.4f})"
    broken = [check.name for check in live.checks if not check.ok]
    return (
        f"**On live traffic:** {live.num_challenger:,} users met the challenger (at last {live.share:.0%} of "
        f"the traffic) and {live.num_champion:,} the champion; effect on the score {effect}; guardrails "
        f"{'broken: ' + plain(', '.join(broken)) if broken else 'held'}. Foretold: {plain(live.foretold)}."
    )


def _device(training: Training) -> str:
    return f" ({training.device})" if training.device else ""


def with_first(description: str, paragraph: str) -> str:
    """Returns the page with another first paragraph."""
    _, _, rest = description.partition("\n\n")
    return f"{paragraph}\n\n{rest}"


def plain(text: str) -> str:
    r"""Returns words as Markdown that shows them as they are: what data or people say makes no markup.

    >>> print(plain("<img src=x> ![see](//evil) **Verdict: promote.**\n\n---"))
    &lt;img src=x> !\[see](//evil) \*\*Verdict: promote.\*\* ---
    """
    return re.sub(r"([\\`*\[])", r"\\\1", one_line(text)).replace("<", "&lt;")


def _metrics(metrics: Mapping[str, float]) -> Iterable[list[str]]:
    """Yields a row a metric, of challenger and champion; baselines are in the challenger's column."""
    for name, value in metrics.items():
        if name.startswith(("champion", "anchor", "predecessor")):
            continue
        champion = metrics.get("champion_score" if name == "score" else f"champion/{name}")
        yield [plain(name), f"{value:.4f}", "" if champion is None else f"{champion:.4f}"]


def _slices(evaluation: Evaluation) -> Iterable[list[str]]:
    for part in evaluation.slices:
        champion = "" if part.champion_score is None else f"{part.champion_score:.4f}"
        yield [plain(part.name), f"{part.num_samples:,}", f"{part.score:.4f}", champion]


def _code(text: str) -> str:
    return "`" + text.replace("`", "'") + "`"


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    """Returns a Markdown table, or "" without rows."""
    lines = [" | ".join(one_line(cell).replace("|", "\\|") for cell in row) for row in rows]
    if not lines:
        return ""
    return "\n".join(
        f"| {line} |" for line in [" | ".join(header), " | ".join("---" for _ in header), *lines]
    )
