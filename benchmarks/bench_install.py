"""How many packages the wheel brings, and how many megabytes: the core, and each extra on top of it.

Each is installed by uv into an empty environment of its own, in the newest versions that go together, with
torch without CUDA; what counts is all packages but Daybreak, and the bytes on the disk of their folder.
It needs the package registry, and takes about ten minutes on two cores; QUICK=1 does the core and one extra.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from benchmarks import frame

PROJECT = tomllib.loads((frame.ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "docs")]
# Where the index of torch is out of reach, TORCH names a wheel without CUDA.
TORCH = [os.environ["TORCH"]] if "TORCH" in os.environ else ["--torch-backend=cpu", "torch==2.13.0"]
SHOWN = ["serve"] if frame.QUICK else EXTRAS


def uv(*words: str) -> str:
    """What a command of uv printed; it trusts whom this machine trusts."""
    given = {"UV_SYSTEM_CERTS": "1"} | os.environ
    done = subprocess.run(["uv", *words], env=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"uv {' '.join(words)}:\n{done.stderr}")
    return done.stdout


def installed(wheel: Path, extra: str, folder: Path) -> tuple[int, float]:
    """Packages and megabytes of an environment with the wheel and an extra, "" for none."""
    uv("venv", "--quiet", "--python", sys.executable, str(folder))
    python = ["--python", str(folder / "bin" / "python")]
    uv("pip", "install", "--quiet", *python, *TORCH)
    uv("pip", "install", "--quiet", *python, f"{wheel}[{extra}]" if extra else str(wheel))
    names = {one["name"] for one in json.loads(uv("pip", "list", "--format=json", *python))}
    (packages,) = folder.glob("lib/*/site-packages")
    used = subprocess.check_output(["du", "-sm", str(packages)], text=True)
    shutil.rmtree(folder)
    return len(names - {"daybreak"}), float(used.split()[0])


def main() -> None:
    """Install all, and count."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        folder = Path(name)
        build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
        copy = folder / "source"
        ignored = shutil.ignore_patterns(".venv", ".git", "nights", "var", "site", "build")
        shutil.copytree(frame.ROOT, copy, ignore=ignored)
        subprocess.run([sys.executable, *build, str(folder), str(copy)], check=True)
        (wheel,) = folder.glob("*.whl")
        base = installed(wheel, "", folder / "core")
        figures["packages of the core"], figures["the core MB"] = base
        for extra in SHOWN:
            num, megabytes = installed(wheel, extra, folder / extra)
            figures[f"packages that {extra} adds"] = float(num - base[0])
            figures[f"what {extra} adds MB"] = megabytes - base[1]
    frame.finish("install", figures, {})


if __name__ == "__main__":
    main()
