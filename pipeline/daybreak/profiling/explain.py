"""Explains a profile in one paragraph: the bound, the proof of the bound, and the remedies taken.

Profiles of earlier nights have less evidence; the paragraph leaves out what is missing.
"""

from collections.abc import Callable, Iterator, Mapping
from math import ceil, inf
from typing import Any

from daybreak.contract.formats import count, duration, operations, percent, quantity, size
from daybreak.contract.record_parts import Remedy
from daybreak.contract.record_types import Profile
from daybreak.machines import contention
from daybreak.machines.catalog import HEADROOM
from daybreak.machines.this_machine import KEPT_DISTURBED
from daybreak.profiling.bounds import most_samples, most_times
from daybreak.profiling.remedies import IN_RAM, NOT_TRIED

BOUNDS = {"io": "I/O", "compute": "compute", "memory": "memory"}
MEANING = {
    "io": "getting the data into the model",
    "compute": "the operations of each step",
    "memory": "moving what the operators read and write",
}
CAPACITY = "what must stay on the device"
ELSEWHERE = (IN_RAM, "faster accelerator", "newer generation", "TPU", "more memory per worker")
SYMPTOMS: dict[str, tuple[str, Callable[[float], str]]] = {
    "io_many_inputs_bytes": ("{} of input an update", size),
    "io_parsing_share": ("{} of an update is preparing samples", percent),
    "io_small_model_step_share": ("only {} of an update is the step", percent),
    "io_slow_storage_share": ("{} of an update is waiting for storage", percent),
    "compute_flops_per_input_byte": ("{} operations per byte of input", quantity),
    "compute_fastest_times": ("{fastest}, the fastest of the catalog, has {} times its FLOP/s", quantity),
    "memory_many_inputs_share": ("{} looking up rows or keeping what grows with the batch", percent),
    "memory_many_parameters_share": ("{} of the memory for parameters", percent),
    "memory_peak_share": ("{} of the memory at the peak", percent),
}


def explain(profile: Profile) -> str:
    """Returns the verdict as a paragraph."""
    return " ".join(_sentences(profile))


def _sentences(profile: Profile) -> Iterator[str]:
    evidence = profile.evidence
    if profile.is_estimator:
        yield _estimator(profile, _part(evidence, "estimator"))
    else:
        yield from _bound(profile)
    yield from _proof(profile, _part(evidence, "counterfactual"))
    yield from _roofline(_part(evidence, "roofline"))
    yield from _memory(_part(evidence, "memory"))
    yield from _largest(profile)
    yield from _network(_part(evidence, "network"))
    yield from _dispatch(_part(evidence, "dispatch"))
    yield from _symptoms(profile.bound, _part(evidence, "symptoms"))
    yield from _remedies(profile.remedies, _part(evidence, "tuned"))
    yield from _disturbed(float(evidence.get("contention", 0.0)))
    yield from _reused(_part(evidence, "reused"))


