"""Say what a model folder holds: backbone, exits, labels, policy, size."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.cli import arguments
from offramp.cli.streams import say

if TYPE_CHECKING:
    from offramp.model.config import AdaptiveConfig

EXAMPLES = """\
examples:
  offramp info MODEL
  offramp info MODEL --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp info`."""
    arguments.add_model(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Load the model, which checks every weight, and describe it."""
    from offramp.model.adaptive import AdaptiveModel
    from offramp.model.tokenizer import FILES
    from offramp.runtimes.loading import half_precision

    model = AdaptiveModel.from_pretrained(args.model)
    facts = describe(model.config) | {
        "parameters": {
            "backbone": sum(value.numel() for value in model.backbone.parameters()),
            "exits": sum(value.numel() for value in model.exits.parameters()),
        },
        "kept": kept_in_training(Path(args.model)),
        "exports": exports_in(Path(args.model)),
        "machine": {"short types": [name for name, there in half_precision().items() if there]},
        "tokenizer": not Path(args.model).is_dir() or any((Path(args.model) / name).is_file() for name in FILES),
    }
    say(json.dumps(facts, indent=2, ensure_ascii=False) if args.json else _written(args.model, facts))
    return 0


def describe(config: AdaptiveConfig) -> dict[str, Any]:
    """What the config knows, as plain data."""
    return {
        "backbone": config.family.name,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "problem": config.answer_type.name,
        "labels": list(config.labels),
        "policy": str(config.exit_policy),
        "promise": config.calibrated["sentence"] if config.calibrated else None,
        "max_length": config.max_tokens,
        "width": config.width,
        "exits": config.exits,
        "lte": config.lte,
        "ramp": config.ramp,
        "faithful": config.faithful,
    }


def exports_in(folder: Path) -> dict[str, str]:
    """What lies there for other runtimes, or what is wrong with it."""
    from offramp.errors import BadModel
    from offramp.export.folder import LIBRARIES, read_export

    found = {}
    for backend in LIBRARIES:
        if not (folder / backend).is_dir():
            continue
        try:
            export = read_export(folder, backend)
        except BadModel as err:
            found[backend] = str(err)
            continue
        layers = ", ".join(str(spec["layer"]) for spec in export.exits)
        promise = "calibrated" if export.calibrated else "not calibrated"
        found[backend] = f"{export.precision}, exits on {layers}, {promise}"
    return found


def kept_in_training(folder: Path) -> dict[str, list[float]] | None:
    """Heads and channels that the last logged batch of training kept, per layer; None where nobody wrote it down."""
    try:
        stages = json.loads((folder / "scores.json").read_text("utf-8"))["stages"]
        logged = [entry for stage in stages for entry in stage["history"] if "width_heads" in entry]
        return {name: [float(one) for one in logged[-1][f"width_{name}"]] for name in ("heads", "channels")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _written(name: str, facts: dict[str, Any]) -> str:
    size = facts["parameters"]
    share = size["exits"] / (size["exits"] + size["backbone"])
    body = f"{facts['backbone']}, {facts['layers']} layers of {facts['hidden_size']}"
    labels = facts["labels"]
    shown = ", ".join(labels[:12]) + (f" … ({len(labels)})" if len(labels) > 12 else "")
    lines = [
        f"{name}",
        f"  backbone    {body}, {size['backbone']:,} parameters",
        f"  answer      {facts['problem'].replace('_', ' ')}: {shown}",
        f"  policy      {facts['policy']}",
        f"  exits       {len(facts['exits'])}, {size['exits']:,} parameters ({share:.2%} of the model)",
    ]
    if facts["promise"]:
        lines.append(f"  promise     {facts['promise']}")
    if facts["max_length"]:
        spans = facts["problem"] == "question_answering"
        rest = "longer contexts are read in windows" if spans else "the rest is cut"
        lines.append(f"  texts       up to {facts['max_length']} tokens; {rest}")
    lines += [f"  {backend:<11} {told}" for backend, told in facts["exports"].items()]
    lines.append(f"  this CPU    {_short_types(facts['machine']['short types'])}")
    if width := facts["width"]:
        lines.append(
            f"  width       gates on heads ({width['heads']}, groups of {width['head_group']}) and channels "
            f"({width['channels']}, blocks of {width['block']}), for {width['target']:.0%} of the operations"
        )
    kept = facts["kept"]
    if kept:
        lines.append("  kept        by layer, in the last logged batch of training; of a file's rows: offramp evaluate")
        lines.append("    heads     " + " ".join(f"{one:.1f}" for one in kept["heads"]))
        lines.append("    channels  " + " ".join(f"{one:.0f}" for one in kept["channels"]))
    if facts["lte"]:
        lines.append("  lte         yes: policy learned can be used")
    if facts["ramp"]:
        lines.append(f"  ramp        {facts['ramp']}" + (", and faithful lets it" if facts["faithful"] else ""))
    if not facts["tokenizer"]:
        lines.append("  tokenizer   none: put the backbone's tokenizer files beside the model before it reads texts")
    lines.append("")
    lines.append("  layer  head      reads" + ("           keeps up to there" if kept else ""))
    for spec in facts["exits"]:
        line = f"  {spec['layer']:>5}  {spec['head']:<9} {spec['pooling']}"
        if kept:
            heads, channels = (sum(kept[name][: spec["layer"]]) / spec["layer"] for name in ("heads", "channels"))
            line = f"{line:<34}{heads:.1f} heads, {channels:.0f} channels per layer"
        lines.append(line)
    return "\n".join(lines)


def _short_types(there: list[str]) -> str:
    if not there:
        return "has no instructions for bfloat16 or float16: they would be slower than float32"
    return f"has instructions for {' and '.join(there)}; --dtype asks for it, and a promise does not carry over"
