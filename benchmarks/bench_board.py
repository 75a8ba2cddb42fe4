"""How soon is a board over years there? 1,000 and 10,000 nights of five models, each a home with its ledger.

The file that `report` writes for a fleet and the page that `pages` serves are made in processes of their own,
whose CPU time counts from the start of the interpreter: once without rows that were kept (the first board
after an update), then with them. The page is then opened in headless Chromium, where it has one.
"""

import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from benchmarks import frame
from tests.extensions.pages import fleet

SIZES = (100, 1000) if frame.QUICK else (1000, 10_000)
LAST = date(2026, 11, 24)
MODELS = {"shop": 1, "fraud": 2, "demand": 3, "language": 4, "images": 5}  # each with its seed
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SORT = "head => { const began = performance.now(); head.click(); return performance.now() - began; }"
WRITE = """
import sys
from pathlib import Path
from daybreak.extensions.pages import fleet_rows
from daybreak.storage.home import Home
fleet_rows.write_board(Home(Path(sys.argv[1])), all=True)
"""


def main() -> None:
    """Make the ledgers and their boards, and hold them against the targets."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for num in SIZES:
            home = fleet.make(Path(folder) / str(num), num=num // len(MODELS), last=LAST, **MODELS)
            cold, _ = written(home)
            warm, peak_bytes = written(home)
            page = home / "var" / "boards.html"
            about = f"{num:,} nights"
            figures |= {
                f"{about}, CPU s, rows not kept": cold,
                f"{about}, CPU s": warm,
                f"{about}, MB of memory": peak_bytes / 1e6,
                f"{about}, kB of the page": page.stat().st_size / 1e3,
                f"{about}, pages": float(len(list(page.parent.glob("boards*.html")))),
            }
            if CHROMIUM:
                figures |= {f"{about}, {key}": value for key, value in seen(home).items()}
    least = f"{SIZES[0] if frame.QUICK else 1000:,} nights"
    targets: dict[str, frame.Target] = {f"{least}, CPU s": ("<=", 1.0)}
    if not frame.QUICK:
        targets |= {"10,000 nights, CPU s": ("<=", 3.0), "10,000 nights, MB of memory": ("<=", 200.0)}
    if CHROMIUM:
        targets |= {f"{num:,} nights, kB sent": ("<=", 500.0) for num in SIZES}
    frame.finish("board", figures, targets)


def written(home: Path) -> tuple[float, float]:
    """CPU seconds to write the board, those of git included, and the most memory that is held."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    given = frame.environment(home) | {"PYTHONPATH": str(frame.ROOT)}
    # Not `ru_maxrss`, which begins with what the process that starts another one holds.
    code = f"{WRITE}\nprint(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(home)], env=given, check=True, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, int(done.stdout) * 1024.0


def seen(home: Path) -> dict[str, float]:
    """What a browser needs for the page as it is served, and for sorting it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, pages(home) as url:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = launched.new_page(viewport={"width": 1400, "height": 900})
        page.goto(url)  # once, so that the browser and the server are warm
        client = page.context.new_cdp_session(page)
        client.send("Performance.enable")
        client.send("Network.enable")
        sent: list[float] = []
        client.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
        page.goto(url)
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        metrics = {one["name"]: one["value"] for one in client.send("Performance.getMetrics")["metrics"]}
        head = page.locator("table.nights thead th", has_text="cost")
        sort_ms = head.evaluate(SORT)
        launched.close()
    return {
        "first paint, ms": float(paint),
        "kB sent": sum(sent) / 1e3,
        "MB of the browser's scripts": metrics["JSHeapUsedSize"] / 1e6,
        "CPU s of the browser's page": metrics["TaskDuration"],
        "sorting, ms": float(sort_ms),
    }


@contextmanager
def pages(home: Path) -> Iterator[str]:
    """The address of the board, served by the command line in a process of its own."""
    given = frame.environment(home) | {"PYTHONPATH": str(frame.ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "daybreak", "pages", "--port", "0"]
    process = subprocess.Popen(command, cwd=home, env=given, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        said = process.stderr.readline()
        yield re.findall(r"http://\S+/nights", said)[0]
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
