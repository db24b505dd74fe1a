"""Heads and channels pruned per input: skipping equals multiplying by zero, and batching does not change a row."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.core.batch import Batch
from offramp.core.loop import run_all_exits
from offramp.errors import BadValue
from offramp.evaluation.traces.operations import count_operations, saved_by_width
from offramp.originals.width.flops import layer_flops
from offramp.originals.width.gates import Gate
from offramp.originals.width.spec import Width
from tests.calls import fails
from tests.tiny import adaptive, random_batch, save_encoder, tokenizer

GATED = ("bert", "roberta", "xlm-roberta", "electra", "elasticbert", "distilbert", "mpnet")
TYPELESS = ("roberta", "xlm-roberta", "distilbert", "mpnet")
FAST = ["--max-steps", "2", "--cpu", "--batch-size", "8", "--select", "none", "--calibration-split", "0"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A function that returns a model by family and gate settings; cached."""
    root, cache = tmp_path_factory.mktemp("gated"), {}

    def model(family, **width):
        key = (family, *sorted(width.items()))
        if key not in cache:
            cache[key] = gated(family, root / f"{family}-{len(cache)}", **width)
        return cache[key]

    return model


def gated(family, folder, labels=("no", "perhaps", "yes"), **width):
    model = adaptive(family, folder, labels=list(labels))
    torch.manual_seed(1)
    model.add_gates(Width(target=0.6, **width).to_dict())
    for module in model.gates.modules():  # gates that differ from row to row
        if isinstance(module, torch.nn.Linear):
            module.weight.data.normal_(std=1.0)
            module.bias.data.normal_(std=0.3)
    return model.eval()


def set_masks(model, layers_masks):
    """Make the gates return these masks."""
    for layer, masks in enumerate(layers_masks, 1):
        for gate, mask in zip(model.gates.of_layer(layer), masks, strict=True):
            gate.mask = lambda logits, mask=mask: mask[: len(logits)].to(logits.dtype)


def gate_masks(model):
    """The mask functions of all gates, by layer."""
    return [[gate.mask for gate in model.gates.of_layer(layer)] for layer in range(1, model.config.num_layers + 1)]


SHAPES = st.sampled_from([(1, 1), (2, 4), (1, 8), (4, 12)])


