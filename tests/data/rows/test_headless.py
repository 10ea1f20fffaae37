"""Lists without a header: which of the two values is the address, and what is a row."""

from pathlib import Path

import pytest

from crcl.data.rows.headless import Order, order_of, read_headless, values_of


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("a dog\thttp://x.org/a\n", Order(1, 0)),
        ("HTTPS://x.org/a\ta dog", Order(0, 1)),
        ("http://x.org/a\thttp://x.org/b\nhttp://x.org/a\ta dog\n", Order(0, 1)),  # a caption that is an address
        ("\ufeffhttp://x.org/a\ta dog\r\n", Order(0, 1)),
        ("url\tcaption\nhttp://x.org/a\ta dog\nhttp://x.org/b\ta cat\n", None),  # a header
        ("http://x.org/a\thttp://x.org/b\n", None),
        ("a dog\ta cat\n", None),
        ("http://x.org/a\n", None),
        ("", None),
    ],
)
def test_the_address_is_found_by_looking(tmp_path: Path, text: str, order: Order | None) -> None:
    (tmp_path / "cc.tsv").write_bytes(text.encode())
    assert order_of(tmp_path / "cc.tsv") == order


def test_what_cannot_be_read_is_no_list(tmp_path: Path) -> None:
    assert order_of(tmp_path) is order_of(tmp_path / "nowhere") is None


def test_a_row_has_two_values_or_a_correspondence_as_the_third() -> None:
    assert values_of("a\tb\r\n") == ["a", "b"]
    assert values_of("a\tb\t0.25\n") == ["a", "b", "0.25"]
    assert values_of("a\tb\t\n") == ["a", "b", ""]
    assert values_of("a\tb\tc") is values_of("a\tb\t7") is values_of("a\tb\tnan") is values_of("a") is None


def test_more_rows_than_one_part_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "cc.tsv"
    path.write_text("".join(f"caption {n}\thttp://x.org/{n}\n" for n in range(250_001)) + "\none value\n")
    rows, others = read_headless(path)
    assert others == 1
    assert rows["image"].to_pylist() == [f"http://x.org/{n}" for n in range(250_001)]
    assert rows["caption"][250_000].as_py() == "caption 250000"
