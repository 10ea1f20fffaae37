"""Notes on the data of a training: captions that were cut, have no known words or several lines, decoys, copies."""

from crcl.config import Config
from crcl.data.duplicates import shared_images
from crcl.data.text.subwords import Subwords
from crcl.data.text.vectors import TextVectors
from crcl.errors import nth_row
from crcl.training.training_data import TrainingData


def data_notes(data: TrainingData, config: Config) -> list[str]:
    """Sentences on the pairs that the user should know although nothing is wrong."""
    cut, unknown = data.tokens.cut + data.dev_tokens.cut, data.tokens.unknown + data.dev_tokens.unknown
    lines = []
    if data.decoys is not None:
        lines.append(f"training on {len(data.clean):,} pairs and {len(data.decoys):,} decoys (known mismatches)")
    lines += [*_missing_kinds(data, config), *_verdicts(data)]
    if data.clean.contents is not None and data.dev.contents is not None:  # else all features would have to be read
        copies = shared_images(data.clean, data.dev)
        if copies:
            told = "1 image of dev is a copy" if copies == 1 else f"{copies:,} images of dev are copies"
            lines.append(f"{told} of train images, so scores on dev are too good for {'it' if copies == 1 else 'them'}")
    if cut and isinstance(data.vocabulary, Subwords):
        lines.append(
            f"{cut} captions are longer than the {data.vocabulary.longest} tokens that the model reads and were cut"
        )
    elif cut:
        lines.append(f"{cut} captions are longer than {config.data.max_words} words and were cut (data.max_words)")
    if unknown:
        rare = f"that is seen {config.data.min_count} times or more (data.min_count)"
        known = rare if config.data.vocab is None else f"of the vocabulary {config.data.vocab}"
        lines.append(f"{unknown} captions have no word {known}: nothing can be learnt from them")
    if several := [row for row, caption in zip(data.clean.rows, data.clean.captions, strict=True) if "\n" in caption]:
        lines.append(
            f"{len(several)} captions have several lines, the first in {nth_row(int(several[0]))}: if they should not, "
            "look for a quotation mark that is not closed"
        )
    return lines


def _verdicts(data: TrainingData) -> list[str]:
    """What verdicts the training takes into account."""
    known = data.known
    if known is None:
        return []
    right, repaired = int(known.right.sum()), int(known.repaired.sum())
    told = f"{right:,} pairs are known to be right and {int(known.wrong.sum()):,} to be wrong"
    lines = [f"verdicts: {told}; {repaired:,} of these are trained as corrected" if repaired else f"verdicts: {told}"]
    steps = () if data.given is None else data.given.steps
    if not known.captions and any(one.caption for step in steps for one in step.verdicts):
        lines.append("corrected captions have no vectors yet, so their pairs count as wrong and no more")
    return lines


def _missing_kinds(data: TrainingData, config: Config) -> list[str]:
    """Why there are no decoys of a kind that is requested."""
    there = () if data.drawn is None else data.drawn.kinds
    missing = [kind for kind in config.data.decoy_kinds if kind not in there] if config.data.decoys else []
    exchanged = "there are too few pairs, or the captions have no word to exchange"
    if isinstance(data.tokens, TextVectors):
        exchanged = (
            "captions are vectors, and changed ones need the text model that made them and that reads them whole"
        )
    reasons = {
        "near": "no decoys with captions of similar images: there are too few pairs, or these images are copies",
        "swap": f"no decoys with an exchanged word: {exchanged}",
    }
    return [reasons[kind] for kind in missing if kind in reasons]
