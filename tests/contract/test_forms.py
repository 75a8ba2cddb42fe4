"""Records of an earlier release are read under today's names, once a line of a table says so."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from daybreak import cli
from daybreak.contract import forms, params, records
from daybreak.contract.errors import DataError
from daybreak.contract.record_types import Release
from daybreak.extensions.care import audit
from daybreak.storage import checkout

CLASSES = 'source: "a:B"\nworkload: "a:B"\nbackend: "a:B"\n'
GATE = """\
gate:
  margin: 0.02  # ours
  fit_samples: 20
"""
RELEASE = '{"champion": 4, "replaced": 3, "model_digest": "ab12.dir", "night": "2011-09-30"}'


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys that moved."""
    monkeypatch.setitem(forms.KEYS, ("gate", "fit_samples"), ("smoke_test", "samples"))
    monkeypatch.setitem(forms.KEYS, ("prepare", "dim"), ("workload", "dim"))


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose key `version` was called `champion`."""

    def release(values: dict[str, Any]) -> dict[str, Any]:
        return {"version" if key == "champion" else key: value for key, value in values.items()}

    monkeypatch.setitem(forms.RECORDS, "Release", release)


@pytest.mark.usefixtures("keys")
def test_a_key_is_read_where_it_stands_today() -> None:
    checked = params.check(YAML(typ="safe").load(f"{CLASSES}{GATE}prepare: {{dim: 8}}\n"))
    assert (checked.gate.margin, checked.smoke_test.samples) == (0.02, 20)
    assert checked.workload.model_extra == {"dim": 8}


def test_a_key_that_never_moved_is_refused() -> None:
    with pytest.raises(params.ParamsError, match=r"gate\.fit_samples"):
        params.check(YAML(typ="safe").load(f"{CLASSES}{GATE}"))


@pytest.mark.usefixtures("keys")
def test_params_are_rewritten_once_and_keep_their_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    (tmp_path / "params.yaml").write_text(f"# comments stay\n{CLASSES}{GATE}")
    checkout.git("init", "--quiet", folder=tmp_path)
    assert cli.main(["migrate"]) == 0
    assert "gate.fit_samples is now smoke_test.samples" in capsys.readouterr().out
    text = (tmp_path / "params.yaml").read_text()
    assert text.startswith("# comments stay\n")
    assert "margin: 0.02  # ours\n" in text
    assert params.load(tmp_path).smoke_test.samples == 20
    assert cli.main(["migrate"]) == 99
    assert (tmp_path / "params.yaml").read_text() == text


@pytest.mark.usefixtures("renamed")
def test_a_record_is_read_by_the_name_that_its_key_had() -> None:
    release = Release(version=4, replaced=3, model_digest="ab12.dir", night="2011-09-30")
    assert records.loads(Release, RELEASE) == release
    assert records.loads(Release, records.dumps(release)) == release  # today's form as it is
    assert audit.decoded({str(records.path_of(Release, records.RUN)): RELEASE})["release"]["version"] == 4


def test_a_record_of_no_known_form_is_refused_by_its_key() -> None:
    with pytest.raises(DataError, match="is not a valid Release: version: field required"):
        records.loads(Release, RELEASE)
    with pytest.raises(DataError, match="is not a valid Release: the file: invalid json"):
        records.loads(Release, RELEASE[:40])
