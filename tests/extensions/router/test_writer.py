"""Group commit, on a real log."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract.errors import JobError
from daybreak.extensions.router import writer
from daybreak.extensions.router.writer import Writer
from daybreak.storage.exposures import Outcome
from daybreak.storage.traffic_log import open_log
from tests.storage.test_traffic_log import exposure


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """In a thread of its own: a browser of other tests may have left a loop running in this one."""
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(asyncio.run, work).result()


def test_everything_is_written_and_every_outcome_acknowledged_once_it_is(tmp_path: Path) -> None:
    log = open_log(f"sqlite:///{tmp_path / 'serving.db'}")

    async def tell() -> None:
        writes = Writer(log.exposures)

        async def one(number: int) -> None:
            writes.expose(exposure(number))
            assert await writes.outcome(Outcome(exposure=exposure(number).id, items=(str(number),), time=9.0))
            kept = {logged.id: logged.taken for logged in log.exposures.of("a")}
            assert kept[exposure(number).id] == (str(number),)

        await asyncio.gather(*(one(number) for number in range(1, 60)))
        assert not await writes.outcome(Outcome(exposure="none", items=(), time=9.0))
        writes.expose(exposure(1000))
        await asyncio.to_thread(writes.close)

    run(tell())
    assert len(list(log.exposures.of("a"))) == 60
    log.close()


def test_a_log_that_is_away_loses_nothing_that_it_acknowledged_and_is_written_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    log, away = open_log(f"sqlite:///{tmp_path / 'serving.db'}"), True

    class Away:
        """A log whose database does not answer for a while."""

        def write(self, exposures: object, outcomes: object, shadows: object) -> list[bool]:
            if away:
                raise JobError("the database is away; start it")
            return log.exposures.write(exposures, outcomes)  # type: ignore[arg-type]

    async def tell() -> None:
        nonlocal away
        writes = Writer(Away())  # type: ignore[arg-type]
        writes.expose(exposure(1))
        with pytest.raises(JobError, match="is away"):
            await writes.outcome(Outcome(exposure=exposure(1).id, items=(), time=9.0))
        assert "is away" in writes.fault
        away = False
        assert await writes.outcome(Outcome(exposure=exposure(1).id, items=("22423",), time=9.0))
        assert (writes.fault, writes.num_lost) == ("", 0)
        await asyncio.to_thread(writes.close)

    run(tell())
    assert [logged.taken for logged in log.exposures.of("a")] == [("22423",)]
    log.close()


def test_what_no_database_takes_does_not_end_the_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(f"sqlite:///{tmp_path / 'serving.db'}")

    async def tell() -> int:
        writes = Writer(log.exposures)
        writes.expose(replace(exposure(1), error="\ud800"))
        with pytest.raises(JobError, match="surrogates"):
            await writes.outcome(Outcome(exposure=exposure(1).id, items=(), time=9.0))
        writes.expose(exposure(2))
        assert await writes.outcome(Outcome(exposure=exposure(2).id, items=(), time=9.0))
        await asyncio.to_thread(writes.close)
        return writes.num_lost

    assert run(tell()) == 1
    assert [logged.id for logged in log.exposures.of("a")] == [exposure(2).id]
    assert "1 exposures and 1 outcomes are not kept" in caplog.text
    log.close()


def test_exposures_that_find_no_room_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_WAITING", 3)

    class Away:
        """A log whose database never answers."""

        def write(self, exposures: object, outcomes: object, shadows: object) -> list[bool]:
            raise JobError("the database is away; start it")

    async def tell() -> int:
        writes = Writer(Away())  # type: ignore[arg-type]
        for number in range(5):
            writes.expose(exposure(number))
        await asyncio.to_thread(writes.close)
        return writes.num_lost + len(writes._exposures)

    assert run(tell()) == 5
