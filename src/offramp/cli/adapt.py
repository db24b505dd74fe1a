"""Make a fine-tuned model faster, with a guarantee on its predictions. No labels are needed.

MODEL is a fine-tuned classifier, regression model, reranker or tagger. TEXTS is a file with a few thousand texts, text
pairs or rankings like those the model will see: plain text, TSV, CSV, JSON (lines or an array), Parquet or CoNLL
columns, optionally gzipped, or a folder of such files.

MODEL's encoder and head are not changed. Early exits are trained to reproduce its predictions, and the fastest set of
exits is kept. Held-out texts then test the guarantee: by default, with 90 % confidence, at most 2 % of the predictions
differ from MODEL's, and at most 10 % of the predictions of each class. If no setting is faster within that risk,
offramp explains what would be possible and exits with code 1.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_reading
from offramp.cli.guarantee import COUNT_TEXTS, add_guarantee_options
from offramp.cli.streams import echo
from offramp.cli.wording import as_options
from offramp.runtimes import RUNTIMES

EXAMPLES = """\
examples:
  offramp adapt my-classifier texts.txt --risk 0.02 --confidence 0.9 --output fast
  offramp adapt my-classifier pairs.csv --text-column question --pair-column answer --output fast
  offramp adapt my-regression texts.jsonl --tolerance 0.25 --risk 0.05 --output fast
  offramp adapt my-classifier texts.txt --keep ABUSE --recall 0.99 --output fast  # 99 % of ABUSE stays ABUSE
  offramp adapt my-classifier texts.txt --backend onnx --threads 2 --output fast  # int8 if predictions are preserved
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp adapt`."""
    parser.add_argument("model", metavar="MODEL", help="fine-tuned model: a folder or a name on the Hugging Face Hub")
    parser.add_argument("texts", metavar="TEXTS", help="file of texts like those the model will see")
    output = parser.add_argument_group("output")
    output.add_argument("--output", "-o", metavar="OUT", required=True, help="model folder to write")
    output.add_argument("--overwrite", action="store_true", help="replace the model or the interrupted run in OUT")
    output.add_argument("--resume", action="store_true", help="continue an interrupted run")
    guarantee = parser.add_argument_group("guarantee")
    guarantee.add_argument(
        "--risk", type=float, default=0.02, metavar="R", help="maximum fraction of changed predictions (default: 0.02)"
    )
    guarantee.add_argument("--confidence", type=float, default=0.9, metavar="C", help="confidence level (default: 0.9)")
    guarantee.add_argument(
        "--risk-type",
        choices=["disagreement", "changed", "lost"],
        default="disagreement",
        help="what the risk limits: predictions that differ from MODEL's (rankings: missing top documents), queries "
        "whose top documents changed (rankings), or entities that are lost (token classification) (default: "
        "disagreement)",
    )
    guarantee.add_argument(
        "--tolerance", type=float, metavar="T", help="regression: maximum difference that counts as unchanged"
    )
    add_guarantee_options(guarantee, "tests.jsonl in OUT", f"{COUNT_TEXTS} (default: rows)")
    inference = parser.add_argument_group("inference")
    arguments.add_backend(inference, list(RUNTIMES), "torch")
    inference.add_argument(
        "--int8",
        choices=["auto", "static", "mixed", "token", "dynamic", "none"],
        default="auto",
        help="onnx, openvino: int8 quantization as in offramp export; auto: the fastest of float32, static and mixed "
        "within the risk (default: auto)",
    )
    inference.add_argument(
        "--batch", type=int, default=32, metavar="N", help="batch size to optimize for (default: 32)"
    )
    arguments.add_threads(inference)
    inference.add_argument(
        "--device", metavar="D", help="torch: cpu, cuda, cuda:1, mps … (default: an accelerator if available)"
    )
    exits = parser.add_argument_group("exits")
    exits.add_argument(
        "--policy",
        default="auto",
        metavar="P",
        help="exit policy: entropy, confidence, margin or risk; auto tries entropy and risk (default: auto)",
    )
    exits.add_argument(
        "--exits",
        type=arguments.layers,
        default="auto",
        metavar="LAYERS",
        help="layers that may get an exit: auto (the embeddings, 0, and all layers; in deep models every second "
        "after the fourth), all (all layers), or for example 0,2,4 (default: auto)",
    )
    exits.add_argument(
        "--heads", default="attention", metavar="H", help="exit heads: attention, linear or pooler (default: attention)"
    )
    exits.add_argument(
        "--queries",
        type=int,
        default=4,
        metavar="N",
        help="with --heads attention: learned queries per exit head (default: 4)",
    )
    exits.add_argument(
        "--query-width",
        type=int,
        default=64,
        metavar="N",
        help="with --heads attention: dimension of a query (default: 64)",
    )
    exits.add_argument(
        "--convolution",
        type=int,
        metavar="N",
        help="with --heads attention: channels of a convolution over neighbouring tokens, on layers 0 to 2; 0 for none "
        "(default: 128)",
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--variations",
        type=int,
        metavar="N",
        help="variations of each training text (words dropped, spans replaced, texts joined) that the exits also learn "
        "from (default: up to 3, fewer if there are many long texts)",
    )
    training.add_argument(
        "--epochs", type=float, metavar="E", help="training epochs (default: 3 to 24, depending on the number of texts)"
    )
    training.add_argument("--minutes", type=float, metavar="M", help="maximum training time in minutes")
    training.add_argument("--seed", type=int, default=42, metavar="S", help="random seed (default: 42)")
    data = parser.add_argument_group("data")
    data.add_argument("--text-column", metavar="NAME", help="column with the text (default: text or sentence)")
    data.add_argument("--pair-column", metavar="NAME", help="column with the second text of each pair")
    data.add_argument(
        "--top-k",
        type=int,
        default=10,
        metavar="K",
        help="rankings: number of documents that the guarantee is about (default: 10)",
    )
    data.add_argument(
        "--template",
        metavar="TEXT",
        help="rankings: input of the model with {query} and {document} (default: a pair of texts)",
    )
    data.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="maximum tokens per text; longer texts are truncated (default: the tokenizer's limit)",
    )
    add_reading(data)


def run(args: argparse.Namespace) -> int:
    """Adapt the model and print the guarantee and the measured speed."""
    from offramp.api.adapt import adapt

    result = arguments.call(adapt, args)
    if not result:
        echo(as_options(str(result.reason), {}))
        return 1
    echo(as_options(str(result), {}))
    return 0
