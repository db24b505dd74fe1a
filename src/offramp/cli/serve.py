"""Serve a model over HTTP, in the shapes that existing clients speak, and watch its guarantee.

POST / is Hugging Face's, /predict text-embeddings-inference's, /classify vLLM's, /v2/models/NAME/infer the Open
Inference Protocol's, /answer a question's. GET / is a live page; /info, /health, /ready, /metrics, /docs tell the rest.

With --audit 0.01 one answer in a hundred is looked at again at full depth, and an alarm says when more answers differ
than were promised. Nothing is tuned anew by itself.
"""

from __future__ import annotations

import argparse
import logging
import os

from offramp.cli import arguments
from offramp.cli.streams import say

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
    watching = parser.add_argument_group("the guarantee, watched")
    watching.add_argument(
        "--audit", type=float, default=0.0, metavar="SHARE", help="answers that are looked at again (0)"
    )
    watching.add_argument(
        "--on-alarm", choices=["warn", "never"], default="warn", help="never: from then on all go to full depth (warn)"
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-rows", type=int, default=512, metavar="N", help="texts of a request (512)")
    limits.add_argument("--max-bytes", type=int, default=2_000_000, metavar="N", help="of a request's body (2,000,000)")
    limits.add_argument(
        "--max-queue",
        type=int,
        default=512,
        metavar="N",
        help="rows (texts, or windows of questions) that may wait (512)",
    )
    limits.add_argument("--batch-tokens", type=int, metavar="N", help="padded tokens at once (as suits the machine)")
    limits.add_argument("--allow-override", action="store_true", help="let requests name a policy")
    guard = parser.add_argument_group("key")
    guard.add_argument("--api-key", metavar="KEY", help="clients send it as a bearer token")
    guard.add_argument("--api-key-file", metavar="FILE", help="the same, from a file")
    guard.add_argument("--guard-all", action="store_true", help="/health, /ready and /metrics ask for it, too")
    arguments.add_machine(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from offramp.api.serve import serve

    logging.getLogger("offramp").setLevel(logging.INFO if os.environ.get("OFFRAMP_LOG") else logging.WARNING)
    arguments.call(serve, args, announce=say)
    return 0
