"""Write a model's layers and exits as graphs for ONNX Runtime or OpenVINO, into the model's own folder.

There is one graph per exit: the layers since the exit before, and the exit's head. Every exit's answers are then
compared with torch's on real texts: on those of --file, else on the dev rows of its training. int8 is chosen by what
is quickest here and keeps at least 99 % of every exit's answers; its scales come from rows that were trained on. Those
that training set aside are still fresh to calibrate on: `offramp calibrate MODEL --backend onnx`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from offramp.cli import arguments
from offramp.cli.data import add_data, given
from offramp.cli.streams import say
from offramp.errors import BadValue, missing_library

EXAMPLES = """\
examples:
  offramp export MODEL --backend onnx
  offramp export MODEL --backend onnx --int8 token --exits 4,8,12 --overwrite
  offramp export MODEL --backend openvino --file texts.txt
  offramp predict MODEL texts.txt --backend onnx
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp export`."""
    arguments.add_model(parser)
    parser.add_argument("--backend", choices=["onnx", "openvino"], default="onnx", help="what shall run it (onnx)")
    parser.add_argument(
        "--int8",
        choices=["static", "token", "dynamic", "none"],
        help="scales of what goes into products: fixed, from texts; one per token; one per batch, so that a row's "
        "answer depends on its neighbours; none: float32 (the quickest of static and token that keeps the answers)",
    )
    parser.add_argument("--no-smooth", action="store_true", help="leave outliers of activations where they are")
    parser.add_argument("--exits", type=arguments.layers, metavar="L", help="where to cut: 4,8,12 (at every exit)")
    parser.add_argument(
        "--one-file",
        nargs="?",
        const="",
        metavar="P",
        help="also write model.onnx, one graph that leaves early by itself in any ONNX Runtime, of the export that is "
        "there; P such as entropy:0.3 or confidence:0.9 (the calibrated policy)",
    )
    parser.add_argument("--force", action="store_true", help="keep it even if it answers differently")
    parser.add_argument("--overwrite", action="store_true", help="replace an export that is there")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the CPU (as torch finds best)")
    add_data(parser, "The rows are those of its training.")


def _one_file(args: argparse.Namespace) -> int:
    from offramp.export.one_file import write_one_file

    file, policy = write_one_file(Path(args.model), args.one_file or None)
    say(f"Wrote {file}, which leaves by {policy.name}; its metadata tell the threshold {policy}.")
    return 0


def run(args: argparse.Namespace) -> int:
    """Export and say how it answers."""
    try:
        from offramp.export.options import ExportOptions
        from offramp.export.run import export
        from offramp.export.texts import texts_for
    except ImportError as err:
        if err.name in ("onnx", "onnxruntime", "openvino"):
            raise BadValue(
                f"Exporting needs {err.name}: pip install '.[{args.backend}]' in a clone of offramp."
            ) from err
        raise missing_library("Exporting", err) from err
    from offramp.model.adaptive import AdaptiveModel

    if args.one_file is not None and args.backend != "onnx":
        raise BadValue("--one-file writes an ONNX graph; OpenVINO reads that one, too. Leave --backend out.")
    arguments.check_threads(args.threads)
    if args.one_file is not None and (Path(args.model) / "onnx").is_dir() and not args.overwrite:
        if args.exits or args.int8:
            raise BadValue(
                "--exits and --int8 are of a new export, and there is one: give --overwrite, or leave them out."
            )
        return _one_file(args)
    model = AdaptiveModel.from_pretrained(args.model).eval()
    if args.one_file:
        from offramp.export.one_file import check_policy

        check_policy(model.config.choose(args.one_file), model.config.answer_type)
    texts = texts_for(args.model, model.config, given(args))
    options = ExportOptions(
        args.backend,
        args.int8 or "auto",
        args.exits or "all",
        not args.no_smooth,
        args.force,
        args.overwrite,
        args.threads,
    )
    made = export(model, texts, options, say)
    if args.one_file is not None:
        _one_file(args)
    say(
        f"Wrote {args.model}/{args.backend} in {made.precision}; calibrate it: "
        f"offramp calibrate {args.model} --backend {args.backend}"
    )
    return 0
