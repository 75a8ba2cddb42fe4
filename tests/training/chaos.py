"""What is left of jobs whose workers are killed? `python -m tests.training.chaos FOLDER KILLS SEED`.

Workers are killed by SIGKILL, and started again as torchrun would; see forked.py for what is counted.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from daybreak.training.checkpoint_copies import CheckpointCopies
from tests.training.forked import Job, Seen, Strikes

INTO_A_START_S = 0.2  # at most, for a kill
INTO_TRAINING_S = 0.4
INTO_A_SAVE_S = 0.01
KILLS_A_JOB = 12
DAMAGED = 0.3  # share of the starts after which a checkpoint is damaged, if there are two


def at_random(chance: random.Random) -> Strikes:
    """Kills a worker or all workers at start, in training, or, half of the times, during a save."""
    when = chance.choice(("starts", "trains", "saves", "saves"))
    wait_s = chance.uniform(0, INTO_A_START_S if when == "starts" else INTO_TRAINING_S)
    into_a_save_s = chance.uniform(0, INTO_A_SAVE_S)
    all_of_them, whom = chance.random() < 0.5, chance.random()
    since: list[float] = []

    def strike(job: Job, workers: list[int]) -> bool:
        if not since and (when == "starts" or job.trains):
            since.append(time.monotonic())
        if not since or time.monotonic() < since[0] + wait_s:
            return False
        if when == "saves":
            if not any(job.checkpoints.glob(".seen=*")):
                return False
            time.sleep(into_a_save_s)
        for pid in workers if all_of_them else [workers[int(whom * len(workers))]]:
            os.kill(pid, signal.SIGKILL)
        return True

    return strike


def once_saved(job: Job, workers: list[int]) -> bool:
    """Kill all workers as soon as there is a new checkpoint."""
    if not any(int(path.name[5:]) > job.due for path in job.checkpoints.glob("seen=*")):
        return False
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    return True


def once_copied(job: Job, workers: list[int]) -> bool:
    """Kill them as soon as there is a copy of a checkpoint."""
    if not any(head.read_bytes() for head in job.copies.glob("**/heads/*1.json")):
        return False
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    return True


def alone(folder: Path, world_size: int, **arguments: Any) -> dict[str, Any]:
    """The end of a job that nothing happens to."""
    job = Job.of_curve(folder, seen=Seen(), **arguments)
    job.start(world_size)
    assert job.result, (folder / "output.log").read_text()
    return job.result


def killed(folder: Path, *, kills: int, seed: int) -> Seen:
    """Jobs of one worker and of two in turn, killed so many times together, and brought to their end."""
    chance, seen = random.Random(seed), Seen()
    due = {size: alone(folder / f"alone-{size}", size) for size in (1, 2)}
    number = 0
    while seen.kills < kills:
        number += 1
        world_size = 1 + number % 2
        job = Job.of_curve(folder / f"job-{number}", seen=seen, seed=number)
        until = min(kills, seen.kills + KILLS_A_JOB)
        while not job.result:
            left_alone = seen.kills >= until
            job.start(world_size, None if left_alone else at_random(chance))
            assert job.result or not left_alone, (job.folder / "output.log").read_text()[-2000:]
            if chance.random() < DAMAGED:
                job.damage()
        same = [job.result[key] == due[world_size][key] for key in ("model_digest", "epochs")]
        seen.not_bit_equal += not all(same)
        seen.jobs += 1
    return seen


def resized(folder: Path, sizes: tuple[int, ...]) -> float:
    """The largest difference between the weights of a job on so many workers in turn, and of one alone.

    Each is killed once it has saved. All samples are trained on once per epoch, or the ledgers differ.
    """
    from safetensors.torch import load_file

    due = alone(folder / "alone", 1, dropout=0.0)
    job = Job.of_curve(folder / "resized", seen=Seen(), dropout=0.0)
    for size in sizes:
        job.start(size, once_saved)
        assert not job.result
    assert (job.seen.kills, job.seen.from_another) == (len(sizes), 0)
    job.start(1)
    assert job.result and job.result["epochs"] == due["epochs"]
    one, other = (load_file(folder / name / "model/model.safetensors") for name in ("alone", "resized"))
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def moved(folder: Path) -> bool:
    """Returns whether a job that lost machine and disk goes on from a copy, and ends as if undisturbed."""
    due, job = alone(folder / "alone", 1), Job.of_curve(folder / "moved", seen=Seen(), copied=True)
    job.start(1, once_copied)
    shutil.rmtree(job.checkpoints)
    (heads,) = job.copies.glob("**/heads")
    job.due = max(int(copy[5:20]) for copy in CheckpointCopies(str(heads.parent)).copies())
    job.start(1)
    assert job.result and job.seen.from_another == 0
    return bool(job.result["model_digest"] == due["model_digest"])


def main(folder: Path, *, kills: int, seed: int) -> None:
    """Print what was seen as JSON."""
    import torch

    torch.set_num_threads(1)  # threads would not survive the fork
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first one imports the compiler
    seen = asdict(killed(folder, kills=kills, seed=seed))
    seen["resized_apart"] = resized(folder / "sizes", (1, 2, 4, 3, 1))
    seen["moved"] = moved(folder / "machines")
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), kills=int(sys.argv[2]), seed=int(sys.argv[3]))
