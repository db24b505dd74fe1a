"""`offramp.load`: load a model folder with a backend, on a device, in a dtype."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from offramp.core.machine import check_threads, half_precision, usable_threads
from offramp.errors import BadModel, BadValue, UnknownName
from offramp.extras import MissingExtra
from offramp.files.storage import check_local_model
from offramp.runtimes import RUNTIMES, LoadOptions

if TYPE_CHECKING:
    from offramp.core.runner import Runner

__all__ = ["DTYPES", "adapted_for", "load", "resolve_device"]

logger = logging.getLogger("offramp")

DTYPES = ("float32", "bfloat16", "float16")


def load(
    folder: str | os.PathLike[str],
    backend: str | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
    **options: Any,
) -> Runner:
    """Load a model folder, or a model from the Hub, for inference.

    Args:
        folder: A model folder, or a model's name on the Hub.
        backend: torch, onnx or openvino (default: the backend that the model was adapted for, else torch). onnx and
            openvino run the graphs that `offramp.export` wrote, on the CPU.
        device: cpu, cuda, cuda:1, mps or xpu (default: an accelerator if there is one, else the CPU).
        dtype: float32, bfloat16 or float16 (default: float32; exported graphs: the dtype of the export).
        threads: Number of CPU threads (default: the number that the model was adapted for, else torch's choice).
        max_length: Maximum number of tokens of a text; longer texts are truncated (default: the model's).
        options: Passed to `from_pretrained` of transformers, such as `revision` and `token`.

    Returns:
        A `Runner`: `predict(texts)` yields one `Answer` per text, `answer(texts)` returns arrays.

    Examples:
        >>> runner = offramp.load("folder")                                    # doctest: +SKIP
        >>> for answer in runner.predict(["a lovely film", "a dull one"]):     # doctest: +SKIP
        ...     print(answer.label, answer.score, answer.exit_layer)
    """
    check_threads(threads)
    check_local_model(folder)
    load_options = LoadOptions(device, dtype, threads, max_length, options)
    return _load_default(folder, load_options) if backend is None else _load(folder, backend, load_options)


def _load_default(folder: str | os.PathLike[str], options: LoadOptions) -> Runner:
    """Load a model with the backend that it was adapted for; if that is not possible, say why and use torch."""
    adapted = adapted_for(folder, options.hub)
    threads = options.threads
    if threads is None and adapted.threads is not None:
        threads = min(adapted.threads, usable_threads())
    options = replace(options, threads=threads)
    if adapted.backend == "torch":
        return _load(folder, "torch", options)
    if options.dtype is not None or options.device not in (None, "cpu"):
        reason = "`dtype=` and `device=` are options of torch"
    else:
        try:
            return _load(folder, adapted.backend, options)
        except (BadModel, MissingExtra, UnknownName) as err:
            reason = str(err).rstrip(".")
    logger.warning("%s was adapted for %s, but runs in torch here: %s.", folder, adapted.backend, reason)
    return _load(folder, "torch", options)


@dataclass(frozen=True)
class AdaptedFor:
    """What a model was adapted for."""

    backend: str = "torch"
    threads: int | None = None


def adapted_for(folder: str | os.PathLike[str], hub_options: Mapping[str, Any] | None = None) -> AdaptedFor:
    """Return what a model was adapted for; torch for other models, and for folders that cannot be read."""
    from offramp.model.config import AdaptiveConfig

    try:
        saved = AdaptiveConfig.get_config_dict(str(folder), **hub_options or {})[0].get("adapted_for")
        if not saved:
            return AdaptedFor()
        threads = saved.get("threads")
        is_count = isinstance(threads, int) and not isinstance(threads, bool) and threads > 0
        return AdaptedFor(str(saved["backend"]), threads if is_count else None)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # loading the model reports what is wrong
        return AdaptedFor()


def _load(folder: str | os.PathLike[str], backend: str, load_options: LoadOptions) -> Runner:
    from offramp.model import guarantee

    runtime, device, dtype = RUNTIMES[backend], load_options.device, load_options.dtype
    if runtime.loader is not None:
        runner: Runner = runtime.loader(str(folder), load_options)
        guarantee.drop_if_stale(runner.config, str(folder), runner.fingerprint, runner.backend, runner.dtype)
        return runner
    if not runtime.runs_graphs:
        return _load_weights(folder, load_options)
    resolve_device(device, backend)
    if dtype is not None:
        raise BadValue(f"Backend {backend!r} runs in the precision of the export. Remove `dtype=`.")
    from offramp.exports.folder import load_export

    return load_export(str(folder), backend, load_options.threads, load_options.max_length, load_options.hub)


def _load_weights(folder: str | os.PathLike[str], options: LoadOptions) -> Runner:
    import torch

    from offramp.model import guarantee
    from offramp.model.adaptive import AdaptiveModel

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device, dtype = resolve_device(options.device), options.dtype or "float32"
    if dtype not in DTYPES:
        raise UnknownName("dtype", dtype, DTYPES)
    if device.type == "cpu" and dtype != "float32" and not half_precision()[dtype]:
        logger.warning("This CPU has no native %s instructions, so %s is slower than float32.", dtype, dtype)
    model = AdaptiveModel.from_pretrained(folder, dtype=getattr(torch, dtype), **options.hub)
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as err:  # no such device, or out of memory
        raise BadValue(f"Cannot move the model to device {options.device!r}: {str(err).splitlines()[0]}") from err
    runner: Runner = model.eval().runner(options.max_length)
    if options.max_length is not None and runner.config.calibrated:  # `from_pretrained` checks the default length
        guarantee.drop_if_stale(runner.config, str(folder), runner.fingerprint, runner.backend, runner.dtype)
    return runner


def resolve_device(name: str | None, backend: str = "torch") -> Any:
    """Return the torch device; None is an accelerator if there is one. Exported graphs run on the CPU."""
    import torch

    if RUNTIMES[backend].runs_graphs:
        if name not in (None, "cpu"):
            raise BadValue(f"Backend {backend!r} runs on the CPU. Remove `device=`.")
        return torch.device("cpu")
    if name is None:
        return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as err:
        raise BadValue(f"Unknown device {name!r}. Set `device=` to cpu, cuda, cuda:1, mps or xpu.") from err
    if device.type != "cpu" and not torch.accelerator.is_available():
        raise BadValue(
            f"Device {name!r} is not available: torch finds no accelerator. Remove `device=` or set it to cpu."
        )
    return device
