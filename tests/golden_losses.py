"""Losses and gradients of a golden case, computed by the recipes' own functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from golden_case import Case, Check, close
from offramp import AdaptiveModel
from offramp.originals.convert import detect
from offramp.originals.convert.checkpoint import ConvertOptions
from offramp.training.recipes.losses import (
    BatchOutputs,
    depth_weighted,
    distillation,
    early_exits,
    joint,
    last_exit,
    lte,
    soft_labels,
    summed_soft_labels,
)
from offramp.training.recipes.projection import project

__all__ = ["checks_of_losses"]

Loss = Callable[[BatchOutputs], Tensor]


def losses_of(case: Case, static: str | None) -> dict[str, Loss]:
    """The case's losses by the name of their array."""
    kind = case.about["kind"]
    if static is not None:
        return {static: last_exit, "static": last_exit}
    if kind == "deebert":
        settings = case.about["runs"].get("train/stage2", {})
        second: Loss = early_exits
        if "gamma" in settings:
            second = lambda o: distillation(o, settings["gamma"], settings["temperature"])  # noqa: E731
        return {"stage1": last_exit, "stage2": second}
    if kind == "romebert":
        return {
            "sd": lambda o: last_exit(o) + distillation(o, 0.9, 3.0),
            "sd-final": last_exit,
            "sd-early": lambda o: distillation(o, 0.9, 3.0),
            "sd-distill": lambda o: 0.9 * soft_labels(o, 3.0),
            "sd-labels": lambda o: (1 - 0.9) * early_exits(o),
            "sd-0.7-2": lambda o: last_exit(o) + distillation(o, 0.7, 2.0),
        }
    if kind == "berxit":
        return {
            "raw": last_exit,
            "only_highway": early_exits,
            "all": joint,
            "weight-linear": depth_weighted,
            "limit-2": lambda o: o.loss(2),
            "alternate-even": last_exit,
            "alternate-odd": joint,
            "self_distil": lambda o: joint(o) + summed_soft_labels(o),
            "lte": lte,
            "alternate-lte-even": lambda o: last_exit(o) + lte(o),
            "alternate-lte-odd": lambda o: early_exits(o) + lte(o),
            "alternate-lte-even-two-rows": lambda o: last_exit(o) + lte(o),
        }
    return {"weighted": depth_weighted} if kind == "pabee" else {"sum": joint}


def outputs_of(model: AdaptiveModel, case: Case, rows: int | None = None) -> BatchOutputs:
    """A pass in training mode, dropout off."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    out = model(**{key: value[:rows] for key, value in case.batch.items()})
    uncertainty = [one.uncertainty for one in out.exits if one.uncertainty is not None]
    logits = [one.logits for one in out.exits]
    return BatchOutputs(logits, case.inputs["labels"][:rows], model.config.answer_type, uncertainty)


def checks_of_losses(case: Case, model: AdaptiveModel, static: str | None = None) -> Iterator[Check]:
    """Every loss that the case has, and its gradient."""
    model.gradient_equilibrium = case.about["kind"] == "elasticbert" and static is None
    for name, loss in losses_of(case, static).items():
        rows = 2 if name.endswith("two-rows") else None
        if (wanted := case.take(f"loss/{name}")) is not None:
            yield close(f"loss/{name}", loss(outputs_of(model, case, rows)).detach().reshape(wanted.shape), wanted)
        if _has_gradient(case, name):
            model.zero_grad()
            torch.autograd.backward(loss(outputs_of(model, case)))
            yield from checks_of_gradient(case, name, _gradients(case, model, static))
    if case.about["kind"] == "romebert":
        for direction in ("final", "early"):
            yield from checks_of_projection(case, model, direction)
    model.eval()


def _has_gradient(case: Case, name: str) -> bool:
    return any(key == f"gradnorm/{name}" or key.startswith(f"grad/{name}/") for key in case.expected)


def _gradients(case: Case, model: AdaptiveModel, static: str | None = None) -> dict[str, Tensor | None]:
    """Our gradients under the names that the parameters have in the original's checkpoint."""
    checkpoint = case.checkpoint
    layers = int(static.removeprefix("static-")) if static is not None else None
    converted = detect(checkpoint).convert(checkpoint, ConvertOptions(layers if layers != case.depth else None))
    original = {id(value): key for key, value in checkpoint.weights.items() if not key.startswith("core.")}
    ours = dict(model.named_parameters())
    return {original[id(value)]: ours[key].grad for key, value in converted.weights.items() if key in ours}


