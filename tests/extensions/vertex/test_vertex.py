"""Vertex AI on loopback: whatever goes wrong with calls, capacity or machines, one job, and a reason."""

import contextlib
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.backends.place import RetryPolicy
from daybreak.backends.submission_journal import SubmissionJournal, stretches
from daybreak.contract.backend import Backend, Job
from daybreak.contract.errors import JobError, NotYet
from daybreak.contract.record_parts import Placement, Pool, Rental
from daybreak.storage import jsonl
from tests.backends.rented import QUICK, end, job, vertex, wait
from tests.backends.together import TrainingNight
from tests.fakes import read_lines

pytestmark = pytest.mark.slow  # the client takes seconds to import

L4 = ("us-central1", "g2-standard-8")
SLEEP = "sleep 60"
FIRST, OTHER = "n2-standard-8", "n2-standard-4"


def cut(how: Any, **arguments: Any) -> Any:
    from tests.backends.fake_vertex import Trouble

    return Trouble(how, **arguments)


def reasons(folder: Path) -> list[str]:
    return [line["error"] for line in read_lines(folder / "job" / "errors.jsonl")]


def unlike(folder: Path, script: str, **changes: Any) -> Job:
    """A job on a machine of one kind and one of another."""
    return job(folder, script, machine=FIRST, num_machines=2, others=(Pool(machine=OTHER),), **changes)


# Calls


@pytest.mark.parametrize("how", ["refuse", "cut before", "cut after", "hang after"])
@pytest.mark.parametrize("method", ["create_custom_job", "list_custom_jobs"])
def test_whatever_becomes_of_a_call_there_is_one_job(service, tmp_path, method, how):
    policy = replace(QUICK, call_s=2.0 if "hang" in how else 30.0, give_up_s=300.0)
    backend = vertex(service.url, retry=policy)
    with service.troubled(cut(how), cut(how), method=method):
        handle = backend.submit(job(tmp_path, SLEEP))
    assert service.only().job.name == handle.partition(" ")[0]
    assert backend.submit(job(tmp_path, SLEEP)) == handle


def test_too_many_requests_a_minute_are_waited_out(service, tmp_path):
    backend = vertex(service.url, retry=replace(QUICK, give_up_s=300.0))
    minute = cut("refuse", status=429, message="Quota exceeded for requests per minute")
    with service.troubled(*[minute] * 4, method="create_custom_job"):
        backend.submit(job(tmp_path, SLEEP))
    assert service.calls.count("create_custom_job") == 5
    assert service.only()


def test_a_service_that_never_answers_ends_the_call_and_the_next_one_goes_on(service, tmp_path):
    backend = vertex(service.url, retry=replace(QUICK, call_s=0.1, give_up_s=0.4))
    reason = "job j is not known to be taken: Vertex AI in us-central1 does not answer"
    with service.troubled(*[cut("hang")] * 99), pytest.raises(NotYet, match=reason):
        backend.submit(job(tmp_path, SLEEP))
    assert not service.jobs
    vertex(service.url).submit(job(tmp_path, SLEEP))
    assert service.only()


def test_a_job_that_came_although_all_replies_were_lost_is_adopted(service, tmp_path):
    backend = vertex(service.url, retry=replace(QUICK, give_up_s=0.4))
    with service.troubled(cut("cut after"), *[cut("refuse")] * 99), pytest.raises(NotYet):
        backend.submit(job(tmp_path, SLEEP))  # the list calls before it fail
    with service.troubled(None, cut("cut after"), *[cut("refuse")] * 99), pytest.raises(NotYet):
        backend.submit(job(tmp_path, SLEEP))
    (made,) = service.jobs
    assert vertex(service.url).submit(job(tmp_path, SLEEP)) == f"{made} {tmp_path / 'job'}"
    assert list(service.jobs) == [made]


def test_a_lost_book_is_no_reason_for_a_second_job(service, tmp_path):
    first = vertex(service.url).submit(job(tmp_path, SLEEP))
    (tmp_path / "job" / "orders.json").unlink()
    assert vertex(service.url).submit(job(tmp_path, SLEEP)) == first


