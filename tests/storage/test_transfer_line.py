"""A transfer is one line on a terminal, which goes away, and one in a log if it took long."""

import sys
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.progress import Progress

from daybreak.storage import transfer_line as lines
from daybreak.storage.transfer_line import transfer_line
from tests.terminal import terminal


def until(screen: Callable[[], str], text: str) -> str:
    """Returns what the terminal has shown once it shows a text."""
    shown = ""
    while text not in shown:
        shown += screen()
    return shown


def test_a_terminal_shows_the_share_of_the_bytes_on_a_line_that_goes_away() -> None:
    with terminal() as screen:
        with transfer_line("fetch files", num_bytes=4000) as arrived:
            arrived(1000)
            shown = until(screen, "fetch files:  25%")
        shown += until(screen, f"{' ' * 70}")
    assert "\n" not in shown
    assert not shown.split("\r")[-1].strip()


def test_bytes_that_no_part_tells_of_are_measured() -> None:
    with terminal() as screen, transfer_line("download bert", measure=lambda: 7_000_000):
        assert "%" not in until(screen, "download bert: 7.00MB")


def test_a_log_has_a_transfer_once_it_is_done_if_it_took_long(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setitem(sys.modules, "tqdm", None)  # which the image of rented machines does not have
    with transfer_line("fetch files", num_bytes=4000):
        pass
    assert not caplog.messages
    monkeypatch.setattr(lines, "LOGGED_S", 0.0)
    with transfer_line("fetch files", num_bytes=4000):
        pass
    assert [message.partition(" in ")[0] for message in caplog.messages] == ["fetch files: 4 kB"]
    assert capfd.readouterr() == ("", "")


def test_where_the_bar_of_a_waiting_stage_is_drawn_no_line_is() -> None:
    with terminal() as screen:
        console = Console(stderr=True, force_terminal=True)
        with Progress(console=console, transient=True), transfer_line("fetch files", num_bytes=4000):
            pass
        assert "fetch files" not in screen()
