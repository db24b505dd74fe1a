"""`offramp.load`: a model folder, on the backend, the device and in the dtype that it shall answer with."""

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
    """Load a model folder (or a name on the Hub) to answer with.

    The device is an accelerator where there is one, else the CPU; the dtype is float32 unless another is asked for.
    The backends onnx and openvino run what `offramp.export` wrote, on the CPU, in the precision of the export.
    `options` go to Hugging Face's `from_pretrained` (revision, token, …).

    >>> runner = offramp.load("folder")                                        # doctest: +SKIP
    >>> for answer in runner.predict(["a lovely film", "a dull one"]):         # doctest: +SKIP
    ...     print(answer.label, answer.score, answer.exit_layer)
    """
    from offramp.model import guarantee

    runtime = RUNTIMES[backend]
    if threads is not None and not 1 <= threads <= 4096:
        raise BadValue(f"`threads` is {threads}; it is at least 1.")
    asked = LoadOptions(device, dtype, threads, max_length, options)
    if runtime.loader is not None:
        made: Runner = runtime.loader(str(folder), asked)
        guarantee.drop_if_stale(made.config, str(folder), made.fingerprint, made.backend, made.dtype)
        return made
    if not runtime.runs_graphs:
        return _load_weights(folder, asked)
    if dtype is not None or device not in (None, "cpu"):
        raise BadValue(
            f"The backend {backend} runs on the CPU, in the precision of the export; leave `device=` and `dtype=` out."
        )
    from offramp.exports.folder import load_export

    return load_export(str(folder), backend, threads, max_length, options)


def _load_weights(folder: str | os.PathLike[str], asked: LoadOptions) -> Runner:
    import torch

    from offramp.model import guarantee
    from offramp.model.adaptive import AdaptiveModel

    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    place, kind = _device(asked.device), asked.dtype or "float32"
    if kind not in DTYPES:
        raise UnknownName("dtype", kind, DTYPES)
    if place.type == "cpu" and kind != "float32" and not half_precision()[kind]:
        logger.warning("This CPU has no instructions for %s: expect it to be slower than float32.", kind)
    model = AdaptiveModel.from_pretrained(folder, dtype=getattr(torch, kind), **asked.hub)
    try:
        model = model.to(place)
    except (RuntimeError, AssertionError) as err:  # torch's ways to say that there is none, or no room on it
        raise BadValue(f"Cannot put the model on device {asked.device!r}: {str(err).splitlines()[0]}") from err
    runner: Runner = model.eval().runner(asked.max_length)
    if asked.max_length is not None and runner.config.calibrated:  # the model's own length was checked on the way
        guarantee.drop_if_stale(runner.config, str(folder), runner.fingerprint, runner.backend, runner.dtype)
    return runner


def _device(name: str | None) -> Any:
    import torch

    if name is None:
        return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as err:
        raise BadValue(f"`device` is {name!r}; say cpu, cuda, cuda:1, mps or xpu.") from err
    if device.type != "cpu" and not torch.accelerator.is_available():
        raise BadValue(f"`device` is {name!r}, but torch finds no accelerator here; leave it out, or say cpu.")
    return device