@settings(max_examples=25, deadline=None)
@given(
    family=st.sampled_from(GATED),
    rows=st.integers(1, 5),
    seed=st.integers(0, 99),
    share=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    shape=SHAPES,
    same_masks=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_skipping_equals_masking(models, family, rows, seed, share, shape, same_masks, dtype):
    group, block = shape
    model = models(family, head_group=group, block=block)
    original_masks = gate_masks(model)
    draw = np.random.default_rng(seed)
    config = model.config
    units = (config.num_heads // group, config.num_channels // block)
    masks = [
        [
            torch.from_numpy(
                np.repeat(draw.random((1, n)) < share, rows, 0) if same_masks else draw.random((rows, n)) < share
            )
            for n in units
        ]
        for _ in range(config.num_layers)
    ]
    batch = random_batch(rows, seed, types=family not in TYPELESS)
    try:
        set_masks(model, masks)
        model.to(dtype)
        logits = {}
        for mode in ("never", "always", "auto"):
            model.gates.skipping = mode
            with torch.no_grad():
                logits[mode] = model(**batch, output_exits=True).exit_logits.double()
    finally:
        model.to(torch.float32)
        model.gates.skipping = "auto"
        for layer, gates in enumerate(original_masks, 1):
            for gate, mask in zip(model.gates.of_layer(layer), gates, strict=True):
                gate.mask = mask
    allowed = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 0.3}[dtype]
    assert torch.allclose(logits["never"], logits["always"], atol=allowed)
    assert torch.allclose(logits["never"], logits["auto"], atol=allowed)


@pytest.mark.parametrize("family", GATED)
def test_batching_does_not_change_a_row_with_gates_and_exits(family, models):
    model = models(family, block=4)
    batch = random_batch(7, 3, types=family not in TYPELESS)
    with torch.no_grad():
        together = model(**batch, policy="entropy:1.09")
        for row in range(7):
            length = int(batch["attention_mask"][row].sum())
            alone = model(**{key: value[row : row + 1, :length] for key, value in batch.items()}, policy="entropy:1.09")
            assert int(alone.exit_layer) == int(together.exit_layer[row])
            assert torch.allclose(alone.logits[0], together.logits[row], atol=1e-5)
    assert len(set(together.exit_layer.tolist())) > 1 or family != "bert"


def test_weights_that_change_are_packed_again(models):
    """Skipping caches a copy of the heads' weights, which must be updated with them."""
    model = models("bert", block=4)
    batch = random_batch(3, 2)
    model.gates.skipping = "always"
    with torch.no_grad():
        before = model(**batch).logits
        model.backbone.encoder.layer[0].attention.self.value.weight.mul_(1.5)
        skipped = model(**batch).logits
        model.gates.skipping = "never"
        assert torch.allclose(skipped, model(**batch).logits, atol=1e-5)
        assert not torch.allclose(skipped, before, atol=1e-4)
        model.backbone.encoder.layer[0].attention.self.value.weight.div_(1.5)
    model.gates.skipping = "auto"


def test_open_gates_are_the_plain_model(models):
    for family in GATED:
        model = models(family)
        batch = random_batch(4, 5, types=family not in TYPELESS)
        ones = [
            [torch.ones(4, model.config.num_heads), torch.ones(4, model.config.num_channels)]
        ] * model.config.num_layers
        original_masks = gate_masks(model)
        set_masks(model, ones)
        with torch.no_grad():
            assert torch.allclose(
                model(**batch).logits, model.stepper.full_model(Batch.from_tensors(**batch)), atol=1e-5
            )
        for layer, gates in enumerate(original_masks, 1):
            for gate, mask in zip(model.gates.of_layer(layer), gates, strict=True):
                gate.mask = mask


def test_topk_prunes_ties_and_keeps_all_if_nothing_is_pruned():
    logits = torch.tensor([[3.0, 1.0, 1.0, 2.0, 0.0]])
    assert Gate(4, 5, 1e-5, "topk", 0.1).mask(logits).tolist() == [[1, 1, 1, 1, 1]]
    assert Gate(4, 5, 1e-5, "topk", 0.2).mask(logits).tolist() == [[1, 1, 1, 1, 0]]
    assert Gate(4, 5, 1e-5, "topk", 0.4).mask(logits).tolist() == [[1, 0, 0, 1, 0]]


def test_a_batch_of_one_row_trains_unless_faithful():
    gate = Gate(4, 5, 1e-5, "gumbel", 0.2).train()
    assert gate(torch.randn(1, 4)).shape == (1, 5)
    with pytest.raises(ValueError, match="more than 1 value"):
        Gate(4, 5, 1e-5, "gumbel", 0.2, faithful=True).train()(torch.randn(1, 4))


def test_operations_are_those_that_torch_counts(models):
    """With everything or nothing pruned, a row's exact count is the full one minus what its gates prune."""
    model = models("bert", block=4)
    config = model.config
    plain, _ = count_operations(config).at(np.array([9, 5]))
    blocks = layer_flops(config, "exact")
    full = np.full((2, config.num_layers, 2), [config.num_heads, config.num_channels])
    gates = blocks.head_predictor + blocks.channel_predictor
    layers = np.arange(1, config.num_layers + 1)
    assert np.allclose(saved_by_width(config, np.array([9, 5]), full), -gates * layers)
    none = saved_by_width(config, np.array([9, 5]), np.zeros_like(full))
    heads = np.cumsum(count_operations(config).at(np.array([9, 5]))[1], axis=1)
    assert np.allclose(plain - none - heads, gates * layers)  # only the gates and the exits remain


def test_train_evaluate_and_save(encoders, glue, tmp_path, capsys):
    call = ["train", str(encoders["bert"]), "--task", "sst-2", "--data-dir", str(glue), *FAST, "--log-every", "1"]
    options = ["--recipe", "ebert", "--target-ratio", "0.6", "--ffn-block", "8"]
    assert main([*call, *options, "--freeze-predictor", "--epochs", "1,1,1", "-o", str(tmp_path / "model")]) == 0
    stages = json.loads((tmp_path / "model" / "scores.json").read_text())["stages"]
    assert [stage["stage"] for stage in stages] == ["plain", "width", "frozen"]
    logged = next(entry for entry in stages[1]["history"] if "width_ratio" in entry)
    assert 0 < logged["width_ratio"] < 1.5
    model = AdaptiveModel.from_pretrained(tmp_path / "model")
    assert model.config.gating.block == 8 and model.config.gating.target == 0.6
    capsys.readouterr()
    run = ["evaluate", str(tmp_path / "model"), "-o", str(tmp_path / "run"), "--no-live"]
    assert main(run) == 0
    assert "of the layers' operations are kept (target 60.0 %)" in capsys.readouterr().out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 0 < results["width"]["ratio"] < 1.5 and len(results["width"]["heads"]) == model.config.num_layers
    exits = results["width"]["exits"]
    assert sum(entry["rows"] for entry in exits) == results["data"]["rows"]
    total = sum(entry["rows"] * entry["layer"] * entry["heads"] for entry in exits if entry["rows"])
    assert len(exits) == 1 and total == pytest.approx(
        results["data"]["rows"] * sum(results["width"]["heads"]), rel=1e-3
    )
    assert main(["info", str(tmp_path / "model")]) == 0
    out = capsys.readouterr().out
    assert "gates on heads (gumbel, groups of 1) and channels (gumbel, blocks of 8)" in out
    assert "kept up to this exit" in out and "channels per layer" in out


def test_errors_are_one_line(encoders, glue, tmp_path, capsys):
    save_encoder("bert", tmp_path / "encoder")
    call = ["train", tmp_path / "encoder", "--task", "sst-2", "--data-dir", glue, *FAST, "--recipe", "ebert"]
    call += ["-o", tmp_path / "model"]
    for options, message in (
        (["--target-ratio", "1.2"], "The target ratio must be above 0 and at most 1, got 1.2."),
        (["--target-ratio", "0"], "The target ratio must be above 0 and at most 1, got 0.0."),
        (["--ffn-block", "7"], ", got 7."),
        (["--head-group", "3"], "--head-group must divide"),
    ):
        assert message in fails(capsys, *call, *options)
    assert "Gates are not supported for albert" in fails(
        capsys, *(encoders["albert"] if part == tmp_path / "encoder" else part for part in call)
    )
    gated("bert", tmp_path / "other", labels=("0", "1")).save_pretrained(tmp_path / "gated")
    again = [tmp_path / "gated" if part == tmp_path / "encoder" else part for part in call]
    assert "already has gates. Start from a model without gates" in fails(capsys, *again)
    again[again.index("ebert")] = "joint"
    assert "Recipe joint does not train gates, but the model has gates" in fails(capsys, *again)
    assert not (tmp_path / "model").exists()


def test_a_plain_checkpoint_is_not_ebert_and_vice_versa(tmp_path, capsys):
    from tests.tiny import save_classifier

    plain = save_classifier("bert", tmp_path / "plain")
    assert "is not an EBERT checkpoint" in fails(capsys, "convert", plain, "--kind", "ebert", "-o", tmp_path / "m")
    golden = shutil.copytree(Path(__file__).parents[1] / "golden/ebert-bert/checkpoint", tmp_path / "ebert")
    assert "PABEE" in fails(capsys, "convert", golden, "--kind", "pabee", "-o", tmp_path / "m")
    assert main(["convert", str(golden), "-o", str(tmp_path / "m")]) == 0
    assert "--pad-to" in capsys.readouterr().out
    assert "gates prune heads and channels per input" in (tmp_path / "m" / "README.md").read_text()
    tokenizer().save_pretrained(tmp_path / "m")
    (tmp_path / "a.txt").write_text("good film\n")
    assert "Convert it again with --pad-to" in fails(capsys, "predict", tmp_path / "m", tmp_path / "a.txt")
    padded = ["convert", str(golden), "-o", str(tmp_path / "padded"), "--pad-to"]
    assert main([*padded, "20"]) == 0
    assert AdaptiveModel.from_pretrained(tmp_path / "padded").config.gating.pad_to == 20
    capsys.readouterr()
    assert "--pad-to must be between 1 and" in fails(capsys, *padded[:-2], tmp_path / "no", "--pad-to", "0")
    with pytest.raises(BadValue, match="already has gates"):
        AdaptiveModel.from_pretrained(tmp_path / "m").add_gates(Width().to_dict())


def test_exit_outputs_contain_what_rows_keep(models):
    model = models("bert")
    with torch.no_grad():
        outputs = run_all_exits(model.stepper, Batch.from_tensors(**random_batch(3, 1)))
    assert [output.kept.shape for output in outputs] == [
        (3, layer, 2) for layer in range(1, model.config.num_layers + 1)
    ]
