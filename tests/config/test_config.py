"""Presets, merging, and errors that name every wrong key at once."""

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from pydantic import ValidationError

from crcl import config
from crcl.errors import InputError
from crcl.matchers import MATCHERS, MatcherRecord
from crcl.methods import METHODS

# The paper's parameter table: preset, matcher, pieces, lr_update. The columns e_f 2, lr 0.0005, β 0.8, τ 0.05,
# λ 5 and ε 0.1 are the same in every row.
PAPER = [
    ("cc152k-vse", "vse", (7, 7, 7, 32), 17),
    ("cc152k-saf", "saf", (7, 7, 7, 42), 20),
    ("cc152k-sgr", "sgr", (7, 7, 7, 42), 20),
    ("f30k-vse", "vse", (7, 7, 7, 32), 15),
    ("f30k-saf", "saf", (7, 7, 7, 32), 15),
    ("f30k-sgr", "sgr", (7, 7, 7, 32), 15),
    ("coco-vse", "vse", (4, 4, 4, 22), 12),
    ("coco-saf", "saf", (4, 4, 4, 22), 12),
    ("coco-sgr", "sgr", (4, 4, 4, 22), 12),
]


OTHERS = ("chan", "vsrn", "naaf", "mvvse", "hrem", "imram", "gsmn")
"""Matchers of the paper's clean table and newer ones, with presets of their authors' settings."""


def complaints(**arguments: object) -> list[str]:
    with pytest.raises(InputError) as caught:
        config.load(**arguments)  # type: ignore[arg-type]
    return str(caught.value).splitlines()


def test_the_shipped_presets_are_the_papers_rows_and_some_small_ones() -> None:
    assert config.presets() == sorted(
        [row[0] for row in PAPER]
        + [f"{data}-{matcher}" for data in ("f30k", "coco", "flickr8k-cpu") for matcher in OTHERS]
        + ["clip", "cpu", "demo", "embeddings", "flickr8k-cpu", "flickr8k-cpu-saf", "flickr8k-cpu-sgr"]
    )


