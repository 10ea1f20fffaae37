"""Files and folders that are written whole or not at all, and the lock on a folder."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import room

from crcl.errors import InputError, TrainingError
from crcl.storage import locked, replacing_folder, write_bytes


def test_a_write_that_fails_leaves_the_old_content_and_no_rest(tmp_path: Path) -> None:
    write_bytes(tmp_path / "file", b"old")
    with room(1000), pytest.raises(TrainingError, match=r"could not save .*file.*is intact.*resume"):
        write_bytes(tmp_path / "file", bytes(5000))
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_where_there_are_no_locks_files_and_folders_are_written_all_the_same(tmp_path: Path) -> None:
    """As on Windows, which has no fcntl."""
    program = (
        "import sys\n"
        "sys.modules['fcntl'] = None\n"
        "from pathlib import Path\n"
        "from crcl import storage\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "with storage.locked(folder): assert not storage.is_locked(folder)\n"
        "storage.write_bytes(folder / 'file', b'written')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert (tmp_path / "file").read_bytes() == b"written"


def test_a_folder_whose_lock_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(InputError, match=r"cannot be written \(.*Is a directory"), locked(tmp_path):
        pass


def test_a_folder_is_replaced_when_all_is_there(tmp_path: Path) -> None:
    for content in ("old", "new"):
        with replacing_folder(tmp_path / "deep" / "folder", busy="busy") as fresh:
            (fresh / content).touch()
        assert [file.name for file in (tmp_path / "deep" / "folder").iterdir()] == [content]
        assert [file.name for file in (tmp_path / "deep").iterdir()] == ["folder"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_folder_that_is_not_finished_leaves_the_old_one_and_no_rest(tmp_path: Path, error: type) -> None:
    folder = tmp_path / "folder"
    write_folder(folder, "old")
    with pytest.raises(error):
        write_folder(folder, "new", error())
    assert [file.name for file in folder.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [folder]


def write_folder(folder: Path, name: str, error: BaseException | None = None) -> None:
    with replacing_folder(folder, busy="busy") as fresh:
        (fresh / name).touch()
        if error is not None:
            raise error
