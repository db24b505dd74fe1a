"""EBERT's numbers: gates, masks, answers, loss terms, gradients, the FLOPs report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from golden_case import Case, Check, claim, close, same
from offramp import AdaptiveModel
from offramp.core.batch import Batch
from offramp.originals.convert import detect
from offramp.originals.convert.ebert import PREDICTOR, _gate_key
from offramp.originals.width.flops import LayerFlops, flops_report, layer_flops, width_loss
from offramp.originals.width.gated_layers import GateRecorder, run_gated_layers
from offramp.originals.width.spec import parse_width

__all__ = [
    "add_labels",
    "checks_of_ebert",
    "checks_of_ebert_flops",
    "is_span",
    "ours",
    "relative",
    "replay_noise",
    "same_masks",
    "set_width",
    "take_logits",
    "watched",
]


def checks_of_ebert(case: Case) -> Iterator[Check]:
    """Everything that needs no training run."""
    found = detect(case.checkpoint).name
    yield claim("kind detected", found == "ebert", found)
    add_labels(case)
    model = case.model(faithful=is_span(case))
    yield from checks_of_pass(case, "", model, case.batch)
    yield from checks_of_losses(case, "", model)
    yield from checks_of_report(case, model)
    with torch.no_grad():
        if (wanted := take_logits(case, "dense/")) is not None:
            yield close("dense/logits", with_open_gates(model, case.batch), wanted)
    if "pad3/head_mask" in case.expected:
        yield from checks_of_pass(case, "pad3/", model, padded(case, 3))
    for name, run in case.about["runs"].items():
        if name.startswith("topk"):
            chosen = case.model(faithful=is_span(case))
            set_width(chosen, run)
            yield from checks_of_pass(case, f"{name}/", chosen, case.batch)
            yield from checks_of_losses(case, f"{name}-", chosen)
            yield from checks_of_gradients(case, name, chosen)
    if "noisy" in case.about["runs"]:
        yield from checks_of_noise(case)


def set_width(model: AdaptiveModel, run: dict[str, Any]) -> None:
    """A run's own modes and target."""
    changes = {"heads": run["head_mask_mode"], "channels": run["ffn_mask_mode"], "target": 1 - run["sparsity_target"]}
    model.config.width = dict(model.config.width) | changes
    width = parse_width(model.config.width)
    assert width is not None and model.gates is not None
    model.gates.width = width
    for layer in range(1, model.config.num_layers + 1):
        heads, channels = model.gates.of_layer(layer)
        heads.mode, channels.mode = width.heads, width.channels
        heads.prune = channels.prune = width.prune


def padded(case: Case, more: int) -> dict[str, Tensor]:
    pads = {"input_ids": 1 if case.about["family"] == "roberta" else 0}
    return {key: torch.nn.functional.pad(value, (0, more), value=pads.get(key, 0)) for key, value in case.batch.items()}


def watched(model: AdaptiveModel, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, GateRecorder, Tensor]:
    """Logits, each layer's first token, what the gates said, and what rows kept."""
    stepper, watch = model.stepper, GateRecorder()
    inside, states = stepper.embed(Batch.from_tensors(**batch)), []
    for depth in range(1, model.config.num_layers + 1):
        assert model.gates is not None
        inside = run_gated_layers(model.gates, model.config.family, model.backbone, inside, depth, watch)
        states.append(inside.hidden[:, 0])
    head = model.exits.head(model.config.num_layers)
    assert inside.kept is not None
    return head(head.features(inside)), torch.stack(states), watch, inside.kept


def with_open_gates(model: AdaptiveModel, batch: dict[str, Tensor]) -> Tensor:
    return model.stepper.full_model(Batch.from_tensors(**batch))


def checks_of_pass(case: Case, run: str, model: AdaptiveModel, batch: dict[str, Tensor]) -> Iterator[Check]:
    with torch.no_grad():
        logits, states, watch, _ = watched(model, batch)
        said = model(**batch)
    own = torch.stack([said.start_logits, said.end_logits], -1) if is_span(case) else said.logits
    yield claim(f"{run}the loop answers the same", bool(torch.allclose(own, logits, atol=1e-6)))
    wanted = take_logits(case, run)
    assert wanted is not None
    yield close(f"{run}logits", logits.reshape(wanted.shape), wanted)
    for name, got in (
        ("head_gate_logits", watch.head_logits),
        ("ffn_gate_logits", watch.channel_logits),
        ("first_token_states", list(states)),
    ):
        if (wanted := case.take(f"{run}{name}")) is not None:
            yield close(f"{run}{name}", torch.stack(got), wanted)
    yield from same_masks(case, run, watch)


