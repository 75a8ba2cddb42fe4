"""What does a network that learned from a bag's simulations come to, beside a linear model and its reference?

A home of the example (pipeline/daybreak/examples/molecules/) by the commands of its README: a bag for each
day, then a night that must promote. Its champion is held against trajectories that no bag has: their seeds
are of another day. The linear model has the same distances in the same basis, and the same training frames.

A roll-out keeps the energy of the network's own potential if that is smooth; that the reference agrees is
seen from the reference's energy of the same moments, which is constant only where the network's forces are
right.

In full, a second night learns from a bag more, in two homes that are alike until then: in one half of its
runs begin where the champion is unsure, in the other all as ever. Another bag, alike in both, is the held-out
day of that night. Both networks are trained cold on as many frames, and held against fresh trajectories that
are hotter than any run begins by itself.

Lifetimes, costs and real preemptions of bags are what `bench_bag.py` measures; here one machine of a bag is
killed, and its run must leave the same frames as one that nobody disturbed.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks import frame
from daybreak.contract import records
from daybreak.contract.record_types import Evaluation, Training, Verdict
from daybreak.extensions.bag.folder import BAGS
from daybreak.registry.weights import load_model

EXAMPLE = frame.ROOT / "pipeline/daybreak/examples/molecules"
sys.path.insert(0, str(EXAMPLE))
import copper  # noqa: E402
import molecular_dynamics  # noqa: E402
import molecules  # noqa: E402
import next_runs  # noqa: E402
import simulate  # noqa: E402
from pair_potential import PairPotential  # noqa: E402

NUM_DAYS, RUNS, NEEDED = (2, 9, 8) if frame.QUICK else (4, 14, 12)
DAYS = [date(2026, 3, day) for day in range(1, NUM_DAYS + 1)]  # a night holds out the last
MORE, HELD_OUT = date(2026, 3, NUM_DAYS + 1), date(2026, 3, NUM_DAYS + 2)  # of the second night
FRESH, HOT = date(2026, 6, 1), date(2026, 6, 2)  # days of no bag
NUM_FRESH = 8 if frame.QUICK else 24
HOT_K = 1500.0
SETS = ["profile.batch_sizes=[16]", "smoke_test.samples=20", "train.batch_size=16", "train.cold_every=1"]
EPOCHS = 40 if frame.QUICK else 20
LOOKUPS = 1e8  # steps of simulations that the network is to replace
STATED_DRIFT = 5.0  # meV an atom, over 1,000 steps
REFERENCE_EVERY = 50  # steps


def begun(folder: Path) -> Path:
    """A home, by the first commands of the README."""
    begin = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.S)[0]
    begin = begin.replace("~/", f"{folder}/").replace(
        "git commit", "git -c user.name=bench -c user.email=bench@example.org commit"
    )
    shell(begin, frame.ROOT)
    for key, value in (("user.name", "A Benchmark"), ("user.email", "bench@example.org")):
        subprocess.run(["git", "config", key, value], cwd=folder / "molecules", check=True)
    return folder / "molecules"


def shell(script: str, folder: Path) -> str:
    """What a script printed, once it ended well."""
    environment = frame.environment(folder) | {"PYTHONPATH": str(frame.ROOT)}
    environment.pop("DAYBREAK_HOME")
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{script}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def bag(home: Path, day: date) -> dict[str, Any]:
    """A day's bag, and what it came to."""
    words = f"python simulate.py --day {day} --seed {{seed}} --out {{folder}}"
    command = f"daybreak bag {shlex.quote(words)} --name {day} --runs {RUNS} --needed {NEEDED}"
    outcome: dict[str, Any] = json.loads(shell(f"{command} --machines 2 --json", home))["outcome"]
    return outcome


def night(home: Path, day: date) -> Path:
    """The night of a day; its folder."""
    words = [f"--set {shlex.quote(each)}" for each in [*SETS, f"train.epochs={EPOCHS}"]]
    shell(f"daybreak night --night {day} --day {day} {' '.join(words)}", home)
    folder = home / "nights" / str(day)
    verdict = records.read(Verdict, folder / records.RUN)
    print(f"{home.parent.name}, {day}: {verdict.action}, {verdict.reason}", file=sys.stderr)
    return folder


