"""Public functions for experiments: demo, reproduce."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from crcl.api.common import Settings, Shown, as_settings, receiver
from crcl.data.pairs import Pairs
from crcl.data.sources.base import Location
from crcl.errors import InputError
from crcl.experiments import demo as demonstration
from crcl.experiments import reproduce as tables
from crcl.experiments.demo import Outcome
from crcl.experiments.reproduce import Reproduction


def demo(
    folder: str | Path = "demo",
    *,
    images: int = 2000,
    seed: int = 0,
    settings: Settings = None,
    progress: Shown = False,
) -> list[Outcome]:
    """Draw scenes, mismatch 40 % of the training pairs, train with InfoNCE, CRCL and relink, and compare.

    Args:
        folder: Where data, runs and pictures go; the same call resumes an interrupted one.
        images: Number of training images to draw.
        seed: Seed of scenes, mismatches, weights and batches.
        settings: Any settings of the trainings.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        For each method its retrieval scores, detection scores, and the pairs with their correspondences.

    Example:
        >>> [round(outcome.retrieval.rsum, 1) for outcome in crcl.demo("demo", images=40)]
        [450.0, 400.0, 455.0]
    """
    return demonstration.demo(
        folder, images=images, seed=seed, settings=as_settings(settings), progress=receiver(progress)
    )


def reproduce(
    names: str | Sequence[str],
    *,
    data: str | Path | Pairs | None = None,
    profile: str = "cpu",
    seeds: int = 3,
    out: str | Path = "reproduce",
    matcher: str | None = None,
    pixels: str | Path | None = None,
    model: Mapping[str, str] | None = None,
    noise: Sequence[float] = (),
    noise_level: str | None = None,
    settings: Settings = None,
    processes: int = 1,
    print_jobs: bool = False,
    gather: bool = False,
    progress: Shown = False,
) -> Reproduction:
    """Reproduce tables and figures of the paper, or of your own TOML files: train the runs they need, and compare.

    Runs are saved in `out/runs` and shared between tables; a second call trains only what is left.

    Args:
        names: Tables of the paper, such as `table1` or `fig2`; or paths of TOML files.
        data: A folder in the field's layout, or other data with features (pairs of `read` know where these are); for
            the profile `paper` a folder that holds f30k_precomp etc.
        profile: `cpu` (sized for two cores, any data) or `paper` (the paper's sizes).
        seeds: Number of seeds of weights, batches and mismatches: 0, 1, ...
        out: Folder for runs, tables and figures.
        matcher: Train every row on this matcher instead of on its own.
        pixels: For table3, the folder of pixels of a table's images.
        model: For table3, folders of published models by their names; `none` leaves a model's rows out.
        noise: Only these rates of mismatches; all rates, if empty.
        noise_level: `caption` mismatches single captions, `image` all captions of an image together. By default as
            the table says, which is `caption` unless a TOML file says otherwise.
        settings: Settings of every run.
        processes: Number of trainings at a time.
        print_jobs: Train nothing; return the commands that are left, for a cluster.
        gather: Train nothing; write tables and figures of the finished runs.
        progress: True shows progress on the terminal; a `Progress` of your own receives it.

    Returns:
        The files that were written, and the runs that failed.

    Example:
        >>> crcl.reproduce("supp-fig-c", out="tables").written[-1]
        PosixPath('tables/supp-fig-c.md')
    """
    given = as_settings(settings)
    if isinstance(data, Pairs):
        data, files = _stored(data)
        given = (*files, *given)
    return tables.reproduce(
        [names] if isinstance(names, str) else names,
        data=data,
        profile=profile,
        seeds=seeds,
        out=out,
        matcher=matcher,
        pixels=pixels,
        model=model,
        noise=noise,
        noise_level=noise_level,
        settings=given,
        processes=processes,
        print_jobs=print_jobs,
        gather=gather,
        progress=receiver(progress),
    )


def _stored(pairs: Pairs) -> tuple[str, tuple[str, ...]]:
    """The path of pairs on disk, and the settings that say how to read them."""
    if pairs.location is None:
        hint = "save them with `pairs.save(folder)`, which returns pairs that are"
        raise InputError("not on disk, where every run reads them", where=pairs.name, hint=hint)
    files = pairs.location.absolute().settings()
    usual = Location("").settings()
    path = files.pop("data.path")
    return path, as_settings({key: value for key, value in files.items() if usual.get(key) != value})
