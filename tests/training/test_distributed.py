"""Several real processes, started by torchrun: they train what one process trains."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from embedded import write_embeddings
from several import second, torchrun, train_all
from small_clip import draw_scenes, save_clip
from tiny import SMALL, assert_same_runs, finish, small_config, train_command, write_folder

from crcl import distributed, losses
from crcl.data.pairs import Pairs
from crcl.distributed import Part
from crcl.errors import InputError, TrainingError
from crcl.features.extract import extract
from crcl.features.vision import Pixels
from crcl.losses import PartSims
from crcl.matchers import MATCHERS
from crcl.methods import METHODS
from crcl.runs.folder import Run
from crcl.training import session

SCRIPT = str(Path(__file__).parents[1] / "several.py")
BATCH = "train.batch_size=9"  # parts differ in size; the last batch, of 3, is smaller than 4 processes
SHORT = [*SMALL, BATCH, "train.pieces=[2]", "ledger.freeze_epochs=1", "train.lr=0.001"]
PLANS = {
    "bow-crcl": ["matcher.name=bow"],
    "bow-official": ["matcher.name=bow", "ledger.correction=official"],
    "bow-blocks": ["matcher.name=bow", "train.shuffle_block=4", "train.shuffle_mixed=3"],
    "bow-eval": ["matcher.name=bow", "ledger.probability=eval"],
    "vse-crcl": ["matcher.name=vse"],
    "linear-crcl": ["matcher.name=linear"],
    "dual-crcl": ["matcher.name=dual"],
    "linear-vectors-crcl": ["matcher.name=linear-vectors"],
    "clip-crcl": ["matcher.name=clip"],
    "dual-chunks": ["matcher.name=dual", "train.chunk=2"],
    "vse-chunks": ["matcher.name=vse", "train.chunk=2"],
    "vsrn-crcl": ["matcher.name=vsrn"],
    "chan-crcl": ["matcher.name=chan"],
    "imram-crcl": ["matcher.name=imram"],
    "naaf-crcl": ["matcher.name=naaf"],
    "gsmn-crcl": ["matcher.name=gsmn", "matcher.embedding=128"],  # the cosine of a block of one number is its sign
    "hrem-crcl": ["matcher.name=hrem"],
    "mvvse-crcl": ["matcher.name=mvvse"],
    "saf-crcl": ["matcher.name=saf"],
    "sgr-crcl": ["matcher.name=sgr"],
    "scan-crcl": ["matcher.name=scan"],
    "bow-infonce": ["matcher.name=bow", "method=infonce"],
    "vse-triplet": ["matcher.name=vse", "method=triplet"],
    "bow-hardest": ["matcher.name=bow", "method=triplet-hardest"],
    "vse-complementary": ["matcher.name=vse", "method=complementary"],
    "bow-decl": ["matcher.name=bow", "method=decl", "decl.warmup=1"],
    "sgr-decl": ["matcher.name=sgr", "method=decl", "decl.warmup=1"],
    "vse-gsc": ["matcher.name=vse", "method=gsc"],
    "saf-gsc": ["matcher.name=saf", "method=gsc"],
    "bow-relink": ["matcher.name=bow", "method=relink"],
    "sgr-relink": ["matcher.name=sgr", "method=relink"],
    "bow-ncr": ["matcher.name=bow", "method=ncr", "division.warmup=1"],
}


def pixels(folder: Path) -> dict[str, str]:
    """Settings for a small CLIP with pixels of drawn scenes."""
    model, table = save_clip(folder / "clip"), draw_scenes(folder / "scenes")
    extract(Pairs.of(table, images=table.parent / "images").wanted_images(), Pixels(str(model)), folder / "pixels")
    files = {"data.features": "features.npy", "data.ids": "ids.txt"}
    found = {key: str(folder / "pixels" / name) for key, name in files.items()}
    return found | {"data.path": str(table), "matcher.model": str(model)}


FEW = ("bow-crcl", "saf-crcl", "hrem-crcl", "vse-gsc", "bow-relink")
"""Those trained in four processes too, to save time; all were, once."""
BY_EVAL_MODE = ("bow-eval", "bow-decl", "sgr-decl", "bow-ncr")
"""Those that judge pairs in eval mode. A bias before a BatchNorm has a gradient of 0 but for rounding, of which AdamW
makes steps of full size. The running mean follows these late, so that eval mode shows them."""

ONE_RANK = 100 / 16
"""What one of the 16 captions of dev adds to rSum: two images that are nearly level may change places by rounding."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every plan trained in one process and in two, and a few in four."""
    folder = tmp_path_factory.mktemp("several")
    words = {"data.path": str(write_folder(folder / "data"))}
    vectors = {"data.path": str(write_embeddings(folder / "vectors", 48))}
    data = {"clip": pixels(folder), "dual": vectors, "linear-vectors": vectors}
    plans = {
        name: {"base": data.get(name.rpartition("-")[0], words) | {"noise.rate": 0.4}, "settings": [*SHORT, *settings]}
        for name, settings in PLANS.items()
    }
    (folder / "plans.json").write_text(json.dumps(plans), "utf-8")
    train_all(folder, folder / "1", list(PLANS))
    for processes, names in ((2, tuple(PLANS)), (4, FEW)):
        answer = finish(torchrun(processes, SCRIPT, str(folder), str(folder / str(processes)), *names), timeout=500)
        assert answer.code == 0, answer.err
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("name", "processes"), [*((name, 2) for name in PLANS), *((name, 4) for name in FEW)])
def test_several_processes_train_what_one_trains(trained: Path, name: str, processes: int) -> None:
    alone, shared = (Run.open(trained / str(count) / name) for count in (1, processes))
    for epoch, (one, other) in enumerate(zip(alone.metrics(), shared.metrics(), strict=True)):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-3 if epoch else 1e-5)  # rounding grows
        assert other["dev"]["rsum"] == pytest.approx(one["dev"]["rsum"], abs=ONE_RANK)
    exact = 5e-3 if name in BY_EVAL_MODE else 1e-4
    np.testing.assert_allclose(shared.load_ledger(), alone.load_ledger(), atol=exact)


