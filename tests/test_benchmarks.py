"""The benchmarks do what their reports say, on tiny data."""

import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_encoder import save_encoder
from tiny import small_config, write_folder

import crcl
from crcl import experiments
from crcl.auditing.estimate import estimate
from crcl.auditing.thresholds import Correspondences
from crcl.experiments.planning import Planner
from crcl.experiments.tables import spread
from crcl.methods import METHODS
from crcl.training import session

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import absent
import clipart
import copies
import cost
import detection
import downstream
import growth
import hard
import matchers
import mismatches
import plan
import processes
import score_tables
import scores
import search as search_benchmark
import serve
import smaller
import speed_vectors
import speed_words
import tars
import two_stages
import verdicts

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.toml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("matcher", [None, "bow"])
def test_every_table_can_be_planned(tmp_path, path, matcher):
    planner = Planner(experiments.profile("cpu"), write_folder(tmp_path / "data"), seeds=1, matcher=matcher)
    blocks = planner.blocks(experiments.experiment(str(path)))
    assert all(block.entries for block in blocks)
    if path.stem == "methods":
        assert [entry.row.name for entry in blocks[0].entries if entry.trials] == [
            row.name for row in experiments.experiment(str(path)).rows
        ]
        assert {entry.row.name for entry in blocks[0].entries} == set(METHODS)


def test_detection_has_a_row_for_all_seeds_of_a_training(tmp_path):
    data, crowd = write_folder(tmp_path / "data"), tmp_path / "crowd.txt"
    names = [f"test{row}.jpg" for row in range(8)]
    lines = [f"{one}\t{other}#0\t{(row + 1) % 2}" for row, one in enumerate(names) for other in names if one != other]
    crowd.write_text("\n".join(lines), "utf-8")
    for name, settings in (("a", ["train.seed=0"]), ("b", ["train.seed=1"]), ("c", ["method=infonce"])):
        run = session.train(small_config(data, *settings), tmp_path / "out" / "runs" / name)
        (run.path / "finished").touch()
    session.train(small_config(data), tmp_path / "out" / "runs" / "unfinished")
    paths = list(detection.runs_in(tmp_path / "out"))
    assert [path.name for path in paths] == ["a", "b", "c"]
    assert list(detection.runs_in(paths[0])) == [paths[0]]
    two, plain = detection.render(paths, crowd).splitlines()[2:]
    assert (two.split(",")[0], two.count("±"), two[-6:]) == ("| crcl on bow", 6, " | 2 |")
    assert (plain.split(",")[0], plain[-6:]) == ("| infonce on bow", " | 1 |")
    rsum, *numbers = [float(cell) for cell in plain.split("|")[2:8]]
    assert rsum == pytest.approx(crcl.evaluate(paths[2], split="test").rsum, abs=0.05)
    assert all(0 <= number <= 1 for number in numbers[:4])
    assert detection.measured(paths[0], None)[2].keys() == {*detection.COLUMNS} - {"people AUROC"}


def test_detection_tells_runs_of_relink_apart_and_those_without_mismatches(tmp_path):
    data = write_folder(tmp_path / "data")
    given = {
        "image": ["noise.level=image", "noise.rate=0.4"],
        "alone": ["noise.level=image", "noise.rate=0.4", "relink.ensemble=false"],
        "clean": ["noise.rate=0"],
        "linear": ["noise.rate=0", "matcher.name=linear"],
    }
    paths = []
    for name, settings in given.items():
        config = small_config(data, "method=relink", "train.pieces=[2]", *settings)
        paths.append(session.train(config, tmp_path / name).path)
    lines = {
        line.partition("|")[2].partition("|")[0].strip(): line for line in detection.render(paths, None).splitlines()
    }
    at_40 = "relink on bow, 40% at image level mismatched, pieces [2], relink.ensemble"
    clean = ("relink on bow, no mismatches, pieces [2], clean", "relink on linear, no mismatches, pieces [1], linear")
    assert lines.keys() == {"run", "---", f"{at_40}=True, image", f"{at_40}=False, alone", *clean}
    assert all(lines[name].count("–") == 4 for name in clean)
    assert all(lines[name].count("–") == 1 for name in lines if name.startswith(at_40))


