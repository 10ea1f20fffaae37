"""The members of a tar: those that `tarfile` finds, and a reason where it cannot go on."""

import io
import random
import tarfile
from pathlib import Path

import pytest
from tarred import write_tar

from crcl.data.pictures.members import DamagedError, Member, header_of, key_of, members

LONG = "folder/" * 30 + "name.jpg"
NAMES = ["a.jpg", "b/é.txt", LONG, "c" * 99 + "/" + "d" * 90 + ".png", "e.json", "x" * 101]


def walk(path: Path) -> tuple[list[Member], str]:
    """The members, and the damage."""
    found = []
    with path.open("rb") as file:
        try:
            for member in members(file):
                found.append(member)
                file.seek(0)  # others may do so
        except DamagedError as error:
            return found, str(error)
    return found, ""


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("mtime", [0, 1.25])
def test_names_and_places_are_those_of_tarfile(tmp_path: Path, kind: int, mtime: float) -> None:
    rng = random.Random(0)
    names = [name for name in NAMES if kind != tarfile.USTAR_FORMAT or len(name) <= 100]
    content = [(name, rng.randbytes(rng.choice([0, 1, 511, 512, 513, 5000]))) for name in names * 3]
    path = write_tar(tmp_path / "a.tar", content, kind=kind, mtime=mtime)
    found, damage = walk(path)
    assert not damage
    with tarfile.open(path) as tar:
        expected = [(info.name, info.isreg(), info.offset, info.offset_data, info.size) for info in tar]
    assert [(m.name, m.is_file, m.start, m.data, m.size) for m in found] == expected
    assert [path.read_bytes()[m.data : m.data + m.size] for m in found] == [one for _, one in content]
    assert [m.end for m in found[:-1]] == [m.start for m in found[1:]]
    with path.open("rb") as file:
        assert [header_of(file, member).mtime for member in found] == [
            mtime if kind == tarfile.PAX_FORMAT else int(mtime)
        ] * len(found)


def test_links_devices_and_sparse_files_are_no_files_and_folders_are_told(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", pax_headers={"comment": "of all"}) as tar:
        for name, kind in (
            ("d", tarfile.DIRTYPE),
            ("l", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("f", tarfile.FIFOTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        info = tarfile.TarInfo("s.jpg")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s.jpg"} | {
            "GNU.sparse.realsize": "100000"
        }
        info.size = 1024
        tar.addfile(info, io.BytesIO(b"1\n0\n512\n".ljust(512, b"\0") + b"x" * 512))
        info = tarfile.TarInfo("last.txt")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"end"))
    found, damage = walk(tmp_path / "a.tar")
    assert not damage
    assert [(m.name, m.is_file, m.is_folder) for m in found] == [
        ("", False, True),
        ("d", False, True),
        *((name, False, False) for name in ("l", "h", "f", "s.jpg")),
        ("last.txt", True, False),
    ]


def test_a_tar_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "a.tar", [(f"{n}.jpg", b"x" * 700) for n in range(3)]).read_bytes()
    each = 512 + 1024
    for length, count, why in (
        (0, 0, "empty"),
        (100, 0, "ends within a header"),
        (512 + 300, 0, "ends within 0.jpg"),
        (512 + 700, 1, "ends without an end mark"),  # only the padding is lacking
        (each, 1, "ends without an end mark"),
        (2 * each + 1, 2, "ends within a header"),
        (3 * each, 3, "ends without an end mark"),
        (3 * each + 512, 3, ""),
    ):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        found, damage = walk(tmp_path / "cut.tar")
        assert (len(found), damage) == (count, why), length


def test_damaged_headers_end_the_walk(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{n}.jpg", b"x" * 700) for n in range(3)])
    whole = bytearray(path.read_bytes())
    whole[1536 + 3] ^= 1
    path.write_bytes(whole)
    found, damage = walk(path)
    assert (len(found), damage) == (1, "damaged at byte 1,536")
    path.write_bytes(b"<html>not found</html>" * 100)
    assert walk(path) == ([], "not a tar file")


def test_a_header_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
        for size in (2**33, 2**21):
            info = tarfile.TarInfo("long")
            info.type, info.size = kind, size
            (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2**22))
            assert walk(tmp_path / "a.tar") == ([], "not a tar file")


def test_any_bytes_are_read_or_refused(tmp_path: Path) -> None:
    rng = random.Random(1)
    path = write_tar(tmp_path / "a.tar", [(name, b"x" * 600) for name in NAMES], kind=tarfile.PAX_FORMAT, mtime=0.5)
    whole = path.read_bytes()
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(rng.choice([1, 3, 50])):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        path.write_bytes(broken[: rng.choice([len(broken), rng.randrange(len(broken))])])
        found, _ = walk(path)
        assert all(m.data + m.size <= path.stat().st_size for m in found)


def test_a_key_ends_at_the_first_dot_of_the_base_name() -> None:
    assert key_of("a/b.c/d.seg.png") == ("a/b.c/d", "seg.png")
    assert key_of("000.jpg") == ("000", "jpg")
    assert key_of("a.b/c") is key_of("a/.hidden.jpg") is key_of("a/") is key_of("") is None
