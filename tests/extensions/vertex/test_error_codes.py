"""Why a job ended: each cause told from the others, with its own next step and its own sentence."""

import re

import pytest

from daybreak.backends.faults import fault_sentence
from daybreak.contract.record_parts import Rental
from daybreak.extensions.vertex.error_codes import FAULTS, classify, is_device_quota

RENTAL = Rental(
    machine="g2-standard-8", num_machines=2, region="us-central1", strategy="flex-start", max_wait_s=3600
)
STOCKOUT = (
    "Resources are insufficient in region: us-central1. "
    "Please try a different region or use a different accelerator."
)
QUOTA = (
    "The following quota metrics exceed quota limits: "
    "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"
)
EXITED = "The replica workerpool0-0 exited with a non-zero status of"


@pytest.mark.parametrize(
    ("ended", "kind", "state", "final", "pattern"),
    [
        (("FAILED", 8, STOCKOUT, False), "stock-out", "refused", False, "no capacity for 2 x g2-standard-8"),
        (("FAILED", 8, STOCKOUT, True), "preempted", "preempted", False, "was taken away .*; the job goes"),
        (("FAILED", 8, QUOTA, False), "quota", "refused", False, "quota does not allow .*; ask Google Cloud"),
        (("FAILED", 8, "", False), "quota", "refused", False, "quota does not allow 2 x"),
        (("EXPIRED", 0, "", False), "expired", "refused", False, "within 3,600 s; .*flex_wait_hours"),
        (("FAILED", 3, f"{EXITED} 1.", True), "user error", "failed", False, "its own code .*; look"),
        (
            ("FAILED", 3, "Replicas low on memory: workerpool0-0.", True),
            "out of memory",
            "failed",
            True,
            "ran out of the memory of g2-standard-8 .*; name a machine with",
        ),
        (("FAILED", 3, f"{EXITED} 137.", True), "out of memory", "failed", True, "ran out of the memory"),
        (("FAILED", 3, f"{EXITED} 143.", True), "killed", "preempted", False, "was killed on .*; it goes on"),
        (
            ("FAILED", 5, "Image eu.example/x:1 not found.", False),
            "no such thing",
            "failed",
            True,
            "that is not there .*; look at backend.image",
        ),
        (
            ("FAILED", 7, "Permission denied on the bucket.", False),
            "not allowed",
            "failed",
            True,
            "may not use something .*; give backend.service_account the roles",
        ),
        (
            ("FAILED", 13, "Internal error occurred.", True),
            "internal",
            "preempted",
            False,
            "a fault of its own .*; it is submitted again",
        ),
        (("FAILED", 0, "", True), "internal", "preempted", False, "lost job j by a fault of its own; it is"),
        (
            ("FAILED", 4, "Job exceeded its timeout.", True),
            "overtime",
            "preempted",
            False,
            "after its time .*; its last checkpoint .*; allow more",
        ),
        (("CANCELLED", 1, "", True), "cancelled", "preempted", False, "was cancelled; it goes on"),
    ],
)
def test_each_cause_has_its_own_state_and_sentence(ended, kind, state, final, pattern):
    name, code, message, ran = ended
    cause = classify(state=name, code=code, message=message, ran=ran)
    fault = FAULTS[cause]
    text = fault_sentence(fault, job="j", rental=RENTAL, said=message)
    assert (cause, fault.state, fault.final) == (kind, state, final)
    assert re.search(pattern, text), text
    assert text.count("; ") >= 1
    assert not message or message.rstrip(".") in text


