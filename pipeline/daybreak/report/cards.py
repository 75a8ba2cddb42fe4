"""Asks the team's class for cards of its own, for the page of a night, its copy in MLflow and the live page.

A class may have `cards(night)`, which returns contents by their titles, or yields pairs of both: Markdown,
figures, tables, and images. It runs without secrets and network, in a process of its own
(daybreak/registry/host.py): once the arrays are there, now and then while the night trains, and once the
model is scored. What the process sends is cut to its limits here, and escaped by the pages. A card, or a
class, that fails is a sentence on the page.

A chart of Vega-Lite is drawn as an image by vl-convert, which has the renderer in itself, since a page may
fetch none; it is of the extra `vega`. Nothing that a chart names by an address is fetched.
"""

import base64
import inspect
import io
import json
import math
import os
import re
import struct
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from daybreak.contract import clock, code_path, extras, formats, records
from daybreak.contract.errors import DataError, without_password
from daybreak.contract.record_parts import OwnCard
from daybreak.contract.record_types import Cards, Evaluation, Night, Training
from daybreak.contract.sections import WorkloadPlug
from daybreak.contract.workload import ARRAYS
from daybreak.evaluation.held_out import arrays_of
from daybreak.evaluation.scores import Columns, read_scores
from daybreak.jobs import collector
from daybreak.jobs.cost_tracker import JOBS
from daybreak.registry.host import CodeHost, NoAnswer
from daybreak.registry.weights import MODEL, load_model
from daybreak.storage import jsonl
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from torch import nn

LIMIT_S = 60.0  # for all cards, the start of the process included
AGAIN = timedelta(minutes=5)  # while a night trains
MOST_CARDS = 12
MOST_TITLE, MOST_TEXT, MOST_CELL, MOST_WORDS = 100, 10_000, 120, 300  # characters
MOST_ROWS, MOST_COLUMNS, MOST_FIGURES = 50, 12, 24
MOST_PNG_BYTES, MOST_SIDE = 500_000, 4000  # of an image; pixels of a side
MOST_BYTES = 1_000_000  # of all images
KEPT = "\n\u200c\u200d"  # of characters that are not printed
PNG = b"\x89PNG\r\n\x1a\n"
TAKEN = (
    "give text, a number, numbers by name, a table, a figure of matplotlib, a chart of Altair or Vega-Lite, "
    "or the bytes of a PNG file"
)
SIZE = re.compile(r'<svg[^>]* width="([\d.]+)" height="([\d.]+)"')  # as Vega begins an image, in pixels
MOST_REASON = 160  # characters at either end of what the renderer says


class CardNight:
    """A night as `cards` knows it.

    Attributes:
        id: its name.
        day: whose rows were brought in.
        losses: samples trained on and the mean loss since the point before; of a night that trains, so far.
        validations: samples trained on and the mean score; empty while it trains.
        metrics: means by name, once the model is scored; else empty.
    """

    def __init__(self, workload: Any, arrays: Path, facts: Mapping[str, Any]) -> None:
        self._workload, self._arrays = workload, arrays
        self.id, self.day = str(facts["id"]), date.fromisoformat(facts["day"])
        self.losses = [tuple(point) for point in facts["losses"]]
        self.validations = [tuple(point) for point in facts["validations"]]
        self.metrics: dict[str, float] = facts["metrics"]
        self._is_scored = bool(facts["is_scored"])

    @cached_property
    def samples(self) -> Any:
        """The held-out samples, as `dataset` of the class gives them."""
        return self._workload.dataset(self._arrays, "test")

    @cached_property
    def model(self) -> "nn.Module | None":
        """The model of the night; None until it is scored."""
        return load_model(self._workload, MODEL) if self._is_scored else None

    @cached_property
    def scores(self) -> Columns:
        """A value for each held-out sample by name, as scores.npy has them; empty until they are there."""
        return (read_scores() or {}) if self._is_scored else {}


