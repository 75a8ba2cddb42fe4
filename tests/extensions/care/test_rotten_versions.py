"""A version whose files rot in MLflow is named by `audit --deep`, and put back from versions like it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daybreak import cli
from daybreak.contract import records
from daybreak.contract.record_types import Night, Training, Version
from daybreak.contract.sections import Params
from daybreak.extensions.care import repair
from daybreak.registry.register import register_refit
from daybreak.storage import ledger
from daybreak.storage.home import Home
from tests.extensions.care.test_repair import flip
from tests.toy.nights import files_of_version

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]


@pytest.fixture
def files(home: Path, release: Any, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of two versions, which carry the same code, in MLflow's store."""
    release(0, 0.2)
    release(1, 1.0)
    monkeypatch.chdir(home)
    return [files_of_version(home, number) for number in (1, 2)]


def test_code_that_rots_is_put_back_and_what_is_a_versions_own_is_said_to_be_lost(
    files: list[Path], settings: Params, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", "--deep"]) == 0
    assert "ok   versions: all are whole" in capfd.readouterr().out
    archive = files[1] / "code" / "code.zip"
    content = archive.read_bytes()
    flip(archive)
    assert cli.main(["audit"]) == 0
    assert cli.main(["audit", "--deep"]) == 1
    assert "FAIL versions: version 2: " in capfd.readouterr().out
    assert cli.main(["repair"]) == 0
    assert "ok   repaired: version 2: " in capfd.readouterr().out
    assert archive.read_bytes() == content
    described = files[0] / "MLmodel"
    content = described.read_bytes()
    described.write_text("")
    (check,) = repair.repair(Home.here(), settings)
    assert check.ok
    assert check.text.endswith("from DVC's cache, its record and other versions")
    assert described.read_bytes() == content  # no other version has it, but the ledger does
    for version in files:
        (version / "served.py").unlink()
    check = next(iter(repair.repair(Home.here(), settings)))
    assert not check.ok
    assert "version 2: " in check.text
    assert "bring MLflow's artifacts back from a backup" in check.text


def test_a_refit_is_put_back_and_the_version_judged_in_the_same_run_is_left_alone(
    home: Path, settings: Params, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(0, 0.2)
    monkeypatch.chdir(home)
    judged, night = files_of_version(home, 1), next((home / "nights").iterdir())
    monkeypatch.chdir(night)
    version, model = records.read(Version, records.RUN), Path("refit/model")
    shutil.copytree("data/run/model", model)
    with (model / "model.json").open("a") as file:
        file.write("\n")
    training = replace(records.read(Training, records.RUN), model_digest=records.digest(model))
    made = register_refit(
        Home.here(),
        version,
        night=records.read(Night, records.RUN),
        model=model,
        training=training,
        workload=settings.workload,
        train=settings.train,
    )
    monkeypatch.chdir(home)
    monkeypatch.setattr(ledger, "versions", lambda home: [version, made])
    refit = files_of_version(home, made.number)
    assert refit.name == "refitted"
    before = records.digest(judged)
    (refit / "served.py").unlink()
    (judged / "kept").write_text("as it was")
    (check,) = repair._versions(Home.here(), settings)
    assert check.ok
    assert (refit / "served.py").is_file()
    (judged / "kept").unlink()
    assert records.digest(judged) == before
