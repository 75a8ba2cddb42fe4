"""The login of the Airflow that `make up` starts: as the Makefile sets it, by Airflow's own code."""

import json
import stat
import subprocess
from pathlib import Path

import pytest

from tests.dags.servers import ROOT

ENTER = """
import json, os, sys
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.datamodels.login import LoginBody
from airflow.api_fastapi.auth.managers.simple.services.login import SimpleAuthManagerLogin
from airflow.configuration import conf
from fastapi import HTTPException
create_auth_manager()
kept = json.load(open(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]))
def enter(password):
    try:
        return bool(SimpleAuthManagerLogin.create_token(LoginBody(username="admin", password=password)))
    except HTTPException as error:
        return error.status_code
print(json.dumps([
    enter(kept["admin"]), enter("admin"), conf.getboolean("core", "simple_auth_manager_all_admins")
]))
"""


@pytest.mark.slow
def test_airflow_of_make_up_asks_for_a_password_that_is_made_here(tmp_path: Path) -> None:
    def made(target: str) -> str:
        call = ["make", "-s", "--eval", target, "probe", f"AIRFLOW_HOME={tmp_path}"]
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    (tmp_path / "enter.py").write_text(ENTER)
    lines = made(f"probe: $(AIRFLOW_HOME)/passwords.json ; @python {tmp_path / 'enter.py'}").splitlines()
    assert json.loads(lines[-1]) == [True, 401, False]
    kept = tmp_path / "passwords.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert len(json.loads(kept.read_text())["admin"]) > 20
    assert "$(AIRFLOW_HOME)/passwords.json" in (ROOT / "Makefile").read_text().partition("\nup: ")[2][:80]
