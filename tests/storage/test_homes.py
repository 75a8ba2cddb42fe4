"""The homes that share one Airflow, MLflow and router."""

import shutil
from pathlib import Path

import pytest

from daybreak import cli
from daybreak.contract.errors import ParamsError
from daybreak.contract.sections import ServingParams
from daybreak.extensions.router import server
from daybreak.storage import checkout, homes, mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log, log_url
from tests.conftest import make_repository


@pytest.fixture
def made(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A home that leads, with an MLflow, and two that have none yet."""
    for name in ("MLFLOW_TRACKING_URI", "DAYBREAK_LOG", "DAYBREAK_HOME"):
        monkeypatch.delenv(name, raising=False)
    folders = {
        name: make_repository(tmp_path / name, store=empty_store) for name in ("shop", "cards", "meters")
    }
    for name, folder in folders.items():
        text = (folder / "params.yaml").read_text()
        (folder / "params.yaml").write_text(f"{text}\nregister: {{name: {name}}}\n")
        if name != "shop":
            (folder / "var" / "mlflow.db").unlink()
    (folders["shop"] / "fleet.yaml").write_text("homes: [../cards, ../meters]\n")
    return folders


def test_a_home_without_a_fleet_is_by_itself(made: dict[str, Path]) -> None:
    (only,) = homes.join(made["cards"])
    assert (only.model, only.leads) == ("cards", True)
    assert mlflow_client.tracking_uri(Home(made["cards"])) == f"sqlite:///{made['cards'] / 'var/mlflow.db'}"
    assert mlflow_client.experiment_name(Home(made["cards"])) == "daybreak"


def test_members_keep_their_versions_in_one_mlflow_each_in_an_experiment_of_its_own(
    made: dict[str, Path],
) -> None:
    assert [home.model for home in homes.join(made["shop"])] == ["shop", "cards", "meters"]
    runs = {}
    for name, folder in made.items():
        assert mlflow_client.tracking_uri(Home(folder)) == f"sqlite:///{made['shop'] / 'var/mlflow.db'}"
        runs[name] = mlflow_client.run_of(Home(folder), "2026-11-24")  # the same night of each
        assert mlflow_client.run_of(Home(folder), "2026-11-24") == runs[name]
    assert len(set(runs.values())) == 3
    with mlflow_client.session(Home(made["cards"])) as client:
        names = {client.get_experiment(client.get_run(run).info.experiment_id).name for run in runs.values()}
        assert names == {"daybreak", "cards", "meters"}
        client.log_text(runs["cards"], "why", "reason.txt")
    assert (made["shop"] / "var" / "artifacts" / runs["cards"] / "artifacts" / "reason.txt").exists()


def test_members_know_the_places_of_artifacts_that_are_named_where_their_mlflow_is(
    made: dict[str, Path],
) -> None:
    homes.join(made["shop"])
    for name, places in (("shop", "[s3://team/mlflow]"), ("cards", "[s3://cards/old]")):
        text = (made[name] / "params.yaml").read_text()
        (made[name] / "params.yaml").write_text(
            text.replace(f"name: {name}}}", f"name: {name}, artifacts: {places}}}")
        )
    assert mlflow_client.locations(Home(made["cards"])).roots[1:] == ("s3://cards/old", "s3://team/mlflow")
    assert mlflow_client.locations(Home(made["shop"])).roots[1:] == ("s3://team/mlflow",)


def test_homes_that_share_an_experiment_have_runs_of_their_own_also_from_jobs_on_other_machines(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{made['shop'] / 'var/mlflow.db'}")
    params = made["cards"] / "params.yaml"
    params.write_text(params.read_text().replace("name: cards", "name: cards, experiment: Of a team"))
    assert mlflow_client.experiment_name(Home(made["cards"])) == "Of a team"
    runs = {name: mlflow_client.run_of(Home(folder), "2026-11-24") for name, folder in made.items()}
    assert len(set(runs.values())) == 3
    for name, folder in made.items():
        with pytest.MonkeyPatch.context() as elsewhere:
            for key, value in mlflow_client.environment(Home(folder)).items():
                elsewhere.setenv(key, value)
            assert mlflow_client.run_of(Home(tmp_path / "rented"), "2026-11-24") == runs[name]


def test_a_fleet_that_is_as_it_was_is_read_and_not_written(made: dict[str, Path]) -> None:
    homes.join(made["shop"])
    written = (made["cards"] / checkout.LEAD).stat().st_mtime_ns
    homes.join(made["shop"])
    assert (made["cards"] / checkout.LEAD).stat().st_mtime_ns == written


def test_a_copy_of_the_lead_takes_no_member_over(made: dict[str, Path], empty_store: Path) -> None:
    (made["cards"] / "var" / "mlflow.db").write_bytes(empty_store.read_bytes())
    homes.join(made["shop"])
    copy = Path(shutil.copytree(made["shop"], made["shop"].with_name("copy")))
    assert [home.model for home in homes.join(copy)] == ["shop"]
    assert all("is a member of" in fault for fault in homes.faults(copy))


def test_a_member_that_was_moved_joins_again_and_a_copy_of_one_does_not(made: dict[str, Path]) -> None:
    homes.join(made["shop"])
    made["cards"].rename(made["cards"].with_name("moved"))
    shutil.copytree(made["meters"], made["meters"].with_name("copy"))
    (made["shop"] / "fleet.yaml").write_text("homes: [../moved, ../copy]\n")
    assert [home.folder.name for home in homes.join(made["shop"])] == ["shop", "moved"]
    (fault,) = homes.faults(made["shop"])
    assert "copy is a copy of" in fault


def test_a_home_that_has_an_mlflow_of_its_own_keeps_it(made: dict[str, Path], empty_store: Path) -> None:
    (made["cards"] / "var" / "mlflow.db").write_bytes(empty_store.read_bytes())
    for _ in range(2):
        assert [home.own_registry for home in homes.join(made["shop"])] == [False, True, False]
    assert mlflow_client.tracking_uri(Home(made["cards"])) == f"sqlite:///{made['cards'] / 'var/mlflow.db'}"
    mlflow_client.reachable(Home(made["cards"]))
    assert mlflow_client.tracking_uri(Home(made["shop"])) == f"sqlite:///{made['shop'] / 'var/mlflow.db'}"


def test_of_two_homes_of_one_model_the_latter_is_left_out(made: dict[str, Path]) -> None:
    (made["meters"] / "params.yaml").write_text((made["cards"] / "params.yaml").read_text())
    assert [home.model for home in homes.join(made["shop"])] == ["shop", "cards"]
    (fault,) = homes.faults(made["shop"])
    assert "both train cards; give one another register.name" in fault


def test_a_folder_that_is_no_home_and_a_key_that_is_none_are_named(made: dict[str, Path]) -> None:
    (made["shop"] / "fleet.yaml").write_text("homes: [../nobody]\n")
    (fault,) = homes.faults(made["shop"])
    assert "../nobody is left out of the fleet: " in fault
    assert "nobody is not a home" in fault
    (made["shop"] / "fleet.yaml").write_text("homs: [../cards]\n")
    with pytest.raises(ParamsError, match=r"fleet\.yaml: homs: "):
        homes.join(made["shop"])


def test_a_member_with_broken_params_keeps_no_other_from_the_fleet(
    made: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (made["cards"] / "params.yaml").write_text("register: {name: [}\n")
    monkeypatch.chdir(made["shop"])
    assert cli.main(["fleet"]) == 78
    shown = capsys.readouterr().out
    assert "meters: " in shown and "cards: " not in shown
    assert checkout.membership(made["meters"]) and not checkout.membership(made["cards"])
    (warning,) = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
    assert warning.startswith("../cards is left out of the fleet: ")
    assert cli.main(["status", "--all"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line in made] == ["shop", "meters"]
    logs: list[Log] = []
    assert [name for name, _ in server._members(Home(made["shop"]), logs, token="", names=())] == ["meters"]
    for log in logs:
        log.close()


def test_a_member_whose_versions_another_lead_keeps_joins_no_second_fleet(made: dict[str, Path]) -> None:
    homes.join(made["shop"])
    (made["meters"] / "fleet.yaml").write_text("homes: [../cards]\n")
    with pytest.raises(ParamsError, match=r"is a member of .*shop, so it leads no fleet"):
        homes.join(made["meters"])
    (made["meters"] / checkout.LEAD).unlink()
    assert [home.model for home in homes.join(made["meters"])] == ["meters"]
    assert "by fleet.yaml or MLflow there" in homes.faults(made["meters"])[0]


def test_a_member_has_a_log_of_serving_of_its_own(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    homes.join(made["shop"])
    monkeypatch.setenv("DAYBREAK_LOG", "postgresql://serving@db/serving")
    assert log_url(ServingParams(), made["shop"]) == "postgresql://serving@db/serving"
    assert log_url(ServingParams(), made["cards"]).startswith(f"sqlite:///{made['cards']}")
