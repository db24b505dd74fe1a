"""Parse the pages in docs/ for tests: sections, code blocks, commands, tables; and shorten training commands."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

from offramp.cli.main import COMMANDS

DOCS = Path(__file__).parent.parent / "docs"
# for short training of a tiny encoder, unless the page sets the option
FAST_OPTIONS = {
    "train": {"--learning-rate": "5e-3", "--epochs": "1", "--batch-size": "16", "--max-length": "16"},
    "adapt": {"--epochs": "4", "--variations": "0"},
}


def read(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def sections(text: str) -> dict[str, str]:
    """Return a page's sections by title."""
    _, *parts = text.split("\n## ")
    return {title: section for title, _, section in (part.partition("\n") for part in parts)}


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the fenced code blocks as (language, content), in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """Return the commands of a text's shell blocks, in order, without the word `offramp`."""
    shell = "".join(block for language, block in blocks(text) if language == "sh").replace("\\\n", " ")
    lines = [shlex.split(line) for line in shell.splitlines()]
    assert all(line[0] == "offramp" for line in lines)
    return [line[1:] for line in lines]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def shortened(command: list[str]) -> list[str]:
    """Return a training command that takes a second; other commands unchanged."""
    options = FAST_OPTIONS.get(command[0], {})
    return command + [word for name, value in options.items() if name not in command for word in (name, value)]


def known_options() -> set[str]:
    """Return the options of all commands."""
    known = set()
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"offramp.cli.{name}").add_arguments(parser)
        known |= set(parser._option_string_actions)
    return known


def table(text: str, first: str) -> list[list[str]]:
    """Return the cells of the table whose first column has that title, without its header."""
    lines = text[text.index(f"\n| {first} |") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def codes(text: str) -> list[str]:
    """Return the inline code of a text."""
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


def named(part: str) -> set[str]:
    """The words in backticks, one by one."""
    return {word for code in codes(part) for word in re.findall(r"[\w.-]+", code)}


def keys(found: object, depth: int) -> set[str]:
    """The keys of an object and of what is in it, lists too."""
    if isinstance(found, list):
        return set().union(*(keys(one, depth) for one in found))
    if not isinstance(found, dict) or depth == 0:
        return set()
    return set(found).union(*(keys(one, depth - 1) for one in found.values()))
