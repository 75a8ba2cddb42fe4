"""Derives the state of a job from the cluster's objects: running, waiting for a cause, or ended by one. Pure.

A job has a Job for each kind of its machines, perhaps in a JobSet; these have pods, and a Workload where
Kueue admits them. What keeps a pod from being made or started is in events alone.

Everything is read from fields with fixed words: conditions of JobSets, Jobs, pods and Workloads, reasons of
events, reasons and exit codes of containers. The sentences beside them are shown, never read.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, get_args

from daybreak.extensions.kubernetes.pod_entrypoint import MIN_PODS

LiveCause = Literal[
    "suspended",
    "not admitted",
    "no pods",
    "unschedulable",
    "not started",
    "no image",
    "starting",
    "running",
]
Cause = Literal[LiveCause, "done", "disrupted", "out of memory", "overtime", "killed", "error", "gone"]
# Reasons of a container that waits for what will not come by itself.
STUCK = frozenset(
    ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "CreateContainerError")
)
LIVE: frozenset[Cause] = frozenset(get_args(LiveCause))
STARTING: tuple[Cause, ...] = ("starting", "unschedulable")  # what events say more of
DONE = frozenset(("Complete", "Completed"))  # conditions of a Job, and of a JobSet
NO_POD = "FailedCreate"  # reason of an event of a Job: by a quota of the namespace, or a webhook
# Reasons of events of a pod that no node has room for: what an autoscaler does about it.
AUTOSCALER = frozenset(("TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp"))
# Reasons for which Kueue reserves no quota, and will not before somebody changes the queue or the job.
NEVER = frozenset(("Inadmissible", "Misconfigured", "NoMatchingFlavor", "ExceedsMaxQuota"))
LOST = ("Evicted", "NodeLost", "Shutdown")  # reasons of a pod that lost its node
OF_A_JOB = "batch.kubernetes.io/job-name"
SIGNALS = 128  # exit statuses above it are signals


@dataclass(frozen=True, kw_only=True)
class JobObservation:
    """What was seen of a Job."""

    cause: Cause
    text: str = ""  # the cluster's own words
    since: datetime | None = None  # when that began, where the cluster says so
    status: int | None = None  # exit status of the first container that failed


def observation_of(
    head: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
    *,
    workload: Mapping[str, Any] | None = None,
) -> JobObservation:
    """Returns the state that the objects of a job, as the API has them, imply.

    Args:
        head: the JobSet, or without one the Job of the first pod.
        jobs: the Jobs, with `head` if that is a Job.
        pods: the pods of all Jobs.
        workload: Kueue's Workload of `head`.
    """
    conditions = _true(head)
    if DONE & conditions.keys() or "SuccessCriteriaMet" in conditions:
        return JobObservation(cause="done")
    # A Job has the reason of a failure; a JobSet only says that a Job has failed.
    failures = [each["Failed"] for each in map(_true, jobs) if "Failed" in each]
    failures += [each["FailureTarget"] for each in map(_true, jobs) if "FailureTarget" in each]
    failures += [conditions["Failed"]] if "Failed" in conditions else []
    if failures:
        return _failed(failures[0], pods)
    if "Suspended" in conditions or head["spec"].get("suspend"):
        return _queued(workload) or JobObservation(
            cause="suspended", text=conditions.get("Suspended", {}).get("message", "")
        )
    return _under_way(head, jobs, pods)


def _under_way(
    head: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]
) -> JobObservation:
    """Returns how far a job is that has neither ended nor waits for its turn."""
    specs = _specs(head, jobs)
    running = [pod for pod in pods if pod.get("status", {}).get("phase") in ("Running", "Succeeded")]
    if len(running) >= _num_needed(specs):
        return JobObservation(cause="running")
    if hindered := _hindered(pods):
        return hindered
    if len(jobs) < len(specs) and "deletionTimestamp" not in head["metadata"]:
        return JobObservation(cause="no pods", since=moment(head["metadata"]["creationTimestamp"]))
    return JobObservation(cause="starting")


def _num_needed(specs: Sequence[Mapping[str, Any]]) -> int:
    """Returns how many pods have to run: all, or those with which the job goes on."""
    (container,) = specs[0]["template"]["spec"]["containers"]
    least = (int(each["value"]) for each in container.get("env", ()) if each["name"] == MIN_PODS)
    return next(least, sum(spec["completions"] for spec in specs))


def _specs(head: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the specs of all Jobs that there are, or will be by the JobSet; that of the first pod first."""
    of_set = [each["template"]["spec"] for each in head["spec"].get("replicatedJobs", ())]
    return of_set or [job["spec"] for job in jobs]


def _queued(workload: Mapping[str, Any] | None) -> JobObservation | None:
    """Returns what Kueue waits for; None where it says nothing."""
    if workload is None:
        return None
    conditions = {each["type"]: each for each in workload.get("status", {}).get("conditions") or ()}
    evicted, quota = conditions.get("Evicted", {}), conditions.get("QuotaReserved", {})
    if not workload["spec"].get("active", True):
        return JobObservation(cause="not admitted", text=_words(evicted), since=_since(evicted))
    if quota.get("status") == "False":
        cause: Cause = "not admitted" if quota.get("reason") in NEVER else "suspended"
        was = [_words(evicted)] if evicted.get("status") == "True" else []
        return JobObservation(cause=cause, text="; ".join([*was, _words(quota)]), since=_since(quota))
    return None


def stopped(queue: Mapping[str, Any]) -> str:
    """Returns why a LocalQueue admits nothing; "" where it does, or does not say."""
    conditions = queue.get("status", {}).get("conditions") or ()
    inactive = (each for each in conditions if each["type"] == "Active" and each["status"] == "False")
    return next(map(_words, inactive), "")


