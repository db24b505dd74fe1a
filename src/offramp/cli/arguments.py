"""Options shared by several commands, parsers of option values, and the call of a command's API function."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from offramp.api.options import arguments_of
from offramp.policies import TABLE
from offramp.runtimes import RUNTIMES
from offramp.runtimes.loading import DTYPES

__all__ = [
    "Options",
    "add_backend",
    "add_inference",
    "add_model",
    "add_output",
    "add_policy",
    "add_threads",
    "call",
    "floats",
    "integers",
    "layers",
    "threshold",
    "words",
]

Options = argparse.ArgumentParser | argparse._ArgumentGroup


def call(function: Callable[..., Any], args: argparse.Namespace, **more: Any) -> Any:
    """Call an API function with the parsed options; options that a command lacks keep the function's defaults."""
    options = {name: getattr(args, name) for name in arguments_of(function) if hasattr(args, name)}
    return function(**options | more)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the positional argument MODEL."""
    parser.add_argument("model", metavar="MODEL", help="offramp model: a folder or a name on the Hugging Face Hub")


def add_inference(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the group of options for running a model: backend, device, precision, threads, maximum length."""
    group = parser.add_argument_group("inference")
    add_backend(group, list(RUNTIMES), None)
    group.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, mps … (default: an accelerator if available)")
    group.add_argument("--dtype", choices=DTYPES, help="floating-point precision (default: float32)")
    add_threads(group, "the number that the model was adapted for, else torch.get_num_threads()")
    length = "maximum tokens per text, or per window of a long context; longer texts are truncated"
    group.add_argument("--max-length", type=int, metavar="N", help=f"{length} (default: the model's)")
    return group


def add_backend(parser: Options, names: Sequence[str], default: str | None) -> None:
    """Add `--backend`; its default is None if it depends on the model."""
    text = default or "the one that the model was adapted for, else torch"
    parser.add_argument("--backend", choices=names, default=default, help=f"runtime for inference (default: {text})")


def add_threads(parser: Options, default: str = "torch.get_num_threads(), for all backends") -> None:
    """Add `--threads`."""
    parser.add_argument("--threads", type=int, metavar="N", help=f"number of CPU threads (default: {default})")


def add_policy(parser: Options, default: str) -> None:
    """Add `--policy`."""
    examples = ", ".join(example for example, _, _ in TABLE.values())
    parser.add_argument(
        "--policy", metavar="P", help=f"exit policy with its threshold, such as {examples} (default: {default})"
    )


def add_output(parser: Options, *, required: bool, help: str) -> None:
    """Add `--output` and `--overwrite`."""
    parser.add_argument("--output", "-o", metavar="OUT", required=required, help=help)
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")


def threshold(text: str) -> float | tuple[float, ...]:
    """Parse one number, or one per exit separated by commas."""
    return floats(text) if "," in text else float(text)


def floats(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas."""
    return tuple(float(number) for number in text.split(","))


def integers(text: str) -> tuple[int, ...]:
    """Parse integers separated by commas."""
    return tuple(int(number) for number in text.split(","))


def words(text: str) -> tuple[str, ...]:
    """Parse words separated by commas."""
    return tuple(text.split(","))


def layers(text: str) -> str | list[int]:
    """Parse layer numbers separated by commas, or one of the words `all` and `auto`."""
    return text if text in ("all", "auto") else [int(layer) for layer in text.split(",")]
