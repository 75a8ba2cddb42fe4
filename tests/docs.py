"""The pages of docs/ that are made of the code. `python -m tests.docs`, or `make docs`, writes them.

docs/params.md is made of the sections of daybreak/contract/sections.py, those that extensions bring, and the
strings below their fields;
docs/cli.md of the parser that `daybreak` parses with;
docs/glossary.md of the glossary by which pages explain their words.
In docs/profile.md it is the text of a profile: what the code says of measurements in tests/profiling/.
"""

import argparse
import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from datetime import date
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from daybreak import cli, hooks, stages
from daybreak.contract.sections import Params, Plug, Section
from daybreak.report import glossary
from tests.profiling import default_night

DOCS = Path(__file__).parent.parent / "docs"
HEADER = "<!-- Made of the code by `make docs`; change the text there. -->\n"
PARAMS = """\
A night reads `params.yaml` of the commit that is checked out. Each key stands with its
default and its values; `key:` alone is empty.
`--set section.key=value` overrides a key for one night, and `daybreak check` examines the whole
file. Text with an asterisk, a colon or a bracket needs quotes in YAML.

Three keys name a class, by `package.module:Class` or by a mapping with its arguments:

```yaml
source: {use: "daybreak.examples.shop.simulated_shop:Shop", seed: 7}
backend: daybreak:Local
```
"""
COMMAND_LINE = """\
A stage runs in the current folder, or in that of the night which `--night ID` names. An option may be left
out unless it is required."""
TYPES = {
    bool: "`true` or `false`",
    int: "whole number",
    float: "number",
    str: "text",
    Plug: "class",
    date: "date",
    type(None): "empty",
}


@cache
def pages() -> dict[Path, str]:
    """Returns the text of each page that is made of the code."""
    return {
        DOCS / "params.md": "\n".join(_params()),
        DOCS / "cli.md": "\n".join(_command_line()),
        DOCS / "glossary.md": glossary.FILE.read_text().replace("\n", f"\n\n{HEADER}", 1).rstrip(),
        DOCS / "profile.md": _profile((DOCS / "profile.md").read_text().removesuffix("\n")),
    }


def _profile(page: str) -> str:
    """Returns the page with the text that the code makes in place of the one it has."""
    before, header, rest = page.partition(HEADER)
    _, _, after = rest.removeprefix("```text\n").partition("\n```\n")
    text = textwrap.fill(default_night.explained(), width=110, break_on_hyphens=False)
    return f"{before}{header}```text\n{text}\n```\n{after}"


PLUGS = ("source", "workload", "backend")


def is_plug(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, Plug)


def _params() -> Iterator[str]:
    yield f"# Every key of params.yaml\n\n{HEADER}"
    yield PARAMS
    described = descriptions(Params)
    plugs = [name for name, field in Params.model_fields.items() if is_plug(field.annotation)]
    yield from (f"- `{name}`: {_line(described[name])}" for name in sorted(plugs, key=PLUGS.index))
    yield "\nThe other keys stand in a section each."
    head = ""
    for name, section in sections():
        if name != head:
            yield f"\n## {name}\n\n{_line(section.__doc__)}\n"
        head = name
        yield from _keys(section)


def sections() -> list[tuple[str, type[Section]]]:
    """Returns the sections in the order of the page, each with its models.

    Those of the core stand as in its code; after its keys come those that an extension brings, and last the
    sections that only extensions have.
    """
    core = [
        (field.alias or name, field.annotation)
        for name, field in Params.model_fields.items()
        if not is_plug(field.annotation)
    ]
    core.sort(key=lambda one: inspect.getsourcelines(one[1])[1])
    names = [name for name, _ in core]
    brought = [(section, hooks.imported(path)) for section, path in hooks.sections()]
    names += [name for name, _ in brought if name not in names]
    return sorted([*core, *brought], key=lambda one: names.index(one[0]))