def test_seconds_count_the_fit_before_the_first_epoch_and_no_long_pause(tmp_path):
    lines = [f'{{"seconds": {value}}}' for value in (40, 2, 9, 2, 2000)]
    (tmp_path / "timing.jsonl").write_text("\n".join(lines))
    assert detection.seconds(tmp_path) == 40 + 2 + 9 + 2 + 90


def test_mismatched_captions_of_absent_images_belong_to_no_image_that_is_left(tmp_path):
    source = write_folder(tmp_path / "data", train=40, captions=1)
    lines = [f"caption {row} of {row} shows" for row in range(40)]
    (source / "train_caps.txt").write_text("\n".join(lines), "utf-8")
    absent.write(source, tmp_path / "half", 0.6, seed=1)
    made = absent.Pairs.of(tmp_path / "half").split("train")
    truth = np.load(tmp_path / "half" / "truth.npy")
    true_image = np.array([f"train{caption.split()[1]}.jpg" for caption in made.captions])
    shown = np.array(made.image_ids)[made.image_index]
    assert made.images == 20
    assert (~truth).sum() == 12
    np.testing.assert_array_equal(true_image == shown, truth)
    assert not set(true_image[~truth]) & set(made.image_ids)
    kept = np.load(source / "train_ims.npy")[[int(name[5:-4]) for name in made.image_ids]]
    np.testing.assert_array_equal(made.gather(np.arange(20)), kept)


def test_a_smaller_folder_has_the_first_images_with_their_captions_and_the_means_of_blocks_of_cells(tmp_path):
    data, out = write_folder(tmp_path / "data", train=40, held_out=8), tmp_path / "small"
    cells = {
        split: np.random.default_rng(0).random((n, 36, 5)) for split, n in (("train", 40), ("dev", 8), ("test", 8))
    }
    for split, features in cells.items():
        np.save(data / f"{split}_ims.npy", features.astype(np.float32))
    for split, images in (("train", 7), ("dev", 3), ("test", None)):
        smaller.shrink(data, out, split, images, 3)
    whole, made = (crcl.read(folder).split("train") for folder in (data, out))
    assert (made.images, len(made), made.captions) == (7, 14, whole.captions[:14])
    assert [crcl.read(out).split(split).images for split in ("dev", "test")] == [3, 8]
    own = cells["train"][6].reshape(6, 6, 5)
    expected = [own[row : row + 2, column : column + 2].mean((0, 1)) for row in (0, 2, 4) for column in (0, 2, 4)]
    np.testing.assert_allclose(made.gather(np.array([6]))[0], expected, rtol=1e-5)
    with pytest.raises(SystemExit, match="36 regions are no square grid that has 4 x 4 blocks"):
        smaller.coarser(np.zeros((1, 36, 2)), 4)


def test_absent_images_are_trained_and_told_as_a_table(tmp_path, monkeypatch, capsys):
    data = write_folder(tmp_path / "data", train=40)
    words = [str(data), "--work", str(tmp_path / "work"), "--rates", "0.4", "--seeds", "1"]
    small = [
        word
        for setting in ("train.pieces=[1,1]", "matcher.embedding=8", "ledger.freeze_epochs=0")
        for word in ("--set", setting)
    ]
    monkeypatch.setattr(sys, "argv", ["absent.py", *words, *small])
    absent.main()
    first = capsys.readouterr().out
    assert [line.split("|")[2].strip() for line in first.splitlines()[2:]] == ["crcl", "relink"]
    absent.main()
    assert capsys.readouterr().out == first


def test_agreement_leaves_pairs_of_an_image_with_its_own_captions_out(tmp_path):
    data, crowd = write_folder(tmp_path / "data"), tmp_path / "crowd.txt"
    test = detection.inputs.open_pairs(small_config(data)).split("test")
    sims = np.zeros((test.images, len(test)))
    first = {image: int(np.flatnonzero(test.image_index == image)[0]) for image in range(3)}
    sims[0, first[1]], sims[0, first[2]], sims[0, first[0]] = 0.9, 0.1, -1.0
    one, two, three = test.image_ids[:3]
    crowd.write_text(f"{one}\t{two}#0\t1.0\n{one}\t{three}#0\t0.0\n{one}\t{one}#0\t1.0\nother.jpg\t{one}#0\t1.0\n")
    assert detection.agreement(sims, test, crowd) == 1.0


