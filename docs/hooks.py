"""MkDocs hook: fills reference/cli.md with the options of every command, read from the parsers themselves."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from offramp.cli.main import COMMANDS

MARKER = "<!-- commands -->"


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Replace the marker with one section per command."""
    if MARKER not in markdown:
        return markdown
    return markdown.replace(MARKER, "\n".join(_command(name, summary) for name, summary in COMMANDS.items()))


def _command(name: str, summary: str) -> str:
    module = importlib.import_module(f"offramp.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"offramp {name}", formatter_class=argparse.RawDescriptionHelpFormatter)
    module.add_arguments(parser)
    examples = module.EXAMPLES.removeprefix("examples:\n")
    lines = [f"## offramp {name}", "", str(module.__doc__).strip(), ""]
    lines += ["```console", *(f"$ {line.strip()}" for line in examples.strip().splitlines()), "```", ""]
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.dest != "help"]
        actions = [action for action in shown if action.help != argparse.SUPPRESS]
        if actions:
            lines += [f"**{(group.title or '').capitalize()}**", ""]
            lines += [group.description, ""] if group.description else []
            lines += ["| option | description |", "|---|---|", *map(_option, actions), ""]
    return "\n".join(lines)


def _option(action: argparse.Action) -> str:
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    value = action.metavar or choices
    if action.option_strings:
        takes_value = action.nargs != 0
        name = ", ".join(f"`{option} {value}`" if takes_value else f"`{option}`" for option in action.option_strings)
    else:
        name = f"`{value}`"
    description = (action.help or "").replace("%%", "%").replace("|", "\\|").replace("\n", " ")
    return f"| {name.replace('|', chr(92) + '|')} | {description} |"
