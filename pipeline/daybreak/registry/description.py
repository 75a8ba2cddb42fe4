"""Writes the first text of a version in the registry, in Markdown, and what later events change in it.

Stage `register` describes the version and says that the verdict is awaited; with the verdict the whole page
is written (daybreak/report/version_page.py). A rollback replaces the first paragraph.
"""

import re
from collections.abc import Iterable, Mapping

from daybreak.contract.formats import counted, decimals, one_line
from daybreak.contract.record_types import Champion, Evaluation, Night, Verdict

AWAITED = "**Verdict: awaited.** The gate has not decided yet."
RULE = "\n\n---\n\n"
INTERVAL = "effect.svg"  # artifact of the night's run
REPORT = "report.html"
MOST_CHARACTERS = 5000  # of a text in MLflow's database, where PostgreSQL and others refuse more


def of_model(name: str) -> str:
    """Returns the text of a registered model, of which each night makes a version."""
    return (
        f"**{plain(name)}** is trained anew each night by Daybreak, and each night's model is a version. "
        "The alias `champion` is on the version that serves, `challenger` on one that is being judged. They "
        "follow the ledger, the branch `nights` of the model's repository, and decide nothing: another "
        "version serves by `daybreak rollback`."
    )


def describe(*, night: Night, evaluation: Evaluation, champion: Champion | None) -> str:
    """Returns the page of a new version, whose verdict is still awaited."""
    against = f"version {champion.version}" if champion else "none yet"
    return "\n\n".join(
        [
            AWAITED,
            f"Night **{night.id}** ({plain(night.trigger)}), newest day {night.day}, "
            f"{evaluation.num_samples:,} held-out samples. Champion: {against}.",
            metrics_table(evaluation.metrics),
        ]
    )


def of_refit(description: str, *, judged: int) -> str:
    """Returns the page of a refit: the judged version's page, with a note whose scores these are."""
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
        nights = "one night" if chain.num_nights == 1 else f"the newest {chain.num_nights} nights"
        level, half_width = decimals(chain.level, signed=True)[0], decimals(chain.half_width)[0]
        sentences.append(
            f"Refreshes since version {chain.anchor} ({chain.since}) stand at {level} beside it, "
            f"give or take {half_width}, by {nights}; they may lose {chain.margin:g} in all"
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
    test = verdict.recipe_test
    if test and test.effect is not None:
        effect = test.effect
        (mean,), bounds = decimals(effect.mean, signed=True), ""
        if effect.low is not None and effect.high is not None:
            mean, low, high = decimals(effect.mean, effect.low, effect.high, signed=True)
            bounds = f" (from {low} to {high})"
        sentences.append(
            f"Over {counted(test.num_nights, 'night')} of at least {test.least_nights}, the recipe under "
            f"test is {mean} from the champion's{bounds}, by the first metric."
        )
    if verdict.false_promotion_chance is not None:
        when = "on any night" if test else "tonight"
        sentences.append(
            f"A changed recipe that is no better has a chance of {verdict.false_promotion_chance:.2%} to be "
            f"promoted {when} (gate.false_discovery_rate)."
        )
    if verdict.false_promotions_expected is not None:
        sentences.append(
            f"If none of the recipes that were tried within a year were better, at most "
            f"{verdict.false_promotions_expected:.2g} false promotions would be expected of all of them."
        )
    return sentences


def fitting(text: str) -> str:
    """Returns the text, or as many of its lines as MLflow takes, with a word on where the rest is."""
    if len(text) <= MOST_CHARACTERS:
        return text
    note = f"\n\nCut at {MOST_CHARACTERS:,} characters; all of it is in {REPORT} of the night's run."
    return text[: MOST_CHARACTERS - len(note)].rpartition("\n")[0] + note


def with_first(description: str, paragraph: str) -> str:
    """Returns the page with another first paragraph."""
    _, _, rest = description.partition("\n\n")
    return f"{paragraph}\n\n{rest}"


def plain(text: str) -> str:
    r"""Escapes text from data or people, so that Markdown shows it literally.

    >>> print(plain("<img src=x> ![see](//evil) **Verdict: promote.**\n\n---"))
    &lt;img src=x> !\[see](//evil) \*\*Verdict: promote.\*\* ---
    """
    return re.sub(r"([\\`*\[])", r"\\\1", one_line(text)).replace("<", "&lt;")


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Returns the table of metrics, in Markdown."""
    return table(["metric", "challenger", "champion"], _metrics(metrics))


def _metrics(metrics: Mapping[str, float]) -> Iterable[list[str]]:
    """Yields a row a metric, of challenger and champion; baselines are in the challenger's column."""
    for name, value in metrics.items():
        if name.startswith(("champion", "anchor", "predecessor")):
            continue
        champion = metrics.get("champion_score" if name == "score" else f"champion/{name}")
        yield [plain(name), *(decimals(value, champion) if champion is not None else (*decimals(value), ""))]


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    """Returns a Markdown table, or "" without rows."""
    lines = [" | ".join(one_line(cell).replace("|", "\\|") for cell in row) for row in rows]
    if not lines:
        return ""
    return "\n".join(
        f"| {line} |" for line in [" | ".join(header), " | ".join("---" for _ in header), *lines]
    )
