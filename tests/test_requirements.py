"""The versions of packages that go with Daybreak; the packages that the core, and each extra, need."""

import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from daybreak.contract.extras import EXTRAS
from tests import architecture
from tests.distributions import closure, modules
from tests.package_registry import out_of_reach, uv

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_EXTRAS = PROJECT["optional-dependencies"]
BASE = [Requirement(text) for text in PROJECT["dependencies"]]
WITH_ALL = BASE + [
    Requirement(text) for name in Requirement(*OF_EXTRAS["all"]).extras for text in OF_EXTRAS[name]
]
# What the core imports of an extra: for a team's charts, a bucket of Google's, processes of `make up`, a TPU.
WHERE_ASKED = {
    "daybreak.report.cards": {"vl_convert"},
    "daybreak.storage.lifecycle": {"google"},
    "daybreak.supervisord_listener": {"supervisor"},
    "daybreak.training.devices": {"torch_xla"},
    "daybreak.training.estimators": {"lightgbm", "xgboost"},
}


def lowest(requirement: Requirement) -> Version:
    (bound,) = (Version(each.version) for each in requirement.specifier if each.operator == ">=")
    return bound


def resolved(*, python: str, resolution: str, extra: str) -> dict[str, Version]:
    """The versions that an installer would take, from the registry's metadata; nothing is installed."""
    options = [
        f"--python-version={python}",
        f"--resolution={resolution}",
        *(["--extra", extra] if extra else []),
    ]
    said = uv("pip", "compile", "--quiet", "--no-header", "--no-annotate", *options, "pyproject.toml")
    pins = (line.partition(";")[0].strip().split("==") for line in said.splitlines())
    return {canonicalize_name(name.partition("[")[0]): Version(version) for name, version in pins}


@cache
def of_the_base() -> set[str]:
    """The modules that the base installation has."""
    return modules(closure([Requirement("daybreak")]))


def test_who_cannot_reach_the_registry_reads_why() -> None:
    said = """error: Failed to fetch: `https://pypi.org/simple/six/`
  cause: client error (Connect)
  cause: invalid peer certificate: UnknownIssuer

hint: Consider enabling use of system TLS certificates"""
    assert "(invalid peer certificate: UnknownIssuer);" in out_of_reach(said)
    assert "(error: Failed to fetch);" in out_of_reach("error: Failed to fetch\n")
    assert out_of_reach("error: no such option") == ""


def test_each_dependency_of_a_user_has_one_lower_bound() -> None:
    for requirement in WITH_ALL:
        assert lowest(requirement), requirement


@pytest.mark.slow
def test_the_lower_bounds_go_together() -> None:
    """One of the tests of the matrix, so that a bound that cannot be had is seen on the day it is written."""
    versions = resolved(python="3.11", resolution="lowest-direct", extra="all")
    raised = {
        each.name: str(taken)
        for each in WITH_ALL
        if (taken := versions[canonicalize_name(each.name)]) != lowest(each)
    }
    assert raised == {}  # bounds below these are never installed, and so were never tried


@pytest.mark.matrix
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("extra", ["", "all"])
@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_all_dependencies_can_be_installed_together(python: str, extra: str, resolution: str) -> None:
    versions = resolved(python=python, resolution=resolution, extra=extra)
    for each in WITH_ALL if extra else BASE:
        assert each.specifier.contains(versions[canonicalize_name(each.name)])


def test_what_an_extra_brings_is_of_its_packages() -> None:
    assert set(EXTRAS) <= set(OF_EXTRAS)
    for extra, named in EXTRAS.items():
        assert set(named) <= modules(closure([Requirement(text) for text in OF_EXTRAS[extra]]))


def test_the_core_imports_what_the_base_installation_has() -> None:
    # Imported for a class alone whose estimator is of that library, which has imported it by then.
    of_a_class = {"lightgbm", "xgboost"}
    assert outside(extensions=False) - of_a_class <= of_the_base()


def test_an_extension_imports_what_the_base_installation_or_an_extra_has() -> None:
    brought = {module for named in EXTRAS.values() for module in named}
    assert outside(extensions=True) - of_the_base() <= brought | {"torch_xla"}


def outside(*, extensions: bool) -> set[str]:
    """What the modules of the core, or those of extensions, import of other packages, at any time."""
    found = {"daybreak"}
    for name, path in architecture.modules(ROOT).items():
        if architecture.is_extension(name) == extensions and architecture.room(name) != architecture.EXAMPLES:
            found |= {each.partition(".")[0] for each in architecture.imported(path)}
            found -= WHERE_ASKED.get(name, set())
    return found - {"daybreak"} - sys.stdlib_module_names
