"""Writing tars again without the suspects, or with correspondences in their JSON.

All members of a key whose pairs are all suspects are left out. The blocks of other members are copied as they are. If
only some captions of a key are suspects, the list of captions in its JSON is written without these.
"""

import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from crcl.data.cleaning.judged import COLUMN, Judged
from crcl.data.pictures.members import BLOCK, DamagedError, Member, header_of, key_of, members
from crcl.data.rows.samples import FIELDS, captions_in, parsed
from crcl.errors import InputError

_CHUNK = 2**20


class Part(NamedTuple):
    """One tar and the table beside it."""

    name: str
    """Path relative to the data."""
    path: Path
    table: Path
    """Need not exist."""
    rows: dict[str, range]
    """The rows of each key."""


def clean_tars(
    parts: Iterable[Part], rows: pa.Table, judged: Judged, folder: Path, *, fields: Sequence[str] = ()
) -> int:
    """Write tars and the tables beside them into a folder; returns the number of rows.

    Args:
        parts: The tars.
        rows: Columns image and caption of all rows.
        judged: What was judged.
        folder: An existing folder.
        fields: Keys of the JSON that captions were taken from, if not from the usual places.
    """
    if judged.moved:
        raise InputError(
            "captions cannot be moved to another image within tars",
            where=judged.data,
            hint="leave {rewrite} out: keep.parquet then says where they belong",
        )
    if judged.corrected:  # the caption may stand in a text, in JSON and in the table beside the tar
        raise InputError(
            "captions cannot be replaced within tars",
            where=judged.data,
            hint="leave {rewrite} out: keep.parquet then has the new captions",
        )
    _check(rows, judged)
    several = len(rows) > len(rows["image"].unique())
    for part in parts:
        target = folder / part.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.path.open("rb") as source, part.path.open("rb") as again, target.open("wb") as file:
                _Writer(part, judged, fields or FIELDS, file, again).write(source)
        except FileNotFoundError as error:
            raise judged.changed(f"{part.name} is gone") from error
        if part.table.is_file():
            _write_table(part, judged, target.with_suffix(".parquet"), several=several)
    return len(rows)


def _check(rows: pa.Table, judged: Judged) -> None:
    judged.check_count(len(rows))
    place = 0
    for batch in rows.to_batches(max_chunksize=65_536):
        for image, caption in zip(batch["image"].to_pylist(), batch["caption"].to_pylist(), strict=True):
            judged.check(place, image, caption)
            place += 1


