import warnings
from pathlib import Path

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from crcl import experiments, plots
from crcl.errors import InputError
from crcl.plots.correspondence import BINS
from crcl.plots.style import LINES

RNG = np.random.default_rng(0)
TRUTH = RNG.random(500) < 0.6
CORRESPONDENCE = np.where(TRUTH, RNG.beta(8, 1, 500), RNG.beta(1, 9, 500))
HOSTILE = [
    r"$\alpha$ and $\frac{1}{",
    "<script>alert(1)</script>",
    "a" * 100_000,
    "word " * 10_000,
    "one\ntwo\r\n\ttwo\x00\x1b[31m\u202e three",
    "",
    "图片 🐈 مرحبا",
    "\ud800 alone",
]


def written(figure: Figure, path: Path) -> np.ndarray:
    plots.save(figure, path)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def words(figure: Figure) -> list[str]:
    texts = [text.get_text() for text in figure.texts]
    return texts + [text.get_text() for axes in figure.axes for text in [axes.title, axes._left_title, *axes.texts]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: plots.beliefs(CORRESPONDENCE, TRUTH, threshold=0.5, auroc=0.98),
        lambda: plots.comparison(["plain", "CRCL"], [200.0, 290.5], spread=[3.0, 1.0]),
        lambda: plots.robustness([0.2, 0.8], ["CRCL", "plain"], [[290, 240], [200, 90]], spread=[[1, 2], [3, 4]]),
        lambda: plots.overview(["plain", "CRCL"], [200.0, 290.5], CORRESPONDENCE, TRUTH, auroc=0.9),
        lambda: plots.sweeps(["τ", "β"], [[0.1, 0.2], [0.5]], [[300, 310], [np.nan]], spreads=[[1, np.nan], [np.nan]]),
        lambda: plots.epochs(["CRCL", "$x$"], {"image to text": [[1, 2], [3, 4, 5]], "text to image": [[1], [2]]}),
        lambda: plots.bound([0, 1], [-0.2, 0], [0.2, 0]),
        lambda: plots.distributions([("similarity", CORRESPONDENCE), ("belief", CORRESPONDENCE)], [TRUTH, TRUTH]),
        lambda: plots.curves([3, 2, 1], [10, 20, 30], [1e-3] * 3, pieces=[0, 0, 1], best=2),
        lambda: plots.ridge(np.eye(30, 20), pieces=np.arange(30) // 10),
        lambda: plots.ranks([0, 0, 3], [0, 1, 2, 900]),
        lambda: plots.detected([0.5, np.nan], [0.0, 0.1], [1.0, 0.9], pieces=[0, 1], threshold=0.1),
        lambda: plots.sheet([(Image.new("RGB", (30, 20), "red"), "a red thing", 0.1, False)] * 5, columns=2),
    ],
)
def test_the_same_input_gives_the_same_bytes(make, tmp_path):
    for ending, head in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        first, second = (tmp_path / f"{name}{ending}" for name in "ab")
        plots.save(make(), first)
        plots.save(make(), second)
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes().startswith(head)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "b.png", "b.svg"]


@pytest.mark.parametrize(
    ("values", "truth"),
    [
        (CORRESPONDENCE, None),
        (np.zeros(0), np.zeros(0, bool)),
        (np.ones(3), np.ones(3, bool)),
        (np.zeros(10_000), np.arange(10_000) < 10),
    ],
    ids=["unknown truth", "no pairs", "all matched", "one bin"],
)
def test_beliefs_are_drawn_whatever_the_pairs(values, truth, tmp_path):
    assert written(plots.beliefs(values, truth), tmp_path / "a.png").std() > 0


def test_few_bins_with_nearly_all_pairs_get_a_logarithmic_axis():
    spread = np.linspace(0, 1, 2000)
    piled = np.concatenate([np.zeros(50_000), spread])
    assert plots.beliefs(spread).axes[0].get_yscale() == "linear"
    assert plots.beliefs(piled).axes[0].get_yscale() == "log"


def charts_of_many(truth: np.ndarray | None) -> list[Figure]:
    """The two charts of a report of more than a million pairs."""
    many = np.tile(CORRESPONDENCE, 2500)
    beliefs = plots.beliefs(
        many, truth, threshold=0.0123, decoys=np.tile([0.01, 0.9], 30_000), expected=1e5, title="", size=(4.6, 2.9)
    )
    line = np.linspace(0, 1, 11)
    curves = plots.precision_recall(
        line, line, line, true_precision=line, true_recall=line, threshold=0.0123, size=(4.6, 2.9)
    )
    kept = plots.tradeoff(line, line / 3, true_wrong=line / 2, at=(0.5, 0.1), threshold=0.0123, size=(4.6, 2.9))
    return [beliefs, curves, kept]


