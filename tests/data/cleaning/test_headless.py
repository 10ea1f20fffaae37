"""Lists without a header, written again line by line."""

from pathlib import Path

import numpy as np
import pytest

from crcl.data.cleaning.headless import clean_headless
from crcl.data.cleaning.judged import Judged
from crcl.data.rows.headless import Order
from crcl.errors import InputError

TEXT = "a dog\thttp://x/a\r\nnot a row\n\na cat\thttp://x/b\na caf\udce9\thttp://x/c"


def judged(path: Path, *, mark: bool = False, rows: int = 2) -> Judged:
    """The first row is a suspect, the second is moved to the image of the first."""
    expected = [("http://x/a", "a dog"), ("http://x/b", "a cat"), ("http://x/c", "?"), ("http://x/d", "?")][:rows]
    beliefs = {row: np.float32(0.5) for row in range(rows)}
    return Judged(path, dict(enumerate(expected)), beliefs, {0}, {1: "http://x/a"}, mark=mark)


def test_all_but_the_suspects_stays_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "cc.tsv"
    path.write_bytes(TEXT.encode("utf-8", "surrogateescape"))  # bytes that are not UTF-8 in a row that is not judged
    assert clean_headless(path, Order(1, 0), judged(path), tmp_path / "cleaned.tsv") == 3
    assert (tmp_path / "cleaned.tsv").read_bytes() == b"not a row\n\na cat\thttp://x/a\na caf\xe9\thttp://x/c"
    clean_headless(path, Order(1, 0), judged(path, mark=True), tmp_path / "marked.tsv")
    assert (tmp_path / "marked.tsv").read_bytes() == (
        b"a dog\thttp://x/a\t0.5\r\nnot a row\n\na cat\thttp://x/a\t0.5\na caf\xe9\thttp://x/c\t"
    )


def test_a_list_that_was_changed_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "cc.tsv"
    path.write_text("a dog\thttp://x/a\na bird\thttp://x/b\n")
    with pytest.raises(InputError, match=r"row 2 \(the first is 1\) is not the pair that was judged"):
        clean_headless(path, Order(1, 0), judged(path), tmp_path / "cleaned.tsv")
    path.write_text("a dog\thttp://x/a\na cat\thttp://x/b\n")
    with pytest.raises(InputError, match=r"it has 2 rows, but row 4 \(the first is 1\) was judged"):
        clean_headless(path, Order(1, 0), judged(path, rows=4), tmp_path / "cleaned.tsv")
    assert [file.name for file in tmp_path.iterdir()] == ["cc.tsv"]
