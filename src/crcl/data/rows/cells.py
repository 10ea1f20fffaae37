"""Columns of images and captions in Arrow tables: found by type and usual names, and captions taken apart into rows.

A cell of captions is one of these, where a struct has its text in a field `raw`, `text` or `caption`:

    string           struct<raw: string, ...>          one caption
    list<string>     list<struct<raw: string, ...>>    several; so too struct<raw: list<string>, ...>, as `datasets`
                                                       stores a `Sequence` of dictionaries
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crcl.data.rows.tables import CAPTIONS, USUAL, Columns
from crcl.errors import InputError, did_you_mean

IMAGES = ("image", "jpg", "jpeg", "png", "webp", "image_bytes", "img", "picture", "bytes")
"""Usual names of columns of image bytes, in order of preference."""
_KEYS = ("key", "__key__")  # columns that name images of a plain column of bytes
_TEXTS = ("raw", "text", "caption")  # fields of a caption that is a struct, such as Karpathy's `sentences`
_OR = f"{', '.join(_TEXTS[:-1])} or {_TEXTS[-1]}"
_WIDEST = 60  # letters of a type in messages
_BREAKS = "[\\n\\r\\x{0}\\x{FEFF}\\x{B}\\x{C}\\x{1C}-\\x{1E}\\x{85}\\x{2028}\\x{2029}]"  # no name has these


@dataclass(frozen=True)
class Cells:
    """The columns of images and captions of an Arrow table."""

    image: str
    caption: str
    is_struct: bool
    """Whether the column of images has fields `bytes` and mostly `path`, instead of plain bytes."""
    names: str | None
    """The column, or the field of the struct with dots, that has the names of the images; None if there is none."""
    has_split: bool

    @property
    def content(self) -> str:
        """The column of bytes: with a dot, if it is a field."""
        return f"{self.image}.bytes" if self.is_struct else self.image

    def contents_of(self, table: pa.Table | pa.RecordBatch) -> pa.Array:
        """The bytes of the images; null where there are none."""
        column = one_array(table[self.image])
        return pc.struct_field(column, "bytes") if self.is_struct else column

    def names_of(self, table: pa.Table | pa.RecordBatch) -> pa.Array:
        """The names of the images in the data itself; null where there is none that fits on one line."""
        if self.names is None:
            return pa.nulls(len(table), pa.string())
        column = one_array(table[self.image if self.is_struct else self.names])
        names = pc.utf8_trim_whitespace(
            (pc.struct_field(column, "path") if self.is_struct else column).cast(pa.string())
        )
        unfit = pc.or_(pc.equal(names, ""), pc.match_substring_regex(names, _BREAKS))
        return pc.if_else(pc.fill_null(unfit, True), None, names)


def is_picture(kind: pa.DataType) -> bool:
    """Whether a column has bytes of images: plain, or as a struct with `bytes`."""
    if pa.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _is_binary(kind.field(place).type)
    return _is_binary(kind)


def has_pictures(schema: pa.Schema) -> bool:
    """Whether a table holds images itself, rather than their names."""
    if "image" in schema.names and not is_picture(schema.field("image").type):
        return False
    return any(is_picture(field.type) and (pa.types.is_struct(field.type) or field.name in IMAGES) for field in schema)


def is_list(kind: pa.DataType) -> bool:
    """Whether a value is a list."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_several(kind: pa.DataType) -> bool:
    """Whether a cell of captions may have several of them."""
    field = _field_of(kind)
    return is_list(kind if field is None else field.type)


def find_cells(name: str, schema: pa.Schema, columns: Columns) -> Cells:
    """The columns of images and captions: as given, or else by type and usual names; `name` is used in messages."""
    twice = sorted({column for column in schema.names if schema.names.count(column) > 1})
    if twice:
        raise InputError(f"two columns '{twice[0]}'", where=name, hint="rename or remove one of them")
    image = _image(name, schema, columns.image)
    caption = _caption(name, schema, columns.caption, other=image)
    kind = schema.field(image).type
    is_struct = pa.types.is_struct(kind)
    if is_struct:
        names = f"{image}.path" if kind.get_field_index("path") >= 0 else None
    else:
        names = next((key for key in _KEYS if key in schema.names and _is_text(schema.field(key).type)), None)
    has_split = "split" in schema.names and _is_text(schema.field("split").type) and "split" not in (image, caption)
    return Cells(image, caption, is_struct, names, has_split)


