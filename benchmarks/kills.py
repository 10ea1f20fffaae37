"""Kill a training with SIGKILL at random moments, many times, and compare its end with that of an unbroken one.

    python benchmarks/kills.py --kills 100

Each training is a process of its own on made-up data, resumed after each kill until it ends; then the next one begins.
Prints the number of kills, of trainings that ended, and of those whose files differ from the unbroken training's.
"""

import argparse
import multiprocessing
import multiprocessing.process
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from tiny import assert_same_runs, small_config, write_folder

from crcl.config import Config
from crcl.training import session

SETTINGS = {
    "bow, saved after each step": ["train.pieces=[3,6]", "train.batch_size=4", "train.save_minutes=0"],
    "vse, saved after each epoch": ["matcher.name=vse", "train.pieces=[1,3]", "train.batch_size=8"],
}


def train(config: Config, run: Path) -> None:
    """Train or resume a run."""
    session.train(config, run, resume=True)


def life(config: Config, run: Path, seconds: float) -> int | None:
    """The exit code of a training that is killed after so many seconds of its work, if it has not ended by then."""
    process = multiprocessing.get_context("fork").Process(target=train, args=(config, run))
    process.start()
    while not (run / "config.json").exists() and process.is_alive():
        time.sleep(0.001)
    process.join(seconds)
    if process.is_alive():
        process.kill()
    process.join()
    return process.exitcode


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--matchers", nargs="*", default=["bow", "vse"], choices=["bow", "vse"])
    given = parser.parse_args()
    rng, counts = random.Random(given.seed), Counter[str]()
    chosen = {name: settings for name, settings in SETTINGS.items() if name.startswith(tuple(given.matchers))}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = write_folder(folder / "data", train=40)
        for number, (name, settings) in enumerate(chosen.items()):
            config = small_config(data, *settings)
            begun = time.monotonic()
            expected = session.train(config, folder / f"reference{number}").path
            longest = time.monotonic() - begun
            kills = trainings = different = 0
            while kills < given.kills // len(chosen):
                run = folder / f"run{number}-{trainings}"
                while (code := life(config, run, rng.uniform(0, longest / 2))) == -signal.SIGKILL:
                    kills += 1
                counts["failed"] += code != 0
                trainings += 1
                try:
                    assert_same_runs(run, expected)
                except AssertionError as error:
                    different += 1
                    print(f"{run.name}: differs ({error})")
                print(f"{kills} kills, {trainings} trainings ended", file=sys.stderr, flush=True)
            print(f"{name}: {kills} kills, {trainings} trainings ended, {different} ended differently", flush=True)
            counts["different"] += different
    sys.exit(counts["different"] + counts["failed"] > 0)


if __name__ == "__main__":
    main()
