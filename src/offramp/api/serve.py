"""`offramp.serve`: a model over HTTP, for the clients that exist."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from offramp.api.options import check_counts
from offramp.errors import BadValue

__all__ = ["serve"]

logger = logging.getLogger("offramp")


def serve(
    model: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str | None = None,
    policy: str | None = None,
    audit: float = 0.0,
    on_alarm: str = "warn",
    max_rows: int = 512,
    max_bytes: int = 2_000_000,
    max_queue: int = 512,
    batch_tokens: int | None = None,
    allow_override: bool = False,
    api_key: str | None = None,
    api_key_file: str | os.PathLike[str] | None = None,
    guard_all: bool = False,
    backend: str = "torch",
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
    announce: Callable[[str], None] | None = None,
) -> tuple[int, int]:
    """Serve a model until a signal comes; returns how many requests were accepted and how many answered.

    Args:
        model: a model folder, or a name on the Hub.
        host: where to listen.
        port: on which port; 0: any that is free.
        name: what the model is called (its folder's name).
        audit: share of answers that are looked at again at full depth, to watch the guarantee.
        on_alarm: "warn", or "never": from then on no row exits early.
        policy: instead of the model's own.
        max_rows: texts of a request.
        max_bytes: of a request's body.
        max_queue: texts that may wait.
        batch_tokens: padded tokens at once; None: as suits the machine.
        allow_override: let requests name a policy.
        api_key: clients send it as a bearer token.
        api_key_file: the same, from a file.
        guard_all: /health, /ready and /metrics ask for the key, too.
        backend: what runs it: torch, or what it was exported for.
        device: cpu, cuda, mps …; None: an accelerator if available.
        dtype: float32, bfloat16 or float16.
        threads: CPU threads.
        max_length: maximum tokens of a text; the rest is cut.
        announce: is told where it listens.

    >>> offramp.serve("my-model", backend="onnx", audit=0.01)                         # doctest: +SKIP
    """
    from offramp.extras import require

    require("serve", "Serving")
    import uvicorn

    from offramp.core.machine import usable_threads
    from offramp.runtimes.loading import load
    from offramp.serving.app import ServerOptions, make_app
    from offramp.serving.engine import Engine
    from offramp.serving.metrics import Metrics

    for limit, value in (("max_rows", max_rows), ("max_bytes", max_bytes), ("max_queue", max_queue)):
        if value < 1:
            raise BadValue(f"`{limit}` is {value}; it is at least 1.")
    if batch_tokens is not None and batch_tokens < 1:
        raise BadValue(f"`batch_tokens` is {batch_tokens}; it is at least 1.")
    if not 0 <= audit <= 1:
        raise BadValue(f"`audit` is {audit:g}; it is a share, from 0 to 1.")
    if not 0 <= port <= 65535:
        raise BadValue(f"`port` is {port}; it is from 0 (any that is free) to 65535.")
    key = _key(api_key, None if api_key_file is None else Path(api_key_file))
    check_counts(threads=threads)
    listening = _listening(host, port)
    threads = threads or usable_threads()
    with listening, _responsive():
        runner = load(model, backend, device=device, dtype=dtype, threads=threads, max_length=max_length)
        metrics = Metrics()
        engine = Engine(
            runner,
            batch_tokens=batch_tokens,
            queue_rows=max_queue,
            audit=audit,
            on_alarm=on_alarm,
            watch=metrics.watch,
            policy=policy,
        )
        if audit and engine.audit is not None and engine.audit.risk >= 0.5:
            raise BadValue(f"A guarantee of {engine.audit.risk:g} is too weak to be watched; leave `audit=` out.")
        if audit and engine.audit is None:
            raise BadValue(f"{model} has no guarantee about its answers to watch; calibrate it, or leave `audit=` out.")
        called = name or Path(model).resolve().name
        options = ServerOptions(called, max_rows, max_bytes, key, guard_all, allow_override)
        config = uvicorn.Config(make_app(engine, options, metrics), log_level="warning", access_log=False)
        where = f"http://{host}:{listening.getsockname()[1]}"
        if announce is not None:
            announce(f"{called} on {where}, {runner.backend} {runner.dtype}, {threads} threads. Ctrl-C ends it.")
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            logger.warning("drained: %d requests were accepted, %d answered.", engine.accepted, engine.answered)
        return engine.accepted, engine.answered


@contextmanager
def _responsive() -> Iterator[None]:
    """Neither the model's thread nor the collector of garbage may keep the loop from its clients for long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()  # the libraries' half a million objects: looking at each takes a quarter of a second
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()


def _key(given: str | None, file: Path | None) -> str | None:
    if given is not None and file is not None:
        raise BadValue("`api_key=` and `api_key_file=` are the same; give one of them.")
    if file is not None:
        try:
            key = file.read_text("utf-8").strip()
        except OSError as err:
            raise BadValue(f"Cannot read {file}: {err.strerror}.") from err
        except UnicodeDecodeError as err:
            raise BadValue(f"{file} is not text in UTF-8.") from err
        if not key:
            raise BadValue(f"{file} is empty.")
        return key
    if given is not None and not given.strip():
        raise BadValue("`api_key` is empty.")
    return given


def _listening(host: str, port: int) -> socket.socket:
    """Before the model is loaded: a port in use is said at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sends at once on these alone
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(2048)
    except (OSError, UnicodeError) as err:
        made.close()
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise BadValue(f"Cannot listen on {host}:{port}: {reason}. Take another `port=` or `host=`.") from err
    return made
