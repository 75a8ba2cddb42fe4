"""A Vertex AI on loopback, made once; each test gets it empty."""

import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.backends import real_slurm

if TYPE_CHECKING:
    from tests.backends.fake_cluster import FakeCluster
    from tests.backends.fake_vertex import FakeVertex

ROOT = Path(__file__).parents[2]
# What stands in the environment of every container, as an image would have it.
MACHINES = """\
name,device,num_devices,vcpus,memory_gb,count,options,spot_options,usd_per_hour,spot_usd_per_hour
node,cpu,0,1,1,2,--partition=urgent,--partition=scavenge,3.60,0.36
broken,cpu,0,1,1,1,--partition=nowhere,,,
"""
PODS = """\
name,device,num_devices,vcpus,memory_gb,count,options,spot_options,usd_per_hour,spot_usd_per_hour
node,cpu,0,2,4,2,pool=main,pool=spot spot=true,3.60,0.36
nowhere,cpu,0,2,4,2,pool=none,,,
"""
IMAGE = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["FakeVertex"]:
    """The service, and a home of its own for the nights."""
    assert sys.platform == "linux"
    from tests.backends.fake_vertex import FakeVertex

    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "false")
    monkeypatch.setenv("GOOGLE_API_USE_MTLS_ENDPOINT", "never")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path / "home"))
    with FakeVertex(image=IMAGE) as made:
        yield made


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_slurm.Cluster]:
    """A Slurm cluster for all tests of a process; skips where this machine has no Slurm."""
    if why := real_slurm.missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        with real_slurm.cluster(folder) as made:
            yield made


@pytest.fixture
def cluster(
    whole_cluster: real_slurm.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[real_slurm.Cluster]:
    """The cluster, without jobs, and a home of its own for the nights with the file of its machines."""
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path / "home"))
    (tmp_path / "machines.csv").write_text(MACHINES)
    yield whole_cluster
    whole_cluster.clear()


@pytest.fixture
def kubernetes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator["FakeCluster"]:
    """A cluster on loopback with two nodes, and a home of its own with the file of its machines.

    With the parameter "jobsets" it has that kind.
    """
    from tests.backends.fake_cluster import FakeCluster

    (tmp_path / "machines.csv").write_text(PODS)
    (tmp_path / "cluster").mkdir()
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path / "home"))
    with FakeCluster(tmp_path / "cluster", image=IMAGE) as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig))
        made.has_job_sets = getattr(request, "param", "jobs") == "jobsets"
        made.add_node("a", labels={"pool": "main"})
        made.add_node("b", labels={"pool": "spot", "spot": "true"}, taints=("spot",))
        yield made


@pytest.fixture
def registry() -> Iterator[str]:
    """A registry of images, which has daybreak:1, and one that may not be read."""
    answers = {"/v2/shop/daybreak/manifests/1": 200, "/v2/shop/secret/manifests/1": 403}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = answers.get(self.path, 404)
            self.send_response(status)
            self.send_header("Docker-Content-Digest", "sha256:0123")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}/shop"
        server.shutdown()
