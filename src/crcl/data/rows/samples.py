"""The samples of one tar file (a shard): where each image lies and what its captions are.

A shard is read once. What was found is kept in the user's cache folder until the shard or the table beside it changes.
"""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from crcl.data.cache import cache_folders, kept
from crcl.data.pictures.base import UnusableError
from crcl.data.pictures.files import SUFFIXES, check_name
from crcl.data.pictures.members import COMPRESSED, DamagedError, Member, key_of, members
from crcl.errors import InputError

FIELDS = ("caption", "text", "captions")
"""Keys of a sample's JSON that are looked for captions, in this order."""
MOST_TEXT = 16 * 2**20
"""Longer captions and longer JSON are not read."""
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("extension", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("captions", pa.list_(pa.string())),
    ]
)
_IMAGES = tuple(suffix[1:] for suffix in SUFFIXES)
_BUFFER = 2**14  # larger images are skipped, not read
_VERSION = 1  # of what is kept
_TOLD = 500  # members between two calls that tell the progress


class Shard(NamedTuple):
    """A tar file."""

    name: str
    """Its path relative to the data."""
    path: Path
    split: str = ""

    @property
    def table(self) -> Path:
        """The table that img2dataset writes beside it."""
        return self.path.with_suffix(".parquet")


class Samples(NamedTuple):
    """What a shard has."""

    table: pa.Table
    """One row for each sample that has an image and captions, with the columns of `SCHEMA`."""
    counts: Counter[str]
    """What was left out."""
    damage: str = ""
    """Why the shard cannot be read to its end, if so."""


def read_samples(
    shard: Shard, fields: Sequence[str] = (), *, advance: Callable[[int], None] = lambda place: None
) -> Samples:
    """The samples of a shard, from the cache if it was read before.

    Args:
        shard: The tar.
        fields: Keys of the JSON, or columns of the table, that captions are taken from, and from nowhere else.
        advance: Called with the place in the tar, now and then.
    """
    name = f"{shard_identity(shard, fields)}.parquet"
    folder = cache_folders("tars")[0]
    found = _read_kept(folder / name)
    if found is None:
        found = _scan(shard, fields, advance)
        about = {"crcl": json.dumps({"counts": found.counts, "damage": found.damage})}
        table = found.table.replace_schema_metadata(about)
        kept(folder, name, lambda path: pa.parquet.write_table(table, path, compression="zstd"))
    return found


def file_identity(path: Path) -> tuple[str, int, int]:
    """Path, size and date of a file."""
    try:
        about = path.stat()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=path) from error
    return str(path.absolute()), about.st_size, about.st_mtime_ns


def shard_identity(shard: Shard, fields: Sequence[str]) -> str:
    """A name for what is found in a shard; another one as soon as the shard or the table beside it changes."""
    beside = file_identity(shard.table) if shard.table.is_file() else None
    known = json.dumps([_VERSION, file_identity(shard.path), beside, *fields])
    return hashlib.sha256(known.encode()).hexdigest()[:40]


def _read_kept(path: Path) -> Samples | None:
    try:
        table = pa.parquet.read_table(path)
        about = json.loads(table.schema.metadata[b"crcl"])
        if table.schema.remove_metadata() != SCHEMA:
            return None
        return Samples(table.replace_schema_metadata(None), Counter(about["counts"]), about["damage"])
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None


def _scan(shard: Shard, fields: Sequence[str], advance: Callable[[int], None]) -> Samples:
    """One pass over the shard, and a look at the JSON of samples without a text."""
    found, damage = _Found(fields), ""
    try:
        with shard.path.open("rb", buffering=_BUFFER) as file:
            start = file.read(6)
            packed = next((how for magic, how in COMPRESSED.items() if start.startswith(magic)), None)
            if packed is not None:
                raise InputError(
                    f"compressed by {packed}, so that no image in it can be read by itself",
                    where=shard.path,
                    hint="unpack it to a plain .tar",
                )
            try:
                for number, member in enumerate(members(file)):
                    found.add(file, member)
                    if number % _TOLD == 0:
                        advance(member.end)
            except DamagedError as error:
                damage = str(error)
            found.read_json(file)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=shard.path) from error
    found.read_table(shard.table)
    return Samples(found.table(), found.counts, damage)


