"""The declared tables have the paper's numbers, and what they train is what is published."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from embedded import write_embeddings
from tiny import write_folder

from crcl import config, experiments
from crcl.errors import InputError
from crcl.experiments.planning import Planner
from crcl.experiments.reproduce import jobs_of
from crcl.methods import METHODS

NEWER = {"gsc", "l2rm"}
"""Methods that the paper does not compare with."""
OURS = {"relink"}
"""Methods of this project, of which no schedule is published."""
RELINK = Path(__file__).parents[2] / "benchmarks/relink.toml"
OTHERS = {"chan", "naaf", "imram", "gsmn", "vsrn", "mvvse", "hrem"}
"""Matchers that only the table of well-matched pairs has."""
HARDEST = "triplet-hardest"
TRAINED = [name for name in experiments.NAMES if name not in ("table3", "supp-fig-c")]
RSUMS = {
    # rSum on Flickr30K and MS-COCO 1K at 20, 40, 60 and 80 %, copied by hand from the paper's tables
    ("table1", "SCAN"): "402.3 266.4 131.7 86.6 / 322.6 314.4 293.4 255.1",
    ("table1", "SAF"): "401.1 334.9 278.7 177.2 / 406.5 383.0 348.7 310.6",
    ("table1", "SGR"): "433.8 372.1 291.7 181.3 / 434.0 406.4 381.3 319.1",
    ("table1", "VSE∞"): "461.9 293.3 223.1 127.7 / 500.5 399.9 339.7 288.8",
    ("table1", "NCR"): "497.0 486.8 468.6 36.4 / 516.6 513.9 503.3 244.8",
    ("table1", "DECL"): "497.6 487.7 471.3 426.8 / 517.3 517.1 508.2 480.1",
    ("table1", "BiCro"): "504.7 487.5 466.3 60.2 / 523.2 517.1 505.5 340.1",
    ("table1", "MSCN"): "501.9 492.2 471.6 18.8 / 524.6 510.9 506.5 481.2",
    ("table1", "CRCL"): "507.8 505.2 487.3 443.7 / 525.6 521.5 514.2 501.8",
    ("supp-table2", "DECL-SAF"): "489.7 479.0 458.4 404.9 / 517.4 512.8 500.5 482.7",
    ("supp-table2", "DECL-SGR"): "491.7 482.8 464.3 395.8 / 515.8 512.7 504.4 480.1",
    ("supp-table2", "BiCro-SAF"): "496.4 478.5 457.0 51.7 / 512.4 509.7 503.1 368.9",
    ("supp-table2", "BiCro-SGR"): "496.0 478.9 456.3 39.4 / 512.7 508.0 503.3 332.5",
    ("supp-table2", "CRCL-VSE∞"): "489.7 481.1 467.6 412.2 / 516.9 511.7 504.7 488.1",
    ("supp-table2", "CRCL-SAF"): "496.0 492.5 475.9 427.4 / 521.2 516.9 509.2 494.2",
    ("supp-table2", "CRCL-SGR"): "501.2 496.6 476.1 430.0 / 522.5 517.2 508.9 495.4",
    ("table2", "SCAN"): "295.7 / 379.4",
    ("table2", "BiCro"): "370.2 / 430.4",
    ("table2", "CRCL"): "373.7 / 438.6",
    ("table3", "CLIP (ViT-B/32), fine-tuned"): "236.3",
    ("table3", "CRCL"): "433.3",
    ("table4", "L_acl, SCC"): "476.1",
    ("table4", "L_d, SCC"): "471.2",
    ("table4", "L_r, SCC"): "471.6",
    ("table4", "L_r (q = 1)"): "267.2",
    ("table4", "L_r (q = 0)"): "451.7",
    ("table4", "L_d"): "451.3",
    ("supp-table3", "SGRAF"): "499.6 / 524.3",
    ("supp-table3", "RCL"): "510.6 / 526.6",
    ("supp-table3", "CRCL"): "512.5 / 528.2",
}
SLIPS = {("supp-table2", "BiCro-SAF", "coco-1k", 0.8)}
"""Where the paper's rSum is not the sum of its recalls."""


