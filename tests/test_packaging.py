"""What is installed: a wheel with all its files, that works outside the clone."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import crcl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_file_of_the_package_that_is_no_module_is_declared_as_data() -> None:
    package = ROOT / "src/crcl"
    declared = {path for glob in PROJECT["tool"]["setuptools"]["package-data"]["crcl"] for path in package.glob(glob)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others == declared


def test_every_dependency_that_is_named_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {line.split("==")[0].lower() for line in lines}
    groups = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    named = {name_of(line) for group in groups for line in group} - {"crcl"}
    assert named <= pinned
    assert all("==" in line and "@" not in line for line in lines)


def name_of(requirement: str) -> str:
    return requirement.split(">")[0].split("[")[0].strip().lower()


def test_continuous_integration_runs_the_commands_of_the_readme() -> None:
    script = (ROOT / ".ci/run").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "make lint docs test" in script
    assert "make test" in readme


def call(folder: Path, *words: str | Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_installs_outside_the_clone_and_the_demo_works_there(tmp_path: Path) -> None:
    clone, empty, venv = tmp_path / "clone", tmp_path / "empty", tmp_path / "venv"
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    call(clone, sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist")
    shutil.rmtree(clone)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name == f"crcl-{crcl.__version__}-py3-none-any.whl"
    assert "crcl/py.typed" in zipfile.ZipFile(wheel).namelist()

    empty.mkdir()
    call(empty, sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    call(empty, sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    # The dependencies are those that are installed already; a path in a .pth file brings no editable installs along.
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))

    assert call(empty, python, "-c", "import crcl; print(crcl.__file__)").startswith(str(site))
    small = ("--images", "40", "--set", "train.pieces=[1,1]", "--set", "ledger.freeze_epochs=0")
    call(empty, venv / "bin/crcl", "demo", "-o", "out", *small)
    assert (empty / "out/beliefs.png").stat().st_size > 10_000