def test_of_two_live_jobs_of_a_name_the_younger_is_ended(service, tmp_path):
    backend = vertex(service.url)
    handle = backend.submit(job(tmp_path, SLEEP))
    from google.cloud.aiplatform_v1.types import CustomJob, job_service

    twin = CustomJob(service.only().job)
    parent = "projects/p/locations/us-central1"
    service.custom.create_custom_job(job_service.CreateCustomJobRequest(parent=parent, custom_job=twin))
    assert backend.submit(job(tmp_path, SLEEP)) == handle
    assert [running.job.name for running in service.live()] == [handle.partition(" ")[0]]


def test_a_request_that_lands_after_its_retry_did_is_ended_at_the_next_look_and_paid(service, tmp_path):
    backend = vertex(service.url)
    with service.troubled(cut("late"), method="create_custom_job"):
        handle = backend.submit(job(tmp_path, SLEEP))
    wait(lambda: backend.state(handle) == "running")
    service.let_late_ones_act()
    assert len(service.live()) == 2
    assert backend.state(handle) == "running"
    assert [running.job.name for running in service.live()] == [handle.partition(" ")[0]]
    kept, late = SubmissionJournal(tmp_path / "job").submissions()
    assert (kept.token, kept.state, late.state) == (late.token, "running", "preempted")
    assert stretches(tmp_path / "job")[1].ended
    assert backend.submit(job(tmp_path, SLEEP)) == handle


def test_of_two_hosts_that_submit_at_once_one_look_leaves_one_job_and_both_look_after_it(service, tmp_path):
    both = threading.Barrier(2)
    service.trouble = lambda method: both.wait(30) and None if method == "create_custom_job" else None
    handles: dict[str, str] = {}

    def submit(host: str) -> None:
        handles[host] = vertex(service.url).submit(job(tmp_path / host, SLEEP))

    hosts = [threading.Thread(target=submit, args=(host,)) for host in "ab"]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join()
    service.trouble = lambda method: None
    assert len(service.live()) == 2
    oldest = min(service.jobs.values(), key=lambda running: running.job.create_time).job.name
    younger = next(host for host in "ab" if not handles[host].startswith(f"{oldest} "))
    assert vertex(service.url).state(handles[younger]) == "preempted"
    assert [running.job.name for running in service.live()] == [oldest]
    again = vertex(service.url).submit(job(tmp_path / younger, SLEEP))
    assert again == f"{oldest} {tmp_path / younger / 'job'}"
    assert vertex(service.url).state(again) in ("queued", "running")
    of_the_oldest = service.jobs[oldest].job.labels["attempt"]
    assert (tmp_path / younger / "job" / "attempt").read_text() == of_the_oldest


@pytest.mark.parametrize(("reason", "num_jobs"), [("ABORTED", 1), ("ALREADY_EXISTS", 0)])
def test_a_conflict_is_retried_where_the_service_asks_for_it(service, tmp_path, reason, num_jobs):
    conflict = cut("refuse", status=409, reason=reason, message="Another request is in progress.")
    with service.troubled(conflict, method="create_custom_job"), contextlib.suppress(JobError):
        vertex(service.url).submit(job(tmp_path, SLEEP))
    assert len(service.jobs) == num_jobs
    over_grpc = vertex(f"grpc://{service.grpc.address}")
    with service.troubled(cut("refuse", status=409), method="create_custom_job"):
        over_grpc.submit(job(tmp_path / "grpc", SLEEP, name="grpc"))
    assert len(service.jobs) == num_jobs + 1


def test_a_worker_s_own_error_is_told_from_a_fault_of_the_service(service, tmp_path):
    backend = vertex(service.url)
    handles = {name: backend.submit(job(tmp_path / name, SLEEP, name=name)) for name in ("own", "theirs")}
    wait(lambda: all(backend.state(handle) == "running" for handle in handles.values()))
    (attempt,) = (each.name for each in SubmissionJournal(tmp_path / "own" / "job").submissions())
    line = {"attempt": attempt, "restart": "0", "rank": 1, "error": "KeyError: 'stockout'", "final": False}
    jsonl.append(tmp_path / "own" / "job" / "errors.jsonl", line)
    for running in service.live():
        running.tell("lose")
    assert {name: end(backend, handle) for name, handle in handles.items()} == {
        "own": "failed",
        "theirs": "preempted",
    }


def test_while_the_service_is_away_the_state_is_as_last_heard(service, tmp_path):
    backend = vertex(service.url, retry=replace(QUICK, give_up_s=0.1))
    handle = backend.submit(job(tmp_path, SLEEP))
    wait(lambda: backend.state(handle) == "running")
    with service.troubled(*[cut("refuse")] * 99):
        assert backend.state(handle) == "running"
        backend.cancel(handle)
        assert backend.state(handle) == "running"
    backend.cancel(handle)
    assert backend.state(handle) == "preempted"