@pytest.mark.parametrize("name", experiments.NAMES)
def test_recalls_of_the_paper_add_up_to_its_rsum(name):
    experiment = experiments.experiment(name)
    for row in experiment.rows:
        for column in experiment.columns:
            for rate in row.noise:
                numbers = row.published(column, rate)
                if numbers is not None:
                    adds_up = abs(sum(numbers[:6]) - numbers[6]) < 0.051
                    assert adds_up == ((name, row.name, column, rate) not in SLIPS), (row.name, column, rate)


@pytest.mark.parametrize(("name", "row"), RSUMS)
def test_rsums_are_those_of_the_paper(name, row):
    experiment = experiments.experiment(name)
    found = next(one for one in experiment.rows if one.name == row)
    told = [
        " ".join(f"{numbers[6]:.1f}" for rate in found.noise if (numbers := found.published(column, rate)))
        for column in experiment.columns
    ]
    assert " / ".join(told) == RSUMS[name, row]


def test_only_methods_without_an_implementation_have_no_runs():
    for name in experiments.NAMES:
        bare = {row.name for row in experiments.experiment(name).rows if not row.runs}
        assert not bare & {"SCAN", "SAF", "SGR", "SGRAF", "VSE∞", "NCR", "DECL", "BiCro", "MSCN", "RCL", "CRCL"}
        assert not bare & {"VSRN", "MV-VSE", "IMRAM", "GSMN", "NAAF", "CHAN", "HREM"}
        assert not bare or name == "supp-table3"


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'table1'"):
        experiments.experiment("tabel1")
    with pytest.raises(InputError, match="did you mean 'paper'"):
        experiments.profile("papper")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The three data sets in the field's layout, tiny."""
    folder = tmp_path_factory.mktemp("data")
    for number, name in enumerate(("f30k", "coco", "cc152k")):
        data = write_folder(folder / f"{name}_precomp", held_out=10, seed=number)
        if name == "coco":
            for file in data.glob("test_*"):
                file.rename(file.with_name(file.name.replace("test_", "testall_")))
    return folder


@pytest.fixture
def planner(folders):
    return Planner(experiments.profile("paper"), folders, seeds=1)


def test_every_declared_run_can_be_trained_with_the_papers_sizes(planner):
    jobs = jobs_of(planner, [experiments.experiment(name) for name in TRAINED])
    assert len({job.key for job in jobs}) == len(jobs) == len({job.about for job in jobs})
    assert {job.config.matcher.embedding for job in jobs if job.config.matcher.name != "vsrn"} == {1024}
    assert {job.config.matcher.name for job in jobs} == {"vse", "saf", "sgr", "scan", *OTHERS}
    assert {job.config.method for job in jobs} == set(METHODS) - NEWER - OURS
    assert {job.config.noise.rate for job in jobs} == {0.0, 0.2, 0.4, 0.6, 0.8}


def test_tables_share_runs(planner):
    def keys(*names):
        return {job.key for job in jobs_of(planner, [experiments.experiment(name) for name in names])}

    assert len(keys("table1")) == 4 * 2 * 12  # rates, data sets, and single networks or pairs of a method
    assert keys("fig2") - keys("supp-table2", "table4") == {
        job.key for _, job in planner.distributions(experiments.experiment("fig2")) if "none" in job.about
    }
    clean = keys("table2", "supp-table3")
    assert len(clean) < len(keys("table2")) + len(keys("supp-table3"))  # COCO in 1K and 5K is one training


def test_compared_methods_are_trained_as_the_page_of_methods_says(planner):
    """The commands there and the recipes of the profile are two tellings of one thing."""
    page = (Path(__file__).parents[2] / "docs/methods.md").read_text("utf-8").replace("\\\n", " ")
    rows = [row for name in ("table1", "supp-table3", "table4") for row in experiments.experiment(name).rows]
    newer = [experiments.Row(name, (0.4,), ((name, "sgr"),)) for name in sorted(NEWER)]
    source = planner.profile.sources["f30k"]
    compared = 0
    for line in re.findall(r"^    (crcl train data/f30k.*)$", page, flags=re.MULTILINE):
        words = shlex.split(line)
        options = {one: other for one, other in pairwise(words) if one.startswith("--")}
        method, matcher = options.get("--method", "crcl"), options.get("--matcher", "sgr")
        if method in OURS:
            continue
        told = config.load(
            preset=options.get("--preset"),
            base={"method": method, "matcher.name": matcher, "noise.rate": 0.4},
            settings=[other for one, other in pairwise(words) if one == "--set"],
        )
        row = next(
            row
            for row in [*rows, *newer]
            for name, on in row.runs
            if (planner.profile.recipe(name).method, on) == (method, matcher)
        )
        jobs = [job for job in planner._jobs(row, source, 0.4, 0) if job.config.matcher.name == matcher]
        changed = config.differences(told, jobs[0].config)
        assert set(changed) <= {"data.path", "noise.level"}, (method, changed)
        compared += 1
    assert compared == 7 + len(NEWER)


