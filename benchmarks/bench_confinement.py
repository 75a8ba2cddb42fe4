"""What each layer around a version's code stops: every way out, with one layer after the other switched off.

A way is open if it gives what it asks for (tests/security/test_escapes.py says what must come of each).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.frame import Target, finish, table
from daybreak.registry import carried_code
from tests.security.test_escapes import ENDS, REFUSED, WAYS, home_of_a_user, words_of

# What takes a layer away from confined.py before it confines.
WITHOUT = {
    "": "",
    "namespaces": "confined._separate = lambda libc: 'switched off'",
    "Landlock": "confined._keep_from_files = lambda libc, **_: 0",
    "filter": "confined.runpy.run_path = switched_off",
}
START = """\
import runpy, sys
from daybreak.registry import confined
real = runpy.run_path
def switched_off(path, **options):
    if path.endswith("system_calls.py"):
        return {"restrict": lambda libc, **_: "switched off"}
    return real(path, **options)
"""


def open_ways(without: str) -> dict[str, bool]:
    """Whether each way leads out, where a layer is switched off."""
    with tempfile.TemporaryDirectory() as folder, home_of_a_user(Path(folder)) as base:
        command = carried_code.command(
            None, base / "script.py", *words_of(base), scratch=base / "scratch", reads=(base / "script.py",)
        )
        # `python -I confined.py FOLDERS SCRIPT ...`, of which a layer is taken away first
        program = f"{START}{WITHOUT[without]}\nconfined.main(sys.argv[1:])"
        source = str(Path(carried_code.__file__).parents[2])
        done = subprocess.run(
            [sys.executable, "-c", program, *command[3:]],
            env=carried_code.environment(base / "scratch") | {"PYTHONPATH": source},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    seen = json.loads(done.stdout)
    time.sleep(1)
    left = [each for each in psutil.process_iter(["cmdline"]) if "# lives on" in str(each.info["cmdline"])]
    for each in left:
        each.kill()
    seen["a child that lives on"] = len(left) or "started"
    return {way: seen[way] != ENDS.get(way, REFUSED) and seen[way] not in OTHERWISE for way in WAYS}


# What the kernel says of a way that is closed by another layer, or by what the call is given.
OTHERWISE = (
    "Address family not supported by protocol",
    "Bad file descriptor",
    "Connection refused",
    "Inappropriate ioctl for device",
    "Invalid argument",
    "Network is unreachable",
    "No such file or directory",
    "No such process",
    "Operation not permitted",
    "Permission denied",
    "Protocol wrong type for socket",
)


def main() -> None:
    """Prints which ways are open without which layer, and counts them."""
    assert os.uname().sysname == "Linux", "no other system has these layers"
    found = {layer: open_ways(layer) for layer in WITHOUT}
    table(
        [
            {
                "way": way,
                **{
                    f"without {layer}" if layer else "all": "OPEN" if ways[way] else ""
                    for layer, ways in found.items()
                },
            }
            for way in WAYS
        ]
    )
    counted = {
        f"open without {layer}" if layer else "open": sum(ways.values()) for layer, ways in found.items()
    }
    targets: dict[str, Target] = {"open": ("==", 0.0)} | {
        f"open without {layer}": (">=", 1.0) for layer in WITHOUT if layer
    }
    finish("confinement", {"ways": float(len(WAYS)), **{k: float(v) for k, v in counted.items()}}, targets)


if __name__ == "__main__":
    main()