@pytest.mark.parametrize("name", config.presets())
def test_every_preset_loads_opens_with_its_command_and_leaves_the_data_to_it(name: str) -> None:
    assert config.load(preset=name).data.path == ""
    text = (resources.files("crcl") / "config" / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    opening = text.partition("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in opening)
    commands = [line for line in opening if line.startswith("# Run:")]
    assert len(commands) == 1
    assert f"--preset {name}" in commands[0] or (name == "demo" and "crcl demo" in commands[0])
    assert any(line.startswith("# Expect:") for line in opening)
    assert any("leaves path empty" in line for line in opening)


@pytest.mark.parametrize(("name", "matcher", "pieces", "lr_update"), PAPER)
def test_presets_equal_the_papers_parameter_table(
    name: str, matcher: str, pieces: tuple[int, ...], lr_update: int
) -> None:
    loaded = config.load(preset=name)
    assert (loaded.method, loaded.matcher.name) == ("crcl", matcher)
    assert (loaded.train.pieces, loaded.train.lr_update, loaded.train.lr) == (pieces, lr_update, 0.0005)
    ledger = loaded.ledger
    assert (ledger.freeze_epochs, ledger.momentum, ledger.threshold, ledger.correction) == (2, 0.8, 0.1, "paper")
    assert (loaded.loss.tau, loaded.loss.scale) == (0.05, 5.0)
    assert (loaded.matcher.embedding, loaded.matcher.word, loaded.matcher.similarity) == (1024, 300, 256)


@pytest.mark.parametrize("matcher", OTHERS)
@pytest.mark.parametrize("data", ["f30k", "coco"])
def test_presets_of_other_matchers_are_plain_as_published_and_ready_for_crcl(data: str, matcher: str) -> None:
    loaded = config.load(preset=f"{data}-{matcher}")
    assert (loaded.method, loaded.matcher.name) == ("triplet-hardest", matcher)
    assert loaded.matcher.embedding == (2048 if matcher == "vsrn" else 1024)
    pieces = config.load(preset=f"{data}-{matcher}", settings=["method=crcl"]).schedule_pieces()
    assert pieces[-1:] == loaded.schedule_pieces()
    assert len(pieces) == 4


def test_the_defaults_are_the_papers_parameters_for_f30k_and_vse() -> None:
    assert config.load() == config.load(preset="f30k-vse")


def test_a_plain_objective_trains_the_last_piece_only() -> None:
    assert config.load().schedule_pieces() == (7, 7, 7, 32)
    assert config.load(settings=["method=infonce"]).schedule_pieces() == (32,)


def test_later_sources_win_default_preset_file_base_settings(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[train]\nlr_update = 2\nlr = 0.2\nseed = 2\n[loss]\ntau = 0.02\n")
    loaded = config.load(
        preset="coco-vse",
        file=file,
        base={"train": {"lr": 0.3, "seed": 3}, "noise.rate": 0.4},
        settings=["train.seed=4", "train.seed=5"],
    )
    assert loaded.train.pieces == (4, 4, 4, 22)
    assert (loaded.train.lr_update, loaded.train.lr, loaded.train.seed) == (2, 0.3, 5)
    assert (loaded.loss.tau, loaded.noise.rate, loaded.train.clip) == (0.02, 0.4, 2.0)


@pytest.mark.parametrize(
    ("setting", "section", "leaf", "value"),
    [
        ("noise.level=image", "noise", "level", "image"),
        ('noise.level="image"', "noise", "level", "image"),
        ("train.pieces=[3, 3]", "train", "pieces", (3, 3)),
        (" loss.tau = 0.03 ", "loss", "tau", 0.03),
        ("loss.tau=.03", "loss", "tau", 0.03),
        ("loss.scale=3", "loss", "scale", 3.0),
        ("loss={tau=0.03}", "loss", "tau", 0.03),
        ("train.lr=1e-3", "train", "lr", 0.001),
        ("train.augment=false", "train", "augment", False),
        ("train.device=cuda:1", "train", "device", "cuda:1"),
        ("data.path=2024", "data", "path", "2024"),
        ("data.path=a=b", "data", "path", "a=b"),
        ("data.vocab=", "data", "vocab", None),
    ],
)
def test_settings_take_toml_values_and_bare_text(setting: str, section: str, leaf: str, value: object) -> None:
    assert getattr(getattr(config.load(settings=[setting]), section), leaf) == value


def test_everything_wrong_is_reported_at_once_one_line_each(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[loss]\ntua = 1\n[matcher]\nname = "vze"\n[ledgr]\n')
    assert complaints(
        preset="f30k-vs",
        file=file,
        base={"train": {"lr": -1}},
        settings=["tau=0.03", "x", "noise.rate=1.2"],
    ) == [
        f"unknown preset 'f30k-vs' (did you mean 'f30k-vse'?); presets: {', '.join(config.presets())}",
        f"{file}: loss.tua: unknown key (did you mean 'loss.tau'?)",
        f"{file}: ledgr: unknown key (did you mean 'ledger'?)",
        "tau: unknown key (did you mean 'loss.tau'?)",
        "'x': must be key=value, as in loss.tau=0.03",
        "noise.rate: must be at most 1, got 1.2",
        f"{file}: matcher.name: must be one of {', '.join(MATCHERS)}, got 'vze' (did you mean 'vse'?)",
        "train.lr: must be greater than 0, got -1",
    ]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("loss.tua", "'loss.tau'"),
        ("tau", "'loss.tau'"),
        ("train.tau", "'loss.tau'"),
        ("los.tau", "'loss.tau'"),
        ("loss.tau.x", "'loss.tau'"),
        ("batchsize", "'train.batch_size'"),
        ("metod", "'method'"),
        ("train.method", "'method'"),
        ("seed", "'noise.seed' or 'train.seed'"),
        ("beta", "'ledger.momentum'"),
        ("loss.lambda", "'loss.scale'"),
    ],
)
def test_an_unknown_key_brings_the_nearest_right_one(key: str, nearest: str) -> None:
    assert complaints(settings=[f"{key}=1"]) == [f"{key}: unknown key (did you mean {nearest}?)"]


def test_a_key_near_nothing_is_called_unknown_without_a_guess() -> None:
    assert complaints(settings=["zzzzzz=1"]) == ["zzzzzz: unknown key"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("method=crlc", f"must be one of {', '.join(METHODS)}, got 'crlc' (did you mean 'crcl'?)"),
        ("noise.level=7", "must be one of caption, image, got '7'"),
        ("noise.rate=-0.1", "must be at least 0, got -0.1"),
        ("noise.seed=-1", "must be at least 0, got -1"),
        ("noise.seed=9223372036854775808", "must be at most 9223372036854775807, got 9223372036854775808"),
        ("loss.tau=0", "must be greater than 0, got 0"),
        ("loss.tau=high", "must be a number, got 'high'"),
        ("loss.tau={}", "must be a number, got {}"),
        ("loss.margin=nan", "must be a finite number, got nan"),
        ("train.lr=inf", "must be a finite number, got inf"),
        ("loss.q=1.5", "must be at most 1, got 1.5"),
        ("loss.terms=none", "must be one of both, active, complementary, got 'none'"),
        ("decl.warmup=0", "must be at least 1, got 0"),
        ("decl.evidence_tau=0.01", "must be at least 0.05, got 0.01"),
        ("ledger.momentum=1", "must be less than 1, got 1"),
        ("ledger.momentum=true", "must be a number, got true"),
        ("train.batch_size=1", "must be at least 2, got 1"),
        ("train.workers=2.0", "must be a whole number, got 2.0"),
        ('train.workers="2"', "must be a whole number, got '2'"),
        ("train.augment=1", "must be true or false, got 1"),
        ("train.pieces=5", "must be a list of whole numbers, got 5"),
        ("train.pieces=[]", "must have at least one entry, got []"),
        ("train.device=cud", "must be auto, cpu, cuda, cuda:N or mps, got 'cud'"),
        ("loss=3", "is a section, not a value, got 3; its keys are loss.tau, loss.scale"),
        ("=3", "must be key=value"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(setting: str, message: str) -> None:
    lines = complaints(settings=[setting])
    assert len(lines) == 1
    assert lines[0].startswith(f"{setting.partition('=')[0] or repr(setting)}: {message}")


def test_wrong_entries_of_a_list_are_named_by_place() -> None:
    assert complaints(settings=["train.pieces=[3, 0, 2.5]"]) == [
        "train.pieces[1]: must be at least 1, got 0",
        "train.pieces[2]: must be a whole number, got 2.5",
    ]
    assert complaints(settings=["train.pieces=[true]"]) == ["train.pieces[0]: must be a whole number, got true"]


def test_text_keys_refuse_other_types_from_files_and_python() -> None:
    assert complaints(base={"data": {"path": 3}, "noise": {"file": 3}, "method": None}) == [
        f"method: must be one of {', '.join(METHODS)}, got nothing",
        "data.path: must be text, got 3",
        "noise.file: must be text, got 3",
    ]


def test_a_noise_file_excludes_a_noise_rate() -> None:
    assert config.load(settings=["noise.file=index.npy"]).noise.file == "index.npy"
    [line] = complaints(settings=["noise.file=index.npy", "noise.rate=0.4"])
    assert line.startswith("noise.file: cannot be combined with noise.rate = 0.4")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method=decl", "train.pieces=[7,5]"], "decl.warmup: 5 epochs count every pair as matched"),
        (
            ["method=decl", "decl.least_negatives=200"],
            "decl.least_negatives: 200 is more than decl.most_negatives",
        ),
        (["method=triplet-hardest", "loss.first_epochs=32"], "loss.first_epochs: 32 epochs take all negatives, and"),
        (["method=complementary", "loss.kind=gce", "loss.q=0"], "loss.q: must be greater than 0 for loss.kind=gce"),
    ],
)
def test_values_that_do_not_go_together_are_refused_where_the_method_reads_them(
    settings: list[str], message: str
) -> None:
    [line] = complaints(settings=settings)
    assert line.startswith(message)
    config.load(settings=settings[1:])


def test_a_method_is_refused_on_a_matcher_that_it_makes_no_sense_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(matcher: MatcherRecord) -> str:
        return "" if matcher.dropped_regions == "blanked" and matcher.bounded else f"{matcher.name} sees no regions"

    monkeypatch.setitem(METHODS, "infonce", replace(METHODS["infonce"], refuses=refuses))
    assert complaints(settings=["method=infonce", "matcher.name=bow"]) == [
        "method infonce does not go with matcher bow: bow sees no regions; it goes with saf, sgr"
    ]
    assert config.load(settings=["method=infonce", "matcher.name=sgr"]).method == "infonce"
    assert config.load(settings=["method=crcl", "matcher.name=bow"]).matcher.name == "bow"


def test_toml_syntax_errors_name_file_and_position(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("[loss]\ntau 0.03\n")
    [line] = complaints(file=file)
    assert line.startswith(f"{file}: not valid TOML")
    assert "line 2" in line


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert complaints(file=tmp_path / "none.toml") == [f"{tmp_path / 'none.toml'}: no such file"]
    [line] = complaints(file=tmp_path)
    assert line.startswith(f"{tmp_path}: cannot be read")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"a = '\xff'")
    assert complaints(file=binary) == [f"{binary}: not UTF-8 at byte 5"]


def test_a_config_survives_json_unchanged() -> None:
    changed = config.load(
        preset="cc152k-sgr", settings=["train.pieces=[1, 3]", "noise.file=a.npy", "ledger.correction=official"]
    )
    for original in [config.load(), changed]:
        text = json.dumps(config.to_dict(original), allow_nan=False)
        assert config.from_dict(json.loads(text)) == original


def test_a_wrong_config_of_a_run_is_reported_like_any_other() -> None:
    values = config.to_dict(config.load())
    values["loss"]["tua"] = 1
    values["train"]["lr"] = "fast"
    with pytest.raises(InputError) as caught:
        config.from_dict(values, source="config.json")
    assert str(caught.value).splitlines() == [
        "config.json: loss.tua: unknown key (did you mean 'loss.tau'?)",
        "config.json: train.lr: must be a number, got 'fast'",
    ]
    with pytest.raises(InputError, match=r"config\.json: must be an object of sections, got \[\]"):
        config.from_dict([], source="config.json")


def test_a_config_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError):
        config.load().loss.tau = 1.0  # type: ignore[misc]


def test_every_key_is_described_and_its_default_can_be_set() -> None:
    rows = config.describe_keys()
    assert all(row.type and row.description for row in rows)
    assert config.load(settings=[f"{row.key}={row.default}" for row in rows]) == config.load()
    leaves = sum(len(values) if isinstance(values, dict) else 1 for values in config.to_dict(config.load()).values())
    assert len(rows) == leaves


@pytest.mark.parametrize("method", ["ncr", "bicro", "l2rm"])
def test_a_training_that_is_all_warm_up_is_refused(method: str) -> None:
    (line,) = complaints(settings=[f"method={method}", "train.pieces=[9, 5]"])
    assert line.startswith(
        "division.warmup: the 5 epochs of the warm-up divide no pairs, and train.pieces [9, 5] ends with 5"
    )
    config.load(settings=[f"method={method}", "train.pieces=[6]"])
    config.load(settings=["train.pieces=[9, 5]"])  # other methods have none


@pytest.mark.parametrize("text", ["1" * 5000, "[" * 2000, '{a="b"' * 900], ids=["digits", "brackets", "braces"])
@pytest.mark.parametrize("key", ["train.lr", "train.seed", "train.pieces"])
def test_values_that_no_key_has_are_refused_however_long_they_are(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(InputError, match=rf"{key}: must be a .*, got '.{{,60}}$"):
        config.load(settings=[f"{key}={text}"])
    (tmp_path / "mine.toml").write_text(f"{key} = {text}")
    with pytest.raises(InputError, match=r"mine\.toml: (a number of too many digits|nested too deeply|not valid TOML)"):
        config.load(file=tmp_path / "mine.toml")


@pytest.mark.parametrize("key", ["train.batch_size", "matcher.embedding", "train.workers", "data.max_words"])
def test_counts_have_an_upper_bound(key: str) -> None:
    with pytest.raises(InputError, match=f"{key}: must be at most"):
        config.load(settings=[f"{key}=100000000000000000000"])
