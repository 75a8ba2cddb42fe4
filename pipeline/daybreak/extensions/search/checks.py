"""Finds values of search.space that params.yaml or the workload refuses, before a night tries them."""

import importlib.util
from collections.abc import Iterator

from daybreak.contract import params
from daybreak.contract.errors import PipelineError
from daybreak.contract.sections import Params
from daybreak.extensions.search.proposal import assignments
from daybreak.extensions.search.settings import SearchParams
from daybreak.extensions.search.space import ends
from daybreak.storage.home import Home


def checks(home: Home, loaded: Params) -> Iterator[tuple[str, bool, str]]:
    """Yields a sentence on each setting: its values, or the error that one of them causes."""
    space = loaded.section(SearchParams).space
    if space and importlib.util.find_spec("optuna") is None:
        yield "search", False, "optuna is not installed; pip install 'daybreak[search]'"
    for key, given in space.items():
        values = ends(given, key)
        try:
            for value in values:
                params.override(home.folder, assignments({key: value})).workload.make()
        except PipelineError as error:
            yield f"search.space.{key}", False, str(error)
        else:
            yield f"search.space.{key}", True, given if isinstance(given, str) else ", ".join(map(str, given))
