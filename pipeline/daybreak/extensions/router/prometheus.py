"""Defines the router's counters and histograms for Prometheus, by model and arm, which /metrics returns."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from daybreak.statistics.assignment import CHALLENGER, CHAMPION

BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class ArmMetrics:
    """The metrics of one arm."""

    def __init__(self, metrics: "Metrics", model: str, arm: str) -> None:
        self.requests = metrics.requests.labels(model, arm)
        self.errors = metrics.errors.labels(model, arm)
        self.fallbacks = metrics.fallbacks.labels(model, arm)
        self.computed = metrics.computed.labels(model, arm)
        self.latency_s = metrics.latency_s.labels(model, arm)


class Metrics:
    """All metrics of the router of a model."""

    def __init__(self, model: str) -> None:
        self.registry = registry = CollectorRegistry()

        def by_arm(name: str, about: str) -> Counter:
            return Counter(f"daybreak_{name}", about, labelnames=["model", "arm"], registry=registry)

        def plain(name: str, about: str) -> Gauge:
            return Gauge(f"daybreak_{name}", about, ["model"], registry=registry).labels(model)

        def counter(name: str, about: str) -> Counter:
            return Counter(f"daybreak_{name}", about, ["model"], registry=registry).labels(model)

        self.requests = by_arm("requests", "Recommendations or predictions asked for")
        self.errors = by_arm("errors", "Of these, the model did not answer")
        self.fallbacks = by_arm("fallbacks", "Of these, the popular items were shown")
        self.computed = by_arm("computed", "Of these, no answer was kept")
        self.latency_s = Histogram(
            "daybreak_latency_seconds",
            "Until a recommendation or prediction was ready",
            buckets=BOUNDS_S,
            labelnames=["model", "arm"],
            registry=registry,
        )
        self.outcomes = counter("outcomes", "Outcomes acknowledged")
        self.unknown = counter("unknown_outcomes", "Outcomes of no exposure")
        self.lost = plain("lost_exposures", "Exposures never written")
        self.share = plain("share", "Share of the users who meet a challenger")
        self.champion = plain("champion", "Version of the champion; 0: none")
        self.challenger = plain("challenger", "Version of the challenger, of the oldest test; 0: none")
        self.arms = {arm: ArmMetrics(self, model, arm) for arm in (CHAMPION, CHALLENGER)}

    def collect(self) -> Iterable[Metric]:
        """Yields what each metric is now."""
        return self.registry.collect()


class Collector(Protocol):
    """Knows what some metrics are."""

    def collect(self) -> Iterable[Metric]:
        """Yields what each metric is now."""


class Together:
    """The metrics of several models, one family of all of them by each name."""

    def __init__(self, metrics: Sequence[Collector]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Yields what each metric is now, of every model."""
        families: dict[str, Metric] = {}
        for family in (family for metrics in self._metrics for family in metrics.collect()):
            if family.name in families:
                families[family.name].samples += family.samples
            else:
                families[family.name] = family
        return families.values()

    def text(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        return generate_latest(self)