class _Writer:
    """One tar that is being written."""

    def __init__(self, part: Part, judged: Judged, fields: Sequence[str], target: BinaryIO, source: BinaryIO) -> None:
        self.part, self.judged, self.fields, self.target, self.source = part, judged, fields, target, source
        self.begin = self.end = 0  # what is to be copied next

    def write(self, walked: BinaryIO) -> None:
        """Write all members that are to stay, up to where the tar is damaged, if it is."""
        marked = _keys_with_json(walked) if self.judged.mark else set()
        try:
            for member in members(walked):
                self._write_member(member, marked)
        except DamagedError:
            pass
        self._copy()
        self.target.write(bytes(2 * BLOCK))
        self.target.write(bytes(-self.target.tell() % tarfile.RECORDSIZE))

    def _write_member(self, member: Member, marked: set[str]) -> None:
        key, extension = (key_of(member.name) if member.is_file else None) or ("", "")
        rows = self.part.rows.get(key)
        if rows is None:
            self._keep(member)
            return
        kept = [row for row in rows if self.judged.keeps(row)]
        if not kept:
            return
        is_json = extension.lower() == "json"
        if is_json and (self.judged.mark or len(kept) < len(rows)):
            self._add(member, member.name, self._changed(member, rows))
            return
        self._keep(member)
        if self.judged.mark and not is_json and key not in marked:
            marked.add(key)
            self._add(member, f"{key}.json", json.dumps({COLUMN: self._values(rows)}).encode())

    def _values(self, rows: range) -> Any:
        values = [self.judged.correspondence.get(row) for row in rows]
        numbers = [None if value is None else _shortest(value) for value in values]
        return numbers[0] if len(numbers) == 1 else numbers

    def _changed(self, member: Member, rows: range) -> bytes:
        """The JSON of a sample without the captions that are suspects, or with the correspondence."""
        self.source.seek(member.data)
        content = self.source.read(member.size)
        record = parsed(content)
        if record is None:
            raise InputError(
                f"{member.name} is no JSON object, so it cannot be marked",
                where=self.part.path,
                hint="leave {rewrite} out: keep.parquet then has the correspondences",
            )
        if self.judged.mark:
            if COLUMN in record:
                raise self.judged.has_column()
            inside, _, rest = content.rpartition(b"}")
            comma = b", " if record else b""
            added = f'"{COLUMN}": {json.dumps(self._values(rows))}}}'.encode()
            return inside.rstrip() + comma + added + rest
        field, captions = captions_in(record, self.fields)
        if len(captions) != len(rows):
            return content  # the captions are not from here
        dropped = {place for place, row in zip(captions, rows, strict=True) if not self.judged.keeps(row)}
        record[field] = [value for place, value in enumerate(record[field]) if place not in dropped]
        return json.dumps(record, ensure_ascii=False).encode()

    def _keep(self, member: Member) -> None:
        if member.start != self.end:
            self._copy()
            self.begin = member.start
        self.end = member.end

    def _copy(self) -> None:
        """Copy the blocks that wait for it."""
        left = self.end - self.begin
        if left:
            self.source.seek(self.begin)
        while left:
            content = self.source.read(min(left, _CHUNK)) or bytes(left % BLOCK)  # the last block may be cut off
            if not content:
                raise self.judged.changed(f"{self.part.name} was cut off meanwhile")
            self.target.write(content)
            left -= len(content)
        self.begin = self.end

    def _add(self, like: Member, name: str, content: bytes) -> None:
        """Write a member with the dates and the owner of another one."""
        self._copy()
        self.begin = self.end = -1
        old, new = header_of(self.source, like), tarfile.TarInfo(name)
        new.size, new.mode, new.mtime = len(content), old.mode, int(old.mtime)
        new.uid, new.gid, new.uname, new.gname = old.uid, old.gid, old.uname, old.gname
        self.target.write(new.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self.target.write(content + bytes(-len(content) % BLOCK))


def _keys_with_json(file: BinaryIO) -> set[str]:
    found = set()
    try:
        for member in members(file):
            key, extension = (key_of(member.name) if member.is_file else None) or ("", "")
            if extension.lower() == "json":
                found.add(key)
    except DamagedError:
        pass
    return found


def _shortest(value: np.float32) -> float:
    """A float32 as the number with the fewest digits."""
    return float(str(value))


def _write_table(part: Part, judged: Judged, target: Path, *, several: bool) -> None:
    """The table beside a tar, row group by row group; rows without a sample in the tar stay. Nothing without keys."""
    try:
        with pa.parquet.ParquetFile(part.table) as source:
            if "key" not in source.schema_arrow.names:
                return
            schema = source.schema_arrow
            if judged.mark:
                if COLUMN in schema.names:
                    raise judged.has_column()
                kind = pa.list_(pa.float32()) if several else pa.float32()
                schema = schema.append(pa.field(COLUMN, kind))
            with pa.parquet.ParquetWriter(target, schema) as writer:
                for number in range(source.num_row_groups):
                    group = source.read_row_group(number)
                    rows = [part.rows.get(key, range(0)) for key in group["key"].cast(pa.string()).to_pylist()]
                    if judged.mark:
                        values: list[Any] = [[judged.correspondence.get(row) for row in of] or None for of in rows]
                        if not several:
                            values = [value and value[0] for value in values]
                        group = group.append_column(schema.field(COLUMN), pa.array(values, schema.field(COLUMN).type))
                    else:
                        kept = [not of or any(judged.keeps(row) for row in of) for of in rows]
                        group = group.filter(pa.array(kept, pa.bool_()))
                    writer.write_table(group)
    except pa.ArrowInvalid:  # not a table: it was ignored when the pairs were read, too
        target.unlink(missing_ok=True)
