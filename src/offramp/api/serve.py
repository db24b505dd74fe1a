"""`offramp.serve`: serve a model over HTTP."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offramp.api.options import check_counts
from offramp.errors import BadValue

if TYPE_CHECKING:
    from offramp.serving.audit_state import AuditStateFile
    from offramp.serving.engine import Engine

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
    audit_share: float = 0.05,
    on_alarm: str = "warn",
    state: str | os.PathLike[str] | None = None,
    max_rows: int = 512,
    max_bytes: int = 2_000_000,
    max_queue: int = 512,
    batch_tokens: int | None = None,
    allow_override: bool = False,
    api_key: str | None = None,
    api_key_file: str | os.PathLike[str] | None = None,
    guard_all: bool = False,
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
    announce: Callable[[str], None] | None = None,
) -> tuple[int, int]:
    """Serve a model over HTTP until a signal stops it; the API is compatible with existing clients.

    Args:
        model: a model folder, or a name on the Hugging Face Hub.
        host: address to listen on.
        port: port; 0 for any free one.
        name: model name in the API; None for the folder's name.
        policy: exit policy, instead of the model's.
        audit: fraction of predictions to repeat with all layers, to monitor the guarantee.
        audit_share: maximum fraction of the model's time for audits while requests wait; 0 to audit only when idle.
        on_alarm: "warn" to log a warning, "never" to also stop exiting early.
        state: file that keeps the audit's counts and alarms over restarts; every server needs its own.
        max_rows: maximum texts per request.
        max_bytes: maximum bytes per request body.
        max_queue: maximum rows in the queue (texts, or windows of long contexts).
        batch_tokens: maximum padded tokens per batch; None to choose it for this machine.
        allow_override: allow requests to set the exit policy.
        api_key: key that clients must send as a bearer token.
        api_key_file: file with the API key.
        guard_all: require the key for /health, /ready and /metrics too.
        backend: runtime for inference: "torch", or one that the model was exported for; None for the one that it was
            adapted for, else "torch".
        device: "cpu", "cuda", "mps", …; None for an accelerator if available.
        dtype: "float32" (default), "bfloat16" or "float16".
        threads: number of CPU threads; None for the number that the model was adapted for, else all usable ones.
        max_length: maximum tokens per text; longer texts are truncated.
        announce: function called with a line that contains the URL, once the server listens.

    Returns:
        The number of accepted and of answered requests.

    Examples:
        >>> offramp.serve("my-model", backend="onnx", audit=0.01)
    """
    from offramp.extras import require

    require("serve", "Serving")
    import uvicorn

    from offramp.core.machine import usable_threads
    from offramp.runtimes.loading import adapted_for, load
    from offramp.runtimes.torch import TorchStepper
    from offramp.serving.app import ServerOptions, make_app
    from offramp.serving.audit_state import AuditStateFile
    from offramp.serving.auditor import AuditOptions
    from offramp.serving.engine import Engine
    from offramp.serving.metrics import Metrics

    for limit, value in (("max_rows", max_rows), ("max_bytes", max_bytes), ("max_queue", max_queue)):
        if value < 1:
            raise BadValue(f"`{limit}` must be at least 1, got {value}.")
    if batch_tokens is not None and batch_tokens < 1:
        raise BadValue(f"`batch_tokens` must be at least 1, got {batch_tokens}.")
    if not 0 <= audit <= 1:
        raise BadValue(f"`audit` must be between 0 and 1, got {audit:g}.")
    if not 0 <= audit_share < 1:
        raise BadValue(f"`audit_share` must be at least 0 and below 1, got {audit_share:g}.")
    if not 0 <= port <= 65535:
        raise BadValue(f"`port` must be between 0 (any free port) and 65535, got {port}.")
    key = _key(api_key, None if api_key_file is None else Path(api_key_file))
    check_counts(threads=threads)
    server_socket = _listen(host, port)
    adapted = adapted_for(model)
    if threads is None and backend in (None, adapted.backend) and adapted.threads is not None:
        threads = min(adapted.threads, usable_threads())
    threads = threads or usable_threads()
    with server_socket, _responsive(), AuditStateFile.opened(None if state is None else Path(state)) as state_file:
        runner = load(model, backend, device=device, dtype=dtype, threads=threads, max_length=max_length)
        if isinstance(runner.stepper, TorchStepper):
            runner.stepper.copy_weights()  # other backends do not map files
        metrics = Metrics()
        engine = Engine(
            runner,
            batch_tokens=batch_tokens,
            queue_rows=max_queue,
            audit=AuditOptions(audit, audit_share, on_alarm),
            watch=metrics.watch,
            policy=policy,
        )
        if audit or state_file is not None:
            _start_audit(engine, state_file, str(model), "`audit=`" if audit else "`state=`")
        model_name = name or Path(model).resolve().name
        options = ServerOptions(model_name, max_rows, max_bytes, key, guard_all, allow_override)
        config = uvicorn.Config(make_app(engine, options, metrics), log_level="warning", access_log=False)
        url = f"http://{host}:{server_socket.getsockname()[1]}"
        if announce is not None:
            machine = f"{runner.backend}, {runner.dtype}, {threads} thread{'s' if threads > 1 else ''}"
            announce(f"Serving {model_name} on {url} ({machine}). Press Ctrl-C to stop.")
        try:
            uvicorn.Server(config).run(sockets=[server_socket])
        finally:
            logger.warning(
                "Shut down. Requests: %d accepted, %d answered, %d disconnected, %d failed.",
                *(engine.accepted, engine.answered, engine.disconnected, engine.failed),
            )
        return engine.accepted, engine.answered


def _start_audit(engine: Engine, state_file: AuditStateFile | None, model: str, option: str) -> None:
    """Check that there is a guarantee to monitor, and continue the audit of the state file."""
    from offramp.serving.audit_limits import MAX_RISK
    from offramp.serving.audit_state import AuditState

    auditor = engine.auditor
    if auditor is None:
        raise BadValue(f"{model} has no guarantee on its predictions to monitor; calibrate it, or remove {option}.")
    if auditor.audit.risk >= MAX_RISK:
        raise BadValue(f"A guarantee with risk {auditor.audit.risk:g} is too weak to monitor; remove {option}.")
    if state_file is None:
        return
    audited_model = auditor.model
    if (counts := state_file.counts_for(audited_model)) is not None:
        auditor.resume(counts)
    if auditor.audit.alarm:
        effect = "; all texts run through the full model" if auditor.exits_disabled else ""
        logger.warning("%s contains an alarm%s. %s", state_file.file, effect, auditor.audit.describe_alarm())
    auditor.on_change = state_file.changed
    state_file.start(lambda: AuditState(audited_model, auditor.counts))


@contextmanager
def _responsive() -> Iterator[None]:
    """Keep the model's thread and the garbage collector from blocking the event loop for long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()  # scanning the libraries' half a million objects takes a quarter of a second
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()


def _key(api_key: str | None, file: Path | None) -> str | None:
    if api_key is not None and file is not None:
        raise BadValue("Set only one of `api_key=` and `api_key_file=`.")
    if file is not None:
        try:
            key = file.read_text("utf-8").strip()
        except OSError as err:
            raise BadValue(f"Cannot read {file}: {err.strerror}.") from err
        except UnicodeDecodeError as err:
            raise BadValue(f"{file} is not UTF-8 text.") from err
        if not key:
            raise BadValue(f"{file} is empty.")
        return key
    if api_key is not None and not api_key.strip():
        raise BadValue("`api_key` is empty.")
    return api_key


def _listen(host: str, port: int) -> socket.socket:
    """Open the server's socket before the model is loaded, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server_socket = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # asyncio sets TCP_NODELAY on these only
    server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server_socket.bind((host, port))
        server_socket.listen(2048)
    except (OSError, UnicodeError) as err:
        server_socket.close()
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise BadValue(f"Cannot listen on {host}:{port}: {reason}. Use another `port=` or `host=`.") from err
    return server_socket
