"""`offramp VERB …`: finds the command, runs it, turns errors into one line and an exit code.

0 done; 1 an honest no; 2 a mistake of the user's, a full disk, a missing extra; 128 and the signal's number where one
ended it (130 for Ctrl-C). Anything else is our bug and shows its traceback.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import itertools
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar, NoReturn

import offramp
from offramp.cli import streams
from offramp.cli.deprecated import current_names
from offramp.cli.wording import as_options, flags_of
from offramp.errors import BadValue, OfframpError, UnknownName

__all__ = ["main"]

COMMANDS = {
    "adapt": "make your fine-tuned classifier faster, with a guarantee about its answers; no labels needed",
    "train": "put exits on an encoder and train them, by any of the published recipes",
    "evaluate": "say what every exit is worth and what every policy costs",
    "compare": "lay the curves of several evaluations side by side",
    "calibrate": "choose the cheapest threshold that keeps a guarantee about quality",
    "predict": "answer the texts of a file, easy ones after few layers",
    "serve": "answer over HTTP, in the shapes that existing clients speak, and watch the guarantee",
    "export": "write a model for ONNX Runtime or OpenVINO, in int8 where that keeps its answers",
    "tune": "choose the exits that make an export quickest within a risk",
    "benchmark": "measure a model against what people use instead",
    "info": "say what a model folder holds",
    "convert": "make a model folder from an original system's checkpoint",
}

DESCRIPTION = """\
BERT-like encoders that leave early: easy inputs stop after a few layers, hard ones go on.

A model is an ordinary Hugging Face folder (or a name on the Hub). Results go to standard output,
progress and notes to standard error.
"""
EXAMPLES = """\
examples:
  offramp train bert-base-uncased --task sst-2 --data-dir GLUE --output MODEL
  offramp predict MODEL texts.txt --policy entropy:0.2
  offramp predict MODEL pairs.tsv --text-column question --pair-column sentence --output answers.jsonl
  offramp info MODEL
  offramp convert deebert-checkpoint --output MODEL

`offramp COMMAND --help` tells more.
"""


# what the system says of a name or a place, and no code of ours can help
MACHINE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
WITHOUT_VALUE = re.compile(r"(-\w|--[\w-]+=)--")  # of which argparse makes an empty list


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """End with code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class Notes(logging.Handler):
    """What happened, on standard output; warnings, a line each, on standard error."""

    flags: ClassVar[dict[str, str]] = {}  # the options of the command that runs
    is_server: ClassVar[bool] = False  # whose log is not its result

    def emit(self, record: logging.LogRecord) -> None:
        """Print it; work does not end because nobody can read a warning."""
        message = as_options(record.getMessage(), self.flags)
        if record.levelno < logging.WARNING and not self.is_server:
            streams.say(message)
            return
        with suppress(OSError):
            print(f"offramp: {message}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = Parser(
        prog="offramp",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"offramp {offramp.__version__}")
    parsers = {}
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"offramp.cli.{name}")
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, given=given)
        parsers[name] = command
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:
        return _fail(str(UnknownName("command", given[0], COMMANDS)))
    if bare := next(filter(WITHOUT_VALUE.fullmatch, itertools.takewhile("--".__ne__, given)), None):
        return _fail(f"{bare} gives no value; write one behind {bare.removesuffix('--')}")
    if odd := next((word for word in given if not _is_utf8(word)), None):
        return _fail(f"{os.fsencode(odd)!r} is not UTF-8; give files and folders names that are.")
    streams.open_closed_ones()
    try:
        args = parser.parse_args(current_names(given))
    except SystemExit as stop:  # after --help, --version, or a mistake
        return streams.printed(stop.code)
    if args.command is None:
        parser.print_help()
        return streams.printed(0)
    Notes.flags, Notes.is_server = flags_of(parsers[args.command]), args.command == "serve"
    return _run(args)


def _is_utf8(word: str) -> bool:
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _run(args: argparse.Namespace) -> int:
    try:
        with streams.stopping(), _listening():
            code: int = args.run(args)
    except OfframpError as err:
        # in a message about a file, a bare name in backticks is the file's
        return _fail(as_options(str(err), Notes.flags, names=isinstance(err, BadValue)))
    except (streams.Stopped, KeyboardInterrupt) as stop:
        return _fail("stopped.", getattr(stop, "code", 130))
    except (MemoryError, RuntimeError) as err:  # torch says it with a RuntimeError
        if "Symlink loop" in str(err):
            return _fail(f"{err}.")
        if not isinstance(err, MemoryError) and "allocate memory" not in str(err) and "out of memory" not in str(err):
            raise
        return _fail(f"There is not enough memory: {str(err).splitlines()[0] if str(err) else 'none is left'}")
    except BrokenPipeError:  # whoever read our output has seen enough
        return 0
    except OSError as err:
        if err.errno not in MACHINE or err.filename is None:
            raise
        return _fail(f"Cannot use {os.fsdecode(err.filename):.200}: {err.strerror}.")
    finally:
        streams.let_go()
    return code


@contextmanager
def _listening() -> Iterator[None]:
    """Our notes while a command runs; of the libraries' only their errors."""
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY", "DATASETS_VERBOSITY"):
        os.environ.setdefault(name, "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logger, notes = logging.getLogger("offramp"), Notes()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(notes)
    try:
        yield
    finally:
        logger.removeHandler(notes)
        logger.setLevel(before)


def _fail(message: str, code: int = 2) -> int:
    with suppress(OSError):
        print(f"offramp: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