def test_cost_goes_through_the_epochs_of_every_method(tmp_path):
    options = cost.parse(["--warmup", "1", "--half", "1", "--embedding", "8"])
    data = write_folder(tmp_path / "data")
    seconds, pairs = cost.measure("bow", data, options)
    assert list(seconds) == ["infonce", *(name for name in METHODS if name != "infonce")]
    assert all((found > 0).all() and len(found) == 3 for found in seconds.values())
    assert pairs["crcl"].tolist() == [1, 1, 1]
    assert pairs["ncr"][0] == 2  # two networks learn from all pairs in the warm-up
    report = cost.render("bow", data, options)
    assert all(f"\n| {name} | {METHODS[name].networks} | " in report for name in METHODS)


def test_cost_can_be_measured_of_some_methods_beside_plain_training():
    assert cost.methods_for("bow", ["l2rm", "gsc"]) == ["infonce", "gsc", "l2rm"]
    assert cost.methods_for("scan", ["gsc", "ncr"]) == ["infonce", "ncr"]
    options = cost.parse(["--methods", "gsc", "--matchers", "bow"])
    assert "    python benchmarks/cost.py --matchers bow --methods gsc --images 200" in "\n".join(cost.opening(options))


def test_tars_are_made_indexed_and_read_in_every_step(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tars.py", str(tmp_path), "--pairs", "50", "--shards", "3"])
    monkeypatch.setattr(tars, "measured", lambda step, folder: tars.measure(step, folder / "tars"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tars.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("50 pairs in 3 tars, ")
    assert [line.split(" | ")[0] for line in lines[5:13]] == [f"| {title}" for title in tars.STEPS.values()]
    assert len([line for line in lines if " of the processor's time of " in line]) == 4
    with tarfile.open(tmp_path / "tars" / "00002.tar") as tar:
        names = [f"{key}.{kind}" for key in (f"00002{row:05}" for row in range(16)) for kind in ("jpg", "txt", "json")]
        assert tar.getnames() == names
    pairs = crcl.read(tmp_path / "tars")
    assert len(pairs) == 50
    assert pairs.notes == ()


def test_changed_copies_of_drawn_scenes_are_told_from_others(tmp_path):
    rng = np.random.default_rng(0)
    different, *changed = copies.of_images([copies.draw(copies.random_scene(rng), rng) for _ in range(30)])
    assert different.startswith("30 images; 0 have another above 0.97")
    assert [line.split(":")[0] for line in changed] == list(copies.CHANGES)
    assert changed[0].endswith("100% above 0.97")
    assert copies.of_pairs(copies.Pairs.of(write_folder(tmp_path / "data")).split("train"))[0].startswith("24 images; ")


def test_mismatches_are_of_the_kinds_that_are_told(tmp_path):
    train = crcl.read(write_folder(tmp_path / "data", train=60)).split("train")
    captions, kinds = mismatches.mismatched(train, {"random": 0.3, "near": 0.1, "swap": 0.2}, seed=3)
    assert (kinds == "near").sum() == 12
    assert (kinds == "swap").sum() == 24
    assert 30 <= (kinds == "random").sum() <= 36
    changed = np.array([old != new for old, new in zip(train.captions, captions, strict=True)])
    assert not changed[kinds == ""].any()
    assert changed[(kinds == "near") | (kinds == "swap")].all()
    for row in np.flatnonzero(kinds == "swap"):
        old, new = train.captions[row].split(), captions[row].split()
        assert sum(one != other for one, other in zip(old, new, strict=True)) == 1
    moved = (kinds == "near") | (kinds == "random")
    assert sorted(np.array(captions)[moved]) == sorted(np.array(train.captions)[moved])
    again = mismatches.mismatched(train, {"random": 0.3, "near": 0.1, "swap": 0.2}, seed=3)
    assert again[0] == captions


@pytest.mark.parametrize("vectors", [False, True])
def test_scores_are_measured_against_the_truth_and_told_as_tables(tmp_path, monkeypatch, capsys, vectors):
    data = write_folder(tmp_path / "data", train=100)
    words = [str(data), "--work", str(tmp_path / "work"), "--rates", "0.3", "--seeds", "1"]
    if vectors:
        words += ["--model", str(save_encoder(tmp_path / "model", positions=80))]
    else:
        words += ["--picture", str(tmp_path / "reliability.png")]
    monkeypatch.setattr(sys, "argv", ["scores.py", *words])
    scores.main()
    first = capsys.readouterr().out
    assert (tmp_path / "reliability.png").is_file() != vectors
    assert "in 1 of 1 audits." in first or "in 0 of 1 audits." in first
    assert "| score | AUROC, random | AUROC, near | AUROC, swap |" in first
    assert "| 30% | 0 | `" in first
    scores.main()
    assert capsys.readouterr().out.endswith(first)


def test_scores_that_know_the_truth_are_told_to_be_right():
    wrong = np.arange(1000) < 300
    rng = np.random.default_rng(0)
    pairs = np.where(wrong, 0.1, 0.9) + 0.05 * rng.random(1000)
    decoys = 0.1 + 0.05 * rng.random(200)
    row = scores.score_numbers(Correspondences(pairs, estimate(pairs, decoys)), np.where(wrong, "random", ""))
    assert (row["auroc"], row["ap"], row["precision_true"]) == (1, 1, 1)
    assert abs(row["rate"] - 0.3) < 0.04
    assert row["recall_true"]["all"] == pytest.approx(row["recall_told"]["random"], abs=0.05)
    assert score_tables.calibration_error(row["reliability"]) < 0.06
    assert score_tables.calibration_error([[50, 0.2, 0.4], [150, 0.9, 0.9]]) == pytest.approx(0.05)
    rows = [{"best": "a", "taken": taken, "scores": {"a": {"auroc": 0.9}, "b": {"auroc": 0.7}}} for taken in "ab"]
    said = "best by truth in 1 of 2 audits. Elsewhere it cost 0.2000 of AUROC in the mean, 0.2000 at most."
    assert score_tables.choice(rows).endswith(said)


def test_clip_arts_are_captioned_by_titles_and_keywords_and_audited(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for row in range(240):
        colour = ("red", "green", "blue")[row % 3]
        for kind in ("svg", "png"):
            (tmp_path / kind / colour).mkdir(parents=True, exist_ok=True)
        pixels = Image.new("RGB", (20, 12), colour)
        pixels.putpixel((0, 0), tuple(int(part) for part in rng.integers(256, size=3)))
        pixels.save(tmp_path / "png" / colour / f"{row}.png")
        title = "shared" if row < 12 else f"{colour} thing {row // 3}"
        keywords = "".join(f"<r:li>{word}</r:li>" for word in ("hash", "", colour, "0x8b", "colour"))
        (tmp_path / "svg" / colour / f"{row}.svg").write_text(
            '<svg xmlns:c="cc" xmlns:r="rdf" xmlns:d="http://purl.org/dc/elements/1.1/"><c:Work>'
            f"<d:title> {title} </d:title><d:subject><r:Bag>{keywords}</r:Bag></d:subject></c:Work></svg>"
        )
    assert clipart.captions(tmp_path)["red/30"] == ("red thing 10", "red thing 10, red, colour")
    monkeypatch.setattr(clipart, "pretrained", lambda packages: None)
    monkeypatch.setattr(clipart, "last_block", lambda network, images: torch.nn.functional.avg_pool2d(images, 65))
    words = [str(tmp_path), "--backbone", "none", "--work", str(tmp_path / "work"), "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["clipart.py", *words, "--pairs", "220", "--rates", "0", "0.4", "--worst", "3"])
    clipart.main()
    lines = capsys.readouterr().out.splitlines()
    found = next(number for number, line in enumerate(lines) if line.startswith("| 220 | 0% "))
    assert lines[found + 1].startswith("| 220 | 40% | ")
    assert len(lines[found + 2 :]) == 3
    monkeypatch.setattr(sys, "argv", ["clipart.py", *words, "--pairs", "230"])
    with pytest.raises(SystemExit, match="228 clip arts, fewer than 230"):
        clipart.main()


def test_downstream_trains_on_what_each_score_keeps(tmp_path, monkeypatch, capsys):
    data = write_folder(tmp_path / "data", train=60)
    words = [str(data), "--work", str(tmp_path / "work"), "--rates", "0.4", "--seeds", "1"]
    small = ["--set", "train.pieces=[1]", "--set", "matcher.embedding=8", "--set", "ledger.freeze_epochs=0"]
    ways = ["as it is", "clean", "random", "linear", "crcl"]
    monkeypatch.setattr(sys, "argv", ["downstream.py", *words, *small, "--ways", *ways])
    downstream.main()
    first = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0] for line in first[2:]] == [f"| {way}" for way in ways]
    options = downstream.parse(words)
    rows = {way: downstream.measured(options, 0.4, 0, way) for way in ways}
    assert rows["clean"]["wrong"] == 0
    assert (
        rows["clean"]["pairs"] == rows["linear"]["pairs"] == rows["random"]["pairs"] < rows["as it is"]["pairs"] == 120
    )
    assert rows["linear"]["wrong"] < rows["random"]["wrong"] < 0.5
    with pytest.raises(SystemExit, match="other: no score of this audit, which has "):
        downstream.measured(options, 0.4, 0, "other")


def test_hard_negatives_are_near_mismatches_more_that_verdicts_call_wrong(tmp_path, monkeypatch, capsys):
    data = write_folder(tmp_path / "data", train=60)
    words = ["hard.py", str(data), "--work", str(tmp_path / "work"), "--pairs", "100", "--rates", "0.4", "--seeds", "1"]
    small = ["--set", "train.pieces=[1]", "--set", "matcher.embedding=8", "--set", "ledger.freeze_epochs=0"]
    monkeypatch.setattr(sys, "argv", [*words, *small, "--methods", "crcl", "--arms", "random", "hard"])
    hard.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[:3] for line in lines[2:]] == [["| 40%", "crcl", arm] for arm in ("random", "hard")]
    plain, more = (crcl.Run.open(tmp_path / "work/runs" / f"bow-0.4-0-crcl-{arm}") for arm in ("random", "hard"))
    beliefs = more.load_ledger()
    assert len(plain.load_ledger()) == 100 < len(beliefs)
    assert (beliefs[100:] == 0).all()


def test_the_search_of_synthetic_vectors_is_measured_in_every_way(tmp_path):
    pytest.importorskip("faiss")
    search_benchmark.make(tmp_path, rows=3000, size=16, queries=20)
    found = {way: search_benchmark.measure(tmp_path, way, 0.9) for way in search_benchmark.WAYS}
    assert found["exact"]["recall"] == 1
    assert all(row["recall"] > 0.7 and row["p50"] <= row["p99"] for row in found.values())
    assert found["cells"]["bytes"] > found["exact"]["bytes"]


def test_captions_of_the_synthetic_vectors_lie_off_the_images(tmp_path):
    search_benchmark.make(tmp_path, rows=3000, size=64, queries=20)
    index = crcl.Index.open(tmp_path)
    images, captions = (index.vectors(what).astype(np.float32) for what in ("images", "captions"))
    assert np.linalg.norm(images.mean(0) - captions.mean(0)) > 0.7
    assert 0.3 < np.median((captions @ images.T).max(1)) < 0.6


def test_two_stages_are_measured_between_the_first_alone_and_the_second_alone(tmp_path):
    data = write_folder(tmp_path / "data")
    first, second = (
        crcl.load(session.train(small_config(data, f"matcher.name={name}"), tmp_path / name)) for name in ("bow", "vse")
    )
    rows = two_stages.measure(first, second, crcl.read(data).split("test"), [3, 99])
    assert [row["what"] for row in rows] == [
        "first stage",
        "3 candidates",
        "99 candidates",
        "second stage on everything",
    ]
    assert rows[2]["rsum"] == pytest.approx(rows[3]["rsum"])
    assert rows[3]["share"] == rows[3]["time"] == 100
    assert len(two_stages.table(rows)) == 6


@pytest.mark.parametrize("name", speed_words.KINDS)
def test_loops_over_captions_agree_with_matchers_of_regions_and_words(name):
    evaluation, training = speed_words.measured(name, 5, 32, 1, 1e9)  # ends the program where they disagree
    assert evaluation.startswith(f"| `{name}` | evaluation |")
    assert training.startswith(f"| `{name}` | training step |")


@pytest.mark.parametrize("name", speed_vectors.KINDS)
def test_straightforward_encoders_agree_with_matchers_of_vectors(name):
    evaluation, training = speed_vectors.measured(name, 3, 1, 1e9, features=24, size=32)
    assert evaluation.startswith(f"| `{name}` | evaluation |")
    assert training.startswith(f"| `{name}` | training step |")


def test_matchers_are_tabled_with_the_scores_of_all_their_finished_runs(tmp_path):
    data = write_folder(tmp_path / "data")
    runs = [session.train(small_config(data, f"train.seed={seed}"), tmp_path / f"{seed}") for seed in (0, 1)]
    head, _, row = matchers.table([run.path for run in runs])
    assert head == "| matcher | method | rSum, 40 % | AUROC, 40 % |"
    cells = row.strip("| ").split(" | ")
    expected = [crcl.evaluate(run.path).rsum for run in runs]
    assert cells[:3] == ["`bow`", "crcl", spread(expected, 1)]
    assert 0 < float(cells[3].partition(" ")[0]) <= 1
    assert matchers.seconds(small_config(data)) >= 0


@pytest.mark.slow
def test_verdicts_are_measured_on_the_pairs_without_one(tmp_path, capsys):
    data = write_folder(tmp_path / "data", train=120)
    words = [str(data), "--work", str(tmp_path / "work"), "--seeds", "1", "--verdicts", "20", "--preset", "cpu"]
    verdicts.main([*words, "--ways", "linear model alone"])
    header, _, worst, sample = capsys.readouterr().out.splitlines()
    assert header == verdicts.HEADER
    assert [line.count("|") for line in (worst, sample)] == [header.count("|")] * 2
    assert int(worst.split("|")[3]) > 10  # the least believed are mostly wrong
    assert "–" in worst
    assert "–" not in sample


@pytest.mark.slow
def test_clients_at_once_are_answered_without_an_error_and_told_as_a_table(tmp_path, monkeypatch, capsys):
    words = ["serve.py", str(tmp_path), "--clients", "4", "--seconds", "1", "--pause", "0", "--images", "30"]
    monkeypatch.setattr(sys, "argv", words)
    serve.main()
    printed = capsys.readouterr().out
    assert "0 errors" in printed
    assert "| all |" in printed


def test_the_plan_for_400_million_pairs_is_that_of_the_page():
    page = (BENCHMARKS.parent / "docs/scale.md").read_text("utf-8")
    for line in plan.report().splitlines():
        assert line in page, "python benchmarks/plan.py"


def test_a_step_takes_less_in_more_processes_until_exchanges_outweigh_what_is_divided():
    steps = [plan.Step(plan.GPUS[0], count) for count in (8, 64, 256, 4096)]
    assert sorted(steps, key=lambda step: -step.computing) == steps
    assert sorted(steps, key=lambda step: step.exchanging) == steps
    assert plan.moved(1, reduced=5, gathered=5) == 0
    assert plan.moved(2, reduced=100) == 100  # half of the sum goes out, half of the others' comes in


def test_the_model_of_processes_finds_the_times_that_it_was_made_of():
    latency, per_byte = 1e-4, 1e-9
    found = [
        {
            "processes": count,
            "exchanges": {
                name: [
                    latency * np.log2(count) + per_byte * plan.moved(count, **{name: size}) for size in processes.SIZES
                ]
                for name in ("reduced", "gathered")
            },
        }
        for count in (2, 4)
    ]
    assert processes.fit_exchanges(found) == pytest.approx((latency, per_byte, 0), abs=1e-8)
    assert processes.fit_compute({1: 0.9, 2: 0.5, 4: 0.3}) == pytest.approx((0.1, 0.8))
    assert processes.fit_compute({1: 0.8, 2: 0.4, 4: 0.19})[0] == 0


def test_growth_is_told_as_a_power_of_the_number_of_pairs(tmp_path):
    rows = [{"task": "full", "pairs": 10**k, "seconds": 2 * 100.0**k, "memory": 0.5} for k in (3, 4, 5)]
    assert growth.exponents(rows) == pytest.approx([2, 2])
    page = growth.render(rows, growth.parse([str(tmp_path)]))
    assert "| audit | 2e+06 (0.5) | 2e+08 (0.5) | 2e+10 (0.5) | 2.00, 2.00 |" in page
    assert growth.draw(rows).axes[0].get_xscale() == "log"
