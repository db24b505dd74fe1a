"""Messages for the command line: the library names arguments in backticks, here they are options.

| in Python                                        | on the command line                        |
|--------------------------------------------------|--------------------------------------------|
| `` `risk=` ``, `` `risk` is 2 ``                 | `--risk`                                   |
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
SETTING = re.compile(r"(\w+)=(.*)")


def flags_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """What each argument of a command is called on the command line."""
    return {
        action.dest: action.option_strings[0] if action.option_strings else str(action.metavar or action.dest.upper())
        for action in parser._actions
    }


def as_options(message: str, flags: Mapping[str, str], names: bool = True) -> str:
    """A message with options instead of arguments; `names`: a bare name in backticks is an argument, too."""
    return CODE.sub(lambda found: _translated(found.group(1), flags, names) or found.group(0), message)


def _translated(code: str, flags: Mapping[str, str], names: bool) -> str | None:
    if names and code in flags:
        return flags[code]
    if (setting := SETTING.fullmatch(code)) is not None:
        return _option(setting.group(1), setting.group(2), flags)
    if code.startswith("offramp."):
        return _command(code, flags)
    return None


def _option(name: str, value: str, flags: Mapping[str, str]) -> str:
    flag = flags.get(name, f"--{name.replace('_', '-')}")
    if value in ("", "True", "False"):
        return flag
    return f"{flag} {value.strip(chr(39) + chr(34))}"


def _command(code: str, flags: Mapping[str, str]) -> str | None:
    """A call of the library as the command that does the same."""
    try:
        call = ast.parse(code, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    words = ["offramp", call.func.attr]
    for argument in call.args:
        named = isinstance(argument, ast.Name)
        words.append(ast.unparse(argument).upper() if named else shlex.quote(str(ast.literal_eval(argument))))
    for keyword in call.keywords:
        words.append(_option(str(keyword.arg), ast.unparse(keyword.value), flags))
    return f"`{' '.join(words)}`"