class _Found:
    """What has been found so far; lists have one entry for each key."""

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = fields or FIELDS
        self.numbers: dict[str, int] = {}
        self.images: list[str | None] = []  # extension
        self.offsets, self.sizes = array("q"), array("q")
        self.captions: list[list[str] | None] = []
        self.records: dict[int, tuple[int, int]] = {}  # place of the JSON
        self.counts: Counter[str] = Counter()
        self.roles: dict[str, str] = {}  # of extensions
        self.texts = not fields

    def add(self, file: BinaryIO, member: Member) -> None:
        """Take note of a member."""
        if not member.is_file:
            self.counts["links"] += not member.is_folder
            return
        parts = key_of(member.name)
        if parts is None:
            return
        key, extension = parts
        role = self.roles.get(extension)
        if role is None:
            role = self.roles[extension] = _role(extension.lower(), texts=self.texts)
        if not role:
            return
        number = self.numbers.get(key)
        if number is None:
            if not _is_inside(member.name):
                self.counts["names"] += 1
                return
            number = self.numbers[key] = len(self.images)
            self.images.append(None)
            self.offsets.append(0)
            self.sizes.append(0)
            self.captions.append(None)
        getattr(self, f"_add_{role}")(file, member, number, extension)

    def _add_image(self, file: BinaryIO, member: Member, number: int, extension: str) -> None:
        there = self.images[number]
        if there is not None and (there == extension or "." not in there):
            if there == extension:
                self.counts["repeated"] += 1
            else:
                self.counts["several"] += "." not in extension  # a.seg.png is something else than a.jpg
            return
        if there is None or "." not in extension:
            self.images[number] = extension
            self.offsets[number], self.sizes[number] = member.data, member.size

    def _add_text(self, file: BinaryIO, member: Member, number: int, extension: str) -> None:
        if self.captions[number] is not None:
            self.counts["repeated"] += 1
            return
        file.seek(member.data)
        text = _decoded(file.read(member.size)) if member.size <= MOST_TEXT else None
        self.counts["undecodable"] += text is None
        self.captions[number] = [text] if text else []

    def _add_record(self, file: BinaryIO, member: Member, number: int, extension: str) -> None:
        if number in self.records:
            self.counts["repeated"] += 1
            return
        self.records[number] = member.data, member.size

    def read_json(self, file: BinaryIO) -> None:
        """Captions of samples that have JSON, and no text."""
        for number, (offset, size) in self.records.items():
            if not self.captions[number] and self.images[number] is not None:
                file.seek(offset)
                record = parsed(file.read(size)) if size <= MOST_TEXT else None
                self.counts["undecodable"] += record is None
                self.captions[number] = list(captions_in(record or {}, self.fields)[1].values())
        self.records.clear()

    def read_table(self, path: Path) -> None:
        """Failed downloads, and captions of samples that have none of their own, from the table beside the shard."""
        if not path.is_file():
            return
        try:
            there = pa.parquet.read_schema(path).names
            if "status" in there:
                status = pa.parquet.read_table(path, columns=["status"])["status"].cast(pa.string())
                self.counts["failed"] += pc.sum(pc.not_equal(status, "success")).as_py() or 0
            lacking = {
                key: number
                for key, number in self.numbers.items()
                if not self.captions[number] and self.images[number] is not None
            }
            column = next((name for name in self.fields if name in there), None)
            if lacking and "key" in there and column:
                texts = pa.parquet.read_table(path, columns=["key", column])
                keys, captions = (texts[name].cast(pa.string()).to_pylist() for name in ("key", column))
                for key, caption in zip(keys, captions, strict=True):
                    if key in lacking and caption and caption.strip() and not self.captions[lacking[key]]:
                        self.captions[lacking[key]] = [caption.strip()]
        except (pa.ArrowException, OSError, ValueError):
            self.counts["tables"] += 1

    def table(self) -> pa.Table:
        """The samples that have an image and captions; others are counted."""
        whole = [
            bool(captions) and image is not None for image, captions in zip(self.images, self.captions, strict=True)
        ]
        images = [image is not None for image in self.images]
        self.counts["no caption"] = sum(images) - sum(whole)
        self.counts["no image"] = len(images) - sum(images)
        columns = [self.numbers, self.images, self.offsets, self.sizes, self.captions]
        chosen = [[value for value, used in zip(values, whole, strict=True) if used] for values in columns]
        return pa.table(
            [pa.array(values, field.type) for values, field in zip(chosen, SCHEMA, strict=True)], schema=SCHEMA
        )


def _role(extension: str, *, texts: bool) -> str:
    """What a member with this extension is for; empty if for nothing."""
    if not extension.isprintable() or extension != extension.strip():
        return ""
    if extension == "txt":
        return "text" if texts else ""
    return "record" if extension == "json" else "image" if extension.rpartition(".")[2] in _IMAGES else ""


def _is_inside(name: str) -> bool:
    """Whether a name neither leaves the tar nor takes more than a line."""
    try:
        check_name(name)
    except UnusableError:
        return False
    return not name.startswith("/") and ".." not in name.split("/")


def _decoded(content: bytes) -> str | None:
    """Trimmed text; None if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return None


def parsed(content: bytes) -> dict[str, Any] | None:
    """A JSON object; None if it is something else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def captions_in(record: dict[str, Any], fields: Sequence[str] = FIELDS) -> tuple[str, dict[int, str]]:
    """The key of a JSON object that has captions, and the trimmed captions by their place in its list."""
    for field in fields:
        value = record.get(field)
        texts = enumerate(value if isinstance(value, list) else [value])
        found = {place: text.strip() for place, text in texts if isinstance(text, str) and _is_text(text)}
        if found:
            return field, found
    return "", {}


def _is_text(text: str) -> bool:
    """Whether a caption has letters, and can be written."""
    try:
        return bool(text.encode("utf-8").strip() and text.strip())
    except UnicodeEncodeError:  # half a character
        return False
