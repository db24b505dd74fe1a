"""Convolutions in attention heads on layers 0 to 2: rows stay independent, and saved, exported and old models agree."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import offramp
from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.core.batch import Batch
from offramp.core.loop import run, run_all_exits
from offramp.errors import BadModel, BadValue
from offramp.evaluation.traces.operations import count_operations
from offramp.exports.one_file import write_one_file
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.run import export
from offramp.model.exit_spec import MAX_QUERIES, ExitSpec
from offramp.model.exits import Convolution
from offramp.policies import parse
from tests.calls import fails
from tests.tiny import WORDS, adaptive, random_batch

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("bert", "mpnet", "modernbert", "albert", "deberta-v2")
POLICIES = ("layer:0", "layer:2", "entropy:0.6", "never")
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def convolutional(family: str, folder, **options) -> AdaptiveModel:
    """Return a model with exits on layers 0, 1, 2, 3 and 4, and convolutions of 8 channels up to layer 2."""
    options = {"num_labels": 3, "exits": "auto", "heads": "attention", "convolution": 8} | options
    return adaptive(family, folder, **options)


def batch_for(family: str, rows: int, seed: int) -> dict[str, torch.Tensor]:
    return random_batch(rows, seed, types=family in ("bert", "albert"))


def logits_of_all_exits(model: AdaptiveModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of every exit, (exits, rows, labels)."""
    with torch.inference_mode():
        return torch.stack([output.logits for output in run_all_exits(model.stepper, Batch.from_tensors(**batch))])


def texts(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(2, 12))) for _ in range(count)]


def test_it_is_a_convolution_over_each_token_and_its_neighbours():
    torch.manual_seed(0)
    layer, hidden = Convolution(6, 4), torch.randn(2, 5, 6)
    kernel = nn.Conv1d(4, 4, 3, padding=1)
    kernel.weight.data = layer.mix.weight.data.view(4, 3, 4).transpose(1, 2)
    kernel.bias.data = layer.mix.bias.data
    expected = nn.functional.gelu(kernel(layer.reduce(hidden).transpose(1, 2)).transpose(1, 2))
    torch.testing.assert_close(layer(hidden, None), expected)