def test_on_other_data_they_are_trained_as_the_page_of_methods_says(planner):
    """Its table has what the schedules of COCO and CC152K change; what it does not name is as on Flickr30K."""
    page = (Path(__file__).parents[2] / "docs/methods.md").read_text("utf-8").partition("### Other data")[2]
    lines = re.findall(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \|$", page, flags=re.MULTILINE)
    recipes = {recipe.method: recipe for recipe in planner.profile.recipes.values()}
    assert {method for method, *_ in lines} == {"crcl", *recipes} - {HARDEST}
    for method, *cells in lines:
        for folder, cell in zip(("coco_precomp", "cc152k_precomp"), cells, strict=True):
            if method == "crcl":
                presets = {
                    source.presets["sgr"] for source in planner.profile.sources.values() if source.folder == folder
                }
                assert {cell} == {f"`--preset {preset}`" for preset in presets}
                continue
            usual, _, severe = cell.partition("from 60 % on")
            for rate in (0.2, 0.6):
                told = dict(setting.split("=") for setting in re.findall(r"`([\w.]+=.*?)`", usual))
                told |= dict(setting.split("=") for setting in re.findall(r"`([\w.]+=.*?)`", severe) if rate >= 0.6)
                here, f30k = (
                    dict(
                        setting.split("=")
                        for setting in recipes[method].settings_for(matcher="sgr", folder=name, noise=rate)
                    )
                    for name in (folder, "f30k_precomp")
                )
                assert here == f30k | told, (method, folder, rate)


@pytest.mark.parametrize(
    ("matcher", "folder", "epochs", "rate", "update"),
    [
        ("scan", "f30k_precomp", "[30]", "0.0002", "15"),
        ("scan", "coco_precomp", "[20]", "0.0005", "10"),
        ("saf", "f30k_precomp", "[30]", "0.0002", "20"),
        ("saf", "coco_precomp", "[20]", "0.0002", "10"),
        ("sgr", "f30k_precomp", "[40]", "0.0002", "30"),
        ("sgr", "coco_precomp", "[20]", "0.0002", "10"),
        ("vse", "f30k_precomp", "[25]", "0.0005", "15"),
        ("vse", "coco_precomp", "[25]", "0.0005", "15"),
        ("chan", "f30k_precomp", "[25]", "0.0005", "15"),
        ("chan", "coco_precomp", "[25]", "0.0005", "15"),
        ("vsrn", "f30k_precomp", "[30]", "0.0002", "10"),
        ("vsrn", "coco_precomp", "[30]", "0.0002", "15"),
        ("naaf", "f30k_precomp", "[20]", "0.0005", "10"),
        ("imram", "f30k_precomp", "[30]", "0.0002", "15"),
        ("imram", "coco_precomp", "[20]", "0.0005", "10"),
        ("gsmn", "f30k_precomp", "[30]", "0.0002", "15"),
        ("gsmn", "coco_precomp", "[20]", "0.0005", "5"),
        ("hrem", "coco_precomp", "[30]", "0.0005", "15"),
        ("mvvse", "f30k_precomp", "[20]", "0.0005", "20"),
    ],
)
def test_plain_training_has_each_matchers_published_schedule(planner, matcher, folder, epochs, rate, update):
    settings = planner.profile.recipe("plain").settings_for(matcher=matcher, folder=folder, noise=0.4)
    found = dict(setting.split("=") for setting in settings)
    assert [found[f"train.{key}"] for key in ("pieces", "lr", "lr_update")] == [epochs, rate, update]


@pytest.mark.parametrize("folder", ["f30k", "coco"])
@pytest.mark.parametrize("matcher", sorted(OTHERS))
def test_plain_training_is_what_the_preset_of_a_matcher_says(planner, matcher, folder):
    """A recipe of plain training changes a few settings for all matchers; the published ones are given back."""
    settings = planner.profile.recipe("plain").settings_for(matcher=matcher, folder=f"{folder}_precomp", noise=0.0)
    preset = config.load(preset=f"{folder}-{matcher}")
    changed = config.differences(preset, config.load(preset=f"{folder}-{matcher}", settings=settings))
    assert set(changed) <= {"train.pieces"}
    assert preset.train.pieces[-1:] == config.load(settings=[*settings]).train.pieces


def test_only_vse_and_its_kin_and_chan_take_all_negatives_in_their_first_epoch(planner):
    jobs = jobs_of(planner, [experiments.experiment(name) for name in TRAINED])
    found = {(job.config.matcher.name, job.config.loss.first_epochs) for job in jobs if job.config.method == HARDEST}
    first = {"vse", "mvvse", "chan"}
    assert found == {(matcher, int(matcher in first)) for matcher in {"scan", "saf", "sgr", "vse"} | OTHERS}


def test_decl_warms_up_shorter_from_60_percent_on(planner):
    found = {
        (job.config.data.path.rpartition("/")[2], job.config.noise.rate): job.config.decl.warmup
        for job in jobs_of(planner, [experiments.experiment("table1")])
        if job.config.method == "decl"
    }
    assert [found["f30k_precomp", rate] for rate in (0.2, 0.4, 0.6, 0.8)] == [5, 5, 2, 2]
    assert [found["coco_precomp", rate] for rate in (0.2, 0.4, 0.6, 0.8)] == [2, 2, 1, 1]


def test_data_that_are_not_there_are_left_out_and_named(folders, tmp_path):
    (tmp_path / "f30k_precomp").symlink_to(folders / "f30k_precomp")
    planner = Planner(experiments.profile("paper"), tmp_path, seeds=1)
    blocks = planner.blocks(experiments.experiment("table1"))
    assert {block.label for block in blocks} == {"Flickr30K"}
    assert planner.left_out(experiments.experiment("table1")) == [
        f"MS-COCO 1K (coco_precomp is not in {tmp_path.name})"
    ]
    with pytest.raises(InputError, match="table2: none of its data is there"):
        planner.blocks(experiments.experiment("table2"))


def test_a_folder_that_is_here_has_its_own_name(folders, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "f30k_precomp").symlink_to(folders / "f30k_precomp")
    monkeypatch.chdir(tmp_path / "here")
    planner = Planner(experiments.profile("paper"), Path(), seeds=1)
    assert planner.left_out(experiments.experiment("table1")) == ["MS-COCO 1K (coco_precomp is not in here)"]


def test_a_key_is_of_what_determines_a_run_and_of_nothing_else(folders, tmp_path):
    def key(folder, *settings):
        planner = Planner(experiments.profile("cpu"), folder, seeds=1, settings=settings)
        return jobs_of(planner, [experiments.experiment("table4")])[0].key

    here = key(folders / "f30k_precomp")
    (tmp_path / "moved").symlink_to(folders / "f30k_precomp")
    assert key(tmp_path / "moved") == here
    assert key(folders / "f30k_precomp", "train.device=cpu", "train.workers=2") == here
    assert key(folders / "f30k_precomp", "train.lr=0.1") != here
    assert key(folders / "cc152k_precomp") != here  # other captions
    other = write_folder(tmp_path / "other", held_out=10)
    assert key(other) == here


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("ledger.threshold=0.3", {"crcl"}),
        ("decl.shrink=0.3", {"decl"}),
        ("division.threshold=0.4", {"ncr", "bicro"}),
        ("mscn.meta_lr=0.01", {"mscn"}),
        ("gsc.momentum=0.5", set()),
        ("l2rm.mass=0.2", set()),
        ("relink.refresh=2", set()),
        ("matcher.linear=16", set()),
        ("matcher.similarity=16", {"triplet-hardest", "ncr", "decl", "bicro", "mscn", "crcl"}),
        ("matcher.sharp=3.0", {"triplet-hardest"}),
    ],
)
def test_a_setting_trains_only_the_runs_again_that_read_it(folders, setting, changed):
    def found(*settings):
        data = folders / "f30k_precomp"
        planner = Planner(experiments.profile("cpu"), data, seeds=1, settings=settings, rates=(0.2,))
        return {job.about: job for job in jobs_of(planner, [experiments.experiment("table1")])}

    before, after = found(), found(setting)
    assert list(before) == list(after)
    others = {job.config.method for about, job in after.items() if job.key != before[about].key}
    assert others == changed
    for about, job in after.items():
        same = job.key == before[about].key
        assert (job.config, job.words) == (before[about].config, before[about].words) or not same, about
    moved = {job.config.matcher.name for about, job in after.items() if job.key != before[about].key}
    assert moved <= {"matcher.similarity=16": {"saf", "sgr"}, "matcher.sharp=3.0": {"scan"}}.get(setting, moved)


