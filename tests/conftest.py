"""What several test files share: small made-up pairs, and the recorded numbers."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait by spinning starve the other test process

import hypothesis
import numpy as np
import pytest
import torch

from crcl.data.split import Split

torch.set_num_threads(1)  # the same sums in every process

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: a red test means a change of the code, and a slow machine is no failure.
hypothesis.settings.register_profile("crcl", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("crcl")

WORDS = ["a", "the", "red", "blue", "small", "large", "dog", "cat", "ball", "child", "sits", "runs", "near", "under"]


def tiny_pairs(*, images: int = 6, captions: int = 2, regions: int = 4, size: int = 5, seed: int = 0) -> Split:
    """Random features and random captions of 1 to 6 words, `captions` per image, in the order of the images."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(images, regions, size)).astype(np.float32)
    features.flags.writeable = False
    return Split(
        captions=[" ".join(rng.choice(WORDS, rng.integers(1, 7))) for _ in range(images * captions)],
        image_index=np.repeat(np.arange(images), captions),
        features=features,
        image_ids=[f"{i}.jpg" for i in range(images)],
        source="tiny",
    )


def recorded_numbers(name: str) -> dict[str, np.ndarray]:
    """The arrays of a file of recorded numbers."""
    with np.load(Path(__file__).parent / "fixtures" / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture
def tiny() -> Callable[..., Split]:
    """The builder of small pairs."""
    return tiny_pairs


@pytest.fixture
def recorded() -> Callable[[str], dict[str, np.ndarray]]:
    """The reader of recorded numbers."""
    return recorded_numbers


SHARING = (
    "test_as_documented",
    "test_clip",
    "test_prepare",
    "test_browser",
    "test_distributed",
    "test_front_door",
    "test_reproduce",
    "test_site",
    "test_table3",
)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: the last ones then end together, whatever the number of processes.

    Files whose tests share what took long to make stay in one process.
    """
    for item in items:
        if item.path.stem in SHARING:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
