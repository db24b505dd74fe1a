"""Translate messages of the library for the command line: arguments in backticks become options.

| in Python                                        | on the command line                        |
|--------------------------------------------------|--------------------------------------------|
| `` `risk=` ``, `` `risk` must be … ``            | `--risk`                                   |
| `` `overwrite=True` ``, `` `header=False` ``     | `--overwrite`, `--no-header`               |
| `` `policy='risk'` ``                            | `--policy risk`                            |
| `` `offramp.calibrate(model, policy='risk')` ``  | `` `offramp calibrate MODEL --policy risk` `` |
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Mapping

__all__ = ["as_options", "flags_of"]

CODE = re.compile(r"`([^`]+)`")
KEYWORD = re.compile(r"(\w+)=(.*)")


def flags_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the option (or metavar) of every argument of a command, by the argument's Python name."""
    return {
        action.dest: action.option_strings[0] if action.option_strings else str(action.metavar or action.dest.upper())
        for action in parser._actions
    }


def as_options(message: str, flags: Mapping[str, str], names: bool = True) -> str:
    """Replace arguments in backticks by options; with `names` also bare argument names (`` `risk` ``)."""
    return CODE.sub(lambda match: _translate(match.group(1), flags, names) or match.group(0), message)


def _translate(code: str, flags: Mapping[str, str], names: bool) -> str | None:
    if names and code in flags:
        return flags[code]
    if (keyword := KEYWORD.fullmatch(code)) is not None:
        return _option(keyword.group(1), keyword.group(2), flags)
    if code.startswith("offramp."):
        return _command(code, flags)
    return None


def _option(name: str, value: str, flags: Mapping[str, str]) -> str:
    flag = flags.get(name, f"--{name.replace('_', '-')}")
    if value in ("", "True", "False"):
        return flag
    return f"{flag} {value.strip(chr(39) + chr(34))}"


def _command(code: str, flags: Mapping[str, str]) -> str | None:
    """Translate a call such as `offramp.tune(model, risk=0.02)` to a command."""
    try:
        call = ast.parse(code, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    words = ["offramp", call.func.attr]
    for argument in call.args:
        is_name = isinstance(argument, ast.Name)
        words.append(ast.unparse(argument).upper() if is_name else shlex.quote(str(ast.literal_eval(argument))))
    for keyword in call.keywords:
        words.append(_option(str(keyword.arg), ast.unparse(keyword.value), flags))
    return f"`{' '.join(words)}`"
