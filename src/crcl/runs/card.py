"""A model card of a run, as Markdown: data, noise, settings, scores, limits."""

from pathlib import Path

import numpy as np

from crcl.config import Config, differences, load
from crcl.runs.describe import companion_of, describe_noise, epochs_done, shares_of, stored_config
from crcl.runs.folder import Run

_PLACES = ("data.path", "data.features", "data.text_features", "data.ids", "data.vocab", "noise.file", "train.start")


def model_card(path: str | Path) -> str:
    """The card of a run: what it was trained on and how, what it reached, what it should not be used for."""
    run = Run.open(path)
    config = stored_config(run)
    done, planned = epochs_done(run, config)
    origin = (
        f"imported from {run.imported}" if run.imported else f"{done} of {planned} epochs, seed {config.train.seed}"
    )
    companion = companion_of(run, config)
    counted = "" if (shares := shares_of(run)) is None else f", with the shares {shares[0]:g} and {shares[1]:g}"
    beside = "" if companion is None else f"; similarities are the mean of its own and those of `{companion}`{counted}"
    sections = [
        f"# {config.matcher.name} by {config.method}",
        "An image-text matcher that was trained to stay accurate although some of its training pairs are mismatched.",
        "## Data",
        _bullets(
            f"{Path(config.data.path).name}: {run.sizes['pairs']:,} training pairs, {run.sizes['images']:,} images",
            f"mismatches put in on purpose: {describe_noise(config, imported=bool(run.imported))}",
            _features(run),
        ),
        "## Training",
        _bullets(f"method `{config.method}` on matcher `{config.matcher.name}`{beside}", origin, *_changed(config)),
        "## Scores",
        _scores(run),
        "## Limits",
        _bullets(
            "It knows the words and the kind of images of its training data, and says nothing useful of others.",
            "Similarities order candidates; they are no probabilities, and numbers of two runs cannot be compared.",
            "Correspondences find captions of another image. Captions that are nearly right are found far less often.",
        ),
    ]
    return "\n\n".join(sections) + "\n"


def _bullets(*lines: str) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _features(run: Run) -> str:
    shape = f"{run.sizes['regions']} regions of {run.sizes['features']} numbers"
    made = run.made.get("extractor")
    if not made:
        return f"features: {shape}, given; how they were made is not known, so new photos need features made alike"
    versions = ", ".join(f"{name} {version}" for name, version in run.made.get("versions", {}).items())
    scale = "standardised by the training images" if run.standardize() is not None else "not standardised"
    return f"features: {shape}, made by {Path(str(made)).name} ({versions}), {scale}{_texts(run)}"


def _texts(run: Run) -> str:
    made, size = run.made.get("text"), run.sizes.get("text_features")
    if not isinstance(made, dict) or size is None:
        return ""
    cut, captions = made.get("cut"), made.get("captions")
    share = f", {100 * cut / captions:.1f} % of them cut" if isinstance(cut, int) and captions else ""
    return f"; captions as vectors of {size} numbers by {Path(str(made.get('extractor'))).name}{share}"


def _changed(config: Config) -> list[str]:
    """Settings that are not the default, without paths of a machine."""
    changed = {key: now for key, (_, now) in differences(load(), config).items() if key not in _PLACES}
    told = ("method", "matcher.name", "train.seed", "noise.rate", "noise.level", "noise.seed")
    listed = ", ".join(f"`{key}={now}`" for key, now in changed.items() if key not in told)
    return [f"settings: {listed}"] if listed else ["settings: the defaults"]


def _scores(run: Run) -> str:
    records = run.metrics()
    if not records:
        return "None were recorded: evaluate it on a test split."
    newest = [record for record in records if record["piece"] == records[-1]["piece"]]
    dev = max(newest, key=lambda record: float(record["dev"]["rsum"]))["dev"]
    rows = []
    for name, key in (("image to text", "i2t"), ("text to image", "t2i")):
        rows.append(f"| {name} | " + " | ".join(f"{dev[key][score]:.1f}" for score in ("r1", "r5", "r10")) + " |")
    table = "\n".join(["| dev split | R@1 | R@5 | R@10 |", "|---|---|---|---|", *rows])
    told = f"rSum {dev['rsum']:.1f} at the best epoch, chosen on this same split:\n\n{table}"
    if not run.has_beliefs:
        return told
    return f"{told}\n\nMean correspondence of the training pairs: {np.mean(run.load_ledger()):.3f}."
