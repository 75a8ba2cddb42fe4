"""Computes the intervals between checkpoints if the hazard changes with age, by a dynamic program.

With J of work left on a machine of age t, saving after i costs (Kadupitiya et al., HPDC'20)

    E[M(J, t)] = min over i of
        P_ok (i + save + E[M(J - i, t + i + save)]) + P_fail (E[lost] + restart + E[M(J, 0)])

where P_fail = (F(t + i + save) - F(t)) / (1 - F(t)), and after a failure a machine of age 0 goes on. E[M(J,
0)] is on both sides: for t = 0 the equation is solved for it, and used at all other ages. For a memoryless
lifetime the intervals are equal, and Young's `losses.checkpoint_interval_s` needs no program.
"""

from dataclasses import dataclass

from daybreak.extensions.spot.survival import Lifetime, survival

NUM_STEPS = 300  # of the grid: one minute each for five hours
LEAST_STEP_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Work between checkpoints, and the mean time of all of it, failures and saves included."""

    intervals_s: tuple[float, ...]
    expected_s: float


def schedule(
    lifetime: Lifetime, *, work_s: float, save_s: float, restart_s: float, age_s: float = 0.0
) -> Schedule:
    """Returns the intervals at which to save so that the work takes least time on average.

    They hold until the machine is lost; `age_s` is the age of the machine when the work goes on.
    """
    import numpy as np
    from numpy.lib.stride_tricks import as_strided

    step_s = max(LEAST_STEP_S, work_s / NUM_STEPS)
    jobs = max(1, round(work_s / step_s))
    step_s = work_s / jobs
    save = round(save_s / step_s)  # in steps, for the age only: the cost uses the exact time
    first = round(age_s / step_s)
    # Machines beyond the last age count as of that age: only their hazard there matters.
    ages = min(first + jobs * (1 + save) + 1, 8 * NUM_STEPS)
    width = ages + jobs * (1 + save) + 1
    alive = np.maximum(survival(lifetime, np.arange(width + 1, dtype=np.float64) * step_s), 1e-300)
    area = np.append(0.0, np.cumsum((alive[1:] + alive[:-1]) / 2)) * step_s
    i = np.arange(1, jobs + 1)[:, None]
    a = np.arange(ages)[None, :]
    then = np.minimum(a + i + save, width)
    ok = alive[then] / alive[a]
    takes_s = i * step_s + save_s
    # P_fail E[lost] by parts: the area under the survival, less the rectangle of those that survived.
    lost_s = np.maximum((area[then] - area[a]) / alive[a] - (then - a) * step_s * ok, 0.0)
    cost_s = ok * takes_s + lost_s + (1 - ok) * restart_s
    best = np.zeros((jobs + 1, width + 1))
    choice = np.zeros((jobs + 1, ages), dtype=int)
    row, column = best.strides
    for j in range(1, jobs + 1):
        # Row i holds best[j - i, a + i + save] for all ages a: one step up and one to the right in memory.
        after = as_strided(best[j - 1, 1 + save :], shape=(j, ages), strides=(column - row, column))
        total = cost_s[:j] + ok[:j] * after
        fresh = np.min(total[:, 0] / ok[:j, 0])
        total += (1 - ok[:j]) * fresh
        choice[j] = np.argmin(total, axis=0)
        best[j, :ages] = total[choice[j], np.arange(ages)]
        best[j, ages:] = best[j, ages - 1]
    intervals, age, left = [], min(first, ages - 1), jobs
    expected_s = float(best[jobs, age])
    while left:
        chosen = int(choice[left, min(age, ages - 1)]) + 1
        intervals.append(chosen * step_s)
        left, age = left - chosen, age + chosen + save
    return Schedule(intervals_s=tuple(intervals), expected_s=expected_s)
