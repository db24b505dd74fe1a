"""A model folder in a few lines."""

from __future__ import annotations

from typing import Any

__all__ = ["formatted"]


def formatted(name: str, facts: dict[str, Any]) -> str:
    """The facts in lines."""
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
    if facts["guarantee"]:
        lines.append(f"  guarantee     {facts['guarantee']}")
    if facts["max_length"]:
        lines.append(f"  texts       up to {facts['max_length']} tokens; {facts['too_long']}")
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
            heads, channels = (
                sum(kept[name][: spec["layer"]]) / max(1, spec["layer"]) for name in ("heads", "channels")
            )
            line = f"{line:<34}{heads:.1f} heads, {channels:.0f} channels per layer"
        lines.append(line)
    return "\n".join(lines)


def _short_types(there: list[str]) -> str:
    if not there:
        return "has no instructions for bfloat16 or float16: they would be slower than float32"
    return f"has instructions for {' and '.join(there)}; --dtype asks for it, and a guarantee does not carry over"
