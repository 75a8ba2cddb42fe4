"""JobSets on the cluster of the tests: validation of the kind, and the controller that makes Jobs of them.

Both do what JobSet's API reference and concepts say (jobset.sigs.k8s.io, v1alpha2). A JobSet is held against
the models of the package kubeflow-trainer-api, which are generated from the schemas that JobSet publishes,
and then against the rules of its webhook. Whether the templates of its Jobs are valid the API says when the
controller makes them, as on a cluster.
"""

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

LABELS = "jobset.sigs.k8s.io/"
NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1035
Made = dict[str, Any]


def lacks(body: Made) -> str:
    """What is wrong with a JobSet; "" if nothing is."""
    try:
        parsed = JobsetV1alpha2JobSet.from_dict(json.loads(json.dumps(body)))
    except ValueError as error:
        return str(error)
    assert parsed
    return next(chain(_unknown(body, parsed.to_dict(), ""), _broken_rules(body)), "")


def _unknown(given: Any, parsed: Any, where: str) -> Iterator[str]:
    """Fields that the kind does not have, as strict validation tells them."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key not in parsed:
                yield f"unknown field {where}.{key}"
            else:
                yield from _unknown(value, parsed[key], f"{where}.{key}")
    elif isinstance(given, list):
        for index, (one, other) in enumerate(zip(given, parsed, strict=True)):
            yield from _unknown(one, other, f"{where}[{index}]")


def _broken_rules(body: Made) -> Iterator[str]:
    """Rules of the webhook, and of the kind's lists."""
    name, jobs = body["metadata"]["name"], body["spec"].get("replicatedJobs", [])
    names = [job["name"] for job in jobs]
    if len(set(names)) < len(names):
        yield f"spec.replicatedJobs: Duplicate value in {names}"
    for job in jobs:
        last = job["template"]["spec"]["completions"] - 1
        longest = f"{name}-{job['name']}-{job.get('replicas', 1) - 1}-{last}-abcde"
        if not NAME.fullmatch(longest):
            yield f"JobSet name is too long or no DNS label: {longest}"
    for policy in ("successPolicy", "failurePolicy"):
        for target in body["spec"].get(policy, {}).get("targetReplicatedJobs", ()):
            if target not in names:
                yield f"invalid replicatedJob name '{target}' does not appear in .spec.ReplicatedJobs"


def defaulted(made: Made) -> Made:
    """A JobSet with what the webhook fills in."""
    spec = made["spec"]
    spec.setdefault("successPolicy", {"operator": "All"})
    network = spec.setdefault("network", {})
    network.setdefault("enableDNSHostnames", True)
    network.setdefault("publishNotReadyAddresses", True)
    for job in spec["replicatedJobs"]:
        job.setdefault("replicas", 1)
        job.setdefault("groupName", "default")
    return made


def next_condition(made: Made, jobs: list[Made], *, holds: Callable[[Made, str], bool]) -> tuple[str, ...]:
    """The type, reason and message of the condition that ends a JobSet now; () if none does.

    `jobs` are its Jobs, and `holds` says whether a condition of one holds.
    """
    failed = [job["metadata"]["name"] for job in jobs if holds(job, "Failed")]
    if failed:
        first = f"(first failed job: {failed[0]})"
        if "failurePolicy" not in made["spec"]:
            return "Failed", "FailedJobs", f"jobset failed due to one or more job failures {first}"
        assert made["spec"]["failurePolicy"].get("maxRestarts", 0) == 0, "nothing is restarted here"
        why = f"jobset failed due to reaching max number of restarts {first}"
        return "Failed", "ReachedMaxRestarts", why
    policy = made["spec"]["successPolicy"]
    targets = [
        job
        for job in made["spec"]["replicatedJobs"]
        if not policy.get("targetReplicatedJobs") or job["name"] in policy["targetReplicatedJobs"]
    ]
    wanted = sum(job["replicas"] for job in targets) if policy["operator"] == "All" else 1
    names = [job["name"] for job in targets]
    done = [
        job
        for job in jobs
        if holds(job, "Complete") and job["metadata"]["labels"][f"{LABELS}replicatedjob-name"] in names
    ]
    if done and len(done) >= wanted:
        return "Completed", "AllJobsCompleted", "jobset completed successfully"
    return ()


def service(made: Made) -> Made | None:
    """The headless service of a JobSet; None where its pods need no names."""
    network, name = made["spec"]["network"], made["metadata"]["name"]
    if not network["enableDNSHostnames"]:
        return None
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": network.get("subdomain", name), "ownerReferences": [_owner(made)]},
        "spec": {
            "clusterIP": "None",
            "selector": {f"{LABELS}jobset-name": name},
            "publishNotReadyAddresses": network["publishNotReadyAddresses"],
        },
    }


def jobs(made: Made) -> Iterator[Made]:
    """The Jobs of a JobSet."""
    name, spec = made["metadata"]["name"], made["spec"]
    for replicated in spec["replicatedJobs"]:
        for index in range(replicated["replicas"]):
            template = json.loads(json.dumps(replicated["template"]))
            marks = {
                f"{LABELS}{key}": str(value)
                for key, value in {
                    "jobset-name": name,
                    "replicatedjob-name": replicated["name"],
                    "job-index": index,
                    "replicatedjob-replicas": replicated["replicas"],
                    "restart-attempt": 0,
                }.items()
            }
            pods = template["spec"]["template"]
            for meta in (template.setdefault("metadata", {}), pods.setdefault("metadata", {})):
                for kind in ("labels", "annotations"):
                    meta[kind] = {**meta.get(kind, {}), **marks}
            if spec["network"]["enableDNSHostnames"]:
                pods["spec"]["subdomain"] = spec["network"].get("subdomain", name)
            yield {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {
                    **template["metadata"],
                    "name": f"{name}-{replicated['name']}-{index}",
                    "ownerReferences": [_owner(made)],
                },
                "spec": {**template["spec"], "suspend": spec.get("suspend", False)},
            }


def _owner(made: Made) -> Made:
    meta = made["metadata"]
    return {
        "apiVersion": made["apiVersion"],
        "kind": "JobSet",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