def descriptions(section: type[Section]) -> dict[str, str]:
    """Returns the string below each key of a section, also of those that it inherits."""
    described: dict[str, str] = {}
    for kind in reversed(section.__mro__[: section.__mro__.index(Section)]):
        (node,) = ast.parse(inspect.getsource(kind)).body
        for key, below in pairwise(node.body):
            match key, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    described[name] = inspect.cleandoc(text)
    return described


def _keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Yields a line for each key with the default, and below a mapping the lines of its keys."""
    described = descriptions(section)
    for key, field in section.model_fields.items():
        values = f"{_values(field)}; required" if field.is_required() else _values(field)
        default = (
            ""
            if field.is_required()
            else f" {_default(field.get_default(call_default_factory=True))}".rstrip()
        )
        yield f"- `{prefix}{key}:{default}` ({values}): {_line(described[key])}"
        for kind in typing.get_args(field.annotation):
            if inspect.isclass(kind) and issubclass(kind, Section) and not is_plug(kind):
                yield from _keys(kind, f"{key}.")


def _default(value: object) -> str:
    """A default as params.yaml has it."""
    if value in (None, "", (), {}):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _values(field: FieldInfo) -> str:
    return _bounded(_kind(field.annotation), field.metadata)


def _kind(kind: Any) -> str:
    """The values of a type, in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        bounds = [b for a in arguments[1:] for b in (a.metadata if isinstance(a, FieldInfo) else [a])]
        return _bounded(_kind(arguments[0]), bounds)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_kind, arguments))
    if origin is tuple:
        return f"list ({_kind(arguments[0])})"
    if origin is dict:
        return f"mapping ({_kind(arguments[1])})"
    return TYPES.get(kind, "mapping")


def _bounded(kind: str, bounds: list[Any]) -> str:
    signs = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}
    limits = [f"{signs[type(b)][0]} {getattr(b, signs[type(b)][1]):,}" for b in bounds if type(b) in signs]
    if any(isinstance(bound, MinLen) for bound in bounds):
        limits.append("not empty")
    limits += [f"as `{bound.pattern}`" for bound in bounds if hasattr(bound, "pattern")]
    return ", ".join([kind, *limits])


def _command_line() -> Iterator[str]:
    yield f"# The command line\n\n{HEADER}"
    yield f"{_line(cli.__doc__)}\n"
    yield COMMAND_LINE
    of_night = stages.CHAIN
    yield from _commands("Whole nights", cli.WHOLE)
    yield from _commands("The stages of a night, in order", of_night)
    yield from _commands("Stages beside a night", [name for name in stages.STAGES if name not in of_night])
    known = {*cli.WHOLE, *stages.STAGES}
    yield from _commands("Commands", [name for name in _subparsers() if name not in known])


def _commands(title: str, names: Iterable[str]) -> Iterator[str]:
    yield f"\n## {title}"
    for name in names:
        parser = _subparsers(name if name in stages.STAGES else "")[name]
        text = _line(parser.description)
        yield f"\n### {name}\n\n{text[0].upper()}{text[1:].rstrip('.')}.\n"
        options = [action for action in parser._actions if not _is_common(action)]
        yield from map(_option, options)


def _is_common(action: argparse.Action) -> bool:
    """Whether all commands, or all stages, have this option, which the page says once."""
    return isinstance(action, argparse._HelpAction) or action.help == cli.NIGHT_HELP


@cache
def _subparsers(stage: str = "") -> dict[str, argparse.ArgumentParser]:
    """The parsers of all commands, with the options of that stage."""
    actions = cli.parser([stage])._actions
    (commands,) = (action for action in actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


def _option(action: argparse.Action) -> str:
    name = action.option_strings[0] if action.option_strings else action.metavar
    said = (
        "left out" in (action.help or "")
        or action.default is None
        or action.default is False
        or action.default == ""
    )
    note = " (required)" if action.required else "" if said else f" (default `{action.default}`)"
    return f"- `{name}`{note}: {_line(action.help).rstrip('.')}"


def _line(text: str | None) -> str:
    """A text of several lines in one."""
    return " ".join((text or "").split())


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text + "\n")
        print(page)