def puzzling(
    cause: Cause,
    head: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
) -> str:
    """Returns the uid of what events say more of, "" where nothing is to be asked.

    This is a JobSet that lacks Jobs, a Job that lacks pods, or a pod that does not start.
    """
    if cause == "no pods":
        return str(head["metadata"]["uid"])
    if cause not in STARTING:
        return ""
    num_pods = Counter(pod["metadata"]["labels"].get(OF_A_JOB) for pod in pods)
    lacking = [job for job in jobs if num_pods[job["metadata"]["name"]] < job["spec"]["completions"]]
    waiting = [pod for pod in pods if pod.get("status", {}).get("phase") == "Pending"]
    return next((str(each["metadata"]["uid"]) for each in (*lacking, *waiting)), "")


def explained(seen: JobObservation, events: Sequence[Mapping[str, Any]]) -> JobObservation:
    """Returns the observed state, with the text of the newest event of one object added."""
    if seen.cause == "unschedulable":
        events = [event for event in events if event.get("reason") in AUTOSCALER]
    if not events:
        return seen
    # Of a second that has a warning and what came of it, the latter.
    newest = max(events, key=lambda event: (_last(event), event.get("type") != "Warning"))
    text = "; ".join(filter(None, (seen.text, _words(newest))))
    if newest.get("type") != "Warning" or seen.cause in ("unschedulable", "no pods"):
        return replace(seen, text=text)
    cause: Cause = "no pods" if newest.get("reason") == NO_POD else "not started"
    return JobObservation(cause=cause, text=text, since=_first(newest))


def _words(thing: Mapping[str, Any]) -> str:
    """Returns the reason and the message of a condition or an event."""
    return ": ".join(filter(None, (str(thing.get("reason") or ""), str(thing.get("message") or ""))))


def _since(condition: Mapping[str, Any]) -> datetime | None:
    at = condition.get("lastTransitionTime")
    return moment(at) if at else None


def _first(event: Mapping[str, Any]) -> datetime:
    at = event.get("firstTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return moment(at)


def _last(event: Mapping[str, Any]) -> datetime:
    series = event.get("series") or {}
    at = series.get("lastObservedTime") or event.get("lastTimestamp")
    return moment(at) if at else _first(event)


def _hindered(pods: Sequence[Mapping[str, Any]]) -> JobObservation | None:
    """Returns what keeps a pod from starting; None if nothing does."""
    for pod in pods:
        for container in _containers(pod):
            waiting = container.get("state", {}).get("waiting", {})
            if waiting.get("reason") in STUCK:
                text = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
                return JobObservation(
                    cause="no image", text=text, since=moment(pod["metadata"]["creationTimestamp"])
                )
        for condition in pod.get("status", {}).get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
                since = moment(condition.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])
                return JobObservation(cause="unschedulable", text=condition.get("message", ""), since=since)
    return None


def _failed(condition: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> JobObservation:
    text = str(condition.get("message", ""))
    ended = [each.get("state", {}).get("terminated") or {} for pod in pods for each in _containers(pod)]
    disrupted = [target for pod in pods if (target := _true(pod).get("DisruptionTarget"))]
    if condition.get("reason") == "DeadlineExceeded":
        return JobObservation(cause="overtime", text=text)
    if any(each.get("reason") == "OOMKilled" for each in ended):
        return JobObservation(cause="out of memory", text=text)
    if disrupted or any(pod.get("status", {}).get("reason") in LOST for pod in pods):
        first = disrupted[0] if disrupted else {}
        said = f"{first.get('reason', '')}: {first.get('message', '')}" if first else text
        return JobObservation(cause="disrupted", text=said)
    statuses = [int(each["exitCode"]) for each in ended if each.get("exitCode")]
    own = [status for status in statuses if status <= SIGNALS]  # the others were ended because of it
    if own:
        return JobObservation(cause="error", text=text, status=own[0])
    if not pods:  # they went with their node
        return JobObservation(cause="gone", text=text)
    return JobObservation(cause="killed", text=text, status=statuses[0] if statuses else None)


def is_over(job: Mapping[str, Any]) -> bool:
    """Returns whether a Job has ended, so that none of its pods runs."""
    return not {"Complete", "Failed"}.isdisjoint(_true(job))


def times(
    jobs: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]
) -> tuple[datetime | None, datetime | None, datetime | None]:
    """Returns when the first node had its pod, when the first container began, and when the last ended.

    `jobs` may have the JobSet among them.
    """
    placed = [moment(at) for pod in pods if (at := pod.get("status", {}).get("startTime"))]
    started = [
        moment(at)
        for pod in pods
        for each in _containers(pod)
        for state in ("running", "terminated")
        if (at := each.get("state", {}).get(state, {}).get("startedAt"))
    ]
    ended = [moment(at) for job in jobs if (at := _ended(job))]
    return min(placed, default=None), min(started, default=None), max(ended, default=None)


def _ended(job: Mapping[str, Any]) -> str:
    conditions = _true(job)
    over = next((conditions[kind] for kind in (*DONE, "Failed") if kind in conditions), {})
    return str(job.get("status", {}).get("completionTime") or over.get("lastTransitionTime") or "")


def _true(thing: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the conditions that hold, by type."""
    conditions = thing.get("status", {}).get("conditions") or ()
    return {condition["type"]: condition for condition in conditions if condition["status"] == "True"}


def _containers(pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return pod.get("status", {}).get("containerStatuses") or ()


def moment(text: str) -> datetime:
    """Returns a time of the API."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