def same_masks(case: Case, run: str, watch: GateRecorder) -> Iterator[Check]:
    """What gates kept, exactly."""
    for name, got in (("head_mask", watch.head_masks), ("ffn_mask", watch.channel_masks)):
        if (wanted := case.take(f"{run}{name}")) is not None:
            yield same(f"{run}{name}", torch.stack(got).round(), wanted.round())


def loss_of(case: Case, model: AdaptiveModel) -> tuple[dict[str, Tensor], Tensor]:
    """The parts of the loss of all rows, and the total."""
    logits, _, _, kept = watched(model, case.batch)
    width = model.config.gating
    assert width is not None
    task = model.config.answer_type.loss(logits, case.inputs["labels"])
    length = case.batch["input_ids"].shape[1]
    made = width_loss(kept, length, layer_flops(model.config), width.prune)
    parts = {"task": task, "flops": made.flops, "head": made.heads, "ffn": made.channels, "sparsity": made.sparsity}
    parts |= {"dense_flops": torch.tensor(float(made.dense)), "sparse_flops": made.sparse}
    return parts, task + width.weight * made.total if width.channels == "gumbel" else task


def checks_of_losses(case: Case, run: str, model: AdaptiveModel) -> Iterator[Check]:
    parts, total = loss_of(case, model)
    for name, got in (parts | {"total": total}).items():
        if (wanted := case.take(f"loss/{run}{name}")) is not None:
            yield relative(f"loss/{run}{name}", got.detach().double(), wanted.double())


def relative(name: str, got: Tensor, wanted: Tensor, floor: float = 1e-6) -> Check:
    """Numbers of any size: 1e-3 of each, 1e-5 of the largest."""
    off = (got - wanted).abs()
    allowed = 1e-3 * wanted.abs() + 1e-5 * wanted.abs().max() + floor
    return name, bool((off <= allowed).all()), f"off by {float(off.max()):.1e} of {float(wanted.abs().max()):.1e}"


def ours(name: str, family: str, depth: int) -> str:
    """The original's name of a parameter as ours."""
    inner = name.removeprefix(f"{family}.")
    if PREDICTOR.fullmatch(inner):
        return _gate_key(inner)
    if name.startswith("qa_outputs."):
        return name.replace("qa_outputs.", f"exits.{depth}.classifier.")
    if inner.startswith("pooler.dense."):
        return inner.replace("pooler.dense.", f"exits.{depth}.dense.")
    if name.startswith("classifier."):
        part = name.removeprefix("classifier.").replace("out_proj.", "classifier.")
        return f"exits.{depth}.{part if '.' in part else f'classifier.{part}'}"
    return f"backbone.{inner}"


def checks_of_gradients(case: Case, run: str, model: AdaptiveModel) -> Iterator[Check]:
    names = [name for name in case.expected if name.startswith(f"grad/{run}/")]
    if not names and f"grad_norms/{run}" not in case.expected:
        return
    model.zero_grad()
    _, total = loss_of(case, model)
    total.backward()  # type: ignore[no-untyped-call]
    yield from compare_gradients(case, run, model, names)


def compare_gradients(case: Case, run: str, model: AdaptiveModel, names: list[str]) -> Iterator[Check]:
    parameters = dict(model.named_parameters())
    family, depth = case.about["family"], model.config.num_layers

    def gradient(name: str) -> Tensor:
        value = parameters[ours(name, family, depth)]
        return torch.zeros_like(value) if value.grad is None else value.grad

    for name in names:
        wanted = case.take(name)
        assert wanted is not None
        yield relative(name, gradient(name.removeprefix(f"grad/{run}/")), wanted)
    norms = [gradient(name).norm() for name in case.about["parameters"]]
    if (wanted := case.take(f"grad_norms/{run}")) is not None:
        yield relative(f"grad_norms/{run}", torch.stack(norms), wanted)
    if (wanted := case.take(f"grad_norm/{run}")) is not None:
        yield relative(f"grad_norm/{run}", torch.stack(norms).norm(), wanted)


def replay_noise(model: AdaptiveModel, heads: Tensor, channels: Tensor) -> None:
    """Let every gate draw what was recorded, (layers, rows, units)."""
    assert model.gates is not None
    for layer in range(1, model.config.num_layers + 1):
        for gate, noise in zip(model.gates.of_layer(layer), (heads[layer - 1], channels[layer - 1]), strict=True):
            gate.draw = partial(recorded, noise)


def recorded(noise: Tensor, like: Tensor) -> Tensor:
    """What stands in the place of new noise."""
    return noise


def checks_of_noise(case: Case) -> Iterator[Check]:
    """Training mode with the recorded noise."""
    model = case.model(faithful=is_span(case))
    model.train()
    replay_noise(model, case.inputs["noise/noisy/head"], case.inputs["noise/noisy/ffn"])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    yield from checks_of_pass_once(case, model)
    after = model.state_dict()
    for name in [one for one in case.expected if one.startswith("noisy/after/")]:
        wanted = case.take(name)
        assert wanted is not None
        key = ours(name.removeprefix("noisy/after/"), case.about["family"], model.config.num_layers)
        yield close(name, after[key], wanted)
    model.load_state_dict(before)
    yield from checks_of_losses(case, "noisy-", model)
    yield from checks_of_gradients(case, "noisy", model)


