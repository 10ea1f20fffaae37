"""All that reads files answers damaged ones with a message; the targets are those of benchmarks/fuzz.py."""

import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import fuzz

QUICK = [name for name in fuzz.TARGETS if name not in ("csv", "json", "jsonl", "parquet", "tar")]


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_the_valid_files_that_fuzzing_begins_with_are_no_problem(target: str) -> None:
    for content in fuzz.seeds(target):
        assert not fuzz.problem(target, content)


@pytest.mark.slow
@settings(max_examples=20)
@pytest.mark.parametrize("target", fuzz.TARGETS)
@given(seed=st.integers(0, 2**32))
def test_damaged_files_are_answered_with_a_message(target: str, seed: int) -> None:
    rng = random.Random(seed)
    content = fuzz.changed(rng.choice(fuzz.seeds(target)), rng)
    assert not fuzz.problem(target, content), content


@settings(max_examples=30)
@pytest.mark.parametrize("target", QUICK)
@given(content=st.binary(max_size=300))
def test_bytes_of_any_kind_are_answered_with_a_message(target: str, content: bytes) -> None:
    assert not fuzz.problem(target, content)