@pytest.mark.parametrize("truth", [None, np.tile(TRUTH, 2500)], ids=["unknown truth", "known truth"])
def test_legends_lie_within_the_figure_whatever_the_counts_and_the_charts_are_aligned(truth):
    figures = charts_of_many(truth)
    plots.align(figures)
    for figure in figures:
        figure.draw_without_rendering()
        box = figure.axes[0].get_tightbbox()
        legend = figure.axes[0].get_legend().get_window_extent()
        assert legend.width > 0
        assert legend.x0 >= 0
        assert legend.x1 <= figure.bbox.x1
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert max(box.y1, legend.y1) <= figure.bbox.y1
    one, *others = (figure.axes[0].get_position() for figure in figures)
    for other in others:
        np.testing.assert_allclose(one.bounds, other.bounds)
    assert one.width > 0.75  # legends do not shrink the axes


def test_decoys_and_the_threshold_are_told_apart_and_empty_bins_have_no_outline():
    axes = plots.beliefs(np.array([0.01, 0.9]), threshold=0.5, decoys=np.array([0.01, 0.3])).axes[0]
    handles, labels = axes.get_legend_handles_labels()
    shown = dict(zip((label.split()[0] for label in labels), handles, strict=True))
    assert shown["decoys"].get_edgecolor()[:3] != matplotlib.colors.to_rgb(shown["threshold"].get_color())
    assert shown["decoys"].get_linestyle() in ("-", "solid")
    assert np.isnan(shown["decoys"].get_data().values).sum() == BINS - 2


def test_auroc_and_values_are_written_out():
    figure = plots.overview(["plain", "CRCL"], [200.0, 290.5], CORRESPONDENCE, TRUTH, auroc=0.98765)
    assert any("AUROC 0.988" in text for text in words(figure))
    assert {"200.0", "290.5"} <= set(words(figure))


def test_the_bar_of_the_method_whose_beliefs_are_shown_is_highlighted():
    for shown, place in (("CRCL", 1), ("plain", 0), (None, 2)):
        figure = plots.overview(["plain", "CRCL", "relink"], [1.0, 2.0, 3.0], CORRESPONDENCE, TRUTH, shown=shown)
        colours = [bar.get_facecolor() for bar in figure.axes[0].patches]
        assert [colours.count(colour) for colour in colours] == [1 if here == place else 2 for here in range(3)]


def test_robustness_draws_each_methods_values_and_deviations():
    values, spread = np.array([[300.0, 250.0], [310.0, np.nan], [200.0, 270.0]]), np.full((3, 2), 5.0)
    axes = plots.robustness([0.2, 0.8], ["a", "b", "c"], values, spread=spread).axes[0]
    lines = [container.lines[0] for container in axes.containers]
    np.testing.assert_array_equal([line.get_ydata() for line in lines], values)
    np.testing.assert_allclose([line.get_xdata() for line in lines], [[20, 80]] * 3, atol=1)
    bars = [segment for container in axes.containers for segment in container.lines[2][0].get_segments()]
    heights = [segment[1, 1] - segment[0, 1] for segment in bars if len(segment)]
    np.testing.assert_allclose([height for height in heights if np.isfinite(height)], 10)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["c", "a", "b"]


def test_the_lines_of_robustness_are_told_apart_without_colour(tmp_path):
    names = [f"method {number}" for number in range(11)]
    figure = plots.robustness([0.2, 0.4], names, np.arange(22).reshape(11, 2))
    lines = [container.lines[0] for container in figure.axes[0].containers]
    assert len({line.get_marker() for line in lines}) == 11
    assert len({line.get_color() for line in lines}) == len(LINES)
    assert lines[0].get_linewidth() > max(line.get_linewidth() for line in lines[1:])
    assert written(figure, tmp_path / "a.png").std() > 0


def overlaps(texts: list) -> bool:
    boxes = [text.get_window_extent() for text in texts]
    return any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


@pytest.mark.parametrize("table", ["table2", "table3", "table4", "supp-table3"])
def test_names_beside_bars_do_not_overlap_and_stay_within_the_figure(table):
    declared = experiments.experiment(table)
    names = [f"{row.name}, 20 % mismatched" for row in declared.rows]
    values = [300.0 + number for number in range(len(names))]
    figure = plots.comparison(names, values, spread=[5.0] * len(names), title=f"{declared.title}\nsome data")
    figure.canvas.draw()
    (axes,) = figure.axes
    named = [tick.label1 for tick in axes.yaxis.get_major_ticks()]
    assert " ".join(named[0].get_text().split()) == names[0]
    assert not overlaps(named)
    assert not overlaps(axes.texts)
    assert not overlaps([figure._suptitle, axes.patches[-1]])
    for text in [*named, *axes.texts, figure._suptitle]:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1


