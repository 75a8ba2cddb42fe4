"""Whoever writes to MLflow runs no code: what the ledger does not know is neither served nor tried."""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
import types
import zipfile
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from safetensors.torch import save_file

from daybreak import runner
from daybreak.contract import params, records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Champion, Version
from daybreak.contract.sections import SmokeTestParams
from daybreak.data.partitions import CLEAN, held_out_days, part_of
from daybreak.evaluation import own_code
from daybreak.evaluation.scores import read_scores
from daybreak.evaluation.smoke_test import smoke_test
from daybreak.extensions.care.drill import drill
from daybreak.extensions.router.loading import VersionLoader
from daybreak.extensions.vertex import container
from daybreak.registry import carried_code
from daybreak.registry.host import NoAnswer
from daybreak.serving.recorded import NightArrays
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
from tests.toy.nights import FIRST, NUM_SAMPLES, files_of_version, make_arrays, make_night
from tests.toy.stages import Released

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]


@pytest.fixture
def files(home: Path, released: Released) -> Path:
    """The artifacts of version 1, which serves, as whoever writes to MLflow's store sees them."""
    released(1.0)
    return files_of_version(home, 1)


def load(home: Path, number: int = 1) -> Any:
    """Have a router load the version."""
    folder = home / "nights" / "2025-01-10"
    arrays = NightArrays("2025-01-10", folder / "data" / "arrays")
    with mlflow_client.session(Home.here()) as client:
        loader = VersionLoader("daybreak", home=Home(home), top=5, keep=10, answer_s=60)
        return loader.load(client, number, arrays=arrays)


def tag_as_it_is(client: MlflowClient, files: Path) -> None:
    """Have MLflow's own tags agree with what was changed."""
    digest = records.digest(files / "artifacts" / "model")
    client.set_model_version_tag("daybreak", "1", "model_digest", digest)
    client.set_model_version_tag("daybreak", "1", "files_digest", records.digest(files))


def name_a_callable(files: Path, spoils: Path) -> None:
    model = files / "artifacts" / "model" / "model.json"
    facts = json.loads(model.read_text())
    facts |= {"workload": "subprocess:Popen", "arguments": {"args": ["touch", str(spoils)]}}
    model.write_text(json.dumps(facts))


def change_what_mlflow_runs(files: Path, spoils: Path) -> None:
    served = files / "served.py"
    served.write_text(f"open({str(spoils)!r}, 'w')\n{served.read_text()}")


def change_the_code(files: Path, spoils: Path) -> None:
    archive = files / "code" / "code.zip"
    with zipfile.ZipFile(archive) as packed:
        texts = {name: packed.read(name) for name in packed.namelist()}
    texts["toy.py"] = f"open({str(spoils)!r}, 'w')\n".encode() + texts["toy.py"]
    with zipfile.ZipFile(archive, "w") as packed:
        for name, text in texts.items():
            packed.writestr(name, text)


def add_a_module(files: Path, spoils: Path) -> None:
    with zipfile.ZipFile(files / "code" / "code.zip", "a") as packed:
        packed.writestr("numpy.py", f"open({str(spoils)!r}, 'w')\n")


def add_a_module_beside_the_archive(files: Path, spoils: Path) -> None:
    """MLflow puts the folder on Python's path."""
    (files / "code" / "numpy.py").write_text(f"open({str(spoils)!r}, 'w')\n")


