"""The run folder: all that a training leaves, written so that a kill at any moment leaves the old or the new.

    config.json           what was asked for, the sizes that the data gave, what pairs and features are known by
    vocab.json            the words, in the field's layout; a published model (clip) has instead
    tokenizer.json        its tokens, and
    model.json            its sizes
    noise.npy             the injected mismatches, in the field's layout (where noise was injected)
    trusted.npy           rows of training pairs known to match (where a file of them was given)
    decoys.npy            caption and image of each known mismatch that is trained on beside the pairs (where asked for)
    standardize.npz       the features' mean and deviation (where asked for)
    start.safetensors     the weights that each piece begins from (where a training starts from another run)
    start.npz             the beliefs that it begins with (where that run had some about the same pairs)
    matcher.safetensors   the best matcher of the newest piece, by dev rSum
    ledger.npz            the belief in each pair, and in each decoy, as the last epoch used it
    training.pt           the last state: everything needed to go on (tensors and plain values, nothing pickled)
    beliefs.f16           the belief in each pair after every epoch, (epochs, N) float16 without a header
    metrics.jsonl         one line per epoch, the same for the same seed
    timing.jsonl          seconds per epoch, which are never the same

`training.pt` is the one file that counts on resuming: what was written after it is written again.
"""

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from crcl.data.batches import Standardize
from crcl.data.files import NPY_ERRORS
from crcl.data.text.subwords import Subwords, Words
from crcl.data.text.vocabulary import Vocabulary
from crcl.errors import InputError
from crcl.storage import (
    TRAINING,
    could_not_save,
    locked,
    replacing_folder,
    write_array,
    write_arrays,
    write_bytes,
    write_json,
)

FORMAT = 1
RECORD = {"piece", "epoch", "loss", "dev"}
LEARNT = ("matcher.safetensors", "ledger.npz")
START = ("start.safetensors", "start.npz")
SIZES = ("pairs", "images", "regions", "features", "vocabulary", "networks")


@dataclass(frozen=True)
class Learnt:
    """What a training comes to: a matcher's weights, and the belief in each pair where there are any."""

    weights: dict[str, Tensor]
    beliefs: np.ndarray | None = None


