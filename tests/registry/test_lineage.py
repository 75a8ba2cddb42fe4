"""A recipe that a person declares to be the champion's is refreshed, and the ledger says why."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from daybreak import cli
from daybreak.contract import params
from daybreak.contract.record_types import Ingredients
from daybreak.contract.sections import Params, TrainParams, WorkloadPlug
from daybreak.registry import lineage
from daybreak.registry.lineage import differences, is_declared_equal, is_refresh, recipe
from daybreak.storage import branch, ledger, ledger_notes
from daybreak.storage.home import Home
from daybreak.storage.source_code import source_digest
from tests.dags.servers import IDENTITY
from tests.storage.ledgers import import_nights

SECTIONS = """\
source: a.b:C
workload: {use: "daybreak.examples.shop.regression:Regression"}
backend: a.b:C
"""


@pytest.mark.slow
def test_an_edit_that_changes_nothing_is_declared_so_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["init", "--quiet"], [*IDENTITY, "commit", "--quiet", "--allow-empty", "--message=Begin"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    import_nights(tmp_path, 4)
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    (tmp_path / "params.yaml").write_text(SECTIONS)
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert champion is not None
    tonight = params.load(tmp_path)
    asked = tonight.workload, tonight.train
    assert not is_refresh(champion, *asked)
    assert not is_declared_equal(Home.here(), champion, *asked)
    assert cli.main(["same-recipe", "--reason", "a comment was added"]) == 0
    said = f"the recipe was declared to be that of version {champion.version}: a comment was added"
    assert said in capsys.readouterr().out
    assert [note.text for note in ledger_notes.read(Home.here())] == [said]
    assert is_declared_equal(Home.here(), champion, *asked)
    use = {"use": "daybreak.examples.shop.regression:Regression", "hidden": 64}
    wider = params.check({"source": "a.b:C", "backend": "a.b:C", "workload": use})
    assert not is_declared_equal(Home.here(), champion, wider.workload, wider.train)


def test_files_and_values_that_make_another_recipe_are_named() -> None:
    before = Ingredients(
        files={"team/model.py": "1", "team/risk.json": "2", "team/old.py": "3", "team/same.py": "4"},
        values={"workload.use": "team.model:M", "train.epochs": 9.0},
    )
    now = Ingredients(
        files={"team/model.py": "5", "team/risk.json": "6", "team/new.py": "3", "team/same.py": "4"},
        values={"workload.use": "team.model:M", "train.epochs": 6.0, "workload.hidden": 64},
    )
    assert differences(before, now) == [
        "team/old.py removed",
        "team/model.py edited",
        "team/new.py added",
        "team/risk.json edited",
        "train.epochs 9.0 -> 6.0",
        "workload.hidden unset -> 64",
    ]
    assert differences(before, before) == []


# The keys of `train` in 0.1.0 that decide the model. A key that is added later goes to `lineage.ADDED`.
TRAIN = (
    '{"epochs":3.0,"batch_size":64,"batch_by":"samples","threads":"fixed","batching":"auto","sync":"every_update","sync_every":32,"seed":0,'
    '"rate":0.002,"scaling":"by_optimizer","batch_growth":"none","warmup":0.05,"decay":0.5,"schedule":"stable",'
    '"precision":"auto","clip_norm":null,"clip_value":null,"ema":null,"average_last":0.0,"validation":0.0,"patience":null,"cold_every":7,'
    '"warm_share":0.1,"warm_epochs":1.0,"warm_rate":0.0005,"carry_optimizer":false,"band_rate":0.0,"follow_memory":"same_gradient",'
    '"checkpoints":"","hang_after_s":120.0}'
)


def test_the_default_recipe_stays_what_it_was_so_that_an_upgrade_goes_on_refreshing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use = "tests.fakes:Nothing"
    tonight = Params(**dict.fromkeys(("source", "workload", "backend"), use))

    def digest(train: str) -> str:
        parts = (tonight.workload.model_dump_json(), train, source_digest(use))
        return hashlib.md5("\n".join(parts).encode(), usedforsecurity=False).hexdigest()

    assert recipe(tonight.workload, tonight.train) == digest(TRAIN)
    threads = tonight.train.model_copy(update={"threads": "auto"})
    assert recipe(tonight.workload, threads) != recipe(tonight.workload, tonight.train)
    monkeypatch.setattr(lineage, "ADDED", ("threads",))  # as if a later release had added it
    assert recipe(tonight.workload, tonight.train) == digest(TRAIN.replace('"threads":"fixed",', ""))
    assert recipe(tonight.workload, threads) == digest(TRAIN.replace("fixed", "auto"))


def test_the_order_of_a_workloads_arguments_is_no_part_of_its_recipe() -> None:
    use, train = "tests.fakes:Nothing", TrainParams()
    one, other = WorkloadPlug(use=use, width=8, depth=2), WorkloadPlug(use=use, depth=2, width=8)
    assert recipe(one, train) == recipe(other, train)
    assert recipe(one, train) != recipe(WorkloadPlug(use=use, width=2, depth=8), train)