ATTACKS = [
    name_a_callable,
    change_what_mlflow_runs,
    change_the_code,
    add_a_module,
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_router_and_the_gate_run_nothing_that_was_put_into_a_version(
    home: Path, files: Path, tmp_path: Path, attack: Callable[[Path, Path], None]
) -> None:
    assert load(home).version == 1
    spoils = tmp_path / "spoils"
    attack(files, spoils)
    with mlflow_client.session(Home.here()) as client:
        tag_as_it_is(client, files)
    with pytest.raises(ReleaseError, match=r"the ledger says"):
        load(home)
    version, scores = records.read(Version, records.RUN), np.asarray(read_scores()["challenger"])
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert isinstance(champion, Champion)
    loads, rollback = smoke_test(Home.here(), version, champion, scores, SmokeTestParams())
    assert not loads.ok
    assert not rollback.ok
    assert "the ledger says" in loads.text
    assert not spoils.exists()


def test_a_file_that_the_ledger_does_not_name_is_not_fetched(home: Path, files: Path, tmp_path: Path) -> None:
    add_a_module_beside_the_archive(files, tmp_path / "spoils")
    assert load(home).of(["u1"])
    assert not (tmp_path / "spoils").exists()


@pytest.mark.usefixtures("files")
def test_versions_that_are_loaded_and_killed_leave_no_thread_in_the_router(home: Path) -> None:
    answers = load(home)
    before = threading.active_count()
    for _ in range(5):
        os.kill(answers.process.pid, signal.SIGKILL)
        while not answers.process.ended:
            with contextlib.suppress(NoAnswer):
                answers.process.thread.submit(answers.process.ask, "popular", top=1).result()
        answers = load(home)
    answers.process.thread.submit(answers.of, ["u1"]).result()
    while threading.active_count() > before + 1:  # the one that asks the newest
        time.sleep(0.01)


def change_the_weights(files: Path, spoils: Path) -> None:
    save_file({"weight": torch.tensor([7.0])}, files / "artifacts" / "model" / "model.safetensors")


def ways(home: Path, made: Champion, files: Path, root: Path) -> list[Callable[[], object]]:
    """How drill, own code, container and predict take version 1; ReleaseError where it is refused."""

    def drilled() -> None:
        model = next(iter(drill(Home.here(), params.load(home))))
        assert model.name == "model of version 1"
        if not model.ok:
            raise ReleaseError(model.text)

    def scored_by_own_code() -> None:
        with own_code.fetched(Home.here(), made, name="daybreak"):
            pass

    def served_in_a_container() -> None:
        asked = {"MODEL_DIGEST": made.model_digest, "FILES_DIGEST": made.files_digest}
        shutil.rmtree(root, ignore_errors=True)
        container.lay_out(asked | {"AIP_STORAGE_URI": str(files)}, root)

    def predicted() -> None:
        try:
            with contextlib.chdir(home / "nights" / made.night):
                runner.run(Home.here(), "predict", to=str(root.with_suffix(".csv")), version="1")
        except ReleaseError as error:
            if "is of Toy, which does not say whose lists to make" not in str(error):  # it was loaded
                raise

    return [drilled, scored_by_own_code, served_in_a_container, predicted]


def test_drill_own_code_container_and_predict_refuse_what_was_put_into_a_version(
    home: Path, files: Path, release: Any, tmp_path: Path
) -> None:
    """Each fetches by a way of its own, and compares with the ledger before it loads anything."""
    release(1, 1.0)
    os.chdir(home)
    made = ledger.champion_at(Home.here(), ledger.releases(Home.here())[-1].id)
    assert made and made.files_digest
    clean = part_of(date(2025, 1, 10), home / "nights" / "2025-01-10" / CLEAN)
    clean.parent.mkdir(parents=True)
    clean.touch()
    spoils, pristine = tmp_path / "spoils", tmp_path / "pristine"
    shutil.copytree(files, pristine)
    taken = ways(home, made, files, tmp_path / "root")
    for take in taken:
        take()
    for attack in (change_the_weights, change_the_code):
        attack(files, spoils)
        with mlflow_client.session(Home.here()) as client:
            tag_as_it_is(client, files)
        for take in taken:
            with pytest.raises(ReleaseError, match=r"the ledger says|is of model .*, not "):
                take()
        shutil.rmtree(files)
        shutil.copytree(pristine, files)
    assert not spoils.exists()


def test_an_archive_that_holds_a_pickle_or_is_none_is_refused(files: Path) -> None:
    archive = files / "code" / "code.zip"

    def verify() -> None:
        model_digest, files_digest = records.digest(files / carried_code.MODEL), records.digest(files)
        carried_code.verify(files, model_digest=model_digest, files_digest=files_digest, uri="here")

    verify()
    with zipfile.ZipFile(archive, "a") as packed:
        packed.writestr("team/words.pkl", b"")
    with pytest.raises(ReleaseError, match=r"holds team/words.pkl, which may be a pickle"):
        verify()
    archive.write_bytes(b"PK")
    with pytest.raises(ReleaseError, match=r"code.zip of the version cannot be read: File is not a zip file"):
        verify()


def test_a_version_that_no_night_made_is_not_served(home: Path, files: Path) -> None:
    with mlflow_client.session(Home.here()) as client:
        made = client.create_model_version("daybreak", str(files), tags={"night": "2025-01-10"})
    assert int(made.version) == 2
    with pytest.raises(ReleaseError, match="made version 2 of daybreak"):
        load(home, 2)


def test_a_version_scores_some_of_the_held_out_days_by_its_own_code_which_may_write_nothing_there(
    home: Path, released: Released
) -> None:
    released(1.0)
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert champion
    os.chdir(make_night(home, 1, weight=1.0, champion=champion))
    make_arrays(Path("data/arrays"), FIRST + timedelta(days=3), num_days=4)
    days = held_out_days()[2:]
    with own_code.fetched(Home.here(), champion, name="daybreak") as folder:
        columns = own_code.columns(Home.here(), champion, folder, arm="champion", days=days, batch_size=64)
    assert len(columns["champion"]) == NUM_SAMPLES // 2


def test_a_version_is_answered_by_its_own_code_after_the_checkout_was_edited(
    home: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "toy", types.ModuleType("toy"))  # there is no Toy in it any more
    assert load(home).of(["u1"])
