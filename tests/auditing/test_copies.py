"""The copies that an audit lists: in tables, in sentences, in a file, on the page; and what they keep together."""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from drawn import SETTINGS, drawn
from image_files import saved
from made_audits import HOSTILE, NAMES, made_audit
from PIL import Image
from tiny import Noting, call

import crcl
from crcl.auditing.copies import Duplicates, duplicates_file, find_duplicates, write_duplicates
from crcl.auditing.report.page import Details, write_report
from crcl.auditing.result import Audit
from crcl.data.duplicates import MOST, NEAR, find_copies
from crcl.data.pairs import Pairs
from crcl.data.split import Split
from crcl.errors import InputError
from crcl.runs.folder import Run

Tiny = Callable[..., Split]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of drawn scenes without splits: ten have a copy as BMP, ten one as JPEG, some captions say nothing."""
    folder, data = tmp_path_factory.mktemp("copies"), drawn()
    data.write_images(folder)
    rows = [(name, caption) for name, caption, _ in data.rows()]
    for place in range(10):
        for kind, start in (("BMP", 0), ("JPEG", 50)):
            picture = Image.open(io.BytesIO(data.pictures[start + place]))
            name = f"copy-{start + place}.{kind.lower()}"
            (folder / name).write_bytes(saved(picture, kind, **({"quality": 90} if kind == "JPEG" else {})))
            rows.append((name, f"{data.captions[start + place][0]} again"))
    rows[100:115] = [(name, "Untitled" if row % 2 else " untitled  ") for row, (name, _) in enumerate(rows[100:115])]
    rows[120] = (rows[120][0], "IMG_0001.JPG")
    rows[130:134] = [(name, "always the same") for name, _ in rows[130:134]]
    with (folder / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *rows])
    return folder


@pytest.fixture(scope="module")
def audit(scenes: Path) -> Audit:
    return crcl.audit(scenes / "pairs.csv", scenes / "pairs-audit", settings=SETTINGS)


def test_copies_of_drawn_scenes_are_found_and_no_others(audit: Audit) -> None:
    found = audit.duplicates
    judged = set(found.pairs.image_ids)
    groups: dict[int, set[str]] = {}
    for row in found.images.to_pylist():
        groups.setdefault(row["group"], set()).add(row["image"])
    expected = [{f"{n:06d}.png", f"copy-{n}.bmp"} for n in range(10)]
    assert sorted(map(sorted, groups.values())) == sorted(sorted(group) for group in expected if group <= judged)
    assert len(groups) >= 7
    near = {(row["image"], row["near_image"]) for row in found.near.to_pylist()}
    couples = [(f"{n:06d}.png", f"copy-{n}.jpeg") for n in range(50, 60)]
    assert near == {pair for one, other in couples if {one, other} <= judged for pair in ((one, other), (other, one))}
    assert len(near) >= 10
    assert found.near["similarity"].to_pylist() == sorted(found.near["similarity"].to_pylist(), reverse=True)
    assert min(found.near["similarity"].to_pylist()) >= 0.97


def test_captions_are_listed_with_their_numbers(audit: Audit) -> None:
    found = audit.duplicates
    generic = {(row["caption"], row["why"]): (row["pairs"], row["images"]) for row in found.generic.to_pylist()}
    told = {(caption.strip().lower(), why) for caption, why in generic}
    assert told == {("untitled", "many images"), ("img_0001.jpg", "file name")}
    pairs, images = next(counts for (_, why), counts in generic.items() if why == "many images")
    assert 10 <= pairs == images <= 15
    captions = dict(zip(found.captions["caption"].to_pylist(), found.captions["pairs"].to_pylist(), strict=True))
    assert captions["always the same"] == sum(f"{n:06d}.png" in found.pairs.image_ids for n in range(130, 134)) >= 2
    assert not {"Untitled", "untitled"} & set(captions)


def test_copies_are_held_out_together(scenes: Path, audit: Audit) -> None:
    pairs = crcl.read(scenes / "pairs.csv").with_features(
        scenes / "pairs-audit/features/features.npy", scenes / "pairs-audit/features/ids.txt"
    )
    train, dev = (set(pairs.split(name).image_ids) for name in ("train", "dev"))
    assert len(train | dev) == 220
    for number in range(10):
        assert (f"{number:06d}.png" in train) == (f"copy-{number}.bmp" in train)
    without = pairs.split("dev").contents
    assert without is not None
    assert audit.duplicates.across == {"dev": 0}


def test_no_decoy_of_the_run_is_a_copy_or_says_nothing(audit: Audit) -> None:
    drawn_decoys, found = audit.run.decoys(), audit.duplicates
    assert drawn_decoys is not None
    captions, images = drawn_decoys.T
    own = found.pairs.image_index[captions]
    assert (found.copies.same[own] != found.copies.same[images]).all()
    assert (found.copies.near[own] != images).all()
    assert not found.copies.generic[captions].any()


def test_the_summary_and_the_table_tell_of_them(audit: Audit) -> None:
    found, table = audit.duplicates, audit.table.to_pylist()
    exact, near = len(found.images) // 2, len(found.near)
    lines = audit.summary()
    assert f"{exact} images are exact copies of other images." in lines
    assert f"{near} images are near copies of other images (similarity 0.97 or more)." in lines
    assert any("more than once, in" in line for line in lines)
    assert any("generic (file names, or shown with 10 images or more), in" in line for line in lines)
    assert str(found) in "\n".join(lines)
    copies = {row["image"]: row["copy_of"] for row in table}
    assert {name: of for name, of in copies.items() if of} == {
        f"copy-{n}.bmp": f"{n:06d}.png" for n in range(10) if f"copy-{n}.bmp" in copies
    }
    assert sum(row["near_copy_of"] is not None for row in table) == near
    assert {row["caption"].lower() for row in table if row["generic_caption"]} <= {"untitled", "img_0001.jpg"}
    again = audit.at(threshold=0.3)
    assert again.duplicates is found


def test_the_command_writes_the_list_beside_the_table(
    scenes: Path, audit: Audit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenes)
    answer = call(capsys, monkeypatch, "audit", "pairs-audit/run")
    assert answer.code == 0, answer.err
    assert f"copies: {Path('pairs-audit/run/duplicates.csv')}" in answer.out
    assert "images are exact copies of other images." in answer.out
    listed = pyarrow.csv.read_csv("pairs-audit/run/duplicates.csv").to_pylist()
    kinds = [row["kind"] for row in listed]
    assert list(dict.fromkeys(kinds)) == ["same image", "near image", "same caption", "generic caption"]
    assert kinds.count("same image") == len(audit.duplicates.images)
    assert kinds.count("near image") == len(audit.duplicates.near)  # each couple once, as two rows
    rows = list(csv.reader((scenes / "pairs.csv").open(encoding="utf-8", newline="")))[1:]
    for row in listed:
        assert rows[row["row"]][0] == row["image"]
        assert not row["caption"] or rows[row["row"]][1].strip() == row["caption"]
    answer = call(capsys, monkeypatch, "audit", "pairs-audit/run", "-o", "sure.parquet", "--report", "page")
    assert answer.code == 0, answer.err
    assert pyarrow.parquet.read_table("sure-duplicates.parquet").num_rows == len(listed)
    page = Path("page/index.html").read_text("utf-8")
    assert '<h2 id="copies">Copies</h2>' in page
    assert "000001.png (row 1), copy-1.bmp (row " in page or "000002.png (row 2), copy-2.bmp (row " in page
    Path("mine-duplicates.csv").write_text("my,own\n1,2\n")
    answer = call(capsys, monkeypatch, "audit", "pairs-audit/run", "-o", "mine.csv")
    assert answer.code == 2
    assert "mine-duplicates.csv: exists and is not a list of copies" in answer.err
    assert Path("mine-duplicates.csv").read_text() == "my,own\n1,2\n"
    assert not Path("mine.csv").exists()


def test_the_similarity_of_near_copies_is_a_setting(scenes: Path, tmp_path: Path) -> None:
    found = crcl.audit(scenes / "pairs.csv", tmp_path / "audit", settings={**SETTINGS, "data.near_copies": 1})
    assert len(found.duplicates.near) == 0
    assert len(found.duplicates.images) > 0
    assert "near_copy_of" not in found.table.column_names


def test_the_examples_of_the_guide_run(
    scenes: Path, audit: Audit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenes)
    audit.write("pairs-audit/audit.csv")
    page = (Path(__file__).parents[2] / "docs/audit.md").read_text("utf-8")
    section = page[page.index("\n## Copies\n") : page.index("\n## With other tools\n")]
    shown, dropped = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    exec(shown, {})
    assert "images are exact copies of other images." in capsys.readouterr().out
    exec(dropped, {})
    kept = list(csv.reader((scenes / "once.csv").open(encoding="utf-8", newline="")))[1:]
    assert len(kept) == 220 - len(audit.duplicates.images) // 2
    assert f"{NEAR:g} or more" in section
    assert f"up to {MOST:,} images" in section


def made(pairs: Split) -> Duplicates:
    return Duplicates(pairs, find_copies(pairs))


def test_data_without_copies_tells_nothing_and_writes_nothing(tiny: Tiny, tmp_path: Path) -> None:
    pairs = replace(tiny(images=20, captions=1), captions=[f"caption number {number} of" for number in range(20)])
    found = made(pairs)
    assert not found
    assert (found.sentences(), found.columns(np.arange(20)), repr(found)) == ([], {}, "No copies.")
    assert found.table().column_names == ["kind", "group", "row", "image", "caption", "similarity"]
    assert write_duplicates(found, tmp_path / "audit.csv") is None
    assert list(tmp_path.iterdir()) == []
    twice = made(replace(pairs, captions=["same words here"] * 2 + list(pairs.captions[2:])))
    assert write_duplicates(twice, tmp_path / "audit.csv") == tmp_path / "duplicates.csv"
    assert twice.sentences() == ["1 caption occurs more than once, in 2 pairs."]
    assert write_duplicates(found, tmp_path / "audit.csv") is None  # an earlier list is removed
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_named_after_the_table() -> None:
    assert duplicates_file(Path("a/audit.csv")) == Path("a/duplicates.csv")
    assert duplicates_file(Path("sure.parquet")) == Path("sure-duplicates.parquet")


def test_a_file_of_the_user_is_not_replaced(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "duplicates.csv").write_text("kind,other\n")
    with pytest.raises(InputError, match="not a list of copies"):
        write_duplicates(made(tiny()), tmp_path / "audit.csv")
    assert (tmp_path / "duplicates.csv").read_text() == "kind,other\n"


def test_copies_across_splits_of_the_user_are_counted_and_not_moved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20, 4, 5)).astype(np.float32)
    features[[15, 16]] = features[3]
    features[19] = features[4]
    np.save(tmp_path / "features.npy", features)
    (tmp_path / "ids.txt").write_text("".join(f"{number}.jpg\n" for number in range(20)))
    splits = ["train"] * 15 + ["val"] * 3 + ["test"] * 2
    lines = [f"{number}.jpg,caption {number} of a dog,{split}" for number, split in enumerate(splits)]
    (tmp_path / "pairs.csv").write_text("image,caption,split\n" + "\n".join(lines))
    data = Pairs.of(tmp_path / "pairs.csv")
    found = find_duplicates(data.split("train"), data, least=0.97)
    assert found.across == {"dev": 2, "test": 1}
    assert found.sentences() == ["2 images of dev are copies and 1 image of test is a copy of train images."]
    assert len(data.split("dev")) == 3


def test_that_near_copies_are_not_searched_is_told(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("crcl.auditing.copies.find_copies", lambda pairs, **given: find_copies(pairs, most=3, **given))
    np.save(tmp_path / "train_ims.npy", np.asarray(tiny().features))
    (tmp_path / "train_caps.txt").write_text("".join(f"caption {number}\n" for number in range(6)))
    notes: list[str] = []
    data = Pairs.of(tmp_path)
    find_duplicates(data.split("train"), data, least=0.97, progress=Noting(notes))
    assert any("near copies are not searched" in note for note in notes)


def test_training_notes_copies_between_train_and_dev(scenes: Path, audit: Audit, tmp_path: Path) -> None:
    lines = (scenes / "pairs.csv").read_text("utf-8").splitlines()
    cut = [f"{line},{'dev' if line.startswith('copy-') else 'train'}" for line in lines[1:]]
    table = scenes / "cut.csv"
    table.write_text("\n".join([f"{lines[0]},split", *cut]), "utf-8")
    notes, features = list[str](), scenes / "pairs-audit/features"
    pairs = crcl.read(table, features=features / "features.npy", ids=features / "ids.txt")
    run = crcl.train(pairs, tmp_path / "run", settings=SETTINGS, progress=Noting(notes))
    assert isinstance(run, Run)
    assert any("10 images of dev are copies of train images" in note for note in notes)


def test_hostile_names_and_captions_are_escaped_on_the_page(tmp_path: Path) -> None:
    captions = [caption for caption in HOSTILE if "\ud800" not in caption] * 2
    found = made_audit(np.linspace(0, 0.09, len(captions)), captions=captions, image_ids=(NAMES * 2)[: len(captions)])
    page = write_report(tmp_path / "page", found, title="x", details=Details(made(found.pairs)))
    text = page.read_text("utf-8")
    section = text[text.index('<section class="copies"') : text.index('<section class="gallery"')]
    assert "<script" not in section
    assert "<img" not in section
    assert "&lt;script&gt;" in section
    assert "\u202e" not in section
    assert "and 12 more" in section
    assert len(section) < 40_000
