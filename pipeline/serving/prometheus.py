"""Defines the router's counters and histograms for Prometheus, by arm, which /metrics returns."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pipeline.statistics.assignment import CHALLENGER, CHAMPION

BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Arm:
    """The metrics of one arm."""

    def __init__(self, metrics: "Metrics", arm: str) -> None:
        self.requests = metrics.requests.labels(arm)
        self.errors = metrics.errors.labels(arm)
        self.fallbacks = metrics.fallbacks.labels(arm)
        self.computed = metrics.computed.labels(arm)
        self.latency_s = metrics.latency_s.labels(arm)


class Metrics:
    """All metrics of a router."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def by_arm(name: str, about: str) -> Counter:
            return Counter(f"daybreak_{name}", about, labelnames=["arm"], registry=registry)

        def plain(name: str, about: str) -> Gauge:
            return Gauge(f"daybreak_{name}", about, registry=registry)

        self.requests = by_arm("requests", "Recommendations or predictions asked for")
        self.errors = by_arm("errors", "Of these, the model did not answer")
        self.fallbacks = by_arm("fallbacks", "Of these, the popular items were shown")
        self.computed = by_arm("computed", "Of these, no answer was kept")
        self.latency_s = Histogram(
            "daybreak_latency_seconds", "Until a recommendation or prediction was ready",
            buckets=BOUNDS_S, labelnames=["arm"], registry=registry,
        )  # fmt: skip
        self.outcomes = Counter("daybreak_outcomes", "Outcomes acknowledged", registry=registry)
        self.unknown = Counter("daybreak_unknown_outcomes", "Outcomes of no exposure", registry=registry)
        self.lost = plain("lost_exposures", "Exposures never written")
        self.share = plain("share", "Share of the challenger")
        self.champion = plain("champion", "Version of the champion; 0: none")
        self.challenger = plain("challenger", "Version of the challenger; 0: none")
        self.arms = {arm: Arm(self, arm) for arm in (CHAMPION, CHALLENGER)}

    def text(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
