"""Finds how a label is read: as 0 or 1, as a class, or as a number."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract import formats
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.table import AnyColumn, Bool, Float, Int, Label
from daybreak.data.numbers import is_text
from daybreak.extensions.init.survey_types import FEW_CLASSES

FEW_LABELS = 50  # of a class, which are too few to learn it


@dataclass(frozen=True, kw_only=True)
class LabelType:
    """How a label is read."""

    column: AnyColumn
    binary: bool = False  # it is 0 or 1
    num_classes: int = 0  # of a label 0, 1, ...; 0: it is none

    @property
    def is_class(self) -> bool:
        """Whether it is a class rather than a number."""
        return bool(self.binary or self.num_classes)

    def in_words(self, label: Label) -> str:
        """Returns how the label is read, and the option by which it is read otherwise."""
        name, classes, num_classes = label.column, label.classes, self.num_classes
        if classes:
            listed = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
            return f"label {name}: {len(classes)} classes, {listed}"
        if isinstance(self.column, Bool):
            return f"label {name}: true or false"
        if self.binary:
            return f"label {name}: 0 or 1; for a number write --regression"
        if num_classes:
            last = num_classes - 1
            return f"label {name}: {num_classes} classes, 0 to {last}; for a number write --regression"
        return f"label {name}: a {'whole ' if isinstance(self.column, Int) else ''}number"


def label_type(
    values: pa.ChunkedArray, label: Label, plug: Mapping[str, Any], *, of_images: bool, regression: bool
) -> LabelType:
    """Returns how a label is read; raises ParamsError or DataError where it can be none.

    Args:
        values: of the label.
        label: with its classes, where it is text.
        plug: the source, which may have the classes of all days; the newest may have some of them alone.
        of_images: whether it is a label of images, whose two classes are classes.
        regression: whether it is a number even where it could be a class.
    """
    named = label.classes if len(label.classes) > 2 else ()
    num_classes = len(plug.get("classes", named)) or (0 if regression else num_classes_of(values))
    if of_images and not regression and is_binary(values):
        num_classes = num_classes or 2
    nullable = bool(label.ripe_after) or values.null_count > 0
    if num_classes and is_number(values.type) and not pa.types.is_boolean(values.type):
        column = Int(min=0, max=num_classes - 1, nullable=nullable)
        return LabelType(column=column, num_classes=num_classes)
    distinct = expect_numbers(values, label.column, regression=regression)
    whole = all(value.is_integer() for value in distinct)
    if pa.types.is_boolean(values.type):
        return LabelType(column=Bool(nullable=nullable), binary=True, num_classes=num_classes)
    if not regression:
        if set(distinct) == {0.0, 1.0}:
            return LabelType(column=Int(min=0, max=1, nullable=nullable), binary=True)
        if len(distinct) <= FEW_CLASSES and whole:
            raise ParamsError(_like_classes(label.column, distinct))
    return LabelType(column=(Int if whole else Float)(nullable=nullable))


def _like_classes(name: str, distinct: list[float]) -> str:
    shown = ", ".join(f"{value:g}" for value in sorted(distinct)[:6])
    return (
        f"the label {name} has {len(distinct)} values ({shown}), like counts or stars, or like classes "
        f"that are not numbered from 0; write --regression to predict it as a number, or number classes "
        f"0, 1, ... at the source, without a gap"
    )


def is_binary(values: pa.ChunkedArray) -> bool:
    """Returns whether labels are 0 and 1, or true and false."""
    if not is_number(values.type):
        return False
    return set(pc.unique(values.drop_null().cast(pa.float64(), safe=False)).to_pylist()) == {0.0, 1.0}


def is_number(kind: pa.DataType) -> bool:
    """Returns whether values of a type can be labels."""
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def num_classes_of(values: pa.ChunkedArray) -> int:
    """Returns the number of classes where labels are 0, 1, ... without a gap, three or more; else 0."""
    if not pa.types.is_integer(values.type) and not pa.types.is_floating(values.type):
        return 0
    numbers = sorted(pc.unique(values.drop_null().cast(pa.float64(), safe=False)).to_pylist())
    return len(numbers) if 3 <= len(numbers) <= FEW_CLASSES and numbers == [*range(len(numbers))] else 0


def classes_of(values: pa.ChunkedArray) -> tuple[str, ...]:
    """Returns the classes of a label that is text, of two the rarer last; none where there are too many."""
    counts = {str(each["values"]): each["counts"] for each in pc.value_counts(values.drop_null()).to_pylist()}
    by_name = sorted(counts)
    if len(counts) == 2:
        return tuple(sorted(by_name, key=lambda name: -counts[name]))
    return tuple(by_name) if 2 < len(counts) <= FEW_CLASSES else ()


def expect_numbers(values: pa.ChunkedArray, name: str, *, regression: bool) -> list[float]:
    """Returns the distinct values of a label; raises ParamsError or DataError where they are not numbers."""
    known, of_text = values.drop_null(), is_text(values.type)
    if len(known) and not of_text and not is_number(values.type):
        raise ParamsError(f"the label {name} is {values.type}, not a number; name another by --label")
    distinct: list[Any] = []
    if len(known):
        distinct = pc.unique(known if of_text else known.cast(pa.float64(), safe=False)).to_pylist()
    if len(distinct) < 2:
        constant = "null" if not distinct else repr(distinct[0]) if of_text else f"{distinct[0]:g}"
        raise DataError(
            f"the label {name} is {constant} in all {len(values):,} rows, so that there is nothing to learn; "
            f"name another by --label, or have rows delivered with others"
        )
    if of_text:
        some = ", ".join(map(repr, distinct[:3]))
        if regression:
            raise ParamsError(
                f"the label {name} is text ({some}, ...), not numbers; leave --regression out, or name "
                f"another by --label"
            )
        raise ParamsError(
            f"the label {name} is text with {len(distinct)} values ({some}, ...), more than classes have; "
            f"name another by --label, or have a number delivered"
        )
    return distinct


def few_labels(labels: pa.ChunkedArray, label: Label) -> Iterator[str]:
    """Yields a sentence on the rarest class, where it has too few rows to learn it."""
    counts = labels.drop_null().value_counts().to_pylist()
    rarest = min(counts, key=lambda each: each["counts"])
    if rarest["counts"] < FEW_LABELS:
        name = label.classes[rarest["values"]] if label.classes else f"{rarest['values']:g}"
        yield (
            f"only {rarest['counts']:,} of {formats.counted(len(labels), 'row')} have the label "
            f"{label.column} = {name}, which is little to learn from and to judge by; bring in more days, or "
            f"predict another column (--label)"
        )
