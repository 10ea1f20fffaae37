"""Fill pages of the site from their sources: the command line, the configuration and the changelog."""

import re
from itertools import groupby
from pathlib import Path
from typing import Any

from typer.main import get_command

from crcl import cli, config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page, before it becomes HTML."""
    for mark, made in {"commands": commands, "settings": settings, "changelog": changelog}.items():
        if f"<!-- {mark} -->" in markdown:
            markdown = markdown.replace(f"<!-- {mark} -->", made())
    return markdown


def changelog() -> str:
    """The repository's changelog, whose links go from its root."""
    return Path("CHANGELOG.md").read_text("utf-8").replace("](docs/", "](")


def commands() -> str:
    """Every command with its description, arguments and options."""
    group: Any = get_command(cli.app)
    with group.make_context("crcl", [], resilient_parsing=True) as context:
        found = {name: group.resolve_command(context, [name])[1] for name in group.list_commands(context)}
    return "\n\n".join(part for name, command in found.items() for part in command_page(name, command))


def command_page(name: str, command: Any) -> list[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    words = [f"{(each.metavar or each.name).upper()}{'...' if each.nargs == -1 else ''}" for each in arguments]
    lines = [f"| `{word}` | {in_cell(each.help)} |" for word, each in zip(words, arguments, strict=True)]
    lines += [f"| `{', '.join(each.opts)}` | {in_cell(each.help)}{default_of(each)} |" for each in options]
    usage = " ".join(["crcl", name, *words, "[OPTIONS]"])
    return [
        f"## crcl {name}",
        f"    {usage}",
        command.help or "",
        "\n".join(["| option | meaning |", "|---|---|", *lines]),
    ]


def default_of(option: Any) -> str:
    shown = option.show_default and option.default not in (None, False, ()) and not callable(option.default)
    return f" Default: {option.default}." if shown else ""


def settings() -> str:
    """Every key of the configuration, a table for each section."""
    parts = []
    for section, keys in groupby(config.describe_keys(), lambda key: key.key.rpartition(".")[0]):
        rows = [
            f"| `{key.key}` | {in_cell(key.type)} | {as_code(key.default)} | {in_cell(key.description)} |"
            for key in keys
        ]
        head = ["| key | type | default | meaning |", "|---|---|---|---|"]
        parts += [f"## {section or 'Method'}", "\n".join([*head, *rows])]
    return "\n\n".join(parts)


def in_cell(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", r"\|").replace("<", "&lt;")


def as_code(text: str) -> str:
    return f"`{text}`" if text else ""
