"""Measures a job on the machine that it was sent to: `python -m daybreak.profiling.profile_job FOLDER`.

FOLDER holds `job.json` (a Request); `profile.json` is written there, and errors go to errors.jsonl, as with a
training worker. The job is one process, without torchrun.
"""

import sys
from pathlib import Path

from daybreak.contract import records
from daybreak.profiling.profile_stage import ProfileRequest
from daybreak.storage.home import Home
from daybreak.training import gpus, supervision
from daybreak.training.termination import die_with_parent


def main(folder: Path) -> None:
    """Measures the job described in `folder`, and writes profile.json there."""
    die_with_parent()
    sys.excepthook = lambda kind, error, trace: supervision.leave_error(folder, 0, error)
    gpus.check()
    from daybreak.profiling import profiler  # torch takes seconds to import

    path = folder / "job.json"
    request = records.loads(ProfileRequest, path.read_text(), source=str(path))
    profile = profiler.profile(
        Home.here_or_none(),
        request.dataset,
        request.workload.make(),
        request.profile,
        request.train,
        limit_s=request.limit_s,
    )
    records.write(profile, folder)


if __name__ == "__main__":
    supervision.set_up_process()
    main(Path(sys.argv[1]))
