"""Reads `params.yaml`, checks it as a whole, and overrides keys; an error names the key."""

from collections.abc import Iterable, Iterator
from datetime import date
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from daybreak import hooks
from daybreak.contract import forms
from daybreak.contract.errors import ParamsError
from daybreak.contract.records import replace_text
from daybreak.contract.sections import Params, Section

FILE = Path("params.yaml")
MOST_VALUES = 100_000
ALIKE = 0.7  # of a mistyped key and the one that was meant, by difflib's ratio
S = TypeVar("S", bound=Section)


def load(folder: Path) -> Params:
    """Params of the folder, checked; ParamsError names the key and what is wrong with it."""
    path = folder / FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise ParamsError(f"{path} is missing; run in a checkout, or restore it with git") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path} is not UTF-8: {error}; fix it") from None
    return loads(text, source=str(path))


def loads(text: str, *, source: str) -> Params:
    """Params of a text, checked; ParamsError names the key and what is wrong with it."""
    try:
        # pure: libyaml, which is used where ruamel.yaml.clib is installed, refuses {use: module:Class}
        values = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ParamsError(f"{source} is not YAML: {' '.join(str(error).split())}; fix it") from None
    return check(values, source=source)


def check(values: Any, *, source: str = str(FILE)) -> Params:
    """Params from plain values; ParamsError names the key and what is wrong with it."""
    _expect_few(values, source=source)
    for key, value in _leaves(values):
        if isinstance(value, date):
            raise ParamsError(
                f'{source}: {key} is a date without quotes, which DVC does not take; write "{value}"'
            )
    left = forms.params(values) if isinstance(values, dict) else values
    brought = [(section, kind, _taken(left, section, kind)) for section, kind in _of_extensions()]
    params = _validated(Params, left, source=source)
    _expect_time_to_predict(params, source=source)
    params._brought = {
        kind: _validated(kind, given, source=source, section=section) for section, kind, given in brought
    }
    return params


def _expect_time_to_predict(params: Params, *, source: str) -> None:
    """Raises ParamsError where predictions are due before a model is trained."""
    by, train = params.predict.by_hours, params.night.train_hours
    if params.predict.to and 0 < by <= train:
        raise ParamsError(
            f"{source}: predict.by_hours {by:g} is not after night.train_hours {train:g}, by which a model "
            f"is trained; raise the one or lower the other"
        )


def _of_extensions() -> list[tuple[str, type[Section]]]:
    """Returns the name of a section, and the model of the keys there, for all that extensions bring."""
    return [(section, hooks.imported(path)) for section, path in hooks.sections()]


def _taken(values: Any, section: str, kind: type[Section]) -> Any:
    """Takes the keys of an extension's model out of the values of params.yaml, and returns them."""
    if not isinstance(values, dict) or section not in values:
        return {}
    if section not in {field.alias or name for name, field in Params.model_fields.items()}:
        return values.pop(section)
    keys = values[section]
    return {key: keys.pop(key) for key in kind.model_fields if key in keys} if isinstance(keys, dict) else {}


def _validated(kind: type[S], values: Any, *, source: str, section: str = "") -> S:
    """Returns a section, or the core's whole of them; ParamsError names the first key that is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([*([section] if section else []), *map(str, first["loc"])]) or source
        reason = first["msg"][0].lower() + first["msg"][1:]
        if first["type"] != "extra_forbidden":
            reason = f"is {first['input']!r}, but {reason}; fix it in {source}"
        elif name := hooks.needed_for(key):
            reason = hooks.absent(name)
        else:
            reason = f"is not a key{_but_alike(key)}; fix it in {source}"
        raise ParamsError(f"{source}: {key} {reason}") from None


def _but_alike(key: str) -> str:
    """Returns a clause that names the key of the same section that was meant; "" where none is alike."""
    section, dot, name = key.rpartition(".")
    brought = (key for section, kind in _of_extensions() for key in (section, *_keys(kind, f"{section}.")))
    names = [each.rpartition(".") for each in (*_keys(Params), *brought)]
    alike = get_close_matches(name, [last for of, _, last in names if of == section], n=1, cutoff=ALIKE)
    return f", but {section}{dot}{alike[0]} is" if alike else ""


def _keys(kind: type[Section], prefix: str = "") -> Iterator[str]:
    """Yields the keys of a section, and those of the sections in it."""
    for name, field in kind.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        yield key
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _keys(field.annotation, f"{key}.")


def _expect_few(values: Any, *, source: str) -> None:
    """Raises ParamsError where aliases of YAML repeat each other without end, or nearly so."""
    left, num = [values], 0
    while left:
        value = left.pop()
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        num += 1
        if num > MOST_VALUES:
            raise ParamsError(
                f"{source} holds more than {MOST_VALUES:,} values, as aliases that repeat each other make; "
                f"write out what you mean"
            )


def _leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted keys and the values of nested mappings and lists, as `a.b` and `a.b[0]`."""
    keys: Iterable[tuple[str, Any]] = ()
    if isinstance(values, dict):
        keys = ((f"{prefix}.{key}" if prefix else f"{key}", value) for key, value in values.items())
    elif isinstance(values, list):
        keys = ((f"{prefix}[{place}]", value) for place, value in enumerate(values))
    for key, value in keys:
        if isinstance(value, dict | list):
            yield from _leaves(value, key)
        else:
            yield key, value


def override(folder: Path, assignments: list[str], *, into: Path | None = None) -> Params:
    """Params of the folder with `section.key=value` assignments on top; values are read as YAML.

    With `into` they are written to that folder's params.yaml too, comments kept. Nothing is written
    unless the outcome is valid.
    """
    load(folder)  # the file's own faults are told as such
    yaml = YAML()
    values = yaml.load((folder / FILE).read_text())
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        *sections, last = key.strip().split(".")
        if not equals or not last:
            raise ParamsError(f"--set {assignment} is not an assignment; write --set section.key=value")
        section = values
        for name in sections:
            if isinstance(section.get(name), str):
                section[name] = {"use": section[name]}
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise ParamsError(
                    f"--set {assignment}: {name} is not a section with keys; edit {FILE} instead"
                )
        try:
            value = YAML(typ="safe", pure=True).load(text)
            section[last] = text if isinstance(value, date) else _with_dates_as_text(value)
        except YAMLError:
            raise ParamsError(f"--set {assignment}: {text!r} is not YAML; quote it") from None
    params = check(values, source=f"--set {' '.join(assignments)}" if assignments else str(folder / FILE))
    if into is not None and assignments:
        stream = StringIO()
        yaml.dump(values, stream)
        replace_text(into / FILE, stream.getvalue())
    return params


def _with_dates_as_text(value: Any) -> Any:
    """Returns a value of YAML whose list has dates as text, since DVC takes no others from params.yaml."""
    return [str(one) if isinstance(one, date) else one for one in value] if isinstance(value, list) else value


def complete(folder: Path) -> None:
    """Adds to the folder's params.yaml the sections that it leaves out, as DVC needs them."""
    path = folder / FILE
    text = path.read_text()
    values = YAML(typ="safe", pure=True).load(text) or {}
    absent = [
        name
        for key, field in Params.model_fields.items()
        if not field.is_required() and values.get(name := field.alias or key) is None
    ]
    if absent:
        lines = [line for line in text.splitlines() if line.rstrip(": ") not in absent]
        replace_text(path, "\n".join([*lines, *(f"{name}: {{}}" for name in absent)]) + "\n")
