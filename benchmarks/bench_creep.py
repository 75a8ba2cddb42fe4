"""Whether a year of refreshes stays near the best that the recipe gives, and what that costs in promotions.

Chains of nights go through the gate's own code: the comparison with the champion, the chain since the
anchor, what makes a night train cold, and the entries of the ledger that these read. Only the scores are
drawn: 86 samples a night, of which two models differ by a standard deviation of 0.04, as on the shop. No
night is cold but for what the gate asks for. Each kind of chain also goes through the gate as it is without
an anchor.

    none       every training gives the same model
    loss X     a warm start loses X standard errors of a night's difference (0.0043)
    rot        every training, cold ones too, is by 0.001 worse than that of the night before
    slow rot   likewise by 0.02 margins
    cold       a cold training is by 0.6 margins worse than the first, and a warm start loses 0.1 margins
    age        a model becomes worse by 0.001 a night; a training of tonight does not
    age, loss  both: a quarter of an error is lost by a warm start, while the anchor becomes worse, too
    rare       of 3,000 samples 1 % are positive, and differ by a skewed 0.4; the others by 0.004

`margin X` is that of the gate, in standard errors of a night; without it, it is 0.03, about 7. Where 7 days
are held out, 86 samples each, six of them were held out the night before, too. The reference
is the best cold training so far, on the day at hand. A chain counts as held where it stays within 1.25
margins, or where the verdict of its first night said that nights like these cannot guard the margin. Nothing
here was fitted on these chains. QUICK=1: an eighth of the chains.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import date, timedelta
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from benchmarks import frame
from daybreak.contract.record_types import Champion, Evaluation, Night, Release, Verdict
from daybreak.contract.sections import GateParams
from daybreak.gate.chain import NIGHTS_PER_YEAR, anchor_of, apply_chain, chain_of
from daybreak.gate.cold_start import why_cold
from daybreak.gate.judge import rules_of
from daybreak.gate.verdict import ACTIONS
from daybreak.statistics.paired import judge
from daybreak.statistics.result import Status
from daybreak.storage.ledger import Entry
from tests.minimal_records import minimal_training

NUM_SAMPLES, SD = 86, 0.04
ERROR = SD / sqrt(NUM_SAMPLES)
LENGTHS = (30, 100, 365)
NUM_CHAINS = 8 if frame.QUICK else 64
LOSSES = (0.25, 0.5, 1.0, 2.0, 3.0)
MARGINS = (1.0, 2.0, 3.0, 5.0)  # in errors; of 7 is the one in params.yaml
NUM_RARE, POSITIVE_SHARE, POSITIVE_SD, NEGATIVE_SD = 3000, 0.01, 0.4, 0.004
FIRST = date(2026, 1, 1)


@dataclass(frozen=True, kw_only=True)
class World:
    """What a night of training gives, in units of the score, and the margin of the gate."""

    warm_loss: float = 0.0  # of a warm start
    rot: float = 0.0  # a night, of all trainings
    age: float = 0.0  # a night, of a model
    cold_loss: float = 0.0  # of cold trainings but the first
    rare: bool = False  # few samples are positive
    margin: float = frame.MARGIN
    test_days: int = 1  # that a night holds out, of which all but one were held out before

    @property
    def error(self) -> float:
        """Returns the standard error of a night's difference between two models."""
        variance = POSITIVE_SHARE * POSITIVE_SD**2 + (1 - POSITIVE_SHARE) * NEGATIVE_SD**2
        return (sqrt(variance / NUM_RARE) if self.rare else ERROR) / sqrt(self.test_days)

    def at(self, margin: float) -> "World":
        """Returns this world with a margin of so many standard errors."""
        return replace(self, margin=margin * self.error)

    def noise(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Returns what one model's scores of a day differ from its quality, shape [n]."""
        if not self.rare:
            return rng.normal(0, SD / sqrt(2), NUM_SAMPLES)
        positive = rng.random(NUM_RARE) < POSITIVE_SHARE
        missed = POSITIVE_SD * (1 - rng.exponential(1, NUM_RARE))  # few are missed by far
        return np.where(positive, missed, rng.normal(0, NEGATIVE_SD, NUM_RARE)) / sqrt(2)


RARE = World(rare=True)
WEEK = World(test_days=7)
AGE = World(age=0.001, warm_loss=0.25 * ERROR)
WORLDS = {
    "none": World(),
    **{f"loss {times:g}": World(warm_loss=times * ERROR) for times in LOSSES},
    "rot": World(rot=0.001),
    "slow rot": World(rot=0.02 * frame.MARGIN),
    "cold": World(warm_loss=0.1 * frame.MARGIN, cold_loss=0.6 * frame.MARGIN),
    "age": World(age=0.001),
    "age, loss": AGE,
    "rare, loss": replace(RARE, warm_loss=0.25 * RARE.error),
    **{
        f"{name}, margin {margin:g}": world.at(margin)
        for margin in MARGINS
        for name, world in (
            ("none", World()),
            ("loss 0.25", World(warm_loss=0.25 * ERROR)),
            ("rot", World(rot=0.001)),
            ("slow rot", World(rot=0.02 * margin * ERROR)),
            ("age, loss", AGE),
            ("rare, loss", replace(RARE, warm_loss=0.25 * RARE.error)),
        )
    },
    "none, margin 5, 7 days held out": WEEK.at(5.0),
    "loss 0.25, margin 5, 7 days held out": replace(WEEK, warm_loss=0.25 * WEEK.error).at(5.0),
    "slow rot, margin 5, 7 days held out": replace(WEEK, rot=0.1 * WEEK.error).at(5.0),
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A version, and how good it was when it was trained."""

    quality: float
    trained: int  # night


@dataclass(frozen=True, kw_only=True)
class Lived:
    """What became of a chain: true losses by night, whether each promoted, and whether it was spent."""

    losses: np.ndarray
    promoted: np.ndarray
    spent: np.ndarray
    is_said: bool  # on the first night, that the margin cannot be guarded


def main() -> None:
    """Run all worlds with and without the anchor, and hold them against the targets."""
    cases = [
        (world, anchored, seed)
        for world in WORLDS
        for anchored in (True, False)
        for seed in range(NUM_CHAINS)
    ]
    lived: dict[tuple[str, bool], list[Lived]] = {}
    with ProcessPoolExecutor(2) as pool:
        for (world, anchored, _), chain in zip(cases, pool.map(_live, cases, chunksize=4), strict=True):
            lived.setdefault((world, anchored), []).append(chain)
            print(".", end="", file=sys.stderr, flush=True)
    rows, figures = [], {}
    for world, gives in WORLDS.items():
        ours, theirs = lived[world, True], lived[world, False]
        for length in LENGTHS:
            most = 1.25 * gives.margin
            within = [float(one.losses[:length].max()) <= most for one in ours]
            held_to = [one.is_said or held for one, held in zip(ours, within, strict=True)]
            rows.append(
                {
                    "world": world,
                    "nights": length,
                    "worst loss, median": float(np.median([one.losses[:length].max() for one in ours])),
                    "without anchor": float(np.median([one.losses[:length].max() for one in theirs])),
                    "within 1.25 margins": float(np.mean(within)),
                    "or said": float(np.mean(held_to)),
                    "promoted": float(np.mean([one.promoted[:length].mean() for one in ours])),
                    "of without anchor": _promoted(ours, length) / _promoted(theirs, length),
                    "nights until noticed": float(np.median([_first(one.spent[:length]) for one in ours])),
                }
            )
            figures[f"{world}, {length} nights: chains within 1.25 margins, or said"] = float(
                np.mean(held_to)
            )
        figures[f"{world}: worst loss of 365 nights, median"] = rows[-1]["worst loss, median"]
        figures[f"{world}: without anchor"] = rows[-1]["without anchor"]
        figures[f"{world}: chains that said on the first night that nothing guards them"] = float(
            np.mean([one.is_said for one in ours])
        )
        figures[f"{world}: nights promoted"] = _promoted(ours, LENGTHS[-1])
        figures[f"{world}: nights until noticed, median"] = rows[-1]["nights until noticed"]
        figures[f"{world}: promotions of those without anchor"] = rows[-1]["of without anchor"]
    frame.table(rows)
    targets: dict[str, frame.Target] = {
        name: (">=", 0.95) for name in figures if name.endswith("within 1.25 margins, or said")
    }
    targets |= {f"{world}: promotions of those without anchor": (">=", 0.9) for world in ("none", "age")}
    frame.finish("creep", figures, targets)


def _promoted(chains: Sequence[Lived], length: int) -> float:
    return float(np.mean([one.promoted[:length].mean() for one in chains]))


def _first(happened: np.ndarray) -> float:
    """Returns the first night with True, counted from 1; nan where no night has it."""
    return float(np.argmax(happened)) + 1 if happened.any() else float("nan")


def _live(case: tuple[str, bool, int]) -> Lived:
    """A chain of nights in a world, by the gate with or without its anchor."""
    name, anchored, seed = case
    return live(WORLDS[name], anchored=anchored, rng=np.random.default_rng([seed, 7]))


def live(world: World, *, anchored: bool, rng: np.random.Generator, num_nights: int = LENGTHS[-1]) -> Lived:
    """A chain of nights through the gate, from a first champion of quality 0 on."""
    models = {1: Model(quality=0.0, trained=0)}
    serving = Release(version=1, replaced=0, night="0")
    past: list[Entry] = [_entry(_night(0), release=serving, training=minimal_training(warm=False))]
    made = {1: past[0]}
    params = GateParams(margin=world.margin)
    losses, promoted, spent, said = [], [], [], []
    noise: dict[tuple[int, int], NDArray[np.float64]] = {}  # by version and day
    best = 0.0  # of cold trainings so far
    for number in range(1, num_nights + 1):
        day = FIRST + timedelta(days=number)
        anchor = anchor_of(serving, made[serving.version], day=day)
        champion = Champion(**vars(serving), anchor=anchor if anchored else None)
        night = _night(number, cold=why_cold(champion, past, day=day, when_spent=params.when_spent))
        cold = -world.rot * number - world.cold_loss
        best = max(best, cold) if not world.age else 0.0
        before = models[serving.version].quality
        quality = cold if night.cold else min(before, cold) - world.warm_loss
        version = number + 1
        models[version] = Model(quality=quality, trained=number)

        days = range(number - world.test_days + 1, number + 1)
        noise = {key: values for key, values in noise.items() if key[1] in days}

        def scores_of(
            one: int,
            now: int = number,
            days: range = days,
            noise: dict[tuple[int, int], NDArray[np.float64]] = noise,
        ) -> np.ndarray:
            model = models[one]
            for day in days:  # a model that is scored on a day again has the same scores
                if (one, day) not in noise:
                    noise[one, day] = world.noise(rng)
            own = np.concatenate([noise[one, day] for day in days])
            return model.quality - world.age * (now - model.trained) + own

        scores = {"challenger": scores_of(version), "champion": scores_of(serving.version)}
        if anchor.release.version != serving.version:
            scores["anchor"] = scores_of(anchor.release.version)
        rules = replace(rules_of(params, refresh=True), resamples=0)
        num_samples = scores["challenger"].size
        evaluation = Evaluation(
            model_digest="",
            data_digest="",
            num_samples=num_samples,
            metrics={},
            slices=(),
            days=tuple(FIRST + timedelta(days=one) for one in days),
            num_by_day=(num_samples // len(days),) * len(days),
        )
        chain = chain_of(
            scores,
            champion,
            past,
            night=night,
            refresh=True,
            margin=rules.margin,
            alpha=params.alpha,
            evaluation=evaluation,
        )
        rules = replace(rules, may_lose=chain is not None)
        result = judge(scores["challenger"], scores["champion"], rules=rules)
        assert result.effect is not None
        verdict = apply_chain(
            Verdict(
                action=ACTIONS[result.status],
                champion=serving.version,
                challenger=version,
                effect=result.effect.measured,
                num_samples=scores["challenger"].size,
                reason=result.sentence,
                inconclusive=result.status is Status.INCONCLUSIVE,
            ),
            chain,
        )
        release = None
        if verdict.action == "promote":
            release = Release(version=version, replaced=serving.version, night=str(number))
        training = minimal_training(warm=not night.cold)
        entry = _entry(
            night,
            release=release,
            verdict=verdict,
            champion=champion,
            training=training,
            evaluation=evaluation,
        )
        past = [entry, *past][:NIGHTS_PER_YEAR]
        if release:
            serving, made = release, {version: entry}
        now = models[serving.version]
        losses.append(best - (now.quality - world.age * (number - now.trained)))
        promoted.append(release is not None)
        spent.append(bool(verdict.chain and verdict.chain.spent))
        said.append(bool(verdict.chain and verdict.chain.least_margin))
    return Lived(losses=np.array(losses), promoted=np.array(promoted), spent=np.array(spent), is_said=said[0])


def _night(number: int, *, cold: str = "") -> Night:
    return frame.night(FIRST + timedelta(days=number), id=str(number), cold=cold)


def _entry(night: Night, **records: object) -> Entry:
    return Entry(commit=night.id, subject="", rollback=False, night=night, **records)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
