"""How large is a step? The learning rate as a function of how far training is.

Warm-up, stable, decay (WSD; Hu et al. 2024): the decay may start at any moment, so a run that falls behind
can end early and still end well.
"""


def rate_at(
    seen: float, *, num_samples: float, warmup_samples: float, decay_samples: float, peak: float
) -> float:
    """Learning rate of the update whose batch is centred on position `seen`.

    Rises linearly to `peak` over `warmup_samples`, stays, falls linearly to 0 over the last
    `decay_samples` of `num_samples`.

    >>> told = {"num_samples": 100, "warmup_samples": 10, "decay_samples": 50, "peak": 1}
    >>> [round(rate_at(seen, **told), 2) for seen in (5, 30, 75)]
    [0.5, 1, 0.5]
    """
    rising = seen / warmup_samples if warmup_samples > 0 else 1.0
    falling = (num_samples - seen) / decay_samples if decay_samples > 0 else 1.0
    return peak * max(0.0, min(1, rising, falling))