def test_asking_at_the_same_instant_makes_one_job(service, tmp_path):
    handles: list[str] = []
    askers = [
        threading.Thread(target=lambda: handles.append(vertex(service.url).submit(job(tmp_path, SLEEP))))
        for _ in range(4)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len(set(handles)) == len(service.jobs) == 1


def test_the_same_over_grpc(service, tmp_path):
    backend = vertex(f"grpc://{service.grpc.address}")
    with service.troubled(cut("refuse"), method="create_custom_job"):
        handle = backend.submit(job(tmp_path, SLEEP))
    assert handle == vertex(service.url).submit(job(tmp_path, SLEEP))
    wait(lambda: backend.state(handle) == "running")
    assert [rental.handle.strip() for rental in backend.live()] == [handle.partition(" ")[0]]
    backend.cancel(handle)
    assert backend.state(handle) == "preempted"
    backend.cancel(f"projects/p/locations/us-central1/customJobs/7 {tmp_path}")  # never was
    with pytest.raises(JobError, match="Permission denied on resource project q"):
        vertex(f"grpc://{service.grpc.address}", project="q").submit(job(tmp_path))


def test_a_look_at_the_state_takes_little_of_a_processor(service, tmp_path):
    """Bound by process time, with which the machine's other work has little to do."""
    service.market.quota[L4] = "queued"
    backend = vertex(service.url)
    handle = backend.submit(job(tmp_path, SLEEP))
    backend.state(handle)
    began = time.process_time()
    for _ in range(20):
        assert backend.state(handle) == "queued"
    assert (time.process_time() - began) / 20 < 0.5  # the service's own, in threads of this process, included


# Capacity


def test_a_stock_out_is_refused_with_its_reason(service, tmp_path):
    service.market.stock[L4] = 0
    backend = vertex(service.url)
    handle = backend.submit(job(tmp_path, SLEEP, strategy="spot"))
    assert end(backend, handle) == "refused"
    assert "no capacity for 1 x g2-standard-8 as spot in us-central1 (Resources are" in reasons(tmp_path)[0]
    service.market.stock.clear()
    assert backend.submit(job(tmp_path, SLEEP)) != handle


def test_the_reason_may_come_later_than_the_end(service, tmp_path):
    service.market.stock[L4] = 0
    service.custom.late_error_s = 99
    backend = vertex(service.url)
    handle = backend.submit(job(tmp_path))
    wait(lambda: not service.only().thread.is_alive())
    assert backend.state(handle) == "running"
    service.custom.late_error_s = 0.0  # now it is there
    assert end(backend, handle) == "refused"
    service.custom.late_error_s = 99
    impatient = vertex(service.url, retry=replace(QUICK, error_s=0.1))
    handle = impatient.submit(job(tmp_path))
    assert end(impatient, handle) == "preempted"  # no reason was given: submitted again
    assert "lost job j by a fault of its own" in reasons(tmp_path)[-1]


def test_quota_is_refused_whether_told_on_asking_or_afterwards_and_waited_for_in_the_queue(service, tmp_path):
    backend = vertex(service.url)
    for number, how in enumerate(["429", "failed"]):
        service.market.quota[L4] = how
        handle = backend.submit(job(tmp_path, name=f"j{number}"))
        assert end(backend, handle) == "refused"
        assert "quota does not allow 1 x g2-standard-8" in reasons(tmp_path)[-1]
        backend.cancel(handle)
    service.market.quota[L4] = "queued"
    handle = backend.submit(job(tmp_path, name="j2"))
    assert backend.state(handle) == "queued"
    backend.cancel(handle)
    assert backend.state(handle) == "preempted"
    assert stretches(tmp_path / "job")[-1].started is None


@pytest.mark.parametrize("by", ["rest", "grpc"])
def test_a_machine_that_its_region_does_not_have_is_refused_and_asked_for_elsewhere(service, tmp_path, by):
    service.market.unsupported.add(L4)
    backend = vertex(service.url if by == "rest" else f"grpc://{service.grpc.address}")
    handle = backend.submit(job(tmp_path, SLEEP))
    assert backend.state(handle) == "refused"
    why = "for 1 x g2-standard-8 as on-demand in us-central1 (Machine type g2-standard-8 is not supported"
    assert why in reasons(tmp_path)[0]
    assert backend.usd(tmp_path / "job") == 0
    elsewhere = backend.submit(job(tmp_path, SLEEP, region="us-east4"))
    assert elsewhere.startswith("projects/p/locations/us-east4/")
    missing = cut("refuse", status=404, reason="NOT_FOUND", message="No such network.")
    with service.troubled(missing, method="create_custom_job"):
        handle = backend.submit(job(tmp_path / "other", SLEEP, name="other"))
    assert backend.state(handle) == "refused"


def test_a_night_goes_by_its_fallbacks_past_a_region_that_does_not_have_the_machine(
    service, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.chdir(tmp_path)
    service.market.unsupported.add(L4)
    bucket = f"file://{tmp_path}/bucket"
    first = Rental(machine=L4[1], region=L4[0])
    night = TrainingNight(tmp_path / "night", vertex(service.url, bucket=bucket), rental=first, bucket=bucket)
    plan = night.plan
    elsewhere = replace(first, region="us-east4")
    placement = Placement(
        rental=elsewhere,
        expected_s=plan.forecast.expected_s,
        expected_usd=1.0,
        latest_start=night.night.train_until,
        usd_per_hour=1.0,
    )
    night.plan = replace(plan, fallbacks=(placement,))
    night.ask()
    assert service.only().region == "us-east4"


def test_a_region_that_lists_no_jobs_is_named_and_passed_over(service, tmp_path, caplog):
    backend = vertex(service.url)
    service.market.closed.add("us-east4")
    kept = backend.submit(job(tmp_path, SLEEP))
    live = backend.live_in(["us-east4", "us-west1"])
    assert [each.handle.strip() for each in live] == [kept.partition(" ")[0]]
    assert "Vertex AI in us-east4 refuses (Unsupported region for Vertex AI: us-east4)" in caplog.text
    handle = backend.submit(job(tmp_path / "other", SLEEP, region="us-east4"))
    assert backend.state(handle) == "refused"
    assert (
        "in us-east4 (Unsupported region for Vertex AI: us-east4); the plan's next"
        in (*reasons(tmp_path / "other"),)[0]
    )
    service.market.closed.clear()
    again = backend.submit(job(tmp_path / "other", SLEEP, region="us-east4"))
    assert again.startswith("projects/p/locations/us-east4/")


@pytest.mark.parametrize("num_placements", [1, 2])
def test_a_night_that_no_place_of_its_plan_will_ever_take_ends_with_the_words_of_the_service(
    service, tmp_path, monkeypatch, num_placements
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.chdir(tmp_path)
    bucket = f"file://{tmp_path}/bucket"
    first = Rental(machine=L4[1], region=L4[0])
    night = TrainingNight(tmp_path / "night", vertex(service.url, bucket=bucket), rental=first, bucket=bucket)
    rentals = [first, replace(first, region="us-east4")][:num_placements]
    placements = [
        Placement(
            rental=rental,
            expected_s=night.plan.forecast.expected_s,
            expected_usd=1.0,
            latest_start=night.night.train_until,
            usd_per_hour=1.0,
        )
        for rental in rentals[1:]
    ]
    night.plan = replace(night.plan, fallbacks=tuple(placements))
    later = cut("refuse", status=400, reason="FAILED_PRECONDITION", message="Try again in a few minutes.")
    with service.troubled(*[later] * num_placements, method="create_custom_job"):
        assert night.ask() is None  # it may be taken later
    service.jobs.clear()
    (night.job / "submissions.json").unlink()
    service.market.unsupported.update((rental.region, rental.machine) for rental in rentals)
    with pytest.raises(JobError, match=rf"g2-standard-8 is not supported in region {rentals[-1].region}\)"):
        night.until(lambda: False, timeout_s=30)  # a plan without fallbacks looks once more
    assert not service.jobs


def test_the_wait_for_flex_start_is_over_in_time(service, tmp_path):
    service.market.waits.add(L4)
    backend = vertex(service.url)
    handle = backend.submit(job(tmp_path, strategy="flex-start", max_wait_s=1.0))
    assert end(backend, handle) == "refused"
    assert "did not come within 1 s" in reasons(tmp_path)[0]


def test_logs_are_a_page_of_the_console_and_the_orders_of_what_became_no_job(tmp_path):
    backend = vertex("http://127.0.0.1:1")
    page = "https://console.cloud.google.com/ai/platform/locations/us-east4/training/7?project=p"
    assert backend.logs(f"projects/p/locations/us-east4/customJobs/7 {tmp_path}") == page
    assert backend.logs(f"refused/a1 {tmp_path}") == f"{tmp_path}/orders.json"


def test_a_job_in_another_region_is_asked_for_there(service, tmp_path):
    service.market.stock[L4] = 0
    backend = vertex(service.url)
    handle = backend.submit(job(tmp_path, region="us-east4"))
    assert handle.startswith("projects/p/locations/us-east4/")
    assert end(backend, handle) == "succeeded"


# Machines


def test_a_spot_machine_comes_back_six_times_and_is_then_lost_and_all_of_it_is_paid(service, tmp_path):
    backend = vertex(service.url)
    handle = backend.submit(job(tmp_path, f"echo x >> {tmp_path}/starts; sleep 60", strategy="spot"))
    for number in range(1, 8):
        wait(lambda number=number: len(read(tmp_path / "starts")) == number)
        assert backend.state(handle) == "running"
        service.only().tell("preempt")
    assert end(backend, handle) == "preempted"
    assert "was taken away" in reasons(tmp_path)[0]
    (paid,) = stretches(tmp_path / "job")
    assert paid.started
    assert paid.ended
    hours = (paid.ended - paid.asked).total_seconds() / 3600  # it started within the start-up that is planned
    machine = next(m for m in backend.machines() if (m.name, m.region) == (L4[1], L4[0]))
    assert backend.usd(tmp_path / "job") == pytest.approx(hours * machine.price("spot"))
    assert hours > 0


def read(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_machine_that_is_taken_with_notice_may_save(service, tmp_path):
    backend = vertex(service.url)
    script = f"trap 'touch {tmp_path}/saved; exit 1' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    service.market.stock[L4] = 1
    handle = backend.submit(job(tmp_path, script, strategy="spot"))
    wait((tmp_path / "up").exists)
    service.only().tell("preempt", notice_s=15)
    wait((tmp_path / "saved").exists)
    backend.cancel(handle)


def test_memory_an_abort_and_an_error_of_the_code_are_told_apart(service, tmp_path):
    backend = vertex(service.url)
    scripts = {"memory": "kill -9 $$", "abort": f"echo x >> {tmp_path}/starts; kill -6 $$", "code": "exit 1"}
    handles = {
        name: backend.submit(job(tmp_path / name, script, name=name)) for name, script in scripts.items()
    }
    assert {name: end(backend, handle) for name, handle in handles.items()} == dict.fromkeys(
        scripts, "failed"
    )
    assert "ran out of the memory of g2-standard-8" in reasons(tmp_path / "memory")[0]
    assert [line["final"] for line in read_lines(tmp_path / "memory" / "job" / "errors.jsonl")] == [True]
    assert "an error of its own code" in reasons(tmp_path / "code")[0]
    assert len(read(tmp_path / "starts")) == 4  # the service tries three times more


def test_a_worker_is_given_its_budget_of_restarts(service, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.backends.fake.running.WORKER_RESTARTS", 1)
    monkeypatch.setattr("tests.backends.fake.running.JOB_RESTARTS", 1)
    backend = vertex(service.url)
    handle = backend.submit(job(tmp_path, f"echo x >> {tmp_path}/starts; sleep 60"))
    for number in range(1, 5):
        wait(lambda number=number: len(read(tmp_path / "starts")) == number)
        service.only().tell("crash")
    assert end(backend, handle) == "preempted"
    assert "lost job j by a fault of its own (Internal error occurred)" in reasons(tmp_path)[0]


def test_unlike_machines_are_pools_of_one_job_and_each_knows_what_it_is(service, tmp_path):
    backend = vertex(service.url)
    both = f"until test -e {tmp_path}/{FIRST} -a -e {tmp_path}/{OTHER}; do sleep 0.1; done"
    script = f"touch {tmp_path}/$DAYBREAK_MACHINE; {both}"
    handle = backend.submit(unlike(tmp_path, script))
    assert backend.submit(unlike(tmp_path, script)) == handle
    assert end(backend, handle) == "succeeded"
    assert len(service.jobs) == 1


@pytest.mark.parametrize("failing", [FIRST, OTHER])
def test_an_error_on_a_machine_of_either_kind_is_that_of_the_job(service, tmp_path, failing):
    backend = vertex(service.url)
    handle = backend.submit(unlike(tmp_path, f"test $DAYBREAK_MACHINE = {failing} && exit 3; {SLEEP}"))
    assert end(backend, handle) == "failed"
    assert "job j ended with an error of its own code" in reasons(tmp_path)[-1]
    assert not service.live()


def test_a_job_gets_none_of_its_machines_where_one_kind_is_out_of_stock(service, tmp_path):
    backend = vertex(service.url)
    service.market.stock[("us-central1", OTHER)] = 0
    handle = backend.submit(unlike(tmp_path, SLEEP))
    assert end(backend, handle) == "refused"
    assert f"no capacity for 1 x {FIRST} + 1 x {OTHER} as on-demand in us-central1" in reasons(tmp_path)[-1]
    assert backend.usd(tmp_path / "job") == 0


# What is asked


def test_labels_tell_home_night_model_and_job(service, tmp_path):
    vertex(service.url).submit(job(tmp_path, SLEEP, night="2026-01-02", model="Shop Model"))
    labels = dict(service.only().job.labels)
    assert labels["night"] == "2026-01-02"
    assert labels["model"].startswith("shop_model-")
    assert (labels["job"], labels["daybreak"]) == ("j", vertex(service.url).home_token)
    assert labels["attempt"] == SubmissionJournal(tmp_path / "job").submissions()[0].name


def test_a_job_that_would_outlive_the_night_is_asked_for_with_the_time_that_is_left(service, tmp_path):
    until = datetime.now(UTC) + timedelta(hours=1)
    vertex(service.url).submit(job(tmp_path, SLEEP, until=until, timeout_s=7200))
    timeout_s = service.only().job.job_spec.scheduling.timeout.total_seconds()
    assert 3600 < timeout_s <= 3720


def test_a_job_that_is_taken_only_after_a_brown_out_gets_the_time_that_is_left(service, tmp_path):
    backend = vertex(service.url)
    until = datetime.now(UTC) + timedelta(seconds=60)
    with service.troubled(*[cut("refuse")] * 5, method="list_custom_jobs"):
        backend.submit(job(tmp_path, SLEEP, until=until, timeout_s=60 + 120))
    assert service.calls.count("list_custom_jobs") > 5
    assert service.only().job.job_spec.scheduling.timeout.total_seconds() < 180


def test_a_project_that_is_not_ours_is_a_sentence(service, tmp_path):
    with pytest.raises(JobError, match=r"\(Permission denied on resource project q\); look at backend in"):
        vertex(service.url, project="q").submit(job(tmp_path))


@pytest.mark.promise
def test_live_jobs_of_this_home_are_listed_in_all_regions_and_those_of_others_are_not(
    service, tmp_path, monkeypatch
):
    backend = vertex(service.url)
    kept = [backend.submit(job(tmp_path / r, SLEEP, region=r)) for r in ("us-central1", "us-east4")]
    backend.cancel(backend.submit(job(tmp_path / "ended", SLEEP, name="ended")))
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path / "other home"))
    vertex(service.url).submit(job(tmp_path / "other", SLEEP))
    assert {rental.handle.strip() for rental in backend.live()} == {h.partition(" ")[0] for h in kept}
    assert {(rental.job, rental.night) for rental in backend.live()} == {("j", "2026-01-02")}


def test_no_client_is_made_before_something_is_asked(service):
    import subprocess
    import sys

    code = (
        "import sys; from daybreak.extensions.vertex.vertex import Vertex;"
        "Vertex(project='p', image='i').machines;"
        "print(*{name.split('.')[0] for name in sys.modules} & {'grpc', 'proto', 'requests', 'torch'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_patience_has_an_end():
    pauses = list(RetryPolicy(first_pause_s=0.001, give_up_s=0.0).pauses())
    assert pauses == []


# Kills


def test_a_submission_that_is_killed_at_any_line_ends_in_one_job(service, tmp_path):
    from tests.backends import killed

    service.market.quota[L4] = "queued"

    def make() -> Backend:
        return vertex(service.url)

    lines = killed.lines_of(make, job(tmp_path / "whole", name="whole"))
    for line in range(3, lines, lines // 4):
        wanted = job(tmp_path / str(line), name=f"j{line}")
        assert killed.submit(make, wanted, line=line)[0] == killed.KILLED
        vertex(service.url).submit(wanted)
        assert sum(running.job.labels["job"] == wanted.name for running in service.jobs.values()) == 1
