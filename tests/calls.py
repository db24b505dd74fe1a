"""Run the command line in tests."""

from __future__ import annotations

import json

from offramp.cli.main import main


def fails(capsys, *arguments, code=2) -> str:
    """Run a command that fails with this exit code; return the one line that it prints to standard error."""
    try:
        exit_code = main([str(argument) for argument in arguments])
    except SystemExit as system_exit:
        exit_code = system_exit.code
    out, err = capsys.readouterr()
    assert exit_code == code, err
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


def json_lines(capsys, *arguments) -> list[dict]:
    """Run a command that succeeds; return the JSON lines that it prints."""
    assert main([str(argument) for argument in arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]
