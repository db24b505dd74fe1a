"""The pages in docs/ as tests read them: parts, blocks, commands, tables; and commands made quick."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

from offramp.cli.main import COMMANDS

DOCS = Path(__file__).parent.parent / "docs"
# for one small step of a tiny encoder, where a page does not say otherwise
QUICK = {"--learning-rate": "5e-3", "--epochs": "1", "--batch-size": "16", "--max-length": "16"}


def read(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def sections(text: str) -> dict[str, str]:
    """A page's parts by their titles."""
    _, *parts = text.split("\n## ")
    return {title: part for title, _, part in (part.partition("\n") for part in parts)}


def blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks with their languages, in their order."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """The commands of a text's shell blocks, in their order, without `offramp` itself."""
    shell = "".join(block for language, block in blocks(text) if language == "sh").replace("\\\n", " ")
    lines = [shlex.split(line) for line in shell.splitlines()]
    assert all(line[0] == "offramp" for line in lines)
    return [line[1:] for line in lines]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def quick(command: list[str]) -> list[str]:
    """A training that takes a second; other commands as they are."""
    if command[0] != "train":
        return command
    return command + [word for name, value in QUICK.items() if name not in command for word in (name, value)]


def known_options() -> set[str]:
    """Every option that one of the commands has."""
    known = set()
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"offramp.cli.{name}").add_arguments(parser)
        known |= set(parser._option_string_actions)
    return known


def table(text: str, first: str) -> list[list[str]]:
    """The cells of the table whose first column has that title, without its head."""
    lines = text[text.index(f"\n| {first} |") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def codes(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