def _image(name: str, schema: pa.Schema, wanted: str) -> str:
    fitting = [field.name for field in schema if is_picture(field.type)]
    if wanted in fitting:
        return wanted
    if wanted != USUAL.image:
        raise _missing(name, schema, wanted, "bytes of images, or structs of bytes and path", "{image_column}")
    structs = [column for column in fitting if pa.types.is_struct(schema.field(column).type)]
    usual = structs or [column for column in IMAGES if column in fitting][:1]
    if len(usual) == 1:
        return usual[0]
    found = f"several columns of images: {', '.join(structs)}" if structs else _columns(schema)
    raise InputError(
        found if structs else f"no column of images (bytes, or structs of bytes and path); {found}",
        where=name,
        hint="pass {image_column} to name it",
    )


def _caption(name: str, schema: pa.Schema, wanted: str, *, other: str) -> str:
    fitting = [field.name for field in schema if field.name != other and is_caption(field.type)]
    if wanted in fitting:
        return wanted
    if wanted != USUAL.caption:
        expected = f"text, lists of text, or structs with a field {_OR}"
        raise _missing(name, schema, wanted, expected, "{caption_column}")
    usual = [column for column in CAPTIONS if column in fitting]
    if usual:
        return usual[0]
    plain = [column for column in fitting if not pa.types.is_struct(schema.field(column).type)]
    free = [column for column in plain if column not in (*_KEYS, "split")]
    if len(free) == 1:
        return free[0]
    raise InputError(
        f"no column of captions (looked for {', '.join(CAPTIONS)}); {_columns(schema)}",
        where=name,
        hint="pass {caption_column} to name it",
    )


def _missing(name: str, schema: pa.Schema, wanted: str, expected: str, parameter: str) -> InputError:
    if wanted in schema.names:
        what = f"column '{wanted}' is {schema.field(wanted).type}, expected {expected}"
    else:
        what = f"no column '{wanted}'{did_you_mean(wanted, schema.names)}; {_columns(schema)}"
    return InputError(what, where=name, hint=f"pass {parameter} if it has another name")


def _columns(schema: pa.Schema) -> str:
    kinds = (str(field.type) for field in schema)
    short = (kind if len(kind) <= _WIDEST else f"{kind[:_WIDEST]}..." for kind in kinds)
    return "columns: " + ", ".join(f"{name} ({kind})" for name, kind in zip(schema.names, short, strict=True))


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_caption(kind: pa.DataType) -> bool:
    """Whether the cells of a column can hold captions."""
    inner = kind.value_type if is_list(kind) else kind
    field = _field_of(inner)
    if field is None:
        return _is_text(inner)
    return _is_text(field.type) or not is_list(kind)


def _field_of(kind: pa.DataType) -> pa.Field | None:
    """The field of a struct that has the text of a caption, or texts; None if it has none, or is no struct."""
    if not pa.types.is_struct(kind):
        return None
    fields = [kind.field(name) for name in _TEXTS if kind.get_field_index(name) >= 0]
    return next((field for field in fields if _is_text(field.type) or is_texts(field.type)), None)


def is_texts(kind: pa.DataType) -> bool:
    """Whether a value is a list of texts."""
    return is_list(kind) and _is_text(kind.value_type)


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def as_lists(column: pa.Array) -> pa.Array:
    """The lists of captions in a column with several in a cell, as lists that may differ in length."""
    lists = _texts_of(column)
    return lists.cast(pa.list_(lists.type.value_type)) if pa.types.is_fixed_size_list(lists.type) else lists


def _texts_of(column: pa.Array) -> pa.Array:
    """Of structs the field that has the text; anything else as it is."""
    field = _field_of(column.type)
    return column if field is None else pc.struct_field(column, field.name)


def take_apart(column: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Captions one by one: (captions,) the row of each, and the texts; a row without any has one empty caption."""
    if not is_several(column.type):
        return np.arange(len(column)), pc.fill_null(_texts_of(column).cast(pa.string()), "")
    lists = as_lists(column)
    texts = _texts_of(lists.flatten()).cast(pa.string())
    counts = lengths(lists)
    rows, real = entries(counts)
    places = pa.array(np.cumsum(real) - 1, mask=~real)
    return rows, pc.fill_null(texts.take(places), "")


def lengths(lists: pa.Array) -> np.ndarray:
    """The number of entries of each list; 0 where it is null."""
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def entries(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The row of each entry of lists of these lengths, and whether it is there: an empty list has one that is not."""
    each = np.maximum(counts, 1)
    rows = np.repeat(np.arange(len(counts)), each)
    real = np.ones(len(rows), dtype=bool)
    real[(np.cumsum(each) - each)[counts == 0]] = False
    return rows, real