def killed_bag(home: Path, day: date) -> dict[str, Any]:
    """Runs a bag, kills a machine during the first run, and returns the outcome."""
    folder = home / BAGS / str(day)

    def kill() -> None:
        while not list(folder.glob("work/*")):
            time.sleep(0.05)
        with suppress(FileNotFoundError, ProcessLookupError):
            os.killpg(int((folder / "leases/0001/pid").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    return bag(home, day)


def fresh(day: date, temperature: float | None = None) -> dict[str, torch.Tensor]:
    """Frames of trajectories of another day, as a batch; all of that temperature where one is named."""
    starts = [(temperature, None) if temperature else simulate.begin(day, seed) for seed in range(NUM_FRESH)]
    rows = pa.concat_tables([simulate.simulate(day, seed, *start) for seed, start in enumerate(starts)])
    batch = {
        name: torch.tensor(rows[name].to_pylist(), dtype=torch.float32)
        for name in ("positions", "velocities", "temperature", "energy_and_forces")
    }
    return batch | {"frame": torch.tensor(rows["frame"].to_pylist())}


def trained(home: Path, days: Sequence[date]) -> dict[str, torch.Tensor]:
    """The frames of these days' bags, of which the linear model learns."""
    paths = [path for day in days for path in (home / BAGS / str(day)).glob("seeds/*/frames.parquet")]
    rows = pa.concat_tables([pq.read_table(path) for path in paths])
    return {
        name: torch.tensor(rows[name].to_pylist(), dtype=torch.float32)
        for name in ("positions", "energy_and_forces")
    }


def force_error(model: Any, batch: dict[str, torch.Tensor]) -> float:
    """The mean absolute error of the components of forces, meV per Angstrom."""
    with torch.inference_mode():
        return -float(molecules.Molecules().score(model, batch).mean())


def rolled_out(model: Any, batch: dict[str, torch.Tensor]) -> tuple[list[float], list[float]]:
    """Drift of 1,000 steps of each trajectory, and of the reference's energy of these, meV an atom."""
    first = batch["frame"] == 0
    place, speed = (molecules.atoms(batch[name][first]) for name in ("positions", "velocities"))
    moments = list(molecular_dynamics.rolled_out(model, place, speed, steps=molecular_dynamics.STEPS))
    energy = torch.stack([moment.energy for moment in moments])
    own = (energy - energy[0]).abs().amax(dim=0)
    theirs = np.array(
        [
            [
                reference_energy(positions.numpy(), velocities.numpy())
                for positions, velocities in zip(moment.positions, moment.velocities, strict=True)
            ]
            for moment in moments[::REFERENCE_EVERY]
        ]
    )
    moved = np.abs(theirs - theirs[0]).max(axis=0)
    scale = molecules.MEV / copper.NUM_ATOMS
    return (scale * own).tolist(), (scale * moved).tolist()


def reference_energy(positions: Any, velocities: Any) -> float:
    """Kinetic and potential energy by the reference, eV."""
    atoms = simulate.cluster(0.0, positions, np.random.default_rng(0))
    atoms.set_velocities(velocities)
    return float(atoms.get_total_energy())


def in_two_ways(folder: Path, home: Path) -> dict[str, float]:
    """Errors on hot trajectories after a bag more, begun where the champion was unsure, or as ever.

    Both networks are judged against the champion of the first night, its guardrails included.
    """
    hot, promoted = fresh(HOT, HOT_K), 0
    errors: dict[str, float] = {}
    (folder / "other").mkdir()
    other = begun(folder / "other")
    shell(f"mkdir -p var && cp -r {home}/{BAGS} var/", other)
    night(other, DAYS[-1])
    shell(f"python next_runs.py --day {MORE} --runs {NEEDED // 2}", home)
    for name, where in (("unsure", home), ("as ever", other)):
        bag(where, MORE)
        bag(where, HELD_OUT)
        run_of = night(where, HELD_OUT) / records.RUN
        promoted += records.read(Verdict, run_of).action == "promote"
        model = load_model(molecules.Molecules(), run_of / "model")
        errors[f"{HOT_K:.0f} K, a bag more, {name}: force error, meV/A"] = force_error(model, hot)
    return {**errors, "second nights, against a champion, that promote, of 2": promoted}


def main() -> None:
    """Bags, a night, and its champion on fresh trajectories."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        home = begun(Path(scratch))
        outcomes = [killed_bag(home, DAYS[0]), *(bag(home, day) for day in DAYS[1:])]
        seed = min(int(path.name) for path in (home / BAGS / str(DAYS[0]) / "seeds").iterdir())
        again = pq.read_table(home / BAGS / str(DAYS[0]) / f"seeds/{seed}/frames.parquet")
        run_of = home / "nights" / str(DAYS[-1]) / records.RUN
        night(home, DAYS[-1])
        verdict, evaluation = (records.read(kind, run_of) for kind in (Verdict, Evaluation))
        training = records.read(Training, run_of)
        model = load_model(molecules.Molecules(), run_of / "model")
        batch, learned = fresh(FRESH), trained(home, DAYS[:-1])
        pair = PairPotential.fitted(molecules.atoms(learned["positions"]), learned["energy_and_forces"])
        reference = batch["energy_and_forces"][:, 1:]
        linear = pair.forces(molecules.atoms(batch["positions"])).flatten(1)
        error, size = force_error(model, batch), molecules.MEV * float(reference.abs().mean())
        of_pair = molecules.MEV * float((linear - reference).abs().mean())
        own, moved = rolled_out(model, batch)
        spread = next_runs.spread(model, molecules.atoms(batch["positions"]))
        with torch.inference_mode():
            each = -molecules.Molecules().score(model, batch).numpy()
        ref_ms, alone_ms, together_ms = next_runs.step_ms(model, molecules.atoms(batch["positions"]))
        steps = len(outcomes[:-1]) * NEEDED * (simulate.SETTLE_STEPS + copper.FRAMES * simulate.STEPS_APART)
        made_s, learn_s = steps * ref_ms / 1000, training.elapsed_s
        whole_s = made_s + learn_s + LOOKUPS * together_ms / 1000
        figures = {
            "nights that promote": float(verdict.action == "promote"),
            "bags with enough runs": sum(outcome["num_done"] >= NEEDED for outcome in outcomes),
            "machines lost, of one that was killed": sum(outcome["num_preempted"] for outcome in outcomes),
            "a run gives the same frames again": float(
                again.equals(simulate.simulate(DAYS[0], seed, *simulate.begin(DAYS[0], seed)))
            ),
            "training frames": len(learned["positions"]),
            "force error on fresh trajectories, meV/A": error,
            "of the mean force, %": 100 * error / size,
            "force error of the linear model, meV/A": of_pair,
            "network over linear model": error / of_pair,
            "the gate's force error, meV/A": -evaluation.metrics["score"],
            "the gate's energy drift, meV an atom": evaluation.metrics["energy drift"],
            "drift of 1,000 steps, mean, meV an atom": float(np.mean(own)),
            "drift of 1,000 steps, worst, meV an atom": max(own),
            "reference's energy along these, mean, meV an atom": float(np.mean(moved)),
            "reference's energy along these, worst, meV an atom": max(moved),
            "correlation of spread and error": float(np.corrcoef(spread, each)[0, 1]),
            "ms of CPU a step, reference": ref_ms,
            "ms of CPU a step, network": alone_ms,
            f"ms of CPU a step, network, {next_runs.TOGETHER} at once": together_ms,
            "speed-up of a step, alone": ref_ms / alone_ms,
            f"speed-up of a step, {next_runs.TOGETHER} at once": ref_ms / together_ms,
            f"effective speed-up, {LOOKUPS:.0e} steps, {next_runs.TOGETHER} at once": (
                (steps + LOOKUPS) * ref_ms / 1000 / whole_s
            ),
        }
        if not frame.QUICK:
            figures[f"{HOT_K:.0f} K, before: force error, meV/A"] = force_error(model, fresh(HOT, HOT_K))
            figures |= in_two_ways(Path(scratch), home)
    frame.finish(
        "molecules",
        figures,
        {
            "nights that promote": ("==", 1.0),
            "bags with enough runs": ("==", len(DAYS)),
            "a run gives the same frames again": ("==", 1.0),
            "network over linear model": ("<=", 0.5),
            "drift of 1,000 steps, worst, meV an atom": ("<=", STATED_DRIFT),
        },
    )


if __name__ == "__main__":
    main()
