"""What the gate asks where users decide, by `gate.scores`; the runner fills it in from `stages.JUDGES`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from daybreak.contract.params import LiveSections
from daybreak.contract.records import Champion, Night, Verdict, Version
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from daybreak.statistics.paired import Rules


class LiveJudge(Protocol):
    """Judges a challenger by the users who meet it."""

    def __call__(
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
