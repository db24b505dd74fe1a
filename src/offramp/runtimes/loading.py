"""`offramp.load`: load a model folder with a backend, on a device, in a dtype."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from offramp.core.machine import half_precision
from offramp.errors import BadValue, UnknownName
from offramp.runtimes import RUNTIMES, LoadOptions

if TYPE_CHECKING:
    from offramp.core.runner import Runner

__all__ = ["DTYPES", "load"]

logger = logging.getLogger("offramp")

DTYPES = ("float32", "bfloat16", "float16")


def load(
    folder: str | os.PathLike[str],
    backend: str = "torch",
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
        backend: torch, onnx or openvino. onnx and openvino run the graphs that `offramp.export` wrote, on the CPU.
        device: cpu, cuda, cuda:1, mps or xpu (default: an accelerator if there is one, else the CPU).
        dtype: float32, bfloat16 or float16 (default: float32; exported graphs: the dtype of the export).
        threads: Number of CPU threads.
        max_length: Maximum number of tokens of a text; longer texts are truncated (default: the model's).
        options: Passed to `from_pretrained` of transformers, such as `revision` and `token`.

    Returns:
        A `Runner`: `predict(texts)` yields one `Answer` per text, `answer(texts)` returns arrays.

    Examples:
        >>> runner = offramp.load("folder")                                    # doctest: +SKIP
        >>> for answer in runner.predict(["a lovely film", "a dull one"]):     # doctest: +SKIP
        ...     print(answer.label, answer.score, answer.exit_layer)
    """
    from offramp.model import guarantee

    runtime = RUNTIMES[backend]
    if threads is not None and not 1 <= threads <= 4096:
        raise BadValue(f"`threads` must be between 1 and 4096, got {threads}.")
    load_options = LoadOptions(device, dtype, threads, max_length, options)
    if runtime.loader is not None:
        runner: Runner = runtime.loader(str(folder), load_options)
        guarantee.drop_if_stale(runner.config, str(folder), runner.fingerprint, runner.backend, runner.dtype)
        return runner
    if not runtime.runs_graphs:
        return _load_weights(folder, load_options)
    if dtype is not None or device not in (None, "cpu"):
        raise BadValue(
            f"Backend {backend!r} runs on the CPU, in the precision of the export. Remove `device=` and `dtype=`."
        )
    from offramp.exports.folder import load_export

    return load_export(str(folder), backend, threads, max_length, options)


def _load_weights(folder: str | os.PathLike[str], options: LoadOptions) -> Runner:
    import torch

    from offramp.model import guarantee
    from offramp.model.adaptive import AdaptiveModel

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device, dtype = _device(options.device), options.dtype or "float32"
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


def _device(name: str | None) -> Any:
    import torch

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