class Run:
    """An open run folder."""

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        sizes: dict[str, int],
        fingerprint: str,
        imported: str = "",
        features: str = "",
        made: dict[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self.sizes = sizes
        self.fingerprint = fingerprint
        self.imported = imported
        """Where the weights come from, in words, if they were not trained here."""
        self.features = features
        """The digest of the features that it was trained on; empty in older runs."""
        self.made = made or {}
        """How the features were made: extractor, model, version, settings; empty where that is not known."""

    @property
    def networks(self) -> int:
        """How many networks the matcher is made of; their similarities are averaged."""
        return self.sizes["networks"]

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        config: dict[str, Any],
        sizes: dict[str, int],
        fingerprint: str = "",
        features: str = "",
        vocabulary: Words,
        model: dict[str, Any] | None = None,
        noise: np.ndarray | None = None,
        trusted: np.ndarray | None = None,
        decoys: np.ndarray | None = None,
        standardize: Standardize | None = None,
        start: Learnt | None = None,
        learnt: Learnt | None = None,
        imported: str = "",
        made: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> "Run":
        """Start a run folder; an existing one is replaced only if asked.

        `start` is what the training is to begin from. `learnt` is what an imported run has come to already.
        """
        path = Path(path).absolute()
        refuse_existing(path, overwrite=overwrite)
        _refuse_inputs_within(path, config)
        try:
            with replacing_folder(path, busy=TRAINING) as fresh:
                write_json(fresh / vocabulary.file, vocabulary.to_json())
                if model is not None:
                    write_json(fresh / "model.json", model)
                if noise is not None:
                    write_array(fresh / "noise.npy", noise)
                if trusted is not None:
                    write_array(fresh / "trusted.npy", trusted)
                if decoys is not None:
                    write_array(fresh / "decoys.npy", decoys)
                if standardize is not None:
                    write_arrays(
                        fresh / "standardize.npz", mean=standardize.mean, deviation=np.array(standardize.deviation)
                    )
                for state, weights, beliefs in ((start, *START), (learnt, *LEARNT)):
                    if state is not None:
                        write_weights(fresh / weights, state.weights)
                    if state is not None and state.beliefs is not None:
                        _write_beliefs(fresh / beliefs, state.beliefs, sizes["pairs"])
                files = sorted(file.name for file in fresh.iterdir())
                about = {"format": FORMAT, "files": files, "sizes": sizes, "fingerprint": fingerprint}
                optional: dict[str, Any] = {"features": features, "imported": imported, "made": made}
                about |= {name: value for name, value in optional.items() if value}
                write_json(fresh / "config.json", about | {"config": config})
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
        return cls(path, config, sizes, fingerprint, imported, features, made)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Open a run folder, of this version and whole."""
        path = Path(path)
        if not path.is_dir():
            what = "a file, neither a run folder nor a table (.csv .tsv .jsonl .parquet)" if path.exists() else ""
            raise InputError(f"{path}: {what or 'no such run folder'}")
        if not (path / "config.json").is_file():
            near = f"did you mean {path / 'run'}?" if (path / "run" / "config.json").is_file() else ""
            raise InputError(
                f"{path}: not a run folder (it has no config.json); {near or f'`crcl train DATA -o {path}` makes one'}"
            )
        content = _read_json(path / "config.json")
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise InputError(
                f"{path}: a run folder of format {found}, this version reads format {FORMAT}; "
                "use the version of crcl that wrote it, or train again"
            )
        config, sizes, files = content.get("config"), content.get("sizes"), content.get("files", [])
        made = content.get("made", {})
        if isinstance(sizes, dict):
            sizes.setdefault("networks", 1)  # older runs do not say
        records = isinstance(config, dict) and isinstance(files, list) and isinstance(made, dict)
        if not records or not valid_sizes(sizes):
            raise InputError(f"{path / 'config.json'}: incomplete; train again with --overwrite")
        fingerprint, imported, features = (
            str(content.get(name, "")) for name in ("fingerprint", "imported", "features")
        )
        run = cls(path, config, sizes, fingerprint, imported, features, made)
        run.require(*files)
        return run

    def require(self, *names: str) -> None:
        """Refuse to go on without files that cannot be made again."""
        missing = [str(name) for name in names if not (self.path / str(name)).is_file()]
        if missing:
            raise InputError(
                f"{self.path}: half a run folder, without {', '.join(missing)}; train again with --overwrite"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second training out of this folder.

        One that comes from others may hold links, which would have their targets written to: it is refused.
        """
        for file in self.path.iterdir():
            if file.is_symlink():
                raise InputError(f"{file}: a link, which a training would write through; put the file itself there")
        with locked(self.path):
            for left in self.path.glob(".*.tmp"):
                left.unlink()
            yield

    def vocabulary(self) -> Words:
        kind = Vocabulary if self.model() is None else Subwords
        words = kind.load(self._there(kind.file))
        if len(words) != self.sizes["vocabulary"]:
            raise InputError(
                f"{self.path / kind.file}: {len(words)} words, the run was trained with {self.sizes['vocabulary']}"
            )
        return words

    def model(self) -> Any:
        """What the published model is that the matcher began as; None for other matchers."""
        path = self.path / "model.json"
        return _read_json(path) if path.is_file() else None

    def noise(self) -> np.ndarray | None:
        path = self.path / "noise.npy"
        return _read_npy(path) if path.is_file() else None

    def trusted(self) -> np.ndarray | None:
        path = self.path / "trusted.npy"
        if not path.is_file():
            return None
        rows = _read_npy(path)
        if rows.dtype != np.int64 or rows.ndim != 1 or not np.isin(rows, np.arange(self.sizes["pairs"])).all():
            raise InputError(f"{path}: damaged (not rows of {self.sizes['pairs']} pairs); train again with --overwrite")
        return rows

    def decoys(self) -> np.ndarray | None:
        """Caption and image of each decoy, (decoys, 2)."""
        path = self.path / "decoys.npy"
        if not path.is_file():
            return None
        drawn = _read_npy(path)
        ends = (self.sizes["pairs"], self.sizes["images"])
        if drawn.dtype != np.int64 or drawn.shape[1:] != (2,) or not ((drawn >= 0) & (drawn < ends)).all():
            raise InputError(f"{path}: damaged (not captions and images of the run's); train again with --overwrite")
        return drawn

    def standardize(self) -> Standardize | None:
        path = self.path / "standardize.npz"
        if not path.is_file():
            return None
        arrays = _read_npz(path, "mean", "deviation")
        mean, deviation = arrays["mean"], arrays["deviation"]
        if mean.dtype != np.float32 or mean.shape != (self.sizes["features"],) or deviation.shape != ():
            raise InputError(f"{path}: damaged (not a mean of {self.sizes['features']} numbers and a deviation)")
        return Standardize(mean, float(deviation))

    def save_matcher(self, state: dict[str, Tensor]) -> None:
        write_weights(self.path / LEARNT[0], state)

    def load_matcher(self) -> dict[str, Tensor]:
        return _read_weights(self._there(LEARNT[0]))

    def load_start(self) -> Learnt | None:
        """What the training begins from; None where it begins from fresh weights."""
        weights, beliefs = (self.path / name for name in START)
        if not weights.is_file():
            return None
        if not beliefs.is_file():
            return Learnt(_read_weights(weights))
        return Learnt(_read_weights(weights), np.concatenate(self._read_beliefs(beliefs)))

    def save_ledger(self, correspondence: np.ndarray) -> None:
        """Beliefs in the pairs, then in the decoys."""
        _write_beliefs(self.path / LEARNT[1], correspondence, self.sizes["pairs"])

    def load_ledger(self) -> np.ndarray:
        """The belief in each pair, (pairs,); none of a decoy."""
        return self._load_beliefs()[0]

    def load_decoy_ledger(self) -> np.ndarray:
        """The belief in each decoy, (decoys,); empty where there are none."""
        return self._load_beliefs()[1]

    def _load_beliefs(self) -> tuple[np.ndarray, np.ndarray]:
        if not self.has_beliefs:
            raise InputError(
                f"{self.path}: imported without beliefs; `crcl train DATA -o NEW --start {self.path}` comes to some"
            )
        return self._read_beliefs(self._there(LEARNT[1]))

    @property
    def has_beliefs(self) -> bool:
        """Whether the run believes anything of its pairs, or is to; a run may be imported without beliefs."""
        return not self.imported or (self.path / LEARNT[1]).is_file()

    def keep_beliefs(self, epoch: int, correspondence: np.ndarray) -> None:
        """Add the beliefs after an epoch, counted over all pieces, in its place: written again they are the same."""
        path = self.path / "beliefs.f16"
        place = 2 * len(correspondence) * epoch
        try:
            with path.open("r+b" if path.is_file() else "w+b") as file:
                there = file.seek(0, os.SEEK_END)
                if there < place:  # a run begun by a version that did not keep them
                    file.write(np.full((place - there) // 2, np.nan, dtype="<f2").tobytes())
                file.seek(place)
                file.write(correspondence.astype("<f2").tobytes())
                file.truncate()
        except OSError as error:
            raise could_not_save(path, error) from error

    def kept_beliefs(self) -> np.ndarray:
        """The beliefs after each epoch of the metrics; NaN where they were not kept. (epochs, N)"""
        path, epochs, pairs = self.path / "beliefs.f16", len(self.metrics()), self.sizes["pairs"]
        there = np.fromfile(path, dtype="<f2", count=epochs * pairs) if path.is_file() else np.empty(0, "<f2")
        beliefs = np.full(epochs * pairs, np.nan, dtype=np.float32)
        beliefs[: len(there)] = there
        return beliefs.reshape(epochs, pairs)

    def _read_beliefs(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        decoys = self.decoys()
        names = ("correspondence",) if decoys is None else ("correspondence", "decoys")
        found = _read_npz(path, *names)
        beliefs, of_decoys = found["correspondence"], found.get("decoys", np.empty(0, dtype=np.float32))
        for what, count, read in (
            ("pairs", self.sizes["pairs"], beliefs),
            ("decoys", 0 if decoys is None else len(decoys), of_decoys),
        ):
            if read.dtype != np.float32 or read.shape != (count,) or not np.isfinite(read).all():
                raise InputError(f"{path}: damaged (not a belief for each of {count} {what})")
        return beliefs, of_decoys

    def save_state(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_bytes(self.path / "training.pt", buffer.getbuffer())

    def load_state(self) -> dict[str, Any] | None:
        """The last state, or None where the training was stopped before its first one."""
        path = self.path / "training.pt"
        if not path.is_file():
            return None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            return dict(state)
        except Exception as error:  # torch's own message would advise to unpickle
            raise InputError(f"{path}: damaged ({type(error).__name__}); train again with --overwrite") from error

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl or timing.jsonl."""
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise could_not_save(self.path / name, error) from error

    def length(self, name: str) -> int:
        path = self.path / name
        return path.stat().st_size if path.is_file() else 0

    def truncate(self, name: str, length: int) -> None:
        """Take back the lines that were written after the state one goes on from."""
        path = self.path / name
        if self.length(name) < length:
            raise InputError(f"{path}: damaged (shorter than when it was saved); train again with --overwrite")
        if path.is_file():
            os.truncate(path, length)

    def metrics(self) -> list[dict[str, Any]]:
        """The records of all epochs; a last line that is still being written is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        try:
            records = [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: damaged ({error}); train again with --overwrite") from error
        if not all(map(_is_record, records)):
            raise InputError(f"{path}: damaged (a line is not an epoch's record); train again with --overwrite")
        return records

    def _there(self, name: str) -> Path:
        path = self.path / name
        if not path.is_file():
            raise InputError(
                f"{self.path}: half a run folder, {name} is missing; finish the training with "
                f"`crcl train DATA -o {self.path} --resume`, or train again with --overwrite"
            )
        return path


def _is_record(record: Any) -> bool:
    """Whether this is what is written of an epoch: where it was, the loss, and scores on dev."""
    if not isinstance(record, dict) or not record.keys() >= RECORD:
        return False
    dev = record["dev"]
    parts = [dev, dev.get("i2t"), dev.get("t2i")] if isinstance(dev, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        return False
    numbers = [*(record[name] for name in ("piece", "epoch", "loss")), dev.get("rsum")]
    return all(isinstance(number, int | float) for number in numbers)


def valid_sizes(sizes: Any) -> bool:
    """Whether all sizes are there, as a matcher can be made of."""
    if not isinstance(sizes, dict):
        return False
    known = {"text_features": 1} | sizes  # only where vectors of texts are read
    return all(type(known.get(name)) is int and 0 < known[name] < 2**31 for name in (*SIZES, "text_features"))


def refuse_existing(path: str | Path, *, overwrite: bool) -> None:
    """Stop before an existing folder is lost."""
    path = Path(path)
    if Path.cwd().is_relative_to(path.resolve()):
        raise InputError(f"{path}: the folder that this is called in, or one above; a run needs one of its own, in it")
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise InputError(f"{path}: exists already; go on with it by --resume, or replace it by --overwrite")
    if not _is_run(path):
        raise InputError(f"{path}: not a run folder, so it is not overwritten; give another name")


def _refuse_inputs_within(path: Path, config: dict[str, Any]) -> None:
    """Files that a training reads are not lost with the run that it replaces."""
    for section in config.values():
        for value in section.values() if isinstance(section, dict) else ():
            if isinstance(value, str) and path.resolve() in Path(value).resolve().parents and Path(value).exists():
                raise InputError(f"{path}: holds {value}, which is read, so it is not overwritten; give another name")


def _is_run(path: Path) -> bool:
    """Whether a folder is a run, be it damaged; other folders have a config.json too."""
    if not (path / "config.json").is_file():
        return False
    try:
        content = _read_json(path / "config.json")
    except InputError:
        return any((path / name).is_file() for name in ("vocab.json", "metrics.jsonl", "training.pt", "ledger.npz"))
    return isinstance(content, dict) and "format" in content and "sizes" in content


def write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    plain = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    write_bytes(path, safetensors.torch.save(plain))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}); train again with --overwrite") from error


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        weights = safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}); train again with --overwrite") from error
    for name, weight in weights.items():
        if weight.is_floating_point() and (weight.dtype != torch.float32 or not weight.isfinite().all()):
            what = f"in {weight.dtype}" if weight.dtype != torch.float32 else "not finite"
            raise InputError(f"{path}: damaged ({name} is {what}); train again with --overwrite")
    return weights


def _write_beliefs(path: Path, beliefs: np.ndarray, pairs: int) -> None:
    """Beliefs in the pairs and, where there are more, in the decoys behind them."""
    if len(beliefs) > pairs:
        write_arrays(path, correspondence=beliefs[:pairs], decoys=beliefs[pairs:])
    else:
        write_arrays(path, correspondence=beliefs)


def _read_npz(path: Path, *names: str) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except Exception as error:  # numpy's own message would advise to unpickle
        raise InputError(f"{path}: damaged ({type(error).__name__}); train again with --overwrite") from error


def _read_npy(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except NPY_ERRORS as error:
        raise InputError(f"{path}: damaged ({type(error).__name__}); train again with --overwrite") from error
