"""The run folder: everything a training saves, written atomically, so that it survives a kill at any moment.

    config.json           settings, sizes of the data, digests of pairs and features, how the features were made
    vocab.json            the words, in the field's layout; a published model (clip) has instead
    tokenizer.json        its tokens, and
    model.json            its sizes
    noise.npy             the injected mismatches, in the field's layout (where noise was injected)
    trusted.npy           rows of training pairs known to match (where a file of them was given)
    decoys.npy            caption and image of each known mismatch that is trained on beside the pairs (where requested)
    decoy_kinds.json      their kinds and exchanged texts (where not all are random); decoy_vectors.npy: their vectors
    standardize.npz       the features' mean and deviation (where requested)
    start.safetensors     the weights that each piece starts from (where a training starts from another run)
    start.npz             the beliefs that it starts with (where that run had beliefs about the same pairs)
    matcher.safetensors   the best matcher of the newest piece, by dev rSum
    ledger.npz            the belief in each pair, and in each decoy, as the last epoch used it
    partners.npz          other images that each caption may belong to, and the beliefs in these (method relink)
    scores.npz            other scores of each pair and decoy, by name, as an audit computed them
    training.pt           the last state: everything needed to resume (tensors and plain values, nothing pickled)
    beliefs.f16           the belief in each pair after every epoch, (epochs, N) float16 without a header
    metrics.jsonl         one line per epoch, the same for the same seed
    timing.jsonl          seconds per epoch, which are never the same
    trained_verdicts.json what verdicts said of pairs when the training began (where it was given any)
    judged.npz            beliefs without these verdicts, of pairs that have one too
    verdicts.sqlite       what people said of pairs in review (where anyone did; runs/verdicts.py)

Resuming starts from `training.pt`: everything written after it is written again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from crcl.data.batches import Standardize
from crcl.data.decoys import Decoys
from crcl.data.text.subwords import Subwords, Words
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError
from crcl.runs import records
from crcl.runs.about import FORMAT, read_about
from crcl.runs.beliefs import (
    read_beliefs,
    read_epochs,
    read_partners,
    read_scores,
    write_beliefs,
    write_epoch,
    write_partners,
)
from crcl.runs.database import keeping_verdicts
from crcl.runs.decoys import read_decoys, write_decoys
from crcl.runs.files import (
    damaged,
    read_json,
    read_npy,
    read_npz,
    read_state,
    read_weights,
    write_state,
    write_weights,
)
from crcl.runs.overwriting import refuse_existing, refuse_inputs_within
from crcl.storage import TRAINING, locked, replacing_folder, write_array, write_arrays, write_json

PARTNERS, SCORES = "partners.npz", "scores.npz"
LEARNT = ("matcher.safetensors", "ledger.npz")
START = ("start.safetensors", "start.npz")


@dataclass(frozen=True)
class Learnt:
    """Result of a training: a matcher's weights, and the belief in each pair where there are any."""

    weights: dict[str, Tensor]
    beliefs: np.ndarray | None = None