def test_a_run_reads_the_settings_of_the_matcher_that_its_method_fits_besides(folders):
    def found(*settings):
        planner = Planner(
            experiments.profile("cpu"), folders / "f30k_precomp", seeds=1, settings=settings, rates=(0.4,)
        )
        return {job.about: job.key for job in jobs_of(planner, [experiments.experiment(str(RELINK))])}

    before, after = found(), found("matcher.linear=16")
    changed = {about.partition(",")[0] for about in before if before[about] != after[about]}
    assert changed == {"relink on vse", "relink on linear"}


def test_a_run_fitted_in_closed_form_stays_so_whatever_matcher_is_requested(folders, tmp_path):
    def trained(matcher, data=folders / "f30k_precomp"):
        planner = Planner(experiments.profile("cpu"), data, seeds=1, matcher=matcher, rates=(0.4,))
        (block,) = planner.blocks(experiments.experiment(str(RELINK)))
        return {entry.row.name: entry.trained for entry in block.entries}

    assert trained("bow")["linear model alone"] == "relink on linear"
    assert {text for name, text in trained("bow").items() if name != "linear model alone"} == {
        f"{method} on bow" for method in ("crcl", "gsc", "decl", "infonce", "relink")
    }
    assert trained("linear")["relink"] == "as linear model alone"
    columns = {"split": ["train", "dev", "test"] * 20}
    vectors = write_embeddings(tmp_path / "vectors", 60, columns=columns)
    assert trained("dual", vectors)["linear model alone"] == "relink on linear-vectors"


