"""Options that several commands share, with one name and one meaning."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from offramp.errors import BadValue
from offramp.runtimes.loading import BACKENDS, DTYPES

if TYPE_CHECKING:
    from offramp.core.runner import Runner

__all__ = ["add_machine", "add_model", "add_output", "add_policy", "check_threads", "layers", "load", "numbers"]

Options = argparse.ArgumentParser | argparse._ArgumentGroup


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model that a command reads."""
    parser.add_argument("model", metavar="MODEL", help="a model folder, or a name on the Hub")


def add_machine(parser: argparse.ArgumentParser) -> None:
    """What a model runs on, and how much of a text it reads."""
    group = parser.add_argument_group("machine")
    group.add_argument("--backend", choices=BACKENDS, default="torch", help="what runs it: an export, or torch itself")
    group.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, mps … (an accelerator where there is one)")
    group.add_argument("--dtype", choices=DTYPES, help="what it computes in (float32)")
    group.add_argument("--threads", type=int, metavar="N", help="threads of the CPU (as torch finds best)")
    length = "tokens of a text, the rest is cut; or of a window (the model's own)"
    group.add_argument("--max-length", type=int, metavar="N", help=length)


def load(args: argparse.Namespace, model: str | None = None) -> Runner:
    """The model of a command, on the machine that its options name."""
    from offramp.runtimes.loading import load

    machine = {name: getattr(args, name) for name in ("backend", "device", "dtype", "threads", "max_length")}
    return load(model or args.model, **machine)


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that cannot be."""
    if threads is not None and not 1 <= threads <= 4096:
        raise BadValue(f"threads is {threads}; it is at least 1.")


def add_policy(parser: Options, default: str) -> None:
    """Who may leave."""
    parser.add_argument(
        "--policy",
        metavar="P",
        help="who may leave: entropy:0.2, confidence:0.9, margin:0.8, patience:6, patience:3:0.1 (regression), "
        f"patience-confidence:2:0.3, vote:3, learned:0.1, risk:0.02 (once fitted), layer:6, never ({default})",
    )


def add_output(parser: Options, *, required: bool, what: str) -> None:
    """Where a result goes."""
    parser.add_argument("--output", "-o", metavar="OUT", type=Path, required=required, help=what)
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")


def numbers(written: str) -> float | tuple[float, ...]:
    """One number, or several separated by commas."""
    if "," in written:
        return tuple(float(one) for one in written.split(","))
    return float(written)


def layers(written: str) -> list[int]:
    """Layers between commas."""
    return [int(one) for one in written.split(",")]
