"""Mean and spread, the paired test, Markdown and CSV, on numbers by hand."""

import csv
import io
import math

import numpy as np
import pytest
from scipy import integrate

from crcl.experiments.tables import Line, Part, best_two, markdown, spread, table

PAPER = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 21.0)


def line(name: str, *sums: float, seeds: tuple[int, ...] | None = None, **options: object) -> Line:
    ours = np.zeros((len(sums), 7))
    ours[:, 6] = sums
    return Line(name, ours, tuple(range(len(sums))) if seeds is None else seeds, "x on y", **options)


def part(*lines: Line) -> Part:
    return Part("data, 20 % mismatched", ("Flickr30K", "MS-COCO 1K"), lines)


def student_tail(t: float, freedom: int) -> float:
    """Two-sided p of Student's t by integrating its density."""
    scale = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
    inner, _ = integrate.quad(lambda x: scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2), -t, t)
    return 1 - inner


def test_spread_is_the_sample_deviation():
    assert spread([1.0, 3.0], 2) == "2.00 ± 1.41"
    assert spread([1.0], 1) == "1.0"
    assert spread([], 1) == "–"


def test_the_two_best_are_tested_in_pairs_of_seeds():
    told = best_two(part(line("C", 1, 2, 3), line("A", 500, 510, 490), line("B", 493, 508, 487)))
    differences = np.array([7, 2, 3])
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(3))
    assert told == f"The two best: A and B, 4.0 ± 2.6 apart over 3 seeds; paired t-test p = {student_tail(t, 2):.3g}."


def test_seeds_that_only_one_has_are_not_compared():
    told = best_two(part(line("A", 10, 20, 99, seeds=(0, 1, 2)), line("B", 9, 18, seeds=(0, 1))))
    assert "A and B, 1.5 ± 0.7 apart over 2 seeds; paired" in told


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([line("A", 10), line("B", 9)], "no test, which needs two seeds or more of both"),
        ([line("A", 10, 20), line("B", 9, 19)], "the difference is the same with every seed"),
        ([line("A", 10, 20)], "Fewer than two rows were measured"),
    ],
)
def test_where_there_is_no_test_it_is_said(lines, why):
    assert why in best_two(part(*lines))


def test_ours_stand_beside_the_papers():
    text = markdown(part(line("A|B", 10, 20, paper={"Flickr30K": PAPER}), Line("bare", np.empty((0, 7)))))
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    assert (
        rows[1]
        == "| A\\|B | x on y | 0.0/0.0/0.0 | 0.0/0.0/0.0 | 15.0 ± 7.1 | 1.0/2.0/3.0 | 4.0/5.0/6.0 | 21.0 | – | – | – |"
    )
    assert rows[2] == "| bare |  | – | – | – | – | – | – | – | – | – |"


def test_the_csv_has_every_score():
    rows = list(csv.DictReader(io.StringIO(table([part(line("A", 10, 20, paper={"Flickr30K": PAPER}))]))))
    assert [row["score"] for row in rows][-1] == "rSum"
    assert rows[-1] == {
        "part": "data, 20 % mismatched",
        "method": "A",
        "trained": "x on y",
        "score": "rSum",
        "mean": "15.0000",
        "deviation": "7.0711",
        "seeds": "2",
        "paper Flickr30K": "21.0",
        "paper MS-COCO 1K": "",
    }
    assert [row["paper Flickr30K"] for row in rows] == [str(number) for number in PAPER]
