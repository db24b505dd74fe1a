"""`offramp.load`: a model folder, on the backend, the device and in the dtype that it shall answer with."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.errors import BadValue, UnknownName

if TYPE_CHECKING:
    from offramp.core.runner import Runner

__all__ = ["BACKENDS", "DTYPES", "half_precision", "load"]

logger = logging.getLogger("offramp")

BACKENDS = ("torch", "onnx", "openvino")
DTYPES = ("float32", "bfloat16", "float16")
# the processor's flags that mean arithmetic in that type; without it every product is converted and takes longer
FLAGS = {"bfloat16": {"avx512_bf16", "amx_bf16", "bf16"}, "float16": {"avx512_fp16", "amx_fp16", "asimdhp", "fphp"}}


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
    The backends onnx and openvino run what `offramp export` wrote, on the CPU, in the precision of the export.
    `options` go to Hugging Face's `from_pretrained` (revision, token, …).

    >>> runner = offramp.load("folder")                                        # doctest: +SKIP
    >>> runner.answer(["a lovely film", "a dull one"]).layer                   # doctest: +SKIP
    """
    import torch

    from offramp.model import guarantee
    from offramp.model.adaptive import AdaptiveModel

    if backend not in BACKENDS:
        raise UnknownName("backend", backend, BACKENDS)
    if threads is not None and not 1 <= threads <= 4096:
        raise BadValue(f"threads is {threads}; it is at least 1.")
    if backend != "torch":
        if dtype is not None or device not in (None, "cpu"):
            raise BadValue(f"The backend {backend} runs on the CPU, in the precision of the export; leave both out.")
        from offramp.export.folder import load_export

        return load_export(str(folder), backend, threads, max_length, options)
    if threads is not None:
        torch.set_num_threads(threads)
    place = _device(device)
    kind = dtype or "float32"
    if kind not in DTYPES:
        raise UnknownName("dtype", kind, DTYPES)
    if place.type == "cpu" and kind in FLAGS and not half_precision()[kind]:
        logger.warning("This CPU has no instructions for %s: expect it to be slower than float32.", kind)
    model = AdaptiveModel.from_pretrained(folder, dtype=getattr(torch, kind), **options)
    try:
        model = model.to(place)
    except (RuntimeError, AssertionError) as err:  # torch's ways to say that there is none, or no room on it
        raise BadValue(f"Cannot put the model on device {device!r}: {str(err).splitlines()[0]}") from err
    runner: Runner = model.eval().runner(max_length)
    if max_length is not None and runner.config.calibrated:  # the model's own length was checked on the way
        guarantee.keep_if_true(runner.config, str(folder), runner.fingerprint, runner.backend, runner.dtype)
    return runner


def _device(name: str | None) -> Any:
    import torch

    if name is None:
        return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as err:
        raise BadValue(f"device is {name!r}; say cpu, cuda, cuda:1, mps or xpu.") from err
    if device.type != "cpu" and not torch.accelerator.is_available():
        raise BadValue(f"device is {name!r}, but torch finds no accelerator here; leave it out, or say cpu.")
    return device


def half_precision() -> dict[str, bool]:
    """Whether this CPU has instructions for each short type, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    flags = next(
        (set(line.split(":", 1)[1].split()) for line in lines if line.startswith(("flags", "Features"))), set()
    )
    return {dtype: bool(needed & flags) for dtype, needed in FLAGS.items()}
