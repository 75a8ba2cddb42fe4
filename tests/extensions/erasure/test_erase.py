"""A person's rows go, from real homes of the shop and of a table: git, DVC with a remote, MLflow, a log."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from datetime import date, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

from daybreak import cli, runner
from daybreak.batch_inference import destinations
from daybreak.contract import params, records
from daybreak.contract.errors import DataError, ParamsError, ReleaseError
from daybreak.data.ingest import ingest
from daybreak.data.partitions import QUARANTINE, part_of
from daybreak.data.quarantine import REFUSED
from daybreak.extensions.care.audit import audit
from daybreak.extensions.care.drill import drill
from daybreak.extensions.erasure import cached_rows
from daybreak.extensions.erasure.erase import erase
from daybreak.extensions.lineage import provenance
from daybreak.report import page
from daybreak.storage import branch, checkout, dvc_cache, erasures, ledger, ledger_notes
from daybreak.storage.exposures import Exposure
from daybreak.storage.home import Home
from daybreak.storage.kept_rows import KeptRows
from daybreak.storage.traffic_log import existing_log, open_log
from tests.conftest import make_repository
from tests.extensions.erasure import homes
from tests.storage.test_snapshots import flip_a_bit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the libraries of whole stages
]
DAY = date(2026, 3, 3)


class Kept:
    """A fresh home for each test, always at the same path, since git and MLflow keep paths."""

    def __init__(self, home: Path) -> None:
        self.home, self.kept = home, home.parent / "kept"
        shutil.copytree(home.parent, self.kept, symlinks=True)

    def put_back(self) -> Path:
        """Begin anew; MLflow's database stays the file that processes have open."""
        os.chdir(self.kept)
        for path in sorted(self.home.parent.rglob("*"), reverse=True):
            if path.is_relative_to(self.kept) or path == self.kept or path.name == "mlflow.db":
                continue
            if path.is_symlink() or not path.is_dir():
                path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()
        shutil.copytree(self.kept, self.home.parent, symlinks=True, dirs_exist_ok=True)
        os.chdir(self.home)
        return self.home


@contextmanager
def made(folder: Path, store: Path, make: Callable[[Path], None]) -> Iterator[Kept]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        home = make_repository(folder / "home", store=store)
        patch.setenv("DAYBREAK_HOME", str(home))
        patch.chdir(home)
        make(home)
        yield Kept(home)


@pytest.fixture(scope="module")
def fraud_home(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Kept]:
    """Two nights of the fraud example, the first of which promoted a version; DVC has a remote."""

    def make(home: Path) -> None:
        remote = home.parent / "remote"
        text = f"[core]\n    analytics = false\n    remote = copy\n['remote \"copy\"']\n    url = {remote}\n"
        (home / ".dvc" / "config").write_text(text)
        homes.begin(home, homes.FRAUD)
        homes.run_night(home, DAY, with_version=True)
        homes.run_night(home, DAY + timedelta(days=1))

    with made(tmp_path_factory.mktemp("fraud"), empty_store, make) as kept:
        yield kept


@pytest.fixture(scope="module")
def shop_home(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Kept]:
    """A night of the default shop."""

    def make(home: Path) -> None:
        homes.begin(home, homes.SHOP)
        homes.run_night(home, DAY)

    with made(tmp_path_factory.mktemp("shop"), empty_store, make) as kept:
        yield kept


