"""What is installed here: which packages come with others, and which modules they have."""

import importlib.metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(wanted: list[Requirement]) -> set[str]:
    """Names of the distributions that come with them."""
    known: set[tuple[str, str]] = set()
    todo = [(canonicalize_name(each.name), extra) for each in wanted for extra in ("", *each.extras)]
    while todo:
        if (one := todo.pop()) in known:
            continue
        known.add(one)
        try:
            required = importlib.metadata.requires(one[0]) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another device or system
        for each in map(Requirement, required):
            if each.marker is None or each.marker.evaluate({"extra": one[1]}):
                todo += [(canonicalize_name(each.name), extra) for extra in ("", *each.extras)]
    return {name for name, _ in known}


def modules(names: set[str]) -> set[str]:
    """What can be imported of these distributions."""
    owners = importlib.metadata.packages_distributions()
    return {top for top, of in owners.items() if any(canonicalize_name(name) in names for name in of)}
