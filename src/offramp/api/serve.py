"""`offramp.serve`: serve a model over HTTP."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offramp.api.options import check_counts
from offramp.errors import BadValue

if TYPE_CHECKING:
    from offramp.serving.audit_state import AuditStateFile
    from offramp.serving.served import ServedModel
    from offramp.serving.tracing import RequestTracer

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
    max_connections: int = 1024,
    grace_seconds: int = 30,
    batch_tokens: int | None = None,
    allow_override: bool = False,
    api_key: str | None = None,
    api_key_file: str | os.PathLike[str] | None = None,
    guard_all: bool = False,
    allowed_hosts: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    log_requests: bool = False,
    otel: bool = False,
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
        max_connections: maximum open connections; at most what the limit of open files allows.
        grace_seconds: time to answer pending requests when the server is stopped.
        batch_tokens: maximum padded tokens per batch; None to choose it for this machine.
        allow_override: allow requests to set the exit policy.
        api_key: key that clients must send as a bearer token; None for the keys in the environment variable
            OFFRAMP_API_KEY, if it is set (several are separated by commas).
        api_key_file: file with API keys, one per line; it is read again when it changes.
        guard_all: require the key for /health, /ready and /metrics too.
        allowed_hosts: host names that URLs of this server may have. By default any, or if `host` is a loopback
            address, only local ones, so that web pages cannot reach the server under a name of their own.
        cors_origins: origins such as "https://example.org" whose web pages may send requests; "*" for all.
        tls_cert: file with the TLS certificate (chain), to serve HTTPS.
        tls_key: file with its private key, if it is not in the same file.
        log_requests: log a JSON line per request: time, ids, route, status, latency, exit layers; never texts.
        otel: export a span per request with OpenTelemetry; the environment variables OTEL_… configure it.
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
    if otel:
        require("otel", "`otel=True`")
    from offramp.core.machine import usable_threads
    from offramp.runtimes.loading import adapted_for, load
    from offramp.runtimes.torch import TorchStepper
    from offramp.serving.api_keys import find_keys
    from offramp.serving.app import ServerOptions, make_app
    from offramp.serving.audit_state import AuditStateFile
    from offramp.serving.auditor import AuditOptions
    from offramp.serving.body import BodyLimits
    from offramp.serving.connections import ConnectionLimits
    from offramp.serving.engine import Engine
    from offramp.serving.metrics import Metrics
    from offramp.serving.served import ServedModel
    from offramp.serving.server import LOOPBACK, HttpOptions, listen, run_server

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
    model_name = name or Path(model).resolve().name
    hosts = frozenset(map(str.lower, allowed_hosts)) | (LOOPBACK if host in LOOPBACK else frozenset())
    options = ServerOptions(
        model_name,
        BodyLimits.of(max_rows, max_bytes),
        find_keys(api_key, None if api_key_file is None else Path(api_key_file)),
        guard_all,
        allow_override,
        hosts or None,
        tuple(cors_origins),
        log_requests,
        _make_tracer() if otel else None,
    )
    http = HttpOptions(
        ConnectionLimits(max_connections, body_seconds=options.limits.seconds),
        grace_seconds,
        None if tls_cert is None else Path(tls_cert),
        None if tls_key is None else Path(tls_key),
    )
    check_counts(threads=threads)
    server_socket = listen(host, port)
    adapted = adapted_for(model)
    if threads is None and backend in (None, adapted.backend) and adapted.threads is not None:
        threads = min(adapted.threads, usable_threads())
    threads = threads or usable_threads()
    metrics = Metrics()

    def make_engine() -> Engine:
        runner = load(model, backend, device=device, dtype=dtype, threads=threads, max_length=max_length)
        if isinstance(runner.stepper, TorchStepper):
            runner.stepper.copy_weights()  # other backends do not map files
        return Engine(
            runner,
            batch_tokens=batch_tokens,
            queue_rows=max_queue,
            audit=AuditOptions(audit, audit_share, on_alarm),
            watch=metrics.watch,
            policy=policy,
        )

    with server_socket, _responsive(), AuditStateFile.opened(None if state is None else Path(state)) as state_file:
        served = ServedModel(make_engine(), make_engine, keeps_audit=state_file is not None)
        if audit or state_file is not None:
            _start_audit(served, state_file, str(model), "`audit=`" if audit else "`state=`")
        if host not in LOOPBACK and options.keys is None:
            logger.warning("%s is reachable from other machines and has no API key; set `api_key_file=`.", host)
        url = f"{'http' if tls_cert is None else 'https'}://{host}:{server_socket.getsockname()[1]}"
        if announce is not None:
            runner = served.engine.runner
            machine = f"{runner.backend}, {runner.dtype}, {threads} thread{'s' if threads > 1 else ''}"
            announce(f"Serving {model_name} on {url} ({machine}). Press Ctrl-C to stop.")
        try:
            run_server(make_app(served, options, metrics), served, server_socket, http)
        finally:
            counts = served.requests
            ends = ", ".join(f"{counts[name]} {name}" for name in ("accepted", "answered", "disconnected", "failed"))
            logger.warning("Shut down. Requests: %s.", ends)
        return counts["accepted"], counts["answered"]


def _make_tracer() -> RequestTracer:
    from offramp.serving.tracing import RequestTracer

    return RequestTracer()


def _start_audit(served: ServedModel, state_file: AuditStateFile | None, model: str, option: str) -> None:
    """Check that there is a guarantee to monitor, and continue the audit of the state file."""
    from offramp.serving.audit_limits import MAX_RISK
    from offramp.serving.audit_state import AuditState

    auditor = served.engine.auditor
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
    state_file.start(lambda: AuditState(audited_model, (served.engine.auditor or auditor).counts))


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
