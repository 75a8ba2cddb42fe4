"""A command line that does as it is told: stands in for `daybreak` where only the DAG is tested.

Copied to `pipeline/daybreak/__main__.py` of a home; the servers of `make up` there are the real ones.
`endings.json` beside it says how a stage ends: the exit statuses of its calls, one after the other, the last
one for ever; 0 where nothing is said, and of `due` and `predict-ahead` 99. `gate` writes what stands there
under `records` to its night, and a stage prints its text under `says`. Every call is appended to
`calls.jsonl`.
"""

import json
import os
import shutil
import sys
from pathlib import Path

home = Path(os.environ["DAYBREAK_HOME"])
stage = sys.argv[1]
if stage in ("serve", "pages"):
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it leads here
    os.execve(sys.executable, [sys.executable, "-P", "-m", "daybreak", *sys.argv[1:]], given)
if stage == "show":
    shown = home / "nights" / sys.argv[sys.argv.index("--night") + 1] / "data/run" / f"{sys.argv[2]}.json"
    print(shown.read_text() if shown.exists() else "")
    sys.exit(0 if shown.exists() else 99)
if stage == "champion":
    print(json.dumps({"event": "champion", "version": 4}))
    sys.exit()
calls = home / "calls.jsonl"
with calls.open("a") as file:
    file.write(json.dumps({"folder": str(Path.cwd().relative_to(home)), "arguments": sys.argv[1:]}) + "\n")
endings = json.loads((home / "endings.json").read_text())
said = endings.get(stage, [99 if stage in ("due", "predict-ahead") else 0])
if stage == "gate":
    for name, record in endings.get("records", {}).items():
        path = Path("data/run") / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
made = sum(json.loads(line)["arguments"][0] == stage for line in calls.read_text().splitlines())
print(endings.get("says", {}).get(stage) or json.dumps({"stage": stage}))
status = said[min(made, len(said)) - 1]
if stage == "open" and not status:
    night = home / "nights" / sys.argv[sys.argv.index("--night") + 1]
    shutil.copytree(home / "pipeline" / "daybreak", night / "pipeline" / "daybreak", dirs_exist_ok=True)
sys.exit(status)
