"""Homes with a real ledger and a real MLflow, whose versions answer users."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from daybreak.contract import params, records
from daybreak.contract.record_types import Dataset, Evaluation, Night, Plan, Training, Version
from daybreak.registry import register
from daybreak.rollout import promote
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.minimal_records import promotion
from tests.toy.nights import make_evaluation, make_night


def add_version(
    home: Path,
    number: int,
    *,
    weight: float = 1.0,
    promoted: bool = True,
    alter: Callable[[Path], str] | None = None,
) -> int:
    """Register the model of night `number`, and promote and close it if told; the version.

    `alter` may put other arrays, params and model into the night's folder; it returns the model's digest.
    """
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    folder = make_night(home, number, weight=weight)
    with contextlib.chdir(folder):
        training = records.read(Training, records.RUN)
        if alter:
            training = records.loads(
                Training, records.dumps(training).replace(training.model_digest, alter(folder))
            )
            records.write(training, records.RUN)
        night, settings = records.read(Night, records.RUN), params.load(Path())
        evaluation: Evaluation = make_evaluation(training.model_digest)
        version: Version = register.register(
            Home.here(),
            night,
            records.read(Dataset, records.RUN),
            plan=records.read(Plan, records.RUN),
            training=training,
            evaluation=evaluation,
            champion=champion,
            workload=settings.workload,
            train=settings.train,
            register=settings.register_,
        )
        records.write(version, records.RUN)
        if promoted:
            before = champion.version if champion else 0
            verdict = promotion(champion=before, challenger=version.number)
            for record in (evaluation, verdict):
                records.write(record, records.RUN)
            promote.promote(
                night,
                version,
                verdict,
                champion,
                workload=settings.workload,
                train=settings.train,
                home=Home.here(),
            )
    return version.number
