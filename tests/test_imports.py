"""Imports go one way: read from the source, so that an import inside a function counts too."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import crcl

ROOT = Path(crcl.__file__).parent

LAYERS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("api",),
    ("experiments", "serving"),
    ("auditing",),
    ("training",),
    ("retrieval",),
    ("runs",),
    ("config",),
    ("methods",),
    ("matchers", "features"),
    ("data",),
    ("storage", "settings", "plots"),
    ("losses", "ledger", "metrics", "theory", "progress", "terminal", "distributed"),
    ("errors",),
)
"""From top to bottom. A module imports from its own layer and from those below."""
LAYER = {name: depth for depth, names in enumerate(LAYERS) for name in names}
ALONE = ("losses", "ledger", "metrics", "theory", "errors", "methods.division", "methods.transport")
"""Plain functions that serve without the rest of the package."""


def module_name(path: Path) -> str:
    """`data/split.py` -> `data.split`, `data/__init__.py` -> `data`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"}


def imports_of(tree: ast.AST) -> set[str]:
    """Our modules that this source imports, without the package's name in front."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"line {node.lineno}: a relative import; write it from the package's name on")
            module = node.module or ""
            members = {f"{module}.{name.name}" for name in node.names}
            modules = {member for member in members if member.removeprefix("crcl.") in MODULES}
            found |= modules or {module}
    return {name.removeprefix("crcl.") for name in found if name.startswith("crcl.")}


GRAPH = {name: imports_of(ast.parse(path.read_text(encoding="utf-8"))) for name, path in MODULES.items()}


def layer(module: str) -> int:
    return LAYER[module.split(".")[0]]


def reachable(module: str) -> set[str]:
    """All that a module imports, and what these import in turn."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        for other in GRAPH[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen


def test_the_graph_is_not_empty() -> None:
    assert "data.split" in GRAPH["retrieval.scoring"]
    assert "metrics" in GRAPH["retrieval.evaluation"]  # from crcl import metrics
    assert {"losses", "ledger"} <= GRAPH["methods.crcl"]


def test_every_module_has_its_place_in_the_layers() -> None:
    unplaced = sorted(name for name in MODULES if name.split(".")[0] not in LAYER)
    assert not unplaced, f"say in LAYERS where these belong: {unplaced}"


def test_every_import_names_a_module_that_is_there() -> None:
    assert not {(name, other) for name, others in GRAPH.items() for other in others if other not in MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_imports_never_go_up(module: str) -> None:
    assert not sorted(other for other in GRAPH[module] if layer(other) < layer(module))


@pytest.mark.parametrize("module", MODULES)
def test_no_module_needs_itself(module: str) -> None:
    assert module not in reachable(module)


@pytest.mark.parametrize("module", ALONE)
def test_plain_functions_stand_alone(module: str) -> None:
    assert GRAPH[module] <= {"errors"}


ABOVE_CONFIG = ("cli", "api", "experiments", "serving", "auditing", "training", "retrieval", "runs")


def test_no_config_travels_below_runs() -> None:
    """Constructors take plain keyword arguments, so that the library works without any config."""
    users = {name for name, others in GRAPH.items() if "config" in others and not name.startswith("config")}
    assert users
    assert {name.split(".")[0] for name in users} <= {*ABOVE_CONFIG}


SHARED = {
    "methods.base",
    "methods.settings",
    "methods.epochs",
    "methods.two_networks",
    "methods.division",
    "methods.transport",
}
"""What methods are made of."""


def test_no_method_imports_another_method() -> None:
    methods = [name for name in MODULES if name.startswith("methods.")]
    assert methods
    for method in methods:
        own = ".".join(method.split(".")[:2])  # a method may be a package
        others = {other for other in GRAPH[method] if other.split(".")[0] == "methods"}
        assert {other for other in others if not f"{other}.".startswith(f"{own}.")} <= SHARED, method


def loaded(program: str, names: set[str]) -> list[str]:
    """Which of these libraries a program has loaded at its end."""
    program += f"\nprint(*sorted({names} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", f"import sys\n{program}"], check=True, capture_output=True, text=True)
    return told.stdout.split("\n")[-2].split()


SLOW = {"sklearn", "scipy.stats", "nltk", "transformers", "onnx"}


@pytest.mark.slow
def test_what_loads_slowly_waits_until_it_is_needed() -> None:
    """A second and more of every command."""
    modules = ", ".join(f"crcl.{name}" for name in MODULES if name.startswith("cli"))
    assert loaded(f"import {modules}", SLOW | {"torch"}) == ["torch"]


def test_importing_the_package_loads_no_library() -> None:
    assert loaded("import crcl\ndir(crcl)", SLOW | {"torch", "numpy", "pyarrow", "pandas", "rich", "pydantic"}) == []


def test_no_library_is_loaded_to_list_the_commands() -> None:
    program = "sys.argv = ['crcl', '--help']\nfrom crcl import cli\ntry: cli.main()\nexcept SystemExit: pass"
    assert loaded(program, SLOW | {"torch", "numpy", "matplotlib", "pydantic"}) == []
