"""How many clicks, and seconds, do fifteen tasks of those who review nights take in a browser?

Each task is a test in tests/extensions/pages/test_people.py, which counts what a person clicks from the
board on, and fails unless it sees the answer. Seconds go by from the opening of the board to the answer;
nobody reads or hesitates in them. A task that is one command in a terminal takes no click.
"""

from benchmarks.frame import Target, finish, table, tested

TASKS = "tests/extensions/pages/test_people.py"
MOST_CLICKS = 4.0


def main() -> None:
    """Run the tasks one after the other, and say what each took."""
    found, clicks, seconds = dict[str, bool](), dict[str, float](), dict[str, float]()
    for case in tested(TASKS, "-n", "0"):
        task = case.get("name", "").removeprefix("test_").replace("_", " ")
        found[task] = {each.tag for each in case} <= {"properties", "system-out", "system-err"}
        took = {one.get("name"): float(one.get("value", "0")) for one in case.iter("property")}
        clicks[task] = took.get("clicks", 0.0)
        if "seconds" in took:
            seconds[task] = took["seconds"]
    table([{"task": task, "found": found[task], "clicks": clicks[task]} for task in found])
    figures = {"tasks": float(len(found)), "found": float(sum(found.values()))}
    figures |= {f"{task}: clicks": value for task, value in clicks.items()}
    figures |= {f"{task}, s": value for task, value in seconds.items()}
    figures["most clicks"] = max(clicks.values())
    targets: dict[str, Target] = {
        "tasks": (">=", 15),
        "found": ("==", len(found)),
        "most clicks": ("<=", MOST_CLICKS),
    }
    finish("people", figures, targets)


if __name__ == "__main__":
    main()
