"""The user's cache folder, or a temporary one."""

from pathlib import Path

import pytest

from crcl.data.cache import cache_folders, kept


def test_files_are_in_the_users_cache_folder_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, temporary = cache_folders("tars")
    assert folder == tmp_path / "cache" / "crcl" / "tars"
    assert kept(folder, "a", lambda path: path.write_text("one") and None) == folder / "a"

    def fails(path: Path) -> None:
        path.write_text("half")
        raise OSError("no space")

    assert kept(folder, "a", fails) is None
    assert [file.name for file in folder.iterdir()] == ["a"]
    assert (folder / "a").read_text() == "one"
    assert temporary.is_dir()
    assert kept(tmp_path / "absent", "a", fails) is None


def test_without_a_cache_folder_a_temporary_one_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (folder,) = cache_folders("tars")
    assert kept(folder, "a", lambda path: path.write_text("one") and None) == folder / "a"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folders("tars")[0] == tmp_path / ".cache" / "crcl" / "tars"
