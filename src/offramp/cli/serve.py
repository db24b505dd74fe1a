"""Serve a model over HTTP, compatible with existing clients, and monitor its guarantee.

Endpoints: POST / (Hugging Face inference API), /predict (text-embeddings-inference), /classify (vLLM),
/v2/models/NAME/infer (Open Inference Protocol), /answer (question answering), /rerank and /score (rerankers). GET / is
a status page; see also /info, /health, /ready, /metrics and /docs.

With --audit 0.01, one prediction in a hundred is repeated with all layers; an alarm is raised if more predictions
differ than the guarantee allows. --state keeps counts and alarms over restarts. Thresholds are never tuned
automatically. SIGTERM shuts down gracefully; SIGHUP reloads the model without dropping requests.
"""

from __future__ import annotations

import argparse
import logging

from offramp.cli import arguments
from offramp.cli.streams import echo

EXAMPLES = """\
examples:
  offramp serve my-model
  offramp serve my-model --backend onnx --port 9000 --audit 0.01 --on-alarm never
  offramp serve my-model --audit 0.01 --state audit.json
  offramp serve my-model --host 0.0.0.0 --api-key-file key.txt
  curl localhost:8000 -H 'content-type: application/json' -d '{"inputs": ["a lovely film"]}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp serve`."""
    arguments.add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="port; 0 for any free one (default: 8000)")
    parser.add_argument("--name", metavar="NAME", help="model name in the API (default: the folder's name)")
    arguments.add_policy(parser, "the model's")
    audit = parser.add_argument_group("guarantee")
    audit.add_argument(
        "--audit",
        type=float,
        default=0.0,
        metavar="FRACTION",
        help="fraction of predictions to repeat with all layers (default: 0)",
    )
    audit.add_argument(
        "--on-alarm",
        choices=["warn", "never"],
        default="warn",
        help="after an alarm, log a warning (warn), or also run all layers from then on (never) (default: warn)",
    )
    audit.add_argument(
        "--audit-share",
        type=float,
        default=0.05,
        metavar="FRACTION",
        help="maximum fraction of the model's time for audits while requests wait (default: 0.05)",
    )
    audit.add_argument(
        "--state",
        metavar="FILE",
        help="file that keeps the audit's counts and alarms over restarts; every server needs its own",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-rows", type=int, default=512, metavar="N", help="maximum texts per request (default: 512)"
    )
    limits.add_argument(
        "--max-bytes",
        type=int,
        default=2_000_000,
        metavar="N",
        help="maximum bytes per request body (default: 2,000,000)",
    )
    limits.add_argument(
        "--max-queue",
        type=int,
        default=512,
        metavar="N",
        help="maximum rows in the queue: texts, or windows of long contexts (default: 512)",
    )
    limits.add_argument(
        "--max-connections", type=int, default=1024, metavar="N", help="maximum open connections (default: 1,024)"
    )
    limits.add_argument(
        "--grace-seconds",
        type=int,
        default=30,
        metavar="N",
        help="seconds to answer pending requests when the server is stopped (default: 30)",
    )
    limits.add_argument(
        "--batch-tokens",
        type=int,
        metavar="N",
        help="maximum padded tokens per batch (default: depends on the machine)",
    )
    limits.add_argument("--allow-override", action="store_true", help="allow requests to set the exit policy")
    access = parser.add_argument_group("access")
    access.add_argument(
        "--api-key",
        metavar="KEY",
        help="key that clients must send as a bearer token (default: OFFRAMP_API_KEY in the environment, if set)",
    )
    access.add_argument(
        "--api-key-file", metavar="FILE", help="file with API keys, one per line; read again when it changes"
    )
    access.add_argument("--guard-all", action="store_true", help="require the key for /health, /ready and /metrics too")
    access.add_argument("--tls-cert", metavar="FILE", help="TLS certificate (chain), to serve HTTPS")
    access.add_argument("--tls-key", metavar="FILE", help="private key of the certificate (default: in the same file)")
    access.add_argument(
        "--allowed-host",
        dest="allowed_hosts",
        action="append",
        default=[],
        metavar="NAME",
        help="host name that URLs of this server may have; can be repeated (default: any; on a loopback address, "
        "local names only)",
    )
    access.add_argument(
        "--cors-origin",
        dest="cors_origins",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin whose web pages may send requests, such as https://example.org; can be repeated (default: none)",
    )
    parser.add_argument(
        "--log-requests",
        action="store_true",
        help="log a JSON line per request: time, ids, route, status, latency, exit layers; never texts",
    )
    parser.add_argument(
        "--otel",
        action="store_true",
        help="export a span per request with OpenTelemetry; the environment variables OTEL_… configure it",
    )
    arguments.add_inference(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from offramp.api.serve import serve

    logging.getLogger("offramp").setLevel(logging.INFO if args.log_requests else logging.WARNING)
    arguments.call(serve, args, announce=echo)
    return 0
