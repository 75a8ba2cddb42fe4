"""compose.yaml has the right structure, as no Docker engine runs here, and its commands really run."""

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from ruamel.yaml import YAML

from daybreak import with_secrets
from daybreak.contract.errors import ParamsError
from tests.postgres import postgresql

ROOT = Path(__file__).parents[1]
COMPOSE = YAML(typ="safe").load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if name != "postgres"}
# Who holds which secret: postgres makes the roles, and the scheduler runs the stages.
HOLDS = {
    "postgres": {"postgres", "airflow_database", "mlflow_database", "serving_database"},
    "mlflow": {"mlflow_database", "mlflow_admin", "mlflow_key"},
    "mlflow-reader": {"mlflow_admin", "mlflow_reader"},
    "airflow-migrate": {"airflow_database"},
    "airflow-api": {"airflow_database", "airflow_fernet", "airflow_key", "airflow_jwt"},
    "airflow-scheduler": {"airflow_database", "airflow_jwt", "serving_database", "mlflow_admin"},
    "airflow-dag-processor": {"airflow_database"},
    "airflow-triggerer": {"airflow_database"},
    "airflow-logs": set(),
    "serving": {"serving_database", "serving_token", "mlflow_reader"},
    "pages": {"pages_token"},
}


def test_compose_and_cloudbuild_are_files_of_their_published_schemas() -> None:
    check = str(Path(sys.executable).with_name("check-jsonschema"))
    for schema, *files in (
        ("compose-spec", "compose.yaml", "compose/gpu.yaml"),
        ("cloudbuild", "cloudbuild.yaml"),
    ):
        words = [check, "--builtin-schema", f"vendor.{schema}", *files]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_compose_starts_every_service_again_that_ends() -> None:
    again = {name: service["restart"] for name, service in SERVICES.items()}
    assert {again.pop(name) for name in ("airflow-migrate", "mlflow-reader")} == {"on-failure"}  # done once
    assert set(again.values()) == {"unless-stopped"}
    assert {f"airflow-{name}" for name in ("api", "scheduler", "dag-processor", "triggerer")} < set(again)


def test_each_service_holds_its_own_secrets_and_uses_all_that_it_holds() -> None:
    assert {name: set(service["secrets"]) for name, service in SERVICES.items()} == HOLDS
    for name, service in OURS.items():
        assert set(with_secrets.SECRET.findall(json.dumps(service["environment"]))) == HOLDS[name]
        assert service["entrypoint"] == ["tini", "--", "python", "-m", "daybreak.with_secrets"]
    assert set(COMPOSE["secrets"]) == set().union(*HOLDS.values())


def test_no_password_stands_in_compose_and_none_has_a_default() -> None:
    text = (ROOT / "compose.yaml").read_text()
    assert "${DAYBREAK_SECRETS:?" in text
    assert all(kept["file"].startswith("${DAYBREAK_SECRETS") for kept in COMPOSE["secrets"].values())
    interpolated = set(re.findall(r"\$\{(\w+)", text))
    assert interpolated == {"UID", "DEVICE", "DAYBREAK_SECRETS", "MLFLOW_ARTIFACTS_DESTINATION"}
    variables = [value for service in SERVICES.values() for value in service["environment"].items()]
    for name, value in variables:
        if re.search("PASSWORD|SECRET|KEY|TOKEN", name) and not name.endswith("_FILE"):
            assert with_secrets.SECRET.fullmatch(value), name
        if "://" in value and "@" in value:
            assert re.search(r"//\w+(:\{secret \w+\})?@", value), name


def test_containers_have_no_rights_that_they_do_not_need() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    mounted = {
        name: [mount for mount in service.get("volumes", ()) if isinstance(mount, str)]
        for name, service in SERVICES.items()
    }
    assert [name for name, mounts in mounted.items() if ".:/daybreak" in mounts] == ["airflow-scheduler"]
    assert mounted["serving"] == mounted["pages"] == [".:/daybreak:ro"]
    assert [name for name, mounts in mounted.items() if "login:/login" in mounts] == ["airflow-api"]
    files = {mount for mounts in mounted.values() for mount in mounts if mount.startswith(".")}
    assert {mount for mount in files if not mount.endswith(":ro")} == {".:/daybreak"}
    assert all((ROOT / mount.split(":")[0]).exists() for mount in files)


