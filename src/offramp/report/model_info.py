"""Format the facts about a model folder as text."""

from __future__ import annotations

from typing import Any

from offramp.answers import ANSWER_TYPES
from offramp.policies import parse

__all__ = ["format_info"]


def format_info(name: str, facts: dict[str, Any]) -> str:
    """Return the facts as lines of text."""
    size = facts["parameters"]
    share = size["exits"] / (size["exits"] + size["backbone"])
    backbone = f"{facts['backbone']}, {facts['layers']} layers of {facts['hidden_size']}"
    labels = facts["labels"]
    shown = ", ".join(labels[:12]) + (f" … ({len(labels)})" if len(labels) > 12 else "")
    if not ANSWER_TYPES[facts["problem"]].has_labels:
        shown = ANSWER_TYPES[facts["problem"]].describe_labels(labels)
    lines = [
        f"{name}",
        f"  backbone    {backbone}, {size['backbone']:,} parameters",
        f"  task        {facts['problem'].replace('_', ' ')}: {shown}",
        f"  policy      {parse(facts['policy']).describe()}{' (torch)' if facts['exports'] else ''}",
        f"  exits       {len(facts['exits'])}, {size['exits']:,} parameters ({share:.2%} of the model)",
    ]
    if facts["adapted_for"]:
        lines.append(f"  runs in     {_adapted_for(facts['adapted_for'])}")
    if facts["guarantee"]:
        lines.append(f"  {'torch' if facts['exports'] else 'guarantee':<11} {facts['guarantee']}")
    if facts["max_length"]:
        lines.append(f"  max length  {facts['max_length']} tokens; {facts['too_long']}")
    lines += [f"  {backend:<11} {export}" for backend, export in facts["exports"].items()]
    lines.append(f"  this CPU    {_half_precision(facts['machine']['short types'])}")
    if width := facts["width"]:
        lines.append(
            f"  width       gates on heads ({width['heads']}, groups of {width['head_group']}) and channels "
            f"({width['channels']}, blocks of {width['block']}), target {width['target']:.0%} of the operations"
        )
    kept = facts["kept"]
    if kept:
        lines.append("  kept        per layer, in the last logged training batch (for a data set: offramp evaluate)")
        lines.append("    heads     " + " ".join(f"{heads:.1f}" for heads in kept["heads"]))
        lines.append("    channels  " + " ".join(f"{channels:.0f}" for channels in kept["channels"]))
    if facts["lte"]:
        lines.append("  lte         yes (needed by policy learned)")
    if facts["ramp"]:
        lines.append(f"  ramp        {facts['ramp']}" + (", used because faithful is set" if facts["faithful"] else ""))
    if not facts["tokenizer"]:
        lines.append("  tokenizer   missing: copy the backbone's tokenizer files into the model folder")
    lines.append("")
    lines.append("  layer  head      pooling" + ("         kept up to this exit" if kept else ""))
    for spec in facts["exits"]:
        line = f"  {spec['layer']:>5}  {spec['head']:<9} {spec['pooling']}"
        if kept:
            heads, channels = (
                sum(kept[name][: spec["layer"]]) / max(1, spec["layer"]) for name in ("heads", "channels")
            )
            line = f"{line:<34}{heads:.1f} heads, {channels:.0f} channels per layer"
        lines.append(line)
    return "\n".join(lines)


def _adapted_for(adapted: dict[str, Any]) -> str:
    backend, threads = adapted["backend"], adapted.get("threads")
    count = "" if threads is None else f", {threads} thread{'s' if threads > 1 else ''}"
    return f"{backend}{count} by default: the model was adapted for it"


def _half_precision(dtypes: list[str]) -> str:
    if not dtypes:
        return "has no bfloat16 or float16 instructions; these types would be slower than float32"
    return f"has {' and '.join(dtypes)} instructions; a guarantee does not hold for another --dtype"