def checks_of_pass_once(case: Case, model: AdaptiveModel) -> Iterator[Check]:
    with torch.no_grad():
        logits, _, watch, _ = watched(model, case.batch)
    if (wanted := take_logits(case, "noisy/")) is not None:
        yield close("noisy/logits", logits.reshape(wanted.shape), wanted)
    for name, got in (("head_gate_logits", watch.head_logits), ("ffn_gate_logits", watch.channel_logits)):
        if (wanted := case.take(f"noisy/{name}")) is not None:
            yield close(f"noisy/{name}", torch.stack(got), wanted)
    yield from same_masks(case, "noisy/", watch)


def checks_of_report(case: Case, model: AdaptiveModel) -> Iterator[Check]:
    """Counts, FLOPs, the three lines, and the mean loss of batches of four."""
    run = case.about["runs"].get("report")
    if run is None:
        return
    with torch.no_grad():
        _, _, watch, _ = watched(model, case.batch)
    heads, channels = torch.stack(watch.head_masks), torch.stack(watch.channel_masks)
    for name, got in (("head_times", heads.sum(1)), ("ffn_times", channels.sum(1))):
        if (wanted := case.take(f"report/{name}")) is not None:
            yield same(f"report/{name}", got, wanted)
    made = flops_report(heads.mean(1).sum(-1), channels.mean(1).sum(-1), run["length"], layer_flops(model.config), True)
    for name, value in (("original_flops", made.full), ("dynamic_flops", made.dynamic), ("ratio", made.ratio)):
        if (wanted := case.take(f"report/{name}")) is not None:
            yield relative(f"report/{name}", torch.tensor(value), wanted.double())
    yield claim("report's lines", made.lines == run["lines"], str(made.lines))
    if (wanted := case.take("report/eval_loss")) is not None:
        yield close("report/eval_loss", evaluation_loss(case, model, run["batch"]), wanted.float())


def evaluation_loss(case: Case, model: AdaptiveModel, size: int) -> Tensor:
    rows, whole = len(case.batch["input_ids"]), dict(case.inputs)
    total = torch.zeros(())
    for start in range(0, rows, size):
        for key in ("input_ids", "attention_mask", "token_type_ids", "labels"):
            if key in whole:
                case.inputs[key] = whole[key][start : start + size]
        with torch.no_grad():
            total += loss_of(case, model)[1] * len(case.inputs["labels"])
    case.inputs.update(whole)
    return total / rows


def checks_of_ebert_flops(case: Case) -> Iterator[Check]:
    """The report for models of other sizes."""
    for name, run in case.about["runs"].items():
        config = run["config"]
        sizes = (config["num_hidden_layers"], config["num_attention_heads"], config["intermediate_size"])
        blocks = LayerFlops(*sizes, config["hidden_size"], 64, 12, config["intermediate_size"])
        heads = case.inputs[f"{name}/head_times"].double() / run["samples"]
        times = case.inputs[f"{name}/ffn_kept_per_layer"].double()  # of each of a layer's channels
        channels = times / run["samples"] * config["intermediate_size"]
        for length in run["lengths"]:
            made = flops_report(heads.sum(-1), channels, length, blocks, True)
            numbers = {
                "original_flops": made.full,
                "dynamic_flops": made.dynamic,
                "ratio": made.ratio,
                "single_head_flops": blocks.head(length),
                "ffn_flops": blocks.channels * blocks.channel(length),
                "head_predictor_flops": blocks.head_predictor,
                "ffn_predictor_flops": blocks.channel_predictor,
            }
            for part, got in numbers.items():
                if (wanted := case.take(f"{name}-{length}/{part}")) is not None:
                    yield relative(f"{name}-{length}/{part}", torch.tensor(float(got)).double(), wanted.double())
            yield claim(f"{name}-{length}: lines", made.lines == run["lines"][str(length)], str(made.lines))


def take_logits(case: Case, run: str) -> Tensor | None:
    """A run's logits; of spans, start and end of every token."""
    if not is_span(case):
        return case.take(f"{run}logits")
    start, end = case.take(f"{run}start_logits"), case.take(f"{run}end_logits")
    return None if start is None or end is None else torch.stack([start, end], -1)


def add_labels(case: Case) -> None:
    """A span's labels as ours are."""
    if is_span(case):
        case.inputs["labels"] = torch.stack([case.inputs["start_positions"], case.inputs["end_positions"]], 1)


def is_span(case: Case) -> bool:
    return any(re.match(r"(start|end)_logits", name) for name in case.expected)