def test_only_exits_up_to_layer_2_have_one(tmp_path):
    model = convolutional("bert", tmp_path / "encoder")
    assert [spec.layer for spec in model.config.exit_specs] == [0, 1, 2, 3, 4]
    assert [spec.convolution for spec in model.config.exit_specs] == [8, 8, 8, 0, 0]
    assert all((model.exits.head(layer).reader.convolution is not None) is (layer <= 2) for layer in range(5))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_does_not_depend_on_its_neighbours_or_padding(family, tmp_path):
    model = convolutional(family, tmp_path / "encoder")
    batch = batch_for(family, 9, 3)
    lengths = batch["attention_mask"].sum(1).tolist()
    together = logits_of_all_exits(model, batch)
    assert len(set(lengths)) > 4
    for row, length in enumerate(lengths):
        alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
        torch.testing.assert_close(together[:, row], logits_of_all_exits(model, alone)[:, 0], **CLOSE)
    longer = {name: nn.functional.pad(value, (0, 7)) for name, value in batch.items()}
    torch.testing.assert_close(logits_of_all_exits(model, longer), together, **CLOSE)
    padding = longer["attention_mask"] == 0
    noisy = longer | {"input_ids": torch.where(padding, 5, longer["input_ids"])}
    if family != "mpnet":  # its positions depend on which ids are padding
        torch.testing.assert_close(logits_of_all_exits(model, noisy), together, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_the_loop_every_exit_gives_the_same_logits(family, tmp_path):
    model = convolutional(family, tmp_path / "encoder")
    batch = batch_for(family, 11, 4)
    every = logits_of_all_exits(model, batch)
    with torch.inference_mode():
        for policy in (*POLICIES, "patience:1"):
            result = run(model.stepper, Batch.from_tensors(**batch), parse(policy))
            expected = every[result.layer, torch.arange(11)]  # exits are on layers 0, 1, 2, 3, 4
            torch.testing.assert_close(result.logits, expected, **CLOSE)


def test_word_order_matters_on_layer_0(tmp_path):
    """DeBERTa's embeddings have no positions, so that without a convolution an exit on layer 0 reads a bag of words."""
    ids = torch.tensor([[2, 5, 9, 7, 3], [2, 9, 5, 7, 3]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    differences = []
    for channels in (0, 8):
        model = convolutional("deberta-v2", tmp_path / str(channels), convolution=channels)
        first, second = logits_of_all_exits(model, batch)[0]
        differences.append(float((first - second).abs().max()))
    assert differences[0] < 1e-5 < 1e-3 < differences[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_model_equals_the_saved_one(family, tmp_path):
    model, batch = convolutional(family, tmp_path / "encoder"), batch_for(family, 6, 5)
    model.save_pretrained(tmp_path / "model")
    loaded = AdaptiveModel.from_pretrained(tmp_path / "model").eval()
    assert loaded.config.exit_specs == model.config.exit_specs
    assert torch.equal(logits_of_all_exits(loaded, batch), logits_of_all_exits(model, batch))


@pytest.mark.parametrize("family", FAMILIES)
def test_exports_equal_torch(family, tmp_path):
    """One graph per exit, and all exits in one file."""
    onnxruntime = pytest.importorskip("onnxruntime")
    convolutional(family, tmp_path / "encoder", exits=[0, 1, 2, 4]).save_pretrained(tmp_path / "model")
    model = AdaptiveModel.from_pretrained(tmp_path / "model").eval()
    written = export(model, Texts(texts(40, 0), texts(60, 1)), ExportOptions(int8="none"))
    assert written.checked["agreement"] == {"0": 1.0, "1": 1.0, "2": 1.0, "4": 1.0}
    batches = [batch_for(family, rows, rows) for rows in (1, 5, 16)]
    threshold = threshold_in_a_gap(model, batches)
    stepper = offramp.load(tmp_path / "model", backend="onnx", threads=1).stepper
    file, _ = write_one_file(tmp_path / "model", f"entropy:{threshold}")
    session = onnxruntime.InferenceSession(file)
    exit_layers = set()
    for batch in batches:
        for policy in ("layer:0", "layer:2", "never", f"entropy:{threshold}"):
            with torch.inference_mode():
                expected = run(model.stepper, Batch.from_tensors(**batch), parse(policy))
                segments = run(stepper, Batch.from_tensors(**batch), parse(policy))
            assert segments.layer.tolist() == expected.layer.tolist()
            torch.testing.assert_close(segments.logits, expected.logits, atol=2e-4, rtol=1e-4)
        values = batch | {"threshold": torch.tensor(threshold), "max_layers": torch.tensor(4)}
        values = {"token_type_ids": torch.zeros_like(batch["input_ids"])} | values
        feed = {entry.name: values[entry.name].numpy() for entry in session.get_inputs()}
        logits, layers = session.run(["logits", "exit_layer"], feed)
        assert layers.tolist() == expected.layer.tolist()
        np.testing.assert_allclose(logits, expected.logits.numpy(), atol=2e-4)
        exit_layers |= set(layers.tolist())
    assert 0 in exit_layers and len(exit_layers) > 1


def threshold_in_a_gap(model: AdaptiveModel, batches: list[dict[str, torch.Tensor]]) -> float:
    """Return an entropy between those of the middle rows on layer 0, so that rounding does not change who exits."""
    logits = torch.cat([logits_of_all_exits(model, batch)[0] for batch in batches])
    entropies = model.config.answer_type.entropy(logits).sort().values
    middle = entropies[len(entropies) // 4 : 3 * len(entropies) // 4]
    widest = int(middle.diff().argmax())
    return float(middle[widest : widest + 2].mean())


@pytest.mark.parametrize("method", ["static", "mixed", "token"])
def test_in_int8_rows_do_not_depend_on_their_batch(method, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    convolutional("bert", tmp_path / "encoder").save_pretrained(tmp_path / "model")
    model, rows = AdaptiveModel.from_pretrained(tmp_path / "model").eval(), texts(60, 1)
    export(model, Texts(texts(40, 0), rows), ExportOptions(int8=method, force=True))
    runner = offramp.load(tmp_path / "model", backend="onnx", threads=1)
    assert runner.dtype == f"int8-{method}"
    for policy in ("layer:0", "layer:2"):
        together = runner.answer(rows, policy=policy)
        alone = np.concatenate([runner.answer([text], policy=policy).logits for text in rows])
        np.testing.assert_allclose(together.logits, alone, atol=1e-4)
        exact = model.runner().answer(rows, policy=policy)
        assert np.corrcoef(exact.logits.ravel(), together.logits.ravel())[0, 1] > 0.98
    file, _ = write_one_file(tmp_path / "model", "entropy:0.5")
    onnx.checker.check_model(onnx.load(file))  # with `mixed`, the part before the first layer uses fewer operators


def test_openvino_equals_torch(tmp_path):
    pytest.importorskip("openvino")
    convolutional("bert", tmp_path / "encoder").save_pretrained(tmp_path / "model")
    model, rows = AdaptiveModel.from_pretrained(tmp_path / "model").eval(), texts(30, 1)
    export(model, Texts(), ExportOptions("openvino", int8="none"))
    runner = offramp.load(tmp_path / "model", backend="openvino", threads=1)
    for policy in POLICIES:
        expected, actual = model.runner().answer(rows, policy=policy), runner.answer(rows, policy=policy)
        assert actual.layer.tolist() == expected.layer.tolist()
        np.testing.assert_allclose(actual.logits, expected.logits, atol=2e-4)


def test_its_operations_are_counted(tmp_path):
    lengths = np.array([8, 20])
    _, without = count_operations(convolutional("bert", tmp_path / "a", convolution=0).config).at(lengths)
    _, with_8 = count_operations(convolutional("bert", tmp_path / "b").config).at(lengths)
    # reduce 16 → 8, mix 24 → 8; scores 4 and values 64 read 8 instead of 16 channels; two operations per product
    added = 2 * (16 * 8 + 24 * 8 - 8 * (4 + 64))
    np.testing.assert_allclose(with_8[:, :3] - without[:, :3], np.repeat(added * lengths[:, None], 3, axis=1))
    np.testing.assert_allclose(with_8[:, 3:], without[:, 3:])


# -- configs ---------------------------------------------------------------------------------------


def test_configs_without_the_key_load_and_keep_their_fingerprint(tmp_path):
    model = convolutional("bert", tmp_path / "encoder", convolution=0)
    model.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert all(set(spec) == {"layer", "head", "pooling", "temperature", "queries", "width"} for spec in config["exits"])
    before = offramp.load(tmp_path / "model").fingerprint
    config["exits"] = [spec | {"convolution": 0} for spec in config["exits"]]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert offramp.load(tmp_path / "model").fingerprint == before
    assert "convolution" not in ExitSpec(2, "linear").to_dict()
    assert ExitSpec(2, "attention", "queries", convolution=8).to_dict()["convolution"] == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"convolution": -1}, "`convolution` of the exit on layer 1 must be an integer between 0 and 4,096, got -1"),
        ({"convolution": MAX_QUERIES + 1}, "between 0 and 4,096, got 4097"),
        ({"convolution": 1.5}, "must be an integer between 0 and 4,096, got 1.5"),
        ({"convolution": True}, "must be an integer between 0 and 4,096, got True"),
        ({"convolution": None}, "must be an integer between 0 and 4,096, got None"),
        (
            {"convolution": 8, "head": "linear", "pooling": "mean"},
            "has head 'linear' with a convolution; only attention heads and linear heads per token support one.",
        ),
    ],
)
def test_an_invalid_convolution_in_a_config_is_one_line(change, message, tmp_path, capsys):
    convolutional("bert", tmp_path / "encoder", exits=[1, 4]).save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    config["exits"][0] |= change
    file.write_text(json.dumps(config))
    assert message in fails(capsys, "info", tmp_path / "model")
    with pytest.raises(BadModel):
        AdaptiveModel.from_pretrained(tmp_path / "model")


def test_invalid_options_in_python(encoders):
    with pytest.raises(BadModel, match="between 0 and 4,096, got -1"):
        AdaptiveModel.from_backbone(encoders["bert"], exits=[1, 4], heads="attention", convolution=-1)
    with pytest.raises(BadValue, match="Only attention heads have a convolution, and the heads are linear"):
        AdaptiveModel.from_backbone(encoders["bert"], convolution=8)


# -- training --------------------------------------------------------------------------------------


def test_train_with_an_exit_on_layer_0_and_a_convolution(encoders, glue, tmp_path, capsys):
    options = ["--task", "sst-2", "--data-dir", glue, "--max-steps", 3, "--batch-size", 8, "--cpu"]
    options += ["--exits", "0,2", "--heads", "attention", "--convolution", 16, "-o", tmp_path / "model"]
    assert main([str(part) for part in ("train", encoders["bert"], *options)]) == 0
    assert "exit 0" in capsys.readouterr().out
    model = AdaptiveModel.from_pretrained(tmp_path / "model")
    assert [(spec.layer, spec.convolution) for spec in model.config.exit_specs] == [(0, 16), (2, 16), (4, 0)]
    assert model.exits.head(0).reader.convolution.mix.weight.shape == (16, 48)
    (tmp_path / "rows.txt").write_text("".join(f"{text}\n" for text in texts(5, 2)))
    predict = ["predict", tmp_path / "model", tmp_path / "rows.txt", "--policy", "layer:0"]
    assert main([str(part) for part in predict]) == 0
    assert [json.loads(line)["exit_layer"] for line in capsys.readouterr().out.splitlines()] == [0] * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--convolution", "16"], "Only attention heads have a convolution, and the heads are linear"),
        (["--heads", "attention", "--convolution", "-1"], "--convolution must be at least 0, got -1"),
        (["--heads", "attention", "--convolution", "5000"], "--convolution must be at most 4,096, got 5000"),
        (["--heads", "attention", "--convolution", "many"], "--convolution"),
        (["--exits", "some"], "--exits must be 'auto', 'all' or a list of layers, got 'some'"),
    ],
)
def test_mistakes_in_train_are_one_line(options, message, encoders, glue, tmp_path, capsys):
    task = ["--task", "sst-2", "--data-dir", glue, "--cpu", "-o", tmp_path / "model"]
    assert message in fails(capsys, "train", encoders["bert"], *task, *options)
    assert not (tmp_path / "model").exists()