class Run:
    """An open run folder."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.config: dict[str, Any] = about["config"]
        self.sizes: dict[str, int] = about["sizes"]
        self.fingerprint: str = about["fingerprint"]
        """The digest of the captions and images that it was trained on."""
        self.imported: str = about.get("imported", "")
        """Where the weights come from, in words, if they were not trained here."""
        self.features: str = about.get("features", "")
        """The digest of the features that it was trained on; empty where it was imported."""
        self.made: dict[str, Any] = about.get("made", {})
        """How the features were made: extractor, model, version, settings; empty where that is not known."""

    def __repr__(self) -> str:
        here, matcher = Path.cwd(), self.config["matcher"]["name"]
        path = self.path.relative_to(here) if self.path.is_relative_to(here) else self.path
        if self.imported:
            return f"Run({str(path)!r}: {matcher}, imported from {self.imported})"
        epochs = len(self.metrics())
        return f"Run({str(path)!r}: {self.config['method']} on {matcher}, {epochs} epoch{'' if epochs == 1 else 's'})"

    @property
    def networks(self) -> int:
        """How many parts the matcher has, scored together: networks, and what is fitted besides."""
        return self.sizes["networks"]

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        config: dict[str, Any],
        sizes: dict[str, int],
        fingerprint: str,
        features: str = "",
        vocabulary: Words,
        model: dict[str, Any] | None = None,
        noise: np.ndarray | None = None,
        trusted: np.ndarray | None = None,
        decoys: Decoys | None = None,
        known: dict[str, Any] | None = None,
        standardize: Standardize | None = None,
        start: Learnt | None = None,
        learnt: Learnt | None = None,
        imported: str = "",
        made: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> "Run":
        """Start a run folder; an existing run is replaced only with `overwrite`.

        `start` has the weights and beliefs to start from, `learnt` those of an imported run; `known` is what verdicts
        say of the pairs, and `made` says how the features were made.
        """
        path = Path(path).absolute()
        refuse_existing(path, overwrite=overwrite)
        refuse_inputs_within(path, config)
        try:
            with keeping_verdicts(path, fingerprint) as copy_verdicts, replacing_folder(path, busy=TRAINING) as fresh:
                write_json(fresh / vocabulary.file, vocabulary.to_json())
                if model is not None:
                    write_json(fresh / "model.json", model)
                for name, array in (("noise", noise), ("trusted", trusted)):
                    if array is not None:
                        write_array(fresh / f"{name}.npy", array)
                if known is not None:
                    write_json(fresh / "trained_verdicts.json", known)
                if decoys is not None:
                    write_decoys(fresh, decoys)
                if standardize is not None:
                    write_arrays(
                        fresh / "standardize.npz", mean=standardize.mean, deviation=np.array(standardize.deviation)
                    )
                for state, weights, beliefs in ((start, *START), (learnt, *LEARNT)):
                    if state is not None:
                        write_weights(fresh / weights, state.weights)
                    if state is not None and state.beliefs is not None:
                        write_beliefs(fresh / beliefs, state.beliefs, sizes["pairs"])
                files = sorted(file.name for file in fresh.iterdir())
                about: dict[str, Any] = {"format": FORMAT, "files": files, "sizes": sizes, "fingerprint": fingerprint}
                optional = {"features": features, "imported": imported, "made": made}
                about |= {name: value for name, value in optional.items() if value} | {"config": config}
                write_json(fresh / "config.json", about)
                copy_verdicts(fresh)
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror or error})", where=path) from error
        return cls(path, about)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Open a run folder; raises an error if it is incomplete or has another format."""
        path = Path(path)
        about = read_about(path)
        run = cls(path, about)
        run.require(*about["files"])
        return run

    def require(self, *names: str) -> None:
        """Raise an error if any of these files is missing."""
        missing = [name for name in names if not (self.path / name).is_file()]
        if missing:
            what = f"incomplete run folder, without {', '.join(missing)}"
            raise InputError(what, where=self.path, hint="train again with {overwrite}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against a second training.

        Raises an error for links, which an untrusted folder may contain: a training would write to their targets.
        """
        for file in self.path.iterdir():
            if file.is_symlink():
                raise InputError("a link, which a training would write through", where=file, hint="put the file there")
        with locked(self.path):
            for left in self.path.glob(".*.tmp"):
                left.unlink()
            yield

    def vocabulary(self) -> Words:
        kind = Vocabulary if self.model() is None else Subwords
        words = kind.load(self._existing(kind.file))
        if len(words) != self.sizes["vocabulary"]:
            what = f"{len(words)} words, the run was trained with {self.sizes['vocabulary']}"
            raise InputError(what, where=self.path / kind.file)
        return words

    def model(self) -> Any:
        """Sizes of the published model that the matcher started from; None for other matchers."""
        path = self.path / "model.json"
        return read_json(path) if path.is_file() else None

    def noise(self) -> np.ndarray | None:
        path = self.path / "noise.npy"
        return read_npy(path) if path.is_file() else None

    def trusted(self) -> np.ndarray | None:
        path = self.path / "trusted.npy"
        if not path.is_file():
            return None
        rows = read_npy(path)
        if rows.dtype != np.int64 or rows.ndim != 1 or not np.isin(rows, np.arange(self.sizes["pairs"])).all():
            raise damaged(path, f"not rows of {self.sizes['pairs']} pairs")
        return rows

    def decoys(self) -> np.ndarray | None:
        """Caption and image of each decoy, (decoys, 2)."""
        return None if (known := self.drawn_decoys()) is None else known.drawn

    def decoy_kinds(self) -> np.ndarray:
        """The name of the kind of each decoy, (decoys,); empty where there are none."""
        return np.empty(0, dtype="<U6") if (known := self.drawn_decoys()) is None else known.kinds

    def drawn_decoys(self) -> Decoys | None:
        """The decoys, with the texts of those that have an exchanged word."""
        return read_decoys(self.path, pairs=self.sizes["pairs"], images=self.sizes["images"])

    def standardize(self) -> Standardize | None:
        path = self.path / "standardize.npz"
        if not path.is_file():
            return None
        arrays = read_npz(path, "mean", "deviation")
        mean, deviation = arrays["mean"], arrays["deviation"]
        if mean.dtype != np.float32 or mean.shape != (self.sizes["features"],) or deviation.shape != ():
            raise damaged(path, f"not a mean of {self.sizes['features']} numbers and a deviation")
        return Standardize(mean, float(deviation))

    def save_matcher(self, state: dict[str, Tensor]) -> None:
        write_weights(self.path / LEARNT[0], state)

    def load_matcher(self) -> dict[str, Tensor]:
        return read_weights(self._existing(LEARNT[0]))

    def load_start(self) -> Learnt | None:
        """Weights and beliefs that the training starts from; None if it starts from fresh weights."""
        weights, beliefs = (self.path / name for name in START)
        if not weights.is_file():
            return None
        known = np.concatenate(self._read_beliefs(beliefs)) if beliefs.is_file() else None
        return Learnt(read_weights(weights), known)

    def save_ledger(self, correspondence: np.ndarray) -> None:
        """Save the beliefs in the pairs, followed by those in the decoys."""
        write_beliefs(self.path / LEARNT[1], correspondence, self.sizes["pairs"])

    def load_ledger(self) -> np.ndarray:
        """The belief in each pair, (pairs,), without decoys."""
        return self._load_beliefs()[0]

    def load_decoy_ledger(self) -> np.ndarray:
        """The belief in each decoy, (decoys,); empty where there are none."""
        return self._load_beliefs()[1]

    def _load_beliefs(self) -> tuple[np.ndarray, np.ndarray]:
        if not self.has_beliefs:
            hint = "{train()} with {start} trains it further, to have some"
            raise InputError("imported without beliefs", where=self.path, hint=hint)
        return self._read_beliefs(self._existing(LEARNT[1]))

    def save_partners(self, images: np.ndarray, beliefs: np.ndarray) -> None:
        """Save other images `(N, K)` that each caption may belong to, and the beliefs in these, without decoys."""
        write_partners(self.path / PARTNERS, images, beliefs, self.sizes["pairs"])

    def load_partners(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Other images that each caption may belong to, `(pairs, K)`, and the beliefs in these; None if not judged."""
        path = self.path / PARTNERS
        return read_partners(path, pairs=self.sizes["pairs"], images=self.sizes["images"]) if path.is_file() else None

    def save_scores(self, scores: dict[str, np.ndarray]) -> None:
        """Save scores of the pairs, followed by those of the decoys, by name."""
        arrays: dict[str, Any] = {name: score.astype(np.float32) for name, score in scores.items()}
        write_arrays(self.path / SCORES, **arrays)

    def load_scores(self) -> dict[str, np.ndarray]:
        """Scores of the pairs, followed by those of the decoys, by name; empty where no audit computed any."""
        path, decoys = self.path / SCORES, self.decoys()
        count = self.sizes["pairs"] + (0 if decoys is None else len(decoys))
        return read_scores(path, pairs=count) if path.is_file() else {}

    @property
    def has_beliefs(self) -> bool:
        """Whether the run has beliefs, or will have; only an imported run may lack them."""
        return not self.imported or (self.path / LEARNT[1]).is_file()

    def keep_beliefs(self, epoch: int, correspondence: np.ndarray) -> None:
        """Add the beliefs after an epoch, counted over all pieces."""
        write_epoch(self.path / "beliefs.f16", epoch, correspondence)

    def kept_beliefs(self) -> np.ndarray:
        """The beliefs after each epoch of the metrics. (epochs, N)"""
        return read_epochs(self.path / "beliefs.f16", epochs=len(self.metrics()), pairs=self.sizes["pairs"])

    def _read_beliefs(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        decoys = self.decoys()
        return read_beliefs(path, pairs=self.sizes["pairs"], decoys=0 if decoys is None else len(decoys))

    def save_state(self, state: dict[str, Any]) -> None:
        write_state(self.path / "training.pt", state)

    def load_state(self) -> dict[str, Any] | None:
        """The last checkpoint; None if the training stopped before the first one."""
        path = self.path / "training.pt"
        return read_state(path) if path.is_file() else None

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl or timing.jsonl."""
        records.append(self.path / name, record)

    def length(self, name: str) -> int:
        return records.length(self.path / name)

    def truncate(self, name: str, length: int) -> None:
        """Remove the lines written after the checkpoint from which the training resumes."""
        records.truncate(self.path / name, length)

    def metrics(self) -> list[dict[str, Any]]:
        """The records of all epochs; a last line that is still being written is left out."""
        return records.read(self.path / "metrics.jsonl")

    def _existing(self, name: str) -> Path:
        path = self.path / name
        if not path.is_file():
            raise InputError(
                f"incomplete run folder, {name} is missing",
                where=self.path,
                hint="pass {resume} to finish the training, or train again with {overwrite}",
            )
        return path
