"""What a night, the gate and the watch ask of users who meet a version, where an extension asks them.

`hooks.EXTENSIONS` names the class, by its hook `judge`; `gate.scores` says whether the gate asks it.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from daybreak import hooks
from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.record_types import Champion, Night, Release, Verdict, Version
from daybreak.contract.sections import LiveSections, Params
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from daybreak.statistics.paired import Rules
    from daybreak.statistics.result import Conclusion


@dataclass(frozen=True, kw_only=True)
class Held:
    """The result of the serving version, by users, against the version that some users are held back on."""

    result: "Conclusion"  # WORSE where a guardrail is broken; MISMATCH where nothing can be believed
    num_users: int


class LiveJudge(Protocol):
    """Judges versions by the users who meet them."""

    def preflight(self, home: Home, params: Params) -> Iterator[tuple[str, bool, str]]:
        """Yields the preconditions of a live test: a name, whether it is met, and a sentence."""

    def hours_needed(self, home: Home, params: LiveSections, *, hours: float) -> float:
        """Returns how long users need to judge tonight's challenger, of `hours`; 0 where nothing tells."""

    def lets_open(self, home: Home, nights: Sequence[Night], params: LiveSections) -> bool:
        """Returns whether a night may open beside these, all of which only wait for their users."""

    def judge(
        self,
        home: Home,
        night: Night,
        version: Version,
        champion: Champion,
        params: LiveSections,
        *,
        rules: "Rules",
        replayed: Callable[[], Verdict],
    ) -> Verdict:
        """Returns the verdict of live traffic; raises NotYet, with how it stands, while it goes on.

        `replayed` judges the held-out scores and whether the model is fit to serve; it is called once.
        """

    def end(self, home: Home, experiment: str, params: LiveSections) -> bool:
        """Ends an experiment, so that nobody meets its challenger any more; returns whether it was on."""

    def take_down(self, home: Home, version: int, params: LiveSections) -> None:
        """Takes a version down from an endpoint, once nobody meets it."""

    def clean(self, home: Home, params: LiveSections) -> str:
        """Ends an experiment that no open night wants, or whose guardrails broke; says what was done."""

    def held(self, home: Home, serving: Release, before: Release, params: LiveSections) -> Held | None:
        """Returns what users say who are held back on the version before; None where nobody is."""

    def hold_back(self, home: Home, serving: Release, before: Release | None, params: LiveSections) -> None:
        """Holds users back on a version, or nobody any more; the gate's experiments are left alone."""


def live_judge() -> LiveJudge | None:
    """Returns what judges by users; None where no extension does."""
    return next((made() for made in hooks.functions("judge")), None)


def lets_open(home: Home, nights: Sequence[Night]) -> bool:
    """Returns whether a night of this home may open beside these, by `gate.scores` of its params.yaml."""
    with contextlib.suppress(ParamsError, JobError):  # which the night says once it is its turn
        users = judge_of(home.params.gate.scores)
        return users is not None and users.lets_open(home, nights, home.params.only(LiveSections))
    return False


def judge_of(scores: str) -> LiveJudge | None:
    """Returns what the gate asks by `gate.scores`; ParamsError where that is users, and no extension asks."""
    if scores == "replay":
        return None
    users = live_judge()
    if users is None:
        raise ParamsError(
            f"gate.scores is {scores}, and this installation has no extension that asks users; set "
            f"gate.scores: replay"
        )
    return users
