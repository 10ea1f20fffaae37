"""Trains several runs in one process, or in one of those that `torchrun` starts: `python several.py FOLDER NAME ...`.

FOLDER has `plans.json`: by name, the data, the settings of a training, and the config keys to start from.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from crcl import distributed
from crcl.config import load
from crcl.training import session

torch.set_num_threads(1)


def torchrun(processes: int, *words: str, **options: Any) -> "subprocess.Popen[str]":
    """Python with these words, in several processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "CUDA_VISIBLE_DEVICES": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*launcher, *words], text=True, env=environment, **{**pipes, **options})


def second(launcher: int) -> int:
    """The process of rank 1 that torchrun started; waits until it is there."""
    while True:
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == launcher and b"\0RANK=1\0" in (entry / "environ").read_bytes():
                    return int(entry.name)
        time.sleep(0.1)


def train_all(folder: Path, out: Path, names: list[str]) -> None:
    """Train the plans of these names into folders of `out`."""
    plans = json.loads((folder / "plans.json").read_text("utf-8"))
    with distributed.processes():
        for name in names:
            config = load(base=plans[name]["base"], settings=plans[name]["settings"])
            session.train(config, out / name, resume=True)


if __name__ == "__main__":
    train_all(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