@pytest.fixture
def fraud(fraud_home: Kept, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAYBREAK_HOME", str(fraud_home.home))
    return fraud_home.put_back()


@pytest.fixture
def shop(shop_home: Kept, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAYBREAK_HOME", str(shop_home.home))
    return shop_home.put_back()


def erased(unit: str, *, dry_run: bool = False) -> list[str]:
    return list(erase(Home.here(), unit, params.load(Path()), dry_run=dry_run))


def faults() -> list[str]:
    return [f"{one.name}: {one.text}" for one in audit(Home.here(), params.load(Path())) if not one.ok]


def killed_at(line: int, work: Callable[[], object]) -> tuple[bool, int]:
    """Whether a fork that does the work was killed at that line of the erasure; how many lines it ran."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        count = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            if "/daybreak/extensions/erasure/" not in frame.f_code.co_filename:
                return None
            if event == "line":
                count += 1
                if count == line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            work()
            sys.settrace(None)
            os.write(writer, str(count).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) < 0, int(text or 0)


def test_killed_at_any_line_and_called_again_it_ends_the_same(fraud: Path, fraud_home: Kept) -> None:
    unit = homes.units(fraud, "account", DAY)[0]

    def put_back() -> None:
        fraud_home.put_back()
        (fraud / erasures.KEY).write_text("ab" * 32)

    put_back()
    killed, num_lines = killed_at(0, lambda: erased(unit))
    assert not killed and num_lines > 100
    whole = homes.standing(fraud)
    for share in (0.5, 0.97):  # what is replaced is near the end
        put_back()
        killed, _ = killed_at(int(num_lines * share), lambda: erased(unit))
        assert killed
        erased(unit)
        assert homes.standing(fraud) == whole, share
        assert homes.places_of(unit, fraud) == []
        assert faults() == []


def test_killed_while_it_replaces_a_version_it_is_noted_once_and_no_other_comes_between(fraud: Path) -> None:
    unit, other = homes.units(fraud, "account", DAY)[:2]
    replace = LocalArtifactRepository.log_artifact

    def killed(*arguments: object) -> None:
        replace(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if not pid:
        LocalArtifactRepository.log_artifact = killed
        erased(unit)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    with pytest.raises(ReleaseError, match="the erasure of another unit was interrupted"):
        erased(other)
    erased(unit)
    assert len(erasures.erasures(Home.here())) == 1
    assert faults() == []
    erased(other)
    assert len(erasures.erasures(Home.here())) == 2
    assert faults() == []


def predict(home: Path, night: date, to: str) -> None:
    """Write what the version that serves predicts of a night's day, to a file in the home."""
    with chdir(home / "nights" / str(night)):
        runner.run(Home.here(), "predict", to=to)


def test_an_account_goes_from_every_place_and_all_goes_on(
    fraud: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unit, other = homes.units(fraud, "account", DAY)[:2]
    kept = pq.read_table(next(fraud.glob(f"nights/*/data/clean/day={DAY}/part.parquet")), partitioning=None)
    predict(fraud, DAY, "predicted.csv")
    log = open_log(f"sqlite:///{fraud / 'var' / 'serving.db'}")
    for number, name in enumerate((unit, other)):
        log.exposures.add(
            Exposure(
                id=f"{number:032x}",
                time=1,
                experiment="",
                unit=log.unit_of(name),
                arm="champion",
                version=1,
                share=0,
                propensity=1,
                items=(),
                attributes=(("device", "phone"),),
                latency_s=0,
                predicted='{"prediction": [0.5]}',
                kept=KeptRows(
                    day="1970-01-01",
                    rows=[{"account": name, "amount": 1.5}],
                    predictions='[{"prediction": 0.5}]',
                ),
            )
        )
    log.close()
    (scores,) = fraud.glob("nights/*/data/run/scores.npy")
    of_scores = records.digest(scores)
    cached = [dvc_cache.path_of(Home.here(), of_scores), *fraud.parent.glob(f"remote/**/{of_scores[2:]}")]
    assert len(cached) == 2 and all(path.exists() for path in cached)
    before_test = fraud / "nights" / str(DAY + timedelta(days=1)) / "data" / "run" / "live" / "before.json"
    before_test.parent.mkdir()
    before_test.write_text("{}")
    before, tip = homes.places_of(unit, fraud), branch.ledger_tip(Home.here())
    assert {path.split("/")[0] for path in before} >= {".dvc", "nights", "var", "predicted.csv"}
    remote = homes.files_with(unit, fraud.parent / "remote")
    standing = homes.standing(fraud)
    assert cli.main(["erase", "--unit", unit]) == 0
    assert "would erase: " in capsys.readouterr().out
    assert cli.main(["erase", "--unit", unit, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert homes.standing(fraud) == standing
    destinations.note(Home.here(), "$WAREHOUSE/{day}", day=DAY, table="predictions")
    with pytest.raises(ParamsError, match=r"while \$WAREHOUSE is not set"):
        erased(unit)
    assert homes.places_of(unit, fraud) == before
    monkeypatch.setenv("WAREHOUSE", str(fraud.parent / "warehouse"))
    lines = " ".join(erased(unit))
    assert "versions 1 in MLflow" in lines and "1 exposures" in lines and "predictions in" in lines
    assert "1 rows that the log of serving keeps" in lines
    assert homes.places_of(unit, fraud) == []
    assert remote and not homes.files_with(unit, fraud.parent / "remote")
    assert checkout.git("rev-parse", f"{branch.BRANCH}^1") == tip  # no night is rewritten
    assert not any(path.exists() for path in (*cached, scores, before_test))
    (note,) = erasures.erasures(Home.here())
    assert note.versions == (1,) and note.num_rows and str(DAY) in note.days
    assert homes.places_of(other, fraud)
    left = pq.read_table(next(fraud.glob(f"nights/*/data/clean/day={DAY}/part.parquet")), partitioning=None)
    assert left.equals(kept.filter(pc.not_equal(kept["account"], unit)))  # type: ignore[attr-defined]
    serving = existing_log(params.load(Path()).serving, fraud)
    assert serving and [one.id for one in serving.exposures.of(None)] == [f"{1:032x}"]
    (left_row,) = serving.kept_rows.of(1, "1970-01-01")
    assert left_row.rows == [{"account": other, "amount": 1.5}]
    serving.close()
    assert faults() == []
    assert ("erased", str(ledger_notes.read(Home.here())[0])) in provenance.why(Home.here(), "1")
    predict(fraud, DAY + timedelta(days=1), "again.csv")  # the version is fetched and verified
    # The next night has neither these rows nor their arrays, and trains anew; the source still has the rows.
    night = homes.run_night(fraud, DAY + timedelta(days=2), with_version=True)
    assert night.cold.startswith("rows that version 1 learned from were erased")
    assert homes.places_of(unit, fraud) == []
    assert faults() == []
    rehearsed = list(
        drill(Home.here(), params.load(Path()))
    )  # a rollback to the version of before the erasure, and its data
    assert [one.name for one in rehearsed] == ["model of version 1", "code of version 1", "data of version 1"]
    assert [one.text for one in rehearsed if not one.ok] == []


def test_what_rotted_is_refused_and_not_written_again_as_good(fraud: Path) -> None:
    unit, standing = homes.units(fraud, "account", DAY)[0], homes.standing(fraud)
    part = fraud / "nights" / str(DAY + timedelta(days=1)) / part_of(DAY)
    past = next(fraud.glob("var/artifacts/**/artifacts/past/day=*/part.parquet"))
    cached = dvc_cache.path_of(
        Home.here(), records.digest(part)
    )  # copies here, as where a disk knows no links
    for place, error, sentence in (
        (part, DataError, r"1 files of nights are damaged: .*; daybreak repair puts them back"),
        (
            cached,
            DataError,
            r"is damaged, so that it is not known which rows to erase; .*repair puts it back",
        ),
        (past, ReleaseError, r"the files of version 1 are not to be had as.*repair puts them"),
    ):
        flip_a_bit(place)
        with pytest.raises(error, match=sentence):
            erased(unit)
        flip_a_bit(place)
    assert ledger_notes.read(Home.here()) == ()
    erasures.journal(Home.here()).remove()
    (fraud / erasures.KEY).unlink()
    assert {*standing.items()} <= {*homes.standing(fraud).items()}  # but for objects that nothing names
    content = bytearray(cached_rows.parquet(pq.read_table(part, partitioning=None)))
    first = pq.read_metadata(pa.BufferReader(bytes(content))).row_group(0).column(0)
    content[(first.dictionary_page_offset or first.data_page_offset) + first.total_compressed_size - 3] ^= 1
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.read_table(pa.BufferReader(bytes(content)), page_checksum_verification=True)


def test_a_customer_of_the_shop_goes_and_users_are_answered_from_other_arrays(shop: Path) -> None:
    unit = homes.units(shop, "customer", DAY)[0]
    night = shop / "nights" / str(DAY)
    rows = pq.read_table(night / part_of(DAY), partitioning=None)
    bad = rows.filter(pc.equal(rows["customer"], unit))  # type: ignore[attr-defined]
    for path in (QUARANTINE, REFUSED):  # and so on the page
        part = night / part_of(DAY, path)
        part.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        pq.write_table(bad.append_column("(rule)", pa.array(["a rule"] * len(bad))), part)
    page.write(Home.here(), night, ledger.history(Home.here()))
    before = homes.places_of(unit, shop)
    for name in ("customers.parquet", "bad_rows", "report.html"):
        assert any(name in path for path in before), name
    erased(unit)
    assert homes.places_of(unit, shop) == []
    folder = shop / "nights" / str(DAY) / "data" / "arrays"
    workload = params.load(Path()).workload.make()
    assert unit not in workload.dataset(folder, "serve").customers
    assert faults() == []
    assert not list(shop.glob("nights/*/data/work/erasing"))


def test_a_night_that_is_open_refuses_and_a_key_or_an_erasure_that_is_lost_stops_ingest(shop: Path) -> None:
    unit = homes.units(shop, "customer", DAY)[0]
    night = runner.run(Home.here(), "open", day=DAY + timedelta(days=1))
    os.chdir(shop)
    with pytest.raises(ReleaseError, match=f"night {DAY + timedelta(days=1)} is open"):
        erased(unit)
    shutil.rmtree(shop / "nights" / str(DAY + timedelta(days=1)))
    before = branch.ledger_tip(Home.here())
    erased(unit)
    loaded, tip = params.load(Path()), branch.ledger_tip(Home.here())

    def take_in() -> None:
        ingest(Home.here(), night, loaded.source.make(), loaded.workload.make().table, loaded.ingest)  # type: ignore[arg-type]

    checkout.git("update-ref", branch.BRANCH, before)
    with pytest.raises(DataError, match=f"erasure.key names an erasure by the ledger's commit {tip[:9]}"):
        take_in()
    with pytest.raises(
        ReleaseError, match=f"commit {tip[:9]}; but the ledger, .* ends at {before[:9]} without"
    ):
        runner.run(Home.here(), "open", day=DAY + timedelta(days=1))
    assert [one for one in faults() if "erasures" in one]
    assert cli.main(["restore", "--yes"]) == 0
    assert faults() == []
    (shop / erasures.KEY).rename(shop / "var" / "elsewhere")
    with pytest.raises(DataError, match=r"1 units were erased, and .*erasure.key.* is missing; put it back"):
        take_in()
