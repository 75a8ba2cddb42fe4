"""`check` finds what Vertex AI would refuse, one sentence each, before a cent is spent."""

import json

import pytest

from daybreak.check import _serving, findings
from daybreak.contract import params
from daybreak.contract.errors import ParamsError
from daybreak.extensions.vertex.image import manifest_of
from daybreak.extensions.vertex.job_spec import VertexSite
from daybreak.extensions.vertex.preflight import preflight
from daybreak.extensions.vertex.service import Service
from daybreak.storage.home import Home
from tests.backends.rented import QUICK

PARAMS = """\
source: tests.fakes:TwoDays
workload: tests.fakes:Nothing
backend: {backend}
plan: {{machines: [g2-standard-8], regions: [{region}]}}
"""


@pytest.fixture
def check(tmp_path, monkeypatch, registry):
    """The findings of `check` with this backend, by what was looked at."""

    def look(*, region: str = "us-central1", **arguments: str) -> dict[str, tuple[bool, str]]:
        use = {
            "use": "daybreak:Vertex",
            "project": "p",
            "image": f"{registry}/daybreak:1",
        }
        backend = json.dumps({**use, **arguments})
        (tmp_path / "home").mkdir(exist_ok=True)
        (tmp_path / "home" / "params.yaml").write_text(PARAMS.format(backend=backend, region=region))
        monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path / "home"))
        by_subject = {}
        for finding in findings(Home.here()):
            by_subject[finding.what] = (finding.ok, finding.text)
            if finding.what == "expectations":  # what follows asks MLflow
                break
        return by_subject

    return look


@pytest.mark.slow
def test_all_is_well(check, service, tmp_path):
    results = check(endpoint=service.url, bucket=str(tmp_path))
    assert results["vertex in us-central1"] == (True, "project p answers")
    assert results["bucket"] == (True, f"{tmp_path} is writable")
    assert results["image"][0]
    assert results["image"][1].endswith("/shop/daybreak:1 is sha256:0123")
    assert "create_custom_job" not in service.calls
    assert not list(tmp_path.glob(".check*"))


@pytest.mark.slow
def test_a_wrong_project_a_bucket_that_is_not_writable_and_an_image_that_is_not_there(
    check, service, tmp_path
):
    (tmp_path / "file").touch()
    results = check(
        endpoint=service.url, project="q", bucket=f"{tmp_path}/file/x", image="127.0.0.1:1/shop/x:1"
    )
    ok, text = results["vertex in us-central1"]
    assert not ok
    assert text.startswith(
        "Vertex AI in us-central1 refuses (Permission denied on resource project q); look at"
    )
    ok, text = results["bucket"]
    assert not ok
    assert "is not writable (" in text
    assert text.endswith("the right to list, read, write and delete there")
    ok, text = results["image"]
    assert not ok
    assert "127.0.0.1:1/shop/x:1 does not answer (ConnectionError); try again" in text


@pytest.mark.slow
def test_a_region_of_the_plan_without_the_network_attachment_is_found(check, service, tmp_path):
    name = "projects/p/regions/us-central1/networkAttachments/daybreak"
    results = check(endpoint=service.url, bucket=str(tmp_path), region="us-east4", network_attachment=name)
    assert results["vertex in us-central1"][0]  # of jobs that name none
    ok, text = results["vertex in us-east4"]
    assert (ok, text.partition(";")[0]) == (
        False,
        "backend.network_attachment is of us-central1, and none is named for us-east4",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        ("nothing:7", "does not exist; push it (docs/vertex.md), or fix its tag"),
        (
            "secret:1",
            "may not be read with the credentials that are here; give them, and ",
        ),
    ],
)
def test_an_image_that_cannot_be_had_is_a_sentence(check, service, registry, image, sentence):
    ok, text = check(endpoint=service.url, image=f"{registry}/{image}")["image"]
    assert not ok
    assert text.startswith(f"backend.image {registry}/{image} {sentence}")


@pytest.mark.slow
def test_without_credentials_nothing_else_is_asked(check, service, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    results = check()
    ok, text = results["credentials"]
    assert not ok
    assert text.startswith("there are no credentials for Google Cloud here; run gcloud auth ")
    assert "image" not in results
    assert not service.calls


@pytest.mark.slow
def test_what_serves_is_looked_at_too(service, registry, tmp_path):
    (tmp_path / "bucket").mkdir()
    plug = {
        "use": "daybreak:Endpoint",
        "project": "q",
        "image": f"{registry}/nothing:7",
        "bucket": str(tmp_path / "bucket"),
        "endpoint": service.url,
        "log": str(tmp_path / "log"),
    }
    checked = params.check(
        {**dict.fromkeys(("source", "workload", "backend"), "a:B"), "serving": {"endpoint": plug}}
    )
    results = {finding.what: finding for finding in _serving(checked)}
    assert not results["endpoint's vertex in us-central1"].ok
    assert results["endpoint's bucket"].ok
    assert results["endpoint's image"].text.startswith("serving.endpoint.image ")
    assert results["endpoint's log"].text.startswith(
        f"no URL of a log can be read from {tmp_path / 'log'} (File"
    )
    (tmp_path / "log").write_text("sqlite:///serving.db\n")
    assert {finding.what: finding.ok for finding in _serving(checked)}["endpoint's log"]


def test_a_region_without_the_machine_is_found_by_the_catalog(check, monkeypatch):
    monkeypatch.setattr("daybreak.extensions.vertex.preflight.preflight", lambda *_, **__: iter(()))
    ok, text = check(region="us-west1")["machines"]
    assert not ok
    assert "plan.machines names g2-standard-8, which is not offered in us-west1; add " in text


def test_where_an_image_is_looked_up():
    digest = "sha256:" + "0" * 64
    assert manifest_of(f"gcr.io/p/x@{digest}") == f"https://gcr.io/v2/p/x/manifests/{digest}"
    assert manifest_of("gcr.io/p/x") == "https://gcr.io/v2/p/x/manifests/latest"
    with pytest.raises(ParamsError, match="daybreak:1 names no registry; write it as REGION-docker"):
        manifest_of("daybreak:1")


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["", "/mnt/shared"])
def test_google_s_machines_need_a_bucket_and_those_of_a_service_on_loopback_none(
    check, service, bucket, tmp_path, monkeypatch
):
    text = "none is named; jobs run in the folder of the night"
    assert check(endpoint=service.url)["bucket"] == (True, text)
    key = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}
    (tmp_path / "key.json").write_text(json.dumps(key))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    at_google = Service(project="p", endpoint="", retry=QUICK)
    site = VertexSite(project="p", region="us-central1", image="127.0.0.1:1/x:1", bucket=bucket)
    by_subject = {what: (ok, text) for what, ok, text in preflight(site, at_google, regions=[])}
    ok, text = by_subject["bucket"]
    assert not ok
    assert text.endswith("run on others; set it to the URL of a bucket, such as gs://my-bucket")