@pytest.mark.parametrize(
    "printed",
    [
        'File "/app/shop/stockout.py", line 7, in forecast\n    raise ValueError(7)\nValueError: 7',
        "RuntimeError: quota of the feature store exceeded",
        "KeyError: 'preempted'",
        "FileNotFoundError: weights.pt does not exist; permission denied",
        "RuntimeError: a child exited with a non-zero status of 137",
    ],
)
@pytest.mark.parametrize(
    ("ended", "kind", "state"),
    [
        (f"{EXITED} 1. Termination reason: Error.", "user error", "failed"),
        (f"{EXITED} 137. Termination reason: OOMKilled.", "out of memory", "failed"),
        (f"{EXITED} 143. Termination reason: Error.", "killed", "preempted"),
        (
            "The replica workerpool0-0 ran out-of-memory and exited with a non-zero status of 247.",
            "out of memory",
            "failed",
        ),
    ],
)
def test_what_a_replica_printed_is_not_taken_for_the_service_s_word(ended, kind, state, printed):
    for message in (
        f"{ended} \nTraceback (most recent call last):\n  {printed}",
        f"{ended} Traceback (most recent call last): {printed}",
        f"{ended}\n{printed}",
    ):
        cause = classify(state="FAILED", code=3, message=message, ran=True)
        assert (cause, FAULTS[cause].state) == (kind, state), message


OUTPUT = (
    'File "/app/shop/stockout.py", line 7, in forecast',
    "OSError: [Errno 122] Disk quota exceeded: '/tmp/arrays'",
    "TypeError: bloom_filter() got an unexpected keyword, preempted",
    "TimeoutError: the read timed out; permission denied; image not found; out of memory",
)


@pytest.mark.parametrize("printed", OUTPUT)
@pytest.mark.parametrize(
    ("code", "failed", "state", "kind"),
    [
        (3, False, "failed", "user error"),
        (9, True, "failed", "user error"),
        (13, True, "failed", "user error"),  # its workers say that it was theirs
        (13, False, "preempted", "internal"),
        (8, True, "preempted", "preempted"),  # a machine that was lost, whatever a worker met before
    ],
)
def test_of_a_job_that_ran_no_word_counts(printed, code, failed, state, kind):
    for message in (printed, f"Job failed. {printed}", f"Job failed.\n{printed}"):
        cause = classify(state="FAILED", code=code, message=message, ran=True, failed=failed)
        assert (FAULTS[cause].state, cause) == (state, kind), message


@pytest.mark.parametrize("printed", OUTPUT)
def test_before_a_job_ran_only_the_first_line_of_the_service_counts(printed):
    cause = classify(state="FAILED", code=8, message=f"{STOCKOUT}\n{printed}", ran=False)
    assert cause == "stock-out"
    cause = classify(state="FAILED", code=3, message=f"Invalid command.\n{printed}", ran=False)
    assert cause == "user error"


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (1, "OOMKilled", "out of memory"),
        (1, "Preempted", "preempted"),
        (1, "Error", "user error"),
        (137, "Preempted", "preempted"),  # killed, as what is taken away is
        (137, "Evicted", "preempted"),
        (143, "Preempted", "preempted"),
        (143, "OOMKilled", "out of memory"),
        (137, "Error", "out of memory"),
        (143, "Error", "killed"),
    ],
)
def test_the_reason_of_a_termination_comes_before_the_exit_status(status, reason, kind):
    message = f"{EXITED} {status}. Termination reason: {reason}. \nTraceback ..."
    assert classify(state="FAILED", code=3, message=message, ran=True) == kind


def test_an_invalid_argument_is_no_matter_of_capacity_whatever_its_words():
    cause = classify(state="FAILED", code=3, message="Unknown image shop/stockout:1", ran=False)
    assert FAULTS[cause].state == "failed"


def test_no_two_causes_say_the_same():
    ends = [
        (8, STOCKOUT, False),
        (8, STOCKOUT, True),
        (8, QUOTA, False),
        (3, "exited with 1", True),
        (3, "Replicas low on memory: workerpool0-0.", True),
        (5, "", False),
        (7, "", False),
        (13, "", True),
        (4, "", True),
    ]
    causes = [(classify(state="FAILED", code=c, message=m, ran=r), m) for c, m, r in ends]
    texts = [fault_sentence(FAULTS[cause], job="j", rental=RENTAL, said=m) for cause, m in causes]
    nexts = [text.partition("; ")[2] for text in texts]
    assert len(set(texts)) == len(texts)
    assert len(set(nexts)) == len(nexts)


def test_a_429_of_devices_is_told_from_one_of_calls_a_minute():
    assert is_device_quota(QUOTA)
    assert not is_device_quota(
        "Quota exceeded for quota metric 'Resource management requests' and limit 'requests per minute'"
    )
    assert not is_device_quota("Too many requests")