def renew(home: Home, stage: str) -> None:
    """Asks today's class for its cards at the end of a stage, and keeps them in the night's folder.

    While `train` waits, they are asked for again at most every `AGAIN`, and not if one failed.
    """
    folder = home.tonight
    kept = records.find(Cards, folder / records.LOOKS)
    if stage == "train":
        is_new = kept and clock.utc() - kept.at < AGAIN
        if kept is None or is_new or any(card.failed for card in kept.cards):
            return
    plug = home.params_of(folder).workload
    if stage != "train" and not hasattr(plug.make(), "cards"):  # the stage has imported it
        return
    made = asked(home, plug)
    (folder / records.LOOKS).mkdir(parents=True, exist_ok=True)
    records.write(Cards(at=clock.utc(), cards=made), folder / records.LOOKS)


def asked(home: Home, plug: WorkloadPlug, *, limit_s: float = LIMIT_S) -> tuple[OwnCard, ...]:
    """Returns the cards of a class for tonight, within the limits; what fails is a card that says so."""
    folder = home.tonight
    evaluation = records.find(Evaluation, folder / records.RUN)
    arrays = arrays_of(evaluation.days) if evaluation else ARRAYS
    known = _facts(folder, evaluation)
    return made(plug, known, folder=folder, code=folder, arrays=arrays, home=home, limit_s=limit_s)


def _facts(folder: Path, evaluation: Evaluation | None) -> dict[str, Any]:
    """Returns what is known of the night in a folder."""
    night = records.read(Night, folder / records.RUN)
    training = records.find(Training, folder / records.RUN)
    return facts(
        night.id,
        night.day,
        losses=training.losses if training else collector.loss_points(_heartbeats(folder)),
        validations=training.validations if training else (),
        metrics=evaluation.metrics if evaluation else None,
    )