def test_mismatches_at_image_level_are_other_runs_except_without_any(folders, tmp_path):
    def found(level, name=str(RELINK)):
        planner = Planner(experiments.profile("cpu"), folders / "f30k_precomp", seeds=1, matcher="bow", level=level)
        return {(job.config.noise.rate, job.key): job for job in jobs_of(planner, [experiments.experiment(name)])}

    plain, caption, image = found(None), found("caption"), found("image")
    assert plain.keys() == caption.keys()
    assert {rate for rate, _ in plain.keys() & image.keys()} == {0.0}
    for (rate, _), job in image.items():
        assert job.config.noise.level == ("image" if rate else "caption")
        assert ("--noise-level" in job.words) == (rate > 0)
        assert ("of the images mismatched" in job.about) == (rate > 0)
    (tmp_path / "mine.toml").write_text('level = "image"\n' + RELINK.read_text("utf-8"))
    assert found(None, str(tmp_path / "mine.toml")).keys() == image.keys()
    assert found("caption", str(tmp_path / "mine.toml")).keys() == caption.keys()


def test_a_setting_that_a_run_does_not_read_is_checked_all_the_same(folders):
    planner = Planner(experiments.profile("cpu"), folders / "f30k_precomp", settings=("decl.shrink=-1",))
    with pytest.raises(InputError, match=r"decl\.shrink: must be at least 0"):
        planner.blocks(experiments.experiment("table4"))


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize("image", [0, 1, 37, 199])
def test_one_changed_number_of_any_image_is_another_run(tmp_path, split, image):
    def key():
        planner = Planner(experiments.profile("cpu"), folder, seeds=1)
        return jobs_of(planner, [experiments.experiment("table4")])[0].key

    folder = write_folder(tmp_path, train=200, held_out=200)
    before = key()
    features = np.load(folder / f"{split}_ims.npy")
    features[image, 1, 2] += 1e-3
    np.save(folder / f"{split}_ims.npy", features)
    assert key() != before


def test_one_changed_number_of_any_captions_vector_is_another_run(tmp_path):
    def key():
        planner = Planner(experiments.profile("cpu"), folder, seeds=1, matcher="dual")
        return jobs_of(planner, [experiments.experiment("table4")])[0].key

    columns = {"split": ["train"] * 160 + ["dev"] * 20 + ["test"] * 20}
    folder = write_embeddings(tmp_path / "data", 200, columns=columns)
    before = key()
    assert key() == before
    vectors = np.load(folder / "text_emb" / "text_emb_0.npy")
    vectors[7, 3] += 0.5
    np.save(folder / "text_emb" / "text_emb_0.npy", vectors)
    assert key() != before