def test_every_matcher_and_every_method_that_is_not_refused_is_trained_in_several_processes() -> None:
    keys = [dict(setting.split("=", 1) for setting in settings) for settings in PLANS.values()]
    assert {plan["matcher.name"] for plan in keys} == set(MATCHERS)
    shared = {name for name, record in METHODS.items() if not record.undivided}
    assert {plan.get("method", "crcl") for plan in keys} == shared


def test_parts_cover_a_batch_in_order_and_differ_by_one_pair_at_most() -> None:
    for whole in range(4, 30):
        parts = [Part.of(whole, number, 4) for number in range(4)]
        known = [part for part in parts if part is not None]
        assert [row for part in known for row in range(whole)[part.own]] == list(range(whole))
        sizes = [part.stop - part.start for part in known]
        assert max(sizes) - min(sizes) <= 1
    assert Part.of(3, 0, 4) is None  # each process then computes all of it
    assert Part.of(8, 0, 1) is None


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_resumed_run_is_the_unbroken_one(tmp_path: Path) -> None:
    data, run = write_folder(tmp_path / "data", train=60), tmp_path / "run"
    settings = ["train.pieces=[25]", "train.save_minutes=0.001", "ledger.freeze_epochs=1"]
    words = ["-m", "crcl", *train_command(data, run, settings=settings)]
    broken = torchrun(2, *words)
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        assert broken.poll() is None, finish(broken).err
        time.sleep(0.05)
    os.kill(second(broken.pid), signal.SIGKILL)
    killed = time.monotonic()
    answer = finish(broken)
    assert time.monotonic() - killed < 60
    assert answer.code != 0
    assert "lost contact with another one" in answer.err
    assert len(Run.open(run).metrics()) < 25
    resumed = finish(torchrun(2, *words, "--resume"))
    assert resumed.code == 0, resumed.err
    unbroken = [word if word != str(run) else str(tmp_path / "unbroken") for word in words]
    assert finish(torchrun(2, *unbroken)).code == 0
    assert_same_runs(run, tmp_path / "unbroken")


def test_waiting_ends_with_a_message_when_the_launcher_is_gone() -> None:
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = torch.distributed.TCPStore("127.0.0.1", server.port, is_master=False)
    del server
    with pytest.raises(TrainingError, match="lost contact with another one"):
        distributed._wait_for(store, "key")


@pytest.mark.parametrize("method", ["bicro", "l2rm", "mscn"])
def test_what_needs_whole_batches_is_refused_with_the_reason(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "together", lambda: 2)
    monkeypatch.setattr(distributed, "count", lambda: 1)
    config = small_config(write_folder(tmp_path / "data"), f"method={method}")
    reason = f"several processes cannot share a training by {method}: .*without torchrun"
    with pytest.raises(InputError, match=reason):
        session.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_each_process_gathers_its_own_rows_and_columns_of_the_similarities() -> None:
    sims = torch.randn(7, 7, dtype=torch.float64)
    labels = torch.rand(7, dtype=torch.float64)
    matched = labels > 0.5
    for number in range(3):
        part = Part.of(7, number, 3)
        assert part is not None
        rows = distributed.own_first(sims[part.own], part, dim=1)
        own = PartSims(rows, distributed.own_first(sims[:, part.own], part))
        for loss in (
            lambda given, which: losses.active_complementary(given, labels[which]),
            lambda given, which: losses.triplet(given, negatives="sum"),
            lambda given, which: losses.triplet(given, negatives="mean"),
            lambda given, which: losses.triplet(given),
            lambda given, which: losses.contrastive_complementary(given),
            lambda given, which: losses.evidential(given, matched[which]),
            lambda given, which: losses.dynamic_hinge(given, 3),
            lambda given, which: losses.evidence_share(given),
        ):
            torch.testing.assert_close(loss(own, part.own), loss(sims, slice(None))[part.own])