def facts(
    night: str,
    day: date,
    *,
    losses: Iterable[tuple[int, float]] = (),
    validations: Iterable[tuple[int, float]] = (),
    metrics: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Returns what `CardNight` knows beside files, as JSON values; `metrics` is None before it is scored."""
    return {
        "id": night,
        "day": str(day),
        "losses": tuple(losses),
        "validations": tuple(validations),
        "metrics": metrics or {},
        "is_scored": metrics is not None,
    }


def made(
    plug: WorkloadPlug,
    known: Mapping[str, Any],
    *,
    folder: Path,
    code: Path,
    arrays: Path,
    home: Home,
    limit_s: float = LIMIT_S,
) -> tuple[OwnCard, ...]:
    """Returns the cards of a class that knows these facts, as `asked` does.

    `folder` is where `arrays` leads from, and has the model and its scores as that of a night has; the class
    is found in `code`, which is that folder or in it.
    """
    try:
        with CodeHost(__name__, answer_s=limit_s, home=home, reads=(folder,)) as process:
            reply = process.ask(
                "cards",
                folder=str(folder.absolute()),
                code=str(code.absolute()),
                use=plug.use,
                arguments=plug.model_extra or {},
                arrays=str(arrays),
                facts=known,
            )
        text = json.dumps({"at": clock.utc().isoformat(), "cards": reply.get("cards")})
        return bounded(records.loads(Cards, text, source="what the process sent").cards)
    except (NoAnswer, DataError) as error:
        return (_failed("Cards", f"cards of {plug.use} failed: {error}"),)


def _heartbeats(folder: Path) -> list[dict[str, Any]]:
    """Returns the heartbeats of the job that was asked for last."""
    jobs = sorted((folder / JOBS).glob("*/progress.jsonl"), key=lambda path: path.stat().st_mtime)
    return jsonl.whole(jobs[-1]) if jobs else []


def bounded(cards: Iterable[OwnCard]) -> tuple[OwnCard, ...]:
    """Returns cards whose texts, tables and images are within the limits, whatever the process sent."""
    shown, num_bytes = [], 0
    for card in list(cards)[: MOST_CARDS + 1]:
        rows = card.rows[:MOST_ROWS]
        if not card.head:
            rows = tuple((*row, "", "")[:2] for row in rows[:MOST_FIGURES])
        kept = OwnCard(
            title=_text(card.title, MOST_TITLE).replace("\n", " ") or "Card",
            text=_text(card.text, MOST_TEXT),
            head=tuple(_text(name, MOST_CELL) for name in card.head[:MOST_COLUMNS]),
            rows=tuple(tuple(_text(cell, MOST_CELL) for cell in row[:MOST_COLUMNS]) for row in rows),
            note=_text(card.note, MOST_WORDS),
            failed=without_password(_text(card.failed, MOST_WORDS)),
        )
        if card.png:
            why, size = _no_image(card.png), len(card.png) * 3 // 4
            if not why and num_bytes + size > MOST_BYTES:
                why = f"the images have more than {formats.size(MOST_BYTES)} together; draw them smaller"
            num_bytes += 0 if why else size
            kept = replace(kept, failed=why) if why else replace(kept, png=card.png)
        shown.append(kept)
    return tuple(shown)


def _no_image(png: str) -> str:
    """Returns why the text is no image that a page shows; "" where it is one. The image is not decoded."""
    try:
        content = base64.b64decode(png, validate=True)
        start, (width, height) = content[:8], struct.unpack(">II", content[16:24])
    except (ValueError, struct.error):
        return f"it is no PNG file; {TAKEN}"
    if start != PNG or content[12:16] != b"IHDR":
        return f"it is no PNG file; {TAKEN}"
    if len(content) > MOST_PNG_BYTES:
        most = formats.size(MOST_PNG_BYTES)
        return f"the image has {formats.size(len(content))}, of at most {most}; draw it smaller"
    return _too_large(width, height) if max(width, height) > MOST_SIDE else ""


def _text(text: str, most: int) -> str:
    """Returns text without characters that steer, of at most so many; joiners are letters to some scripts."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(one if one.isprintable() or one in KEPT else " " for one in cut)


def _failed(title: str, why: str) -> OwnCard:
    return bounded([OwnCard(title=title, failed=why)])[0]


def _cards(
    *, folder: str, code: str, use: str, arguments: Mapping[str, Any], arrays: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the cards of a class, as JSON values; those before an error, and the error, where there is one.

    The verb of the process.
    """
    os.chdir(folder)
    os.environ |= {"MPLBACKEND": "Agg", code_path.FOLDER: code}
    workload = WorkloadPlug(use=use, **arguments).make()
    given: list[OwnCard] = []
    try:
        contents = workload.cards(CardNight(workload, Path(arrays), facts))
        for title, content in contents.items() if isinstance(contents, Mapping) else contents:
            if len(given) == MOST_CARDS:
                given.append(
                    OwnCard(title="More cards", failed=f"only the first {MOST_CARDS} cards are shown")
                )
                break
            given.append(_card(str(title), content))
    except Exception as error:  # noqa: BLE001 whatever the class raises is shown
        traceback.print_exc()
        why = f"cards of {use} failed{_line(error, type(workload))}: {type(error).__name__}: {error}"
        given.append(OwnCard(title="Cards", failed=why))
    return {"cards": [json.loads(records.dumps(one)) for one in bounded(given)]}


def _line(error: Exception, kind: type) -> str:
    """Returns the line of the class's file that an error came by; "" where it is in none of it."""
    source = inspect.getsourcefile(kind)
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == source]
    return f" at line {lines[-1]} of {Path(source).name}" if source and lines else ""


def _card(title: str, content: Any) -> OwnCard:
    """Returns a card by the type of its content; one that says why where it cannot be shown."""
    try:
        return replace(_shown(title, content), title=title)
    except DataError as error:
        return OwnCard(title=title, failed=str(error))
    except Exception as error:  # noqa: BLE001 whatever an object of the class raises
        traceback.print_exc()
        return OwnCard(title=title, failed=f"this card failed: {type(error).__name__}: {error}")


def _shown(title: str, content: Any) -> OwnCard:
    content = _plain(content)
    if isinstance(content, str):
        note = f"Cut after {MOST_TEXT:,} characters." if len(content) > MOST_TEXT else ""
        return OwnCard(title=title, text=content, note=note)
    if isinstance(content, int | float):
        return OwnCard(title=title, rows=((title, _value(content)),))
    if (chart := _vega(content)) is not None:
        note = "Images in it that are named by an address are not fetched." * _has_images(chart)
        return OwnCard(title=title, png=base64.b64encode(_drawn(chart)).decode(), note=note)
    if isinstance(content, Mapping):
        figures = [(str(name), _value(value)) for name, value in list(content.items())[:MOST_FIGURES]]
        return OwnCard(title=title, rows=tuple(figures), note=_first(MOST_FIGURES, len(content), "figures"))
    if isinstance(content, list) or hasattr(content, "to_pandas") or hasattr(content, "iloc"):
        return _table(title, content)
    return OwnCard(title=title, png=base64.b64encode(_image(content)).decode())


def _plain(value: Any) -> Any:
    """Returns the number of a single value of NumPy or torch; others as they are."""
    is_single = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    return value.item() if is_single else value


def _image(content: Any) -> bytes:
    """Returns the bytes of an image, or of a figure of matplotlib as PNG; TypeError of anything else."""
    if isinstance(content, bytes):
        return content
    if not hasattr(content, "savefig"):
        raise TypeError(f"{type(content).__name__} is not shown; {TAKEN}")
    figure = content
    if not hasattr(figure, "get_size_inches"):  # a grid of seaborn has a figure, and pyplot a current one
        figure = content.gcf() if hasattr(content, "gcf") else getattr(content, "figure", None)
    if hasattr(figure, "get_size_inches"):
        _expect_size(*(side * figure.dpi for side in figure.get_size_inches()))
    drawn = io.BytesIO()
    content.savefig(drawn, format="png")
    return drawn.getvalue()


def _expect_size(width: float, height: float) -> None:
    """Raises DataError for sides in pixels that no page shows, and that take gigabytes to draw."""
    if max(width, height) > MOST_SIDE:
        raise DataError(_too_large(width, height))


def _too_large(width: float, height: float) -> str:
    most = f"of at most {MOST_SIDE:,} a side"
    return f"the image is {width:,.0f} x {height:,.0f} pixels, {most}; draw it smaller"


def _vega(content: Any) -> Mapping[str, Any] | None:
    """Returns a chart of Altair, or a dict with the schema of Vega, as a dict; None of anything else."""
    if type(content).__module__.partition(".")[0] == "altair":
        chart: Mapping[str, Any] = content.to_dict()
        return chart
    schema = content.get("$schema", "") if isinstance(content, Mapping) else ""
    return _json(content) if "vega" in str(schema) else None


def _json(value: Any) -> Any:
    """Returns a part of a chart with values of JSON in place of those of NumPy and pandas."""
    if isinstance(value, Mapping):
        return {str(name): _json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    if type(value).__module__ == "numpy" and value.dtype.kind == "M":
        value = value.astype("datetime64[us]")  # which `tolist` makes times of, and whole numbers of others
    if hasattr(value, "tolist"):
        return _json(value.tolist())
    return _json(value.to_dict("records")) if hasattr(value, "iloc") else _json_value(value)


def _json_value(value: Any) -> str | float | None:
    """Returns a single value as JSON has it.

    A day is written with its first hour, as Altair does, since Vega takes a date alone for midnight in UTC.
    """
    if _is_missing(value) or (isinstance(value, float) and math.isinf(value)):
        return None
    if isinstance(value, date):
        return value.isoformat() if isinstance(value, datetime) else f"{value.isoformat()}T00:00:00"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return float(value) if isinstance(value, SupportsFloat) else str(value)


def _drawn(chart: Mapping[str, Any]) -> bytes:
    """Returns a chart as PNG; DataError where it cannot be drawn.

    Data that a chart names by an address would be left out without a word, as the process has no network.
    """
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        lacks = extras.missing(error)
        raise DataError(f"a Vega-Lite chart needs a renderer: {lacks}, or give the chart as PNG") from None
    for data in _data_of(chart):
        if "url" in data:
            raise DataError(
                f"the chart's data are at {without_password(str(data['url']))}, and a card fetches nothing; "
                f"give them in the chart, as values"
            )
    is_lite = "/schema/vega/" not in str(chart.get("$schema", ""))
    draw = vl_convert.vegalite_to_svg if is_lite else vl_convert.vega_to_svg
    try:
        svg = draw(dict(chart), allowed_base_urls=[])
        if size := SIZE.search(svg):
            _expect_size(float(size[1]), float(size[2]))
        png: bytes = vl_convert.svg_to_png(svg)
    except ValueError as error:  # whatever the renderer does not take
        said = " ".join(str(error).partition("\n    at ")[0].split())
        if len(said) > 2 * MOST_REASON:  # the chart itself may stand in it
            said = f"{said[:MOST_REASON]} … {said[-MOST_REASON:]}"
        raise DataError(f"the chart cannot be drawn: {said}") from None
    return png


def _has_images(chart: Mapping[str, Any]) -> bool:
    """Returns whether a chart has marks of images."""
    marks = [part.get("mark", part.get("type")) for part in _parts(chart)]
    return any(mark == "image" for mark in marks)


def _data_of(chart: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields each data source of a chart: Vega has a list of them, Vega-Lite one for each part."""
    for part in _parts(chart):
        data = part.get("data")
        yield from (one for one in (data if isinstance(data, list) else [data]) if isinstance(one, Mapping))


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields a chart and all dicts in it, but for the rows of its data."""
    if isinstance(value, Mapping):
        yield value
        for name, part in value.items():
            if name not in ("values", "datasets"):
                yield from _parts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _parts(part)


def _table(title: str, content: Any) -> OwnCard:
    """Returns a table of pandas, Arrow or Polars, or of a list with a dict for each row."""
    import pandas as pd

    if isinstance(content, list):
        frame = pd.DataFrame(content[:MOST_ROWS])
    else:
        is_pandas = not hasattr(content, "to_pandas")
        frame = content.head(MOST_ROWS) if is_pandas else content.slice(0, MOST_ROWS).to_pandas()
        if isinstance(frame, pd.Series):
            frame = frame.to_frame()
        if not isinstance(frame.index, pd.RangeIndex):
            frame = frame.reset_index(allow_duplicates=True)
    notes = [
        _first(MOST_ROWS, len(content), "rows"),
        _first(MOST_COLUMNS, len(frame.columns), "columns"),
    ]
    part = frame.iloc[:, :MOST_COLUMNS]
    rows = [tuple(map(_value, row)) for row in part.itertuples(index=False, name=None)]
    head = tuple(str(name) for name in part.columns)
    return OwnCard(title=title, head=head, rows=tuple(rows), note=" ".join(filter(None, notes)))


def _first(most: int, num: int, what: str) -> str:
    return f"The first {most} of {num:,} {what}." if num > most else ""


def _value(value: Any) -> str:
    """Returns a value as a page writes it."""
    value = _plain(value)
    if type(value) is int:  # which may be too large for a float
        return f"{value:,}".replace("-", "−")
    return formats.NONE if _is_missing(value) else formats.quantity(value)


def _is_missing(value: Any) -> bool:
    """Returns whether a table has no value there."""
    return type(value).__name__ in ("NaTType", "NAType") or (isinstance(value, float) and math.isnan(value))


VERBS = {"cards": _cards}
