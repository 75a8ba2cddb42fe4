"""Loads the reviewed suite of rules for the data, and judges the data by it with Great Expectations.

The suite is a YAML file: rules in three groups (`schema`, `days`, `rows`), each an expectation of
Great Expectations by its type and arguments, and limits of drift. The head of the file says what a group
judges and what a failure leads to. The context of Great Expectations ends with the process; its Data Docs, a
site to open in a browser, stay.
"""

import hashlib
import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.contract.errors import ParamsError
from pipeline.contract.params import Section

if TYPE_CHECKING:
    from pandas import DataFrame

Group = Literal["schema", "days", "rows"]


class Rule(Section):
    """One expectation: our name for it, its type, its arguments, and the raw column to blame."""

    name: str
    type: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    column: str = ""

    @property
    def blamed(self) -> str:
        """Returns the raw column that a failure is counted under."""
        return self.column or str(self.kwargs.get("column", "(table)"))


class Suite(Section):
    """The suite file."""

    schema_: tuple[Rule, ...] = Field(alias="schema", min_length=1)
    days: tuple[Rule, ...]
    rows: tuple[Rule, ...] = Field(min_length=1)
    drift: dict[str, float] = Field(default_factory=dict)

    def rules(self, group: Group) -> tuple[Rule, ...]:
        """Returns the rules of the group, in the order of the file."""
        return {"schema": self.schema_, "days": self.days, "rows": self.rows}[group]

    def digest(self) -> str:
        """Returns the digest of the rules that decide which rows are clean: `schema` and `rows`."""
        rules = [rule.model_dump() for rule in (*self.schema_, *self.rows)]
        return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one rule: the row numbers that failed it, and the values found instead."""

    rule: Rule
    success: bool
    rows: tuple[int, ...]
    details: dict[str, Any]


def load(path: Path) -> Suite:
    """Returns the suite in the file; ParamsError names the key that is wrong."""
    try:
        suite = Suite.model_validate(YAML(typ="safe").load(path.read_text()))
    except FileNotFoundError:
        raise ParamsError(f"{path} is missing; name the suite in validate.suite") from None
    except YAMLError as error:
        raise ParamsError(f"{path} is not YAML: {' '.join(str(error).split())}; fix it") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ParamsError(f"{path}: {key}: {first['msg'].lower()}; fix it in {path}") from None
    names = [rule.name for rule in (*suite.schema_, *suite.days, *suite.rows)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ParamsError(f"{path}: two rules are named {twice[0]!r}; give each its own name")
    return suite


class Judge:
    """Great Expectations with one suite: `findings` judges one group, `publish` writes the Data Docs."""

    def __init__(self, suite: Suite, *, docs: Path) -> None:
        os.environ["GX_ANALYTICS_ENABLED"] = "false"  # Great Expectations reads this on import
        import great_expectations as gx

        for name in ("great_expectations", "great_expectations.data_context.types.base"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._suite = suite
        self._docs = docs
        context: Any = gx.get_context(mode="ephemeral")
        self._context = context
        self._context.variables.progress_bars = {"globally": False}
        for site in list(self._context.list_data_docs_sites()):
            self._context.delete_data_docs_site(site)
        self._source = self._context.data_sources.add_pandas("data")

    def findings(self, group: Group, frame: "DataFrame") -> list[Finding]:
        """Judges the frame by the rules of the group; returns one finding per rule, in their order.

        Raises ParamsError if a rule does not exist, refuses its arguments, or cannot be judged.
        """
        import great_expectations as gx

        rules = self._suite.rules(group)
        suite = gx.ExpectationSuite(name=group, expectations=[_expectation(rule) for rule in rules])
        asset = self._source.add_dataframe_asset(group)
        definition = gx.ValidationDefinition(
            name=group, data=asset.add_batch_definition_whole_dataframe(group),
            suite=self._context.suites.add(suite),
        )  # fmt: skip
        checkpoint = gx.Checkpoint(
            name=group, result_format={"result_format": "COMPLETE", "partial_unexpected_count": 20},
            validation_definitions=[self._context.validation_definitions.add(definition)],
        )  # fmt: skip
        self._context.checkpoints.add(checkpoint)
        outcome: Any = checkpoint.run(batch_parameters={"dataframe": frame})
        (run,) = outcome.run_results.values()
        by_name = {result.expectation_config.meta["rule"]: result for result in run.results}
        return [_finding(rule, by_name[rule.name]) for rule in rules]

    def publish(self) -> Path:
        """Writes the Data Docs of all findings so far and returns their first page."""
        site = {
            "class_name": "SiteBuilder", "show_how_to_buttons": False,
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": {"class_name": "TupleFilesystemStoreBackend",
                              "base_directory": str(self._docs.resolve())},
        }  # fmt: skip
        shutil.rmtree(self._docs, ignore_errors=True)
        self._context.add_data_docs_site("docs", site)
        self._context.build_data_docs()
        return self._docs / "index.html"


def _expectation(rule: Rule) -> Any:
    from great_expectations.exceptions.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.registry import get_expectation_impl

    try:
        kind = get_expectation_impl(rule.type)
        return kind(**rule.kwargs, description=rule.name, meta={"rule": rule.name})
    except ExpectationNotFoundError:
        raise ParamsError(
            f"rule {rule.name!r}: Great Expectations has no {rule.type}; fix its type in the suite"
        ) from None
    except (TypeError, ValueError) as error:  # pydantic's errors are ValueErrors
        message = " ".join(str(error).split())
        raise ParamsError(
            f"rule {rule.name!r} refuses its arguments: {message}; fix its kwargs in the suite"
        ) from None


def _finding(rule: Rule, result: Any) -> Finding:
    exceptions = result.exception_info or {}
    for info in [exceptions] if "raised_exception" in exceptions else exceptions.values():
        if info["raised_exception"]:
            raise ParamsError(
                f"rule {rule.name!r} cannot be judged: {info['exception_message']}; fix it in the suite"
            )
    return Finding(
        rule=rule, success=bool(result.success), details=result.result,
        rows=tuple(result.result.get("unexpected_index_list") or ()),
    )  # fmt: skip