def test_panels_of_distributions_have_the_axes_that_are_asked_for():
    low, high = CORRESPONDENCE / 4, 0.5 + CORRESPONDENCE / 4
    figure = plots.distributions([("a", low), ("b", high)], [TRUTH, TRUTH], ranges=[(0, 1), (0, 1)])
    one, other = figure.axes
    assert one.get_xlim() == other.get_xlim() == (-0.01, 1.01)
    for axes in (one, other):
        np.testing.assert_allclose(axes.patches[0].get_data().edges, np.linspace(0, 1, BINS + 1))


def test_the_title_of_a_figure_is_as_wide_as_it():
    title = "Table 1: image-text matching under mismatches, and what one may say of it besides\nsome data"
    for figure in (
        plots.robustness([0.2], ["a"], [[1.0]], title=title),
        plots.sweeps(["τ"], [[0.1]], [[300]], title=title),
        plots.distributions([("a", CORRESPONDENCE)], [TRUTH], title=title),
    ):
        figure.canvas.draw()
        assert figure._suptitle.get_window_extent().x1 <= figure.bbox.x1
        assert " ".join(figure._suptitle.get_text().split()) == " ".join(title.split())


@pytest.mark.parametrize("caption", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_captions_are_drawn_as_plain_text(caption, tmp_path):
    figure = plots.sheet([(Image.new("L", (8, 8)), caption, 0.5, None)], title=caption[:50])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert written(figure, tmp_path / "a.png").std() > 0


def test_method_names_are_plain_text_too(tmp_path):
    figure = plots.comparison([r"$\frac{$", "CRCL"], [1.0, 2.0], title=r"$\x$")
    assert written(figure, tmp_path / "a.png").std() > 0
    figure = plots.robustness([0.4], [r"$\frac{$"], [[1.0]], title=r"$\x$")
    assert written(figure, tmp_path / "a.png").std() > 0


def test_an_unreadable_image_becomes_a_tile_that_says_so(tmp_path):
    broken, cut = tmp_path / "broken.png", tmp_path / "cut.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    Image.fromarray(RNG.integers(0, 255, (50, 50, 3), dtype=np.uint8)).save(cut)
    cut.write_bytes(cut.read_bytes()[:2000])
    paths = [broken, cut, tmp_path / "missing.png", tmp_path]
    figure = plots.sheet([(path, "a caption", 0.0, True) for path in paths])
    assert words(figure).count("unreadable") == 4
    written(figure, tmp_path / "a.png")


def test_images_are_taken_from_files_as_from_memory(tmp_path):
    image = Image.fromarray(RNG.integers(0, 255, (40, 60, 3), dtype=np.uint8))
    image.save(tmp_path / "image.png")
    pictures = [
        written(plots.sheet([(source, "x", 0.25, True)]), tmp_path / "a.png")
        for source in (image, tmp_path / "image.png", str(tmp_path / "image.png"))
    ]
    assert all((pictures[0] == picture).all() for picture in pictures)


def test_a_sheet_shows_correspondence_and_truth():
    image = Image.new("RGB", (4, 4))
    found = words(plots.sheet([(image, "x", 0.25, True), (image, "x", 0.5, np.bool_(False)), (image, "x", 1.0, None)]))
    assert {"0.250   ✓ matched", "0.500   ✗ mismatched", "1.000"} <= set(found)


def test_an_empty_sheet_says_so(tmp_path):
    figure = plots.sheet([])
    assert "no pairs" in words(figure)
    written(figure, tmp_path / "a.png")


def test_a_failed_save_leaves_the_old_picture(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(InputError, match="no space"):
        plots.save(plots.sheet([]), path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


def test_lines_differ_in_grey_too():
    """Eight lines beside each other never share both marker and dashes."""
    figure = plots.epochs([str(n) for n in range(8)], {"a": [[n, n + 1] for n in range(8)]})
    styles = {(line.get_marker(), str(line._unscaled_dash_pattern)) for line in figure.axes[0].lines}
    assert len(styles) == 8


def test_a_ridge_shows_the_last_epoch_and_no_more_than_asked():
    figure = plots.ridge(np.ones((100, 20)), pieces=np.repeat([0, 1], 50), most=10)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == 10
    assert names[0] == "1  (piece 1)"
    assert names[-1] == "100"


def test_ranks_are_drawn_as_recall_at_every_k():
    figure = plots.ranks([0, 0, 3, 9], [0])
    line = figure.axes[0].lines[0]
    drawn = dict(zip(line.get_xdata().tolist(), line.get_ydata().tolist(), strict=True))
    assert drawn == {1: 50.0, 4: 75.0, 10: 100.0}
