"""Reads a file of rows, packed or not: its bytes become a table, as they were delivered.

Parquet keeps its types; the columns of CSV are text. JSON is an object a line, or one array of objects.
"""

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

PARQUET, JSON, CSV = (".parquet", ".pq"), (".jsonl", ".ndjson", ".json"), (".csv", ".tsv")
UNPACKERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".lzma": lzma.open}
CODECS = {".zst": "zstd", ".lz4": "lz4"}  # which Python has not, by Arrow's name
PACKED = (*UNPACKERS, ".zip", *CODECS)
SUFFIXES = (*PARQUET, *JSON, *CSV, *(text + packed for text in (*JSON, *CSV) for packed in PACKED))
NULLS = ["", "NULL", "null", "NaN", "nan"]  # not NA: that is a country
ASCII = bytes(range(128)) + b'\x1b$B$"\x1b(B'  # which is a letter in ISO 2022
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
LEAST_BYTES = 4  # of a value in memory, about
MOST_COLUMNS = 10_000  # with those within columns
BLOCK_BYTES = 1 << 26  # of JSON that is read at once; an object must fit into it


def is_of(path: str, kinds: tuple[str, ...]) -> bool:
    """Returns whether a file is of one of the kinds, packed or not.

    >>> is_of("sales.CSV.gz", CSV), is_of("sales.parquet", CSV)
    (True, False)
    """
    name = path.lower()
    packed = next((suffix for suffix in PACKED if name.endswith(suffix)), "")
    return name.removesuffix(packed).endswith(kinds)


@contextmanager
def unpacked(file: IO[bytes], path: str) -> "Iterator[IO[bytes]]":
    """Yields an opened file, unpacked as its path says; ArrowInvalid where it packs several files."""
    suffix = next((suffix for suffix in PACKED if path.lower().endswith(suffix)), "")
    if suffix == ".zip":
        with zipfile.ZipFile(file) as archive:
            names = [each for each in archive.namelist() if not each.endswith("/")]
            if len(names) != 1:
                raise pa.ArrowInvalid(
                    f"it packs {len(names)} files ({', '.join(names[:3])}), and one is read"
                )
            with archive.open(names[0]) as one:
                yield one
    elif suffix:
        unpacker = UNPACKERS.get(suffix) or (lambda packed: pa.CompressedInputStream(packed, CODECS[suffix]))
        with unpacker(file) as stream:
            yield stream
    else:
        yield file


def as_utf8(data: bytes) -> bytes:
    """Recodes text with a mark of UTF-16 or UTF-32 as UTF-8; returns other bytes unchanged."""
    encoding = next((name for mark, name in MARKS.items() if data.startswith(mark)), "")
    return data.decode(encoding).encode() if encoding else data


def num_bytes(file: pq.ParquetFile) -> int:
    """Returns about what the rows of a file take: a million equal values may be written as two numbers."""
    facts = file.metadata
    packed = sum(facts.row_group(number).total_byte_size for number in range(facts.num_row_groups))
    return int(max(packed, facts.num_rows * facts.num_columns * LEAST_BYTES))


def plain(schema: pa.Schema) -> pa.Schema:
    """Returns columns without views, of which Arrow cannot take rows, and without dictionaries.

    A dictionary has a value once for all its rows: who decodes it later would have them all in memory.
    """
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    types, views = pa.types, {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    plain = views.get(kind, kind)
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        stored = _plain(kind.storage_type)
        return kind if stored == kind.storage_type else stored
    if types.is_map(kind):  # before its fields: who asks for both does twice the work for each map in a map
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type), keys_sorted=kind.keys_sorted)
    fields = [kind.field(n).with_type(_plain(kind.field(n).type)) for n in range(kind.num_fields)]
    if types.is_struct(kind):
        plain = pa.struct(fields)
    elif types.is_fixed_size_list(kind):
        plain = pa.list_(fields[0], kind.list_size)
    elif types.is_large_list(kind) or types.is_large_list_view(kind):
        plain = pa.large_list(fields[0])
    elif types.is_list(kind) or types.is_list_view(kind):
        plain = pa.list_(fields[0])
    return plain


