"""Serve a model over HTTP, in the shapes that existing clients speak, and watch its promise.

POST / is Hugging Face's, /predict text-embeddings-inference's, /classify vLLM's, /v2/models/NAME/infer the Open
Inference Protocol's, /answer a question's. GET / is a live page; /info, /health, /ready, /metrics, /docs tell the rest.

With --audit 0.01 one answer in a hundred is looked at again at full depth, and an alarm says when more answers differ
than were promised. Nothing is tuned anew by itself.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import socket
import sys
from pathlib import Path

from offramp.cli import arguments
from offramp.cli.streams import say
from offramp.errors import BadValue, missing_library

EXAMPLES = """\
examples:
  offramp serve MODEL
  offramp serve MODEL --backend onnx --port 9000 --audit 0.01 --on-alarm never
  offramp serve MODEL --api-key-file key.txt --host 0.0.0.0
  curl localhost:8000 -H 'content-type: application/json' -d '{"inputs": ["a lovely film"]}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp serve`."""
    arguments.add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="on which port (8000)")
    parser.add_argument("--name", metavar="NAME", help="what the model is called (its folder's name)")
    arguments.add_policy(parser, "the model's own")
    watching = parser.add_argument_group("the promise, watched")
    watching.add_argument(
        "--audit", type=float, default=0.0, metavar="SHARE", help="answers that are looked at again (0)"
    )
    watching.add_argument(
        "--on-alarm", choices=["warn", "never"], default="warn", help="never: from then on all go to full depth (warn)"
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-rows", type=int, default=512, metavar="N", help="texts of a request (512)")
    limits.add_argument("--max-bytes", type=int, default=2_000_000, metavar="N", help="of a request's body (2,000,000)")
    limits.add_argument("--max-queue", type=int, default=512, metavar="N", help="texts that may wait (512)")
    limits.add_argument("--batch-tokens", type=int, metavar="N", help="padded tokens at once (as suits the machine)")
    limits.add_argument("--allow-override", action="store_true", help="let requests name a policy")
    guard = parser.add_argument_group("key")
    guard.add_argument("--api-key", metavar="KEY", help="clients send it as a bearer token")
    guard.add_argument("--api-key-file", type=Path, metavar="FILE", help="the same, from a file")
    guard.add_argument("--guard-all", action="store_true", help="/health, /ready and /metrics ask for it, too")
    arguments.add_machine(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    try:
        import uvicorn

        from offramp.core.machine import usable_threads
        from offramp.serving.app import ServerOptions, make_app
        from offramp.serving.engine import Engine
        from offramp.serving.metrics import Metrics
    except ImportError as err:
        if err.name in ("fastapi", "uvicorn", "prometheus_client", "starlette", "pydantic", "scipy"):
            raise BadValue(f"Serving needs {err.name}: pip install '.[serve]' in a clone of offramp.") from err
        raise missing_library("Serving", err) from err
    _check(args)
    key = _key(args)
    listening = _listening(args.host, args.port)
    args.threads = args.threads or usable_threads()
    runner = arguments.load(args)
    _stay_awake()
    metrics = Metrics()
    engine = Engine(
        runner,
        batch_tokens=args.batch_tokens,
        queue_rows=args.max_queue,
        audit=args.audit,
        on_alarm=args.on_alarm,
        watch=metrics.watch,
        policy=args.policy,
    )
    if args.audit and runner.config.answer_type.is_span:
        raise BadValue("Answers to questions are not audited; leave --audit out.")
    if args.audit and engine.audit is not None and engine.audit.risk >= 0.5:
        raise BadValue(f"A promise of {engine.audit.risk:g} is too weak to be watched; leave --audit out.")
    if args.audit and engine.audit is None:
        raise BadValue(f"{args.model} has no promise about its answers to watch; calibrate it, or leave --audit out.")
    name = args.name or Path(args.model).resolve().name
    options = ServerOptions(name, args.max_rows, args.max_bytes, key, args.guard_all, args.allow_override)
    logging.getLogger("offramp").setLevel(logging.INFO if os.environ.get("OFFRAMP_LOG") else logging.WARNING)
    config = uvicorn.Config(make_app(engine, options, metrics), log_level="warning", access_log=False)
    port = listening.getsockname()[1]
    say(
        f"{name} on http://{args.host}:{port}, {runner.backend} {runner.dtype}, {args.threads} threads. Ctrl-C ends it."
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        took, gave = engine.accepted, engine.answered
        print(f"offramp: drained: {took} requests were accepted, {gave} answered.", file=sys.stderr, flush=True)
    return 0


def _stay_awake() -> None:
    """Neither the model's thread nor the collector of garbage may keep the loop from its clients for long."""
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()  # the libraries' half a million objects: looking at each takes a quarter of a second


def _check(args: argparse.Namespace) -> None:
    if not 0 <= args.port <= 65535:
        raise BadValue(f"port is {args.port}; it is from 0 (any that is free) to 65535.")
    if not 0 <= args.audit <= 1:
        raise BadValue(f"audit is {args.audit:g}; it is a share from 0 to 1.")
    for name in ("max_rows", "max_bytes", "max_queue", "batch_tokens"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise BadValue(f"{name.replace('_', '-')} is {getattr(args, name)}; it is at least 1.")
    arguments.check_threads(args.threads)


def _key(args: argparse.Namespace) -> str | None:
    if args.api_key is not None and args.api_key_file is not None:
        raise BadValue("--api-key and --api-key-file are the same; give one of them.")
    if args.api_key_file is not None:
        try:
            key = args.api_key_file.read_text("utf-8").strip()
        except OSError as err:
            raise BadValue(f"Cannot read {args.api_key_file}: {err.strerror}.") from err
        except UnicodeDecodeError as err:
            raise BadValue(f"{args.api_key_file} is not text in UTF-8.") from err
        if not key:
            raise BadValue(f"{args.api_key_file} is empty.")
        return str(key)
    if args.api_key is not None and not args.api_key.strip():
        raise BadValue("--api-key is empty.")
    return None if args.api_key is None else str(args.api_key)


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
        raise BadValue(f"Cannot listen on {host}:{port}: {reason}. Take another --port or --host.") from err
    return made
