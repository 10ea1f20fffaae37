"""`crcl serve` and `crcl.serve`: what they refuse before long work, in words that help."""

import builtins
import socket
from pathlib import Path
from typing import Any

import pytest
from tiny import call

import crcl
from crcl.auditing.result import Audit
from crcl.errors import InputError


def test_a_host_that_others_reach_needs_a_token_and_the_command_names_its_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = call(capsys, monkeypatch, "serve", str(tmp_path), "--host", "0.0.0.0")
    assert answer.code == 2
    assert "0.0.0.0 can be reached from other machines; give a --token, or leave --host out" in answer.err


def test_what_is_no_run_and_a_port_in_use_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = call(capsys, monkeypatch, "serve", str(tmp_path), "--port", "0")
    assert answer.code == 2
    assert str(tmp_path) in answer.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = call(capsys, monkeypatch, "serve", str(tmp_path), "--port", str(taken.getsockname()[1]))
    assert answer.code == 2
    assert "cannot listen at 127.0.0.1" in answer.err
    assert "--port" in answer.err


def test_without_the_extra_it_is_told_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "crcl.serving" or name.startswith("crcl.serving."):
            raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"needs the package fastapi; pip install 'crcl\[serve\]'"):
        crcl.serve(tmp_path)


@pytest.mark.parametrize("given", [{"port": "x"}, {"port": 80.5}, {"sample": "x"}, {"sample": True}])
def test_values_of_a_wrong_type_are_messages(tmp_path: Path, given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    with pytest.raises(InputError, match=f"^{name}: {value!r}: expected a whole number"):
        crcl.serve(tmp_path, **given)


@pytest.mark.slow
def test_an_audit_is_served_as_it_is(audit: Audit) -> None:
    with pytest.raises(InputError, match=r"made already; leave threshold=\.\.\. out"):
        crcl.serve(audit, threshold=0.5)
    with pytest.raises(InputError, match="at least one pair"):
        crcl.serve(audit, sample=0)
    with crcl.serve(audit, port=0, wait=False, search=False) as page:
        assert page.url.startswith("http://127.0.0.1:")
        assert page.folder == audit.run.path