def _part(evidence: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = evidence.get(name)
    return part if isinstance(part, Mapping) else {}


def _estimator(profile: Profile, measured: Mapping[str, Any]) -> str:
    num_samples, sizes = profile.evidence["batch_size"], measured["sizes"]
    trees = measured["num_trees"]
    unit = "a tree" if trees > 1 else "the fit"
    power = measured.get("power")
    way = f"as its time grows by the power {power:.1f} of the samples, from" if power else "by a line through"
    return (
        f"{measured['name']} is no network, so that there are no remedies, no noise scale and no size of a "
        f"batch: {unit} of all {count(num_samples)} samples takes {duration(profile.step_s(num_samples))} "
        f"{way} {count(sizes[0])} to {count(sizes[-1])} samples."
    )


def _bound(profile: Profile) -> Iterator[str]:
    evidence = profile.evidence
    kind = _part(evidence, "memory").get("kind", "")
    meaning = CAPACITY if kind == "capacity" else MEANING[profile.bound]
    yield f"The job is bound by {BOUNDS[profile.bound]}: {meaning}."
    size_ = evidence.get("batch_size")
    if "load_share" not in evidence or not size_:
        return
    update_s = profile.load_s(size_) + profile.step_s(size_)
    parts = [f"{percent(evidence['load_share'])} is loading"]
    if "compute_share" in evidence:
        parts += [
            f"{percent(evidence['compute_share'])} computing",
            f"{percent(evidence['memory_share'])} memory traffic",
        ]
    else:
        parts += [f"{percent(1 - evidence['load_share'])} the step"]
    yield f"Of an update of {count(size_)} samples ({duration(update_s)} on {profile.device}) {_and(parts)}."


def _proof(profile: Profile, counterfactual: Mapping[str, Any]) -> Iterator[str]:
    gains = {
        "without input": counterfactual.get("no_input_gain"),
        "without its operations": counterfactual.get("no_compute_gain"),
        "without memory traffic": counterfactual.get("no_traffic_gain"),
    }
    parts = [f"{percent(max(0.0, gain))} {name}" for name, gain in gains.items() if gain is not None]
    if not parts:
        return
    saved = f"one thing taken away at a time, an update saves {_and(parts)}"
    if not counterfactual.get("step_was_run", True):
        saved += " (the step cannot be run without its operators: their own times stand in)"
    mixed = _part(profile.evidence, "mixed")
    if mixed:
        both = _and([f"{BOUNDS.get(name, name)} ({percent(share)})" for name, share in mixed.items()])
        yield f"The proof is mixed between {both}: {saved}."
    elif _part(profile.evidence, "memory").get("kind") == "capacity":
        yield f"Where it fits, {saved}."
    elif counterfactual.get("agrees", True):
        yield f"Proof: {saved}, most for the bound itself."
    else:
        yield f"The proof does not agree: {saved}."


def _roofline(roofline: Mapping[str, Any]) -> Iterator[str]:
    reached = [
        f"{percent(roofline.get(name, 0.0) / roofline[f'peak_{name}'])} of "
        f"{show(roofline[f'peak_{name}'])}{unit}"
        for name, show, unit in (
            ("flops_per_s", operations, "FLOP/s"),
            ("bytes_per_s", size, "/s of a copy"),
            ("gather_bytes_per_s", size, "/s of random rows"),
        )
        if roofline.get(f"peak_{name}")
    ]
    if reached:
        yield f"Of what was measured to be the most here, its step reaches {_and(reached)}."
    if roofline.get("ridge_flops_per_byte") and "flops_per_byte" in roofline:
        does, ridge = float(roofline["flops_per_byte"]), float(roofline["ridge_flops_per_byte"])
        side, longer = ("below", "bytes") if does < ridge else ("above", "operations")
        yield (
            f"It does {quantity(does)} FLOP per byte, {side} the roofline's ridge at {quantity(ridge)}, "
            f"where {longer} take longer."
        )


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    if memory.get("peak_bytes") and memory.get("device_bytes"):
        share = memory["peak_bytes"] / memory["device_bytes"]
        most = f", more than the {percent(1 - HEADROOM)} that it may take" if share > 1 - HEADROOM else ""
        yield (
            f"Memory peaks at {size(memory['peak_bytes'])} of {size(memory['device_bytes'])}, "
            f"{percent(share)}{most}."
        )


def _largest(profile: Profile) -> Iterator[str]:
    """Yields the largest batch and model that would fit this device, each with all else as it is."""
    evidence, batch_size = profile.evidence, profile.evidence.get("batch_size")
    device_bytes = _part(evidence, "memory").get("device_bytes")
    if profile.is_estimator or not device_bytes or not batch_size:
        return
    workers, devices = evidence.get("num_workers", 1), _part(evidence, "machine").get("num_devices", 0)
    each_bytes = device_bytes / ceil(workers / max(1, devices))  # of the workers that share a device
    of_pass = batch_size / workers if profile.is_undivided else 1
    samples = most_samples(profile.memory_bytes, device_bytes=each_bytes)
    weights = profile.sync_bytes.fixed
    times = most_times(profile.memory_bytes(of_pass), device_bytes=each_bytes)
    passes = "such passes" if profile.is_undivided else "passes of one sample"
    number = f" ({count(round(times * weights / 4))} parameters)" if weights else ""
    most = f"up to {count(int(samples))} samples" if samples < inf else "any number of samples"
    yield (
        f"With {percent(HEADROOM)} left free, a pass here fits {most}, and {passes} fit a model "
        f"{quantity(times)} times as large{number}."
    )


def _network(network: Mapping[str, Any]) -> Iterator[str]:
    if network.get("share"):
        what = f"{size(network.get('sync_bytes'))} between {count(network.get('num_workers'))} workers"
        bound = ", so the network binds it as well" if network.get("bound") else ""
        yield f"The all-reduce of {what} takes {percent(network['share'])} of an update{bound}."


def _dispatch(dispatch: Mapping[str, Any]) -> Iterator[str]:
    if dispatch.get("bound"):
        yield (
            f"Its operators are too small: dispatching {count(dispatch['num_operators'])} of them, at "
            f"{duration(dispatch['seconds_each'])} each, takes {percent(dispatch['share'])} of the step."
        )


def _symptoms(bound: str, symptoms: Mapping[str, Any]) -> Iterator[str]:
    present = symptoms.get("present")
    parts = [
        text.format(show(symptoms[name]), fastest=symptoms.get("fastest_device"))
        + ("" if present is None else " (yes)" if name in present else " (no)")
        for name, (text, show) in SYMPTOMS.items()
        if name.startswith(bound) and isinstance(symptoms.get(name), int | float)
    ]
    if parts:
        yield f"Symptoms: {_and(parts)}."


def _remedies(remedies: tuple[Remedy, ...], tuned: Mapping[str, Any]) -> Iterator[str]:
    kept = [f"{r.name} ({percent(r.measured_gain)} saved)" for r in remedies if r.kept]
    reverted = [f"{r.name} ({_gain(r)})" for r in remedies if r.applied and not r.kept]
    if kept:
        yield f"Kept: {_and(kept)}."
    if reverted:
        yield f"Tried and reverted: {_and(reverted)}."
    skipped = [r for r in remedies if r.applies and not r.applied and NOT_TRIED in r.note]
    if skipped:
        yield f"Not tried: {_and([f'{r.name} ({r.note.partition(NOT_TRIED)[2]})' for r in skipped])}."
    elif not kept and not reverted:
        yield "No remedy was tried here."
    before_s, after_s = tuned.get("before_s"), tuned.get("after_s")
    if before_s and after_s:
        yield f"Together an update takes {duration(after_s)} instead of {duration(before_s)}."
    elsewhere = [
        r for r in remedies if r.name in ELSEWHERE and r.applies and not r.applied and r not in skipped
    ]
    if elsewhere:
        yield f"Another machine could bring: {'; '.join(_promise(r) for r in elsewhere)}."
    quality = [r.name for r in remedies if r.quality and r.applies and not r.applied]
    if quality:
        yield f"Offered, as it touches the quality of the model: {_and(quality)}."


def _gain(remedy: Remedy) -> str:
    if remedy.note.startswith("failed"):
        return "failed"
    gain = remedy.measured_gain
    return f"{percent(gain)} saved" if gain >= 0 else f"{percent(-gain)} more"


def _promise(remedy: Remedy) -> str:
    gain = f"{percent(remedy.predicted_gain)} " if remedy.predicted_gain > 0 else ""
    return f"{remedy.name} ({gain}{remedy.note})"


def _disturbed(share: float) -> Iterator[str]:
    if share > contention.MOST:
        yield (
            f"Other processes used the cores meanwhile: {percent(share)} of the time was spent waiting for "
            f"them, so that the times are too long; they are measured again after "
            f"{duration(KEPT_DISTURBED.total_seconds())}."
        )


def _reused(reused: Mapping[str, Any]) -> Iterator[str]:
    if reused.get("from_night"):
        yield (
            f"All this was measured in the night of {reused['from_night']} and still stands, "
            f"since machine, code, params and the shape of the data are the same; "
            f"not measured tonight: {reused.get('not_measured_tonight', '')}."
        )


def _and(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
