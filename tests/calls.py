"""Calls of the command line, for tests."""

from __future__ import annotations

import json

from offramp.cli.main import main


def fails(capsys, *arguments, code=2) -> str:
    """The one line that a failing call prints."""
    try:
        ended = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        ended = stop.code
    out, err = capsys.readouterr()
    assert ended == code, err
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


def answers(capsys, *arguments) -> list[dict]:
    assert main([str(argument) for argument in arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]
