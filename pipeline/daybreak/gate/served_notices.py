"""Puts the watch's findings in served rows into a sentence, with the remedy."""

from daybreak.contract import records
from daybreak.contract.formats import counted, quantity
from daybreak.contract.record_parts import ServedDay
from daybreak.contract.record_types import ServedDays
from daybreak.storage import ledger
from daybreak.storage.home import Home


def notices(home: Home) -> list[str]:
    """Returns the sentence of the newest served day of the champion where its rows are unlike training."""
    served = records.find(ServedDays, home.var)
    if served is None or not served.days or not served.days[-1].drift:
        return []
    serving = next(iter(ledger.releases(home)), None)
    is_champion = serving is not None and serving.serves == served.version
    return [in_words(served.days[-1], served.version)] if is_champion else []


def in_words(served: ServedDay, version: int) -> str:
    """Returns the sentence on a served day, with the remedy."""
    about = f"served rows of {served.day} ({counted(served.num_requests, 'request')})"
    if not served.drift:
        if served.fault or not served.compared:
            return f"{about}: {served.fault or 'no column could be compared'}"
        return f"{about} are like the days that version {version} was made of"
    unlike = "; ".join(
        f"{one.words} ({one.statistic} {quantity(one.value)}, at most {quantity(one.limit)} expected)"
        for one in served.drift
    )
    said = f"{about} are unlike the {served.day:%A}s that version {version} was made of: {unlike}"
    skewed = [one.column for one in served.drift if one.since is None]
    drifted = [one.column for one in served.drift if one.since]
    if skewed:
        said += (
            f"; so on each served day: {', '.join(skewed)}; have it sent as the training data has it, or "
            f"raise its limit under drift in the suite"
        )
    if drifted:
        since = max(one.since for one in served.drift if one.since)
        said += (
            f"; as in training until {since}: {', '.join(drifted)}; fix what sends it, or train on newer "
            f"days by a night now"
        )
    return f"{said}; {served.fault}" if served.fault else said
