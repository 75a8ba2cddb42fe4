"""Models of keys in params.yaml."""

from daybreak.contract.sections import Section


class FakeParams(Section):
    """A section of its own."""

    size: int = 1


class FakeWatchParams(Section):
    """A key in a section of the core."""

    patience_s: float = 60