def near(name: str, got: Tensor, wanted: Tensor, least: float = 0.0) -> Check:
    """The golden tolerance of gradients."""
    off = (got - wanted).abs()
    allowed = 1e-3 * wanted.abs() + 1e-5 * wanted.abs().max() + least
    return name, bool((off <= allowed).all()), f"off by {float(off.max()):.1e}"


def checks_of_gradient(case: Case, name: str, gradients: dict[str, Tensor | None]) -> Iterator[Check]:
    """Whole gradients of some parameters, norms of all of them (−1: none)."""
    for key in sorted(case.expected):
        if key.startswith(f"grad/{name}/"):
            wanted, got = case.take(key), gradients.get(key.removeprefix(f"grad/{name}/"))
            assert wanted is not None
            yield near(key, torch.zeros_like(wanted) if got is None else got, wanted, 1e-6)
    if (norms := case.take(f"gradnorm/{name}")) is not None:
        names = case.about.get("gradnorm_names") or case.about["parameters"]
        known = [(index, key) for index, key in enumerate(names) if key in gradients]
        found = torch.tensor([_norm(gradients[key]) for _, key in known])
        wanted_norms = norms[[index for index, _ in known]].float()
        # where the true gradient is 0 (attention key biases) both are rounding noise
        yield near(f"gradnorm/{name} of {len(known)} parameters", found, wanted_norms, 1e-6)


def _norm(gradient: Tensor | None) -> float:
    return -1.0 if gradient is None else float(gradient.norm())


def checks_of_projection(case: Case, model: AdaptiveModel, direction: str) -> Iterator[Check]:
    """RomeBERT's two gradients joined on the weight matrices of all layers but the last."""
    name = f"gr-{direction}-ref"
    if not _has_gradient(case, name):
        return
    outputs = outputs_of(model, case)
    parts = [last_exit(outputs), distillation(outputs, 0.9, 3.0)]
    if direction == "early":
        parts.reverse()
    each: list[dict[str, Tensor]] = []
    for part in parts:
        model.zero_grad()
        torch.autograd.backward(part, retain_graph=True)
        each.append({key: value.grad for key, value in model.named_parameters() if value.grad is not None})
        model.zero_grad(set_to_none=True)
    chosen = [key for key in each[0] if key in each[1] and _is_projected(key, case.depth)]
    joined, told = project([each[0][key] for key in chosen], [each[1][key] for key in chosen])
    final = dict(zip(chosen, joined, strict=True))
    for key, value in model.named_parameters():
        both = [part[key] for part in each if key in part]
        value.grad = final.get(key, sum(both[1:], both[0]) if both else None)
    yield from checks_of_gradient(case, name, _gradients(case, model))
    numbers: dict[str, Any] = {
        "angle": told.angle,
        "norm_reference": told.reference,
        "norm_projected_before": told.projected,
        "norm_ratio": told.reference / told.projected,
    }
    for array, got in numbers.items():
        if (wanted := case.take(f"{name}/{array}")) is not None:
            if array == "angle":  # in degrees, with the original's 3.1415
                off = abs(got - float(wanted))
                yield f"{name}/angle", off < 0.05, f"off by {off:.1e}"
            else:
                yield close(f"{name}/{array}", torch.tensor(got).reshape(wanted.shape), wanted.float())


def _is_projected(key: str, depth: int) -> bool:
    inside = "backbone.encoder.layer." in key and f"encoder.layer.{depth - 1}." not in key
    return inside and "LayerNorm" not in key and key.endswith("weight")
