"""Judges versions by users: the live test of a night, and the users that are held back between nights."""

from daybreak.evaluation.live_judge import LiveJudge
from daybreak.extensions.live_test import holdback, live_test, readiness, traffic


class ByUsers(LiveJudge):
    """Asks the users of this home's routers, of an endpoint, or of a team's own servers."""

    preflight = staticmethod(readiness.preflight)
    hours_needed = staticmethod(live_test.hours_needed)
    lets_open = staticmethod(live_test.lets_open)
    judge = staticmethod(live_test.judge)
    end = staticmethod(traffic.end)
    take_down = staticmethod(traffic.take_down)
    clean = staticmethod(live_test.clean)
    held = staticmethod(holdback.judge)
    hold_back = staticmethod(holdback.keep)