def test_a_changed_test_image_is_measured_again_but_not_trained_again(tmp_path):
    def trial():
        planner = Planner(experiments.profile("cpu"), folder, seeds=1)
        return planner.blocks(experiments.experiment("table4"))[0].entries[0].trials[0]

    folder = write_folder(tmp_path, held_out=100)
    before = trial()
    features = np.load(folder / "test_ims.npy")
    features[41] += 1e-3
    np.save(folder / "test_ims.npy", features)
    assert trial().jobs[0].key == before.jobs[0].key
    assert trial().key != before.key


def test_the_missing_pixels_of_table3_are_named(planner):
    with pytest.raises(InputError, match=r"reads the pixels of images for .*, but none are given"):
        planner.blocks(experiments.experiment("table3"))


def test_one_matcher_for_all_rows_trains_equal_rows_once(folders):
    planner = Planner(experiments.profile("cpu"), folders / "f30k_precomp", seeds=1, matcher="vse")
    entries = {entry.row.name: entry for entry in planner.blocks(experiments.experiment("table1"))[0].entries}
    assert list(entries) == [row.name for row in experiments.experiment("table1").rows]
    assert [entries[name].trained for name in ("SCAN", "SAF", "SGR", "VSE∞")] == [*["as VSE∞"] * 3, "plain on vse"]
    assert entries["CRCL"].trained == "crcl on vse"
    assert [job.config.matcher.name for trial in entries["CRCL"].trials for job in trial.jobs] == ["vse"]
    planner = Planner(experiments.profile("cpu"), folders / "f30k_precomp", seeds=1, matcher="bow")
    entries = {entry.row.name: entry for entry in planner.blocks(experiments.experiment("table1"))[0].entries}
    assert list(entries) == ["plain", *(row.name for row in experiments.experiment("table1").rows)]
    assert entries["plain"].trained == "plain on bow"
    assert not entries["plain"].row.paper
    for name in ("SCAN", "SAF", "SGR", "VSE∞"):  # none of these is what was trained
        assert (entries[name].trained, entries[name].trials) == ("as plain", ())
    planner = Planner(experiments.profile("cpu"), folders / "f30k_precomp", seeds=1, matcher="scan")
    refused = {entry.row.name: entry.trained for entry in planner.blocks(experiments.experiment("table1"))[0].entries}
    assert refused["MSCN"] == "does not go with scan"


MINE = """
title = "Newer methods"
noise = [0.2, 0.6]

[rows_of]
table = "table1"
names = ["CRCL"]

[[rows]]
name = "GSC"
runs = ["gsc/sgr"]
f30k = [[1, 2, 3, 4, 5, 6, 21], [1, 2, 3, 4, 5, 6, 21]]

[[rows]]
name = "L2RM, wide"
runs = ["l2rm/saf", "l2rm/sgr"]
noise = [0.6]
set = ["l2rm.mass=0.2"]
"""