def as_plain(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns rows with their `plain` columns."""
    columns = [
        _rebuilt(column, kind) if has_list_views(column.type) else column
        for column, kind in zip(rows.columns, schema.types, strict=True)
    ]
    return pa.table(columns, names=rows.column_names).cast(schema)


def has_list_views(kind: pa.DataType) -> bool:
    """Returns whether values hold list views, which few write."""
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return True
    return any(map(has_list_views, within(kind)))


def within(kind: pa.DataType) -> list[pa.DataType]:
    """Returns the types of the values that a value holds."""
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    return [kind.field(n).type for n in range(kind.num_fields)]


def _rebuilt(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Returns a column, value by value: Arrow 25 casts a list view to a list with wrong offsets."""
    return pa.chunked_array([pa.array(column.to_pylist(), kind)])


def expect_columns(num: int) -> None:
    """Raises ArrowInvalid where a file has more columns than are read."""
    if num > MOST_COLUMNS:
        raise pa.ArrowInvalid(
            f"it has {num:,} columns, and {MOST_COLUMNS:,} are read, of which one in Parquet or JSON may "
            f"hold lists of numbers (Float with size)"
        )


def read_csv(data: bytes, *, delimiter: str, encoding: str, kept: Collection[str]) -> pa.Table:
    """Returns the rows of CSV, all columns as text; names but those of `kept` lose the blanks around them."""
    if (in_utf8 := as_utf8(data)) is not data:
        data, encoding = in_utf8, "utf8"
    elif ASCII.decode(encoding, "replace") != ASCII.decode():  # a letter may have a quote's byte
        data, encoding = data.decode(encoding).encode(), "utf8"
    if data.count(b'"') % 2:  # the reader would take the rest of the file for one value
        odd = next(n for n, line in enumerate(_lines_of(data), 1) if line.count('"') % 2)
        raise pa.ArrowInvalid(f"Row #{odd}: a quote is opened and never closed")
    dialect = {
        # with threads an error has no line number
        "read_options": pyarrow.csv.ReadOptions(use_threads=False, encoding=encoding),
        "parse_options": pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
    }
    expect_columns(next(_lines_of(data), "").count(delimiter) + 1)
    names = pyarrow.csv.open_csv(pa.BufferReader(data), **dialect).schema.names
    rows = pyarrow.csv.read_csv(
        pa.BufferReader(data),
        **dialect,
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), null_values=NULLS, strings_can_be_null=True
        ),
    )
    names = [name if name in kept else name.strip(" ") for name in rows.column_names]
    return pa.table([_stripped(each) for each in rows.columns], names)


def _lines_of(data: bytes) -> Iterator[str]:
    return io.TextIOWrapper(io.BytesIO(data), "latin-1")


def _stripped(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns texts without the blanks around them; null where no value is left."""
    if not pc.any(pc.match_substring_regex(texts, "^ | $")).as_py():
        return texts
    texts = pc.utf8_trim(texts, " ")
    return pc.if_else(pc.is_in(texts, pa.array(NULLS)), pa.scalar(None, texts.type), texts)


def read_json(data: bytes) -> pa.Table:
    """Returns the rows of JSON; a column whose values are numbers in some rows and text in others is text."""
    data = as_utf8(data).removeprefix(codecs.BOM_UTF8)
    if not data.strip():  # a day without rows
        return pa.table({})
    if data.lstrip().startswith(b"["):
        data = _lines(json.loads(data))
        if not data:
            return pa.table({})
    for _ in range(data.split(b"\n", 1)[0].count(b":") + 1):  # a column of two types each
        try:
            return _read_lines(data)
        except pa.ArrowInvalid as error:
            name = re.search(
                r"Column\(/([^/]*)\) changed from (?:number|string|boolean) to "
                r"(?:number|string|boolean) in row",
                str(error),
            )
            if not name:
                raise
            data = _lines([json.loads(line) for line in data.splitlines() if line.strip()], as_text=name[1])
    return _read_lines(data)


def _lines(rows: Any, *, as_text: str = "") -> bytes:
    """Returns objects as a line each, with the values of a column as text."""
    if odd := next((row for row in rows if not isinstance(row, dict)), None):
        raise pa.ArrowInvalid(f"an array of JSON has {str(odd)[:40]!r} where an object should be")
    for row in rows:
        value = row.get(as_text)
        if as_text and value is not None and not isinstance(value, str):
            row[as_text] = json.dumps(value)
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def _read_lines(data: bytes) -> pa.Table:
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    rows = pyarrow.json.read_json(pa.BufferReader(data), read_options=options)
    # The reader takes text that looks like a time for one, also where it is the name of a thing.
    texts = [
        pa.field(field.name, pa.string()) if pa.types.is_timestamp(field.type) else field
        for field in rows.schema
    ]
    if pa.schema(texts) == rows.schema:
        return rows
    parse = pyarrow.json.ParseOptions(explicit_schema=pa.schema(texts))
    return pyarrow.json.read_json(pa.BufferReader(data), read_options=options, parse_options=parse)