def test_the_file_for_gpus_gives_all_of_them_to_the_container_that_trains_and_to_no_other() -> None:
    given = YAML(typ="safe").load((ROOT / "compose" / "gpu.yaml").read_text())["services"]
    assert list(given) == ["airflow-scheduler"]
    scheduler = given["airflow-scheduler"]
    (device,) = scheduler["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert scheduler["build"]["args"] == {"DEVICE": "${DEVICE:-cuda}"}
    # An image of its own: compose would else take the one without CUDA that another service has built.
    assert scheduler["image"] not in {service["image"] for service in SERVICES.values()}
    assert set(scheduler) == {"build", "image", "shm_size", "deploy"}  # the rest stays as compose.yaml has it


def test_logs_of_tasks_are_deleted_after_thirty_days_and_their_folders_with_them(tmp_path: Path) -> None:
    logs, month = tmp_path / "logs", 31 * 86_400
    for name in ("old/night/attempt=1.log", "new/night/attempt=1.log"):
        (logs / name).parent.mkdir(parents=True)
        (logs / name).write_text("said\n")
    (logs / "made a moment ago").mkdir()
    old = [logs / "old", logs / "old/night", logs / "old/night/attempt=1.log"]
    (tmp_path / "sleep").symlink_to("/bin/true")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "AIRFLOW_HOME": str(tmp_path)}
    supervised = configparser.ConfigParser(interpolation=None)
    supervised.read(ROOT / "supervisord.conf")
    bash, _, script = shlex.split(supervised["program:task-logs"]["command"])
    for _ in range(len(old)):  # months; a folder is old once nothing has been deleted in it for a day
        for path in filter(Path.exists, old):
            os.utime(path, times=(0, time.time() - month))
        subprocess.run([bash, "-c", script], env=environment, check=True)
    kept = sorted(str(path.relative_to(logs)) for path in logs.rglob("*"))
    assert kept == ["made a moment ago", "new", "new/night", "new/night/attempt=1.log"]
    of_compose = SERVICES["airflow-logs"]["command"][2]
    assert " ".join(script.split()).replace('"$AIRFLOW_HOME/logs"', "/airflow/logs") == of_compose


def test_images_are_named_by_a_version() -> None:
    for service in SERVICES.values():
        assert re.search(r":\d+\.\d+", service["image"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The folder of a PostgreSQL in which databases.sh has run, as in the image."""
    secrets = tmp_path_factory.mktemp("secrets")
    for name in ("airflow", "mlflow", "serving"):
        (secrets / f"{name}_database").write_text(f"pass'{name}\n")
    with postgresql() as folder:
        environment = {**os.environ, "SECRETS": str(secrets), "POSTGRES_USER": "airflow", "PGHOST": folder}
        superuser = "ALTER ROLE airflow RENAME TO postgres"  # as initdb of the image names it
        call = ["psql", "--quiet", "--dbname", "postgres"]
        for user, statement in (("airflow", "CREATE ROLE setup SUPERUSER LOGIN"), ("setup", superuser)):
            subprocess.run([*call, f"--username={user}", "-c", statement], env=environment, check=True)
        environment["POSTGRES_USER"] = "postgres"
        subprocess.run([str(ROOT / "deploy" / "base" / "databases.sh")], env=environment, check=True)
        yield folder


@pytest.mark.slow
def test_each_role_has_its_own_database_and_no_other(cluster: str) -> None:
    def rows(role: str, database: str, query: str) -> list[Any]:
        engine = sa.create_engine(f"postgresql+psycopg2://{role}@/{database}?host={cluster}")
        try:
            with engine.begin() as connection:
                return list(connection.execute(sa.text(query)).scalars())
        finally:
            engine.dispose()

    for role in ("airflow", "mlflow", "serving"):
        assert rows(role, role, "CREATE TABLE a (n integer); INSERT INTO a VALUES (1) RETURNING n") == [1]
        for other in {"airflow", "mlflow", "serving", "postgres"} - {role}:
            with pytest.raises(sa.exc.OperationalError, match="permission denied for database"):
                rows(role, other, "SELECT 1")
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            rows(role, role, "CREATE ROLE another")
    kept = rows(
        "postgres",
        "postgres",
        "SELECT rolname || rolpassword FROM pg_authid WHERE NOT rolsuper AND rolcanlogin ORDER BY 1",
    )
    assert [one.partition("SCRAM-SHA-256")[0] for one in kept] == ["airflow", "mlflow", "serving"]


def test_secrets_take_their_places_or_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("4711\n")
    (tmp_path / "two").write_text("\n")
    environment = {"URL": "postgresql://me:{secret one}@host", "PLAIN": "{one} $one"}
    assert with_secrets.filled(environment, folder=tmp_path) == {
        **environment,
        "URL": "postgresql://me:4711@host",
    }
    with pytest.raises(ParamsError, match=r"KEY needs the secret two, and .*two is empty; write it there"):
        with_secrets.filled({"KEY": "{secret two}"}, folder=tmp_path)
    with pytest.raises(ParamsError, match=r"three cannot be read: No such file or directory; make it"):
        with_secrets.filled({"KEY": "{secret three}"}, folder=tmp_path)
    call = [sys.executable, "-m", "daybreak.with_secrets", sys.executable, "-c", "print(1)"]
    environment = {**os.environ, "KEY": "{secret no_such_secret}"}
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (1, "", False)
    environment.pop("KEY")
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n")
