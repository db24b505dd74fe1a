"""The `offramp` program: parse the command line, run the command, turn errors into one line and an exit code.

Exit codes: 0 success; 1 no setting satisfies the guarantee, or an audit has an alarm; 2 wrong usage, unreadable input,
full disk, missing extra; 128 plus the signal's number if a signal stopped the command (130 for Ctrl-C). Any other
exception is a bug of offramp and shows its traceback.
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
import time
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
    "adapt": "make a fine-tuned model faster, with a guarantee on its predictions (no labels needed)",
    "train": "add exits to an encoder and train them with a published recipe",
    "evaluate": "measure the quality of every exit and the speed–quality trade-off of every exit policy",
    "compare": "compare several evaluations in one figure and in tables",
    "calibrate": "set the exit threshold of a trained model so that a guarantee holds (adapt includes this)",
    "predict": "run a model on a file of texts",
    "serve": "serve a model over HTTP and monitor its guarantee",
    "audit": "add up the audits of several servers and test their guarantee",
    "export": "export a model to ONNX Runtime or OpenVINO, in int8 if that preserves its predictions",
    "tune": "choose the fastest exits of an exported model for this machine (adapt includes this)",
    "benchmark": "measure a model's speed against baselines on this machine",
    "info": "show what a model folder contains and what this CPU supports",
    "convert": "convert a published system's checkpoint, such as DeeBERT or PABEE, to an offramp model",
}

DESCRIPTION = """\
Early exits for BERT-style encoders: easy inputs stop after a few layers, hard ones use all of them.

adapt takes a fine-tuned classifier, reranker or tagger, train takes a pre-trained encoder, convert takes a published
checkpoint, compare takes the folders of evaluations, audit takes the state files of servers. The other commands take an
offramp model: a folder or a name on the Hugging Face Hub.

Results go to standard output, warnings and progress to standard error.
"""
EXAMPLES = """\
examples:
  offramp adapt my-classifier texts.txt --risk 0.02 --output fast
  offramp predict fast texts.txt
  offramp serve fast
  offramp info fast

Run `offramp COMMAND --help` for the options of a command.
"""


# errors of the operating system about a path, which the user can fix
PATH_ERRORS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
WITHOUT_VALUE = re.compile(r"(-\w|--[\w-]+=)--")  # argparse would parse the value as an empty list


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """The list of commands with every summary on the line of its command."""

    def __init__(self, prog: str):
        super().__init__(prog)
        self._action_max_length = len("    calibrate")  # argparse forgets the indentation of commands


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class ConsoleHandler(logging.Handler):
    """Print log records: info to standard output, progress and warnings to standard error, one line each."""

    flags: ClassVar[dict[str, str]] = {}  # options of the running command, by argument name
    is_server: ClassVar[bool] = False  # a server logs to standard error only

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; a warning that cannot be printed does not stop the command."""
        from offramp.core.progress import last_output

        last_output.seconds = time.monotonic()
        is_info, is_progress = record.levelno < logging.WARNING, record.name == "offramp.progress"
        is_request = is_info and self.is_server  # a line of JSON
        message = record.getMessage() if is_request else as_options(record.getMessage(), self.flags)
        if is_info and not self.is_server and not is_progress:
            streams.echo(message)
            return
        with suppress(OSError):
            print(message if is_progress or is_request else f"offramp: {message}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = Parser(
        prog="offramp",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"offramp {offramp.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if words[:1] == [name]:  # the options of other commands are not needed
            module = importlib.import_module(f"offramp.cli.{name}")
            command.description, command.epilog = module.__doc__, module.EXAMPLES
            module.add_arguments(command)
            command.set_defaults(run=module.run, words=words, flags=flags_of(command))
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        return _fail(str(UnknownName("command", words[0], COMMANDS)))
    if option := next(filter(WITHOUT_VALUE.fullmatch, itertools.takewhile("--".__ne__, words)), None):
        return _fail(f"{option.removesuffix('--').removesuffix('=')} needs a value, got '--'.")
    if invalid := next((word for word in words if not _is_utf8(word)), None):
        return _fail(f"{os.fsencode(invalid)!r} is not UTF-8; use UTF-8 in options and file names.")
    streams.open_standard_streams()
    try:
        args = parser.parse_args(current_names(words))
    except SystemExit as stop:  # after --help, --version or an error
        return streams.flush_output(stop.code)
    if args.command is None:
        parser.print_help()
        return streams.flush_output(0)
    ConsoleHandler.flags, ConsoleHandler.is_server = args.flags, args.command == "serve"
    return _run(args)


def _is_utf8(word: str) -> bool:
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _run(args: argparse.Namespace) -> int:
    try:
        with streams.signals_raise(), _console_logging():
            code: int = args.run(args)
    except OfframpError as err:
        # in a message about a file, a bare name in backticks belongs to the file
        return _fail(as_options(str(err), ConsoleHandler.flags, names=isinstance(err, BadValue)))
    except (streams.Stopped, KeyboardInterrupt) as stop:
        return _fail("stopped.", getattr(stop, "code", 130))
    except (MemoryError, RuntimeError) as err:  # torch reports lack of memory as a RuntimeError
        if "Symlink loop" in str(err):
            return _fail(f"{err}.")
        if not isinstance(err, MemoryError) and "allocate memory" not in str(err) and "out of memory" not in str(err):
            raise
        return _fail(f"Out of memory: {str(err).splitlines()[0] if str(err) else 'an allocation failed'}")
    except BrokenPipeError:  # the reader of our output closed the pipe
        return 0
    except OSError as err:
        if err.errno not in PATH_ERRORS or err.filename is None:
            raise
        return _fail(f"Cannot use {os.fsdecode(err.filename):.200}: {err.strerror}.")
    finally:
        streams.discard_output()
    return code


@contextmanager
def _console_logging() -> Iterator[None]:
    """Print offramp's log records while a command runs; other libraries log errors only."""
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY", "DATASETS_VERBOSITY"):
        os.environ.setdefault(name, "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logger, handler = logging.getLogger("offramp"), ConsoleHandler()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _fail(message: str, code: int = 2) -> int:
    with suppress(OSError):
        print(f"offramp: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