def test_a_table_of_ones_own_is_read_like_one_of_the_papers(folders, tmp_path):
    (tmp_path / "mine.toml").write_text(MINE)
    mine = experiments.experiment(str(tmp_path / "mine.toml"))
    assert (mine.name, mine.file, mine.title, mine.figure) == ("mine", "mine.toml", "Newer methods", "robustness")
    assert [row.name for row in mine.rows] == ["GSC", "L2RM, wide", "CRCL"]
    assert mine.rows[0].published("f30k", 0.6) == (1, 2, 3, 4, 5, 6, 21)
    for profile, folder in (("paper", folders), ("cpu", folders / "f30k_precomp")):
        jobs = jobs_of(Planner(experiments.profile(profile), folder, seeds=1, rates=(0.6,)), [mine])
        assert {job.config.method for job in jobs} == {"gsc", "l2rm", "crcl"}
        assert {job.config.l2rm.mass for job in jobs if job.config.method == "l2rm"} == {0.2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rows = [", "mine.toml: not valid TOML"),
        ("", "mine.toml: has no rows"),
        ("titel = 'x'", "titel: unknown key (did you mean 'title'?)"),
        ("figure = 'pie'\n" + MINE, "figure: must be 'robustness', 'bars', 'sweeps' or 'epochs', got 'pie'"),
        ("level = 'photo'\n" + MINE, "level: must be 'caption' or 'image', got 'photo'"),
        ("figure = 'sweeps'\n" + MINE, "figure: sweeps draws [[sweeps]], and there are none"),
        (MINE.replace("noise = [0.2, 0.6]", "noise = [20]"), "noise[1]: must be less than 1, got 20"),
        (MINE.replace("noise = [0.2, 0.6]", ""), "rows[1] (GSC): neither it nor the table says noise"),
        (MINE.replace("gsc/sgr", "gsc"), "rows[1].runs[1]: must be recipe/matcher, as in crcl/vse, got 'gsc'"),
        (MINE.replace("gsc/sgr", "gcs/sgr"), "rows[1] (GSC): runs: no recipe or method 'gcs' (did you mean 'gsc'?)"),
        (MINE.replace("gsc/sgr", "gsc/sgrr"), "rows[1] (GSC): runs: no matcher 'sgrr' (did you mean 'sgr'?)"),
        (MINE.replace("gsc/sgr", "gsc/clip"), "rows[1] (GSC): runs: clip, and no other matcher, needs a model"),
        (MINE.replace("f30k =", "f3k ="), "rows[1] (GSC): f3k: unknown key (did you mean 'f30k'?)"),
        (MINE.replace('runs = ["gsc', 'runz = ["gsc'), "rows[1].runz[1]: must be a valid list"),
        (MINE.replace("6, 21], [1, 2, 3, 4, 5, 6, 21]]", "6, 21]]"), "f30k: 1 lines of numbers for 2 rates"),
        (MINE.replace("6, 21]]", "6]]"), "rows[1].f30k[2]: must have at least 7 items"),
        (
            MINE.replace("l2rm.mass", "l2rm.mas"),
            "rows[2] (L2RM, wide): l2rm.mas: unknown key (did you mean 'l2rm.mass'?)",
        ),
        (
            MINE.replace("l2rm.mass", "train.seed"),
            "rows[2] (L2RM, wide): train.seed: what a row is about cannot be set",
        ),
        (MINE.replace('"GSC"', '"CRCL"'), "rows: two are called 'CRCL'"),
        (MINE.replace('"CRCL"', '"CRLC"'), "rows_of.names: no row 'CRLC' (did you mean 'CRCL'?)"),
        (MINE.replace('"table1"', '"table9"'), "rows_of.table: must be 'table1'"),
        ("columns = ['f3k']\n" + MINE, "columns: no data set 'f3k' (did you mean 'f30k'?)"),
        ("noise = [0.4]\n[[sweeps]]\nname = 'x'\nvalues = [1]\nruns = ['crcl/vse']", "sweeps[1].key: is missing"),
        (
            "noise = [0.4]\n[[sweeps]]\nname = 'x'\nkey = 'loss.tau'\nvalues = [0.1234567, 0.1234568]\n"
            "runs = ['crcl/vse']",
            "rows: two are called 'x = 0.123457'",
        ),
    ],
)
def test_what_is_wrong_in_a_table_of_ones_own_is_named_with_its_place(tmp_path, content, message):
    (tmp_path / "mine.toml").write_text(content)
    with pytest.raises(InputError) as error:
        experiments.experiment(str(tmp_path / "mine.toml"))
    assert message in str(error.value)
    assert all(line.startswith(str(tmp_path / "mine.toml")) for line in str(error.value).splitlines())


def test_a_file_that_is_not_there_or_has_the_name_of_a_table_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"mine\.toml: no such file"):
        experiments.experiment(str(tmp_path / "mine.toml"))
    (tmp_path / "table1.toml").write_text(MINE)
    with pytest.raises(InputError, match="table1 is a table of the paper; give the file another name"):
        experiments.experiment(str(tmp_path / "table1.toml"))


def test_the_table_in_the_page_of_ones_own_is_right(tmp_path):
    page = (Path(__file__).parents[2] / "docs/reproduce.md").read_text("utf-8").partition("## A table of your own")[2]
    (block,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "mine.toml").write_text(block)
    methods = {name for row in experiments.experiment(str(tmp_path / "mine.toml")).rows for name, _ in row.runs}
    assert methods >= NEWER


def test_the_page_names_every_experiment():
    page = (Path(__file__).parents[2] / "docs/reproduce.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, flags=re.MULTILINE)) == set(experiments.NAMES)
