"""Exports equal torch: every model family, answer type and precision, one file or several, and error messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import offramp
from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.core.batch import Batch
from offramp.core.loop import run, run_all_exits
from offramp.errors import BadModel, BadValue
from offramp.exports.one_file import write_one_file
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.run import export
from offramp.policies import parse
from tests import programs
from tests.tiny import FAMILY_NAMES, WORDS, amplify_weights, random_batch

pytestmark = pytest.mark.usefixtures("one_thread")

VARIANTS = {
    "three classes": {"num_labels": 3, "lte": True},
    "poolers": {"num_labels": 3, "pooling": "first", "exits": [1, 3, 4]},
    "shared": {"num_labels": 3, "heads": "shared"},
    "attention": {"num_labels": 3, "heads": "attention"},
    "multi-label": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "regression": {"num_labels": 1, "problem_type": "regression"},
    "spans": {"problem_type": "question_answering"},
}


def saved(encoder: Path, folder: Path, **options) -> AdaptiveModel:
    """Save a model with amplified head weights."""
    model = AdaptiveModel.from_backbone(encoder, **options)
    amplify_weights(model.exits, seed=1, scale=20.0)
    model.save_pretrained(folder)
    return AdaptiveModel.from_pretrained(folder).eval()


def random_texts(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(2, 12))) for _ in range(count)]


RISK = "risk:0.21:-0.3,0.2,0.1:0.8,1.2,1"
TEXTS = Texts(random_texts(40, 0), random_texts(60, 1))


def logit_difference(model: AdaptiveModel, stepper, policies: list[str], seeds: int = 4) -> float:
    """Assert that rows exit at the same layers; return the maximum difference of their logits."""
    worst = 0.0
    for seed in range(seeds):
        batch = Batch.from_tensors(**random_batch(9, seed, longest=5 + 3 * seed))
        with torch.inference_mode():
            for policy in policies:
                expected, actual = run(model.stepper, batch, parse(policy)), run(stepper, batch, parse(policy))
                assert expected.layer.tolist() == actual.layer.tolist()
                worst = max(worst, float((expected.logits - actual.logits).abs().max()))
    return worst


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_family_exits_as_torch_does(family, encoders, tmp_path):
    model = saved(encoders[family], tmp_path / "model", num_labels=3, lte=True)
    written = export(model, TEXTS, ExportOptions(int8="none", exits=[1, 2, 4]))
    assert [spec["layer"] for spec in written.exits] == [1, 2, 4] and min(written.checked["agreement"].values()) == 1
    stepper = offramp.load(tmp_path / "model", backend="onnx").stepper
    narrow = AdaptiveModel.from_backbone(encoders[family], num_labels=3, lte=True, exits=[1, 2, 4])
    narrow.load_state_dict(model.state_dict(), strict=False)
    assert logit_difference(narrow.eval(), stepper, ["entropy:0.61", "patience:1", "learned:0.5", "never"]) < 2e-4


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_every_answer_type(variant, encoders, tmp_path):
    model = saved(encoders["bert"], tmp_path / "model", **VARIANTS[variant])
    export(model, Texts(), ExportOptions(int8="none"))
    stepper = offramp.load(tmp_path / "model", backend="onnx").stepper
    batch = Batch.from_tensors(**random_batch(7, 3))
    with torch.inference_mode():
        for expected, actual in zip(run_all_exits(model.stepper, batch), run_all_exits(stepper, batch), strict=True):
            torch.testing.assert_close(actual.raw, expected.raw, atol=2e-4, rtol=1e-4)
    assert logit_difference(model, stepper, ["never", "layer:3"]) < 1e-3


@pytest.mark.parametrize("method", ["static", "mixed", "token"])
def test_in_int8_rows_do_not_depend_on_their_batch(method, encoders, tmp_path):
    model = saved(encoders["bert"], tmp_path / "model", num_labels=3)
    export(model, TEXTS, ExportOptions(int8=method, force=True))
    runner = offramp.load(tmp_path / "model", backend="onnx")
    assert runner.dtype == f"int8-{method}"
    together = runner.answer(TEXTS.checked, policy="entropy:0.6")
    alone = [runner.answer([text], policy="entropy:0.6") for text in TEXTS.checked]
    assert together.layer.tolist() == [int(prediction.layer[0]) for prediction in alone]
    np.testing.assert_allclose(together.logits, np.concatenate([prediction.logits for prediction in alone]), atol=1e-4)
    exact = model.runner().answer(TEXTS.checked, policy="never")
    rounded = runner.answer(TEXTS.checked, policy="never")
    assert (exact.logits.argmax(1) == rounded.logits.argmax(1)).mean() > 0.85
    assert np.corrcoef(exact.logits.ravel(), rounded.logits.ravel())[0, 1] > 0.98


def product_error(values, weight, method, **options):
    """Return the mean error of a product that is quantized, with the ranges of its values unless they are given."""
    from onnx import TensorProto, helper, numpy_helper

    from offramp.exports.int8 import quantize
    from offramp.exports.products import observe_ranges
    from offramp.runtimes.onnx import OnnxGraph

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "one", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ranges, _ = observe_ranges(model, [{"x": values}])
    quantised = OnnxGraph(quantize(model, method, **{"ranges": ranges, **options}).SerializeToString())
    return float(np.abs(quantised({"x": values})["y"] - values @ weight).mean())


@pytest.mark.parametrize("method", ["static", "token"])
def test_smoothing_moves_outliers_into_the_weights(method):
    rng = np.random.default_rng(0)
    weight, values = rng.normal(size=(16, 8)).astype(np.float32), rng.normal(size=(200, 5, 16)).astype(np.float32)
    values[..., 3] *= 60  # as the residual stream of real encoders has it
    weight[3] /= 60
    error = {smooth: product_error(values, weight, method, smooth=smooth) for smooth in (True, False)}
    assert error[True] < 0.5 * error[False], error


def test_activations_after_gelu_use_all_eight_bits():
    rng = np.random.default_rng(0)
    weight, values = rng.normal(size=(64, 8)).astype(np.float32), rng.normal(size=(200, 5, 64)).astype(np.float32)
    weight = np.sign(weight)  # rounded without an error
    values = np.maximum(2 * values, -0.17)
    halved = product_error(values, weight, "token", ranges=None)
    assert product_error(values, weight, "token", smooth=False) < 0.6 * halved


def test_mixed_scales_are_per_token_for_the_widest_activations_after_gelu():
    rng = np.random.default_rng(0)
    weight, values = rng.normal(size=(64, 8)).astype(np.float32), rng.normal(size=(200, 5, 64)).astype(np.float32)
    values *= np.geomspace(0.01, 10, 200, dtype=np.float32)[:, None, None]  # tokens of very different size
    both_sides = [product_error(values, weight, method) for method in ("static", "mixed")]
    assert both_sides[0] == both_sides[1]
    values = np.maximum(values, -0.17)
    error = {method: product_error(values, weight, method) for method in ("static", "mixed", "token")}
    assert error["mixed"] == error["token"] < 0.7 * error["static"]


@pytest.mark.parametrize(
    ("method", "policy"),
    [("none", "entropy:0.6"), ("none", "confidence:0.7"), ("none", RISK), ("static", RISK), ("token", "entropy:0.6")],
)
def test_one_file_exits_as_the_loop_does(method, policy, encoders, tmp_path):
    model = saved(encoders["mpnet"], tmp_path / "model", num_labels=3)
    export(model, TEXTS, ExportOptions(int8=method, force=True))
    file, _ = write_one_file(tmp_path / "model", policy)
    session = onnxruntime.InferenceSession(file)
    stepper = offramp.load(tmp_path / "model", backend="onnx").stepper
    metadata = session.get_modelmeta().custom_metadata_map
    assert policy.startswith(f"{metadata['policy']}:{metadata['threshold']}") and metadata["exits"] == "1,2,3,4"
    assert json.loads(metadata["labels"]) == ["LABEL_0", "LABEL_1", "LABEL_2"] and metadata["max_length"] == "38"
    assert (metadata["tokenizer"], metadata["pad_token_id"]) == ("tokenizer.json", "0")
    settings = json.loads(file.with_suffix(".json").read_text())
    assert settings["labels"] == json.loads(metadata["labels"]) and settings["exits"] == [1, 2, 3, 4]
    for rows, max_layers in ((1, 4), (5, 4), (17, 4), (6, 2)):
        batch = random_batch(rows, rows, types=False)
        feed = {name: value.numpy() for name, value in batch.items()}
        feed |= {"max_layers": np.array(max_layers), "threshold": np.array(float(policy.split(":")[1]), np.float32)}
        logits, layers = session.run(["logits", "exit_layer"], feed)
        with torch.inference_mode():
            expected = run(stepper, Batch.from_tensors(**batch), parse(policy), max_layers)
        assert layers.tolist() == expected.layer.tolist()
        np.testing.assert_allclose(logits, expected.logits.numpy(), atol=1e-5)
    lists = {name: value.tolist() for name, value in batch.items()}  # Python numbers are accepted too
    _, same = session.run(None, lists | {"threshold": [float(policy.split(":")[1])], "max_layers": [max_layers]})
    assert same.tolist() == layers.tolist()
    _, layers = session.run(None, feed | {"threshold": np.array(0.0, np.float32)})
    assert set(layers.tolist()) == ({1} if policy.startswith("confidence") else {2})


def test_openvino_exits_as_torch_does(encoders, tmp_path):
    model = saved(encoders["bert"], tmp_path / "model", num_labels=3, lte=True)
    export(model, TEXTS, ExportOptions("openvino", int8="none"))
    runner = offramp.load(tmp_path / "model", backend="openvino")
    assert runner.backend == "openvino"
    assert logit_difference(model, runner.stepper, ["entropy:0.61", "patience:1", "learned:0.5"]) < 2e-4


def test_openvino_predicts_in_several_threads(encoders, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    model = saved(encoders["bert"], tmp_path / "model", num_labels=3)
    export(model, Texts(), ExportOptions("openvino", int8="none"))
    runner = offramp.load(tmp_path / "model", backend="openvino", threads=1)
    parts = [TEXTS.checked[start : start + 6] for start in range(0, 60, 6)]
    expected = [runner.answer(part).logits for part in parts]
    with ThreadPoolExecutor(4) as pool:
        for actual, logits in zip(pool.map(runner.answer, parts * 5), expected * 5, strict=True):
            np.testing.assert_allclose(actual.logits, logits, atol=1e-5)


def test_layers_that_share_weights_are_all_in_int8(encoders, tmp_path):
    import onnx

    model = saved(encoders["albert"], tmp_path / "model", num_labels=3)
    export(model, TEXTS, ExportOptions(int8="static", exits=[4], force=True))
    graph = onnx.load(tmp_path / "model" / "onnx" / "exit-4.onnx").graph
    op_types = {name: node.op_type for node in graph.node for name in node.output}
    constants = {constant.name for constant in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul"]
    assert not [node for node in products if node.input[1] in constants]
    assert sum(op_types.get(node.input[1]) == "DequantizeLinear" for node in products) >= 4 * 6


# -- the command line, on a trained model ------------------------------------------------


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory) -> Path:
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("exported") / "model"))
    assert main(["export", str(folder), "--int8", "token"]) == 0
    return folder


def test_calibrate_predict_and_evaluate_on_an_export(exported, tmp_path, texts, capsys):
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    before = (folder / "config.json").read_bytes()
    call = ["calibrate", str(folder), "--backend", "onnx", "--risk", "0.1", "--confidence", "0.8"]
    assert main(call) == 0
    saved_export = json.loads((folder / "onnx" / "offramp.json").read_text())
    assert saved_export["policy"]["name"] == "entropy" and saved_export["calibrated"]["dtype"] == "int8-token"
    assert (folder / "config.json").read_bytes() == before and (folder / "onnx" / "calibration.json").is_file()
    runner = offramp.load(folder, backend="onnx")
    assert runner.config.calibrated and str(runner.config.exit_policy) == saved_export["calibrated"]["policy"]
    capsys.readouterr()
    assert main(["predict", str(folder), texts, "--backend", "onnx"]) == 0
    predictions = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [prediction["exit_layer"] for prediction in predictions] == runner.answer(
        ["a lovely film", "", "bad"]
    ).layer.tolist()
    assert main(["evaluate", str(folder), "--backend", "onnx", "--no-live", "-o", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["export", str(folder), "--int8", "token", "--overwrite"]) == 0
    assert "The calibration of the replaced export is lost" in capsys.readouterr().err
    assert json.loads((folder / "onnx" / "offramp.json").read_text())["policy"] is None
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (
        results["machine"]["backend"] == "onnx" and results["model"]["policy"] == saved_export["calibrated"]["policy"]
    )


def test_an_export_is_compared_with_the_full_float32_model(exported, tmp_path):
    """An export whose last exit always predicts the same class has a low agreement."""
    import onnx
    from onnx import numpy_helper

    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    file = folder / "onnx" / "exit-4.onnx"
    graph = onnx.load(file)
    head = [constant for constant in graph.graph.initializer if list(constant.dims) == [2]][-1]
    head.CopyFrom(numpy_helper.from_array(np.array([9, -9], np.float32), head.name))
    onnx.save(graph, file)
    assert main(["evaluate", str(folder), "--backend", "onnx", "--no-live", "-o", str(tmp_path / "run")]) == 0
    last = json.loads((tmp_path / "run" / "results.json").read_text())["exits"][-1]
    assert last["agreement"] < 0.8


def test_tune_keeps_few_exits_and_gives_a_guarantee(exported, tmp_path, capsys):
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    assert main(["tune", str(folder), "--risk", "0.1", "--confidence", "0.8", "--batch", "8"]) == 0
    saved_export = json.loads((folder / "onnx" / "offramp.json").read_text())
    assert saved_export["calibrated"]["guarantee"] and saved_export["precision"] == "int8-token"
    out = capsys.readouterr().out
    assert "With 80 % confidence" in out and "the full model takes" in out
    layers = [spec["layer"] for spec in saved_export["exits"]]
    assert f"Selected exits on layers {', '.join(map(str, layers))}: " in out
    assert 1 < len(layers) < 4 and layers[-1] == 4  # of four exits, an early one and not all
    assert saved_export["files"] == [f"exit-{layer}.onnx" for layer in layers]
    graphs = sorted(file.name for file in (folder / "onnx").glob("*.onnx"))
    assert graphs == saved_export["files"]
    before = {file.name: file.read_bytes() for file in (folder / "onnx").iterdir()}
    assert main(["tune", str(folder), "--risk", "0.0005", "--confidence", "0.99"]) == 1
    assert {file.name: file.read_bytes() for file in (folder / "onnx").iterdir()} == before


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda folder: shutil.rmtree(folder / "onnx"), "has no onnx export; run `offramp export"),
        (
            lambda folder: (folder / "onnx" / "offramp.json").unlink(),
            "has no offramp.json: it is not a complete offramp export. Move it away",
        ),
        (lambda folder: (folder / "onnx" / "offramp.json").write_text("{"), "is damaged"),
        (lambda folder: (folder / "onnx" / "exit-2.onnx").unlink(), "has no exit-2.onnx"),
        (lambda folder: (folder / "onnx" / "exit-2.onnx").write_bytes(b"no"), "cannot be loaded by onnxruntime"),
        (lambda folder: change_weights(folder), "have changed since"),
        (lambda folder: change_temperature(folder), "exits or temperatures have changed"),
        (lambda folder: change_json(folder, made={"runtime": "onnxruntime 1.2"}), "was exported for onnxruntime 1.2"),
        (lambda folder: change_json(folder, exits=[1, 2, 3, 4]), "`exits` is [1, 2, 3, 4]"),
        (lambda folder: change_json(folder, calibrated="x"), "`calibrated` is 'x'"),
    ],
)
def test_a_damaged_export_is_reported_in_one_line(damage, line, exported, tmp_path, texts, capsys):
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    damage(folder)
    assert main(["predict", str(folder), texts, "--backend", "onnx"]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1 and line in errors[0], errors


def change_weights(folder: Path) -> None:
    model = AdaptiveModel.from_pretrained(folder)
    amplify_weights(model.exits, seed=3)
    model.save_pretrained(folder)


def change_json(folder: Path, **changes) -> None:
    file = folder / "onnx" / "offramp.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_folder_of_the_user_is_not_replaced(trained, tmp_path, capsys):
    folder = Path(shutil.copytree(trained, tmp_path / "model"))
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_text("somebody's")
    assert main(["export", str(folder), "--int8", "none", "--overwrite"]) == 2
    assert "it is not an offramp export" in capsys.readouterr().err
    assert (folder / "onnx" / "model.onnx").read_text() == "somebody's"


def test_rows_used_to_export_do_not_test_the_guarantee(trained, tmp_path, capsys):
    folder = Path(shutil.copytree(trained, tmp_path / "model"))
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text} {number}\n" for number, text in enumerate(random_texts(200, 7))))
    assert main(["export", str(folder), "--int8", "token", "--force", "--file", str(texts)]) == 0
    capsys.readouterr()
    assert main(["calibrate", str(folder), "--backend", "onnx", "--file", str(texts), "--risk", "0.2"]) == 1
    assert "Skipped 200 rows that were used to export the model" in capsys.readouterr().out


def test_without_the_training_data_an_export_is_not_compared(trained, tmp_path, capsys):
    folder = Path(shutil.copytree(trained, tmp_path / "model"))
    file = folder / "training.yaml"
    file.write_text(
        "".join(f"{line}\n" for line in file.read_text().splitlines() if "data_dir" not in line) + "data_dir: /gone\n"
    )
    assert main(["export", str(folder)]) == 0
    assert "there are no texts" in capsys.readouterr().err
    assert json.loads((folder / "onnx" / "offramp.json").read_text())["precision"] == "int8-token"


def change_temperature(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["exits"][0]["temperature"] = 2.0
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--exits", "9", "--overwrite"], "must be layers from 0 to 4, got 9"),
        (["--backend", "openvino", "--int8", "token"], "Use --int8 static or --int8 none"),
        (["--one-file", "--exits", "2"], "need a new export"),
        (["--threads", "0"], "threads must be between 1 and 4,096, got 0"),
        (["--overwrite", "--one-file", "patience:2"], "--one-file supports entropy, confidence and risk"),
        (["--one-file", "confidence:1.5"], "must be between 0 and 1, got 1.5"),
        ([], "already exists; use --overwrite"),
    ],
)
def test_a_wrong_export_is_reported_in_one_line(options, line, exported, capsys):
    assert main(["export", str(exported), *options]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1 and line in errors[0], errors


def test_an_export_with_changed_predictions_is_rejected(encoders, tmp_path):
    torch.manual_seed(0)  # of the heads
    model = saved(encoders["bert"], tmp_path / "model", num_labels=3)
    amplify_weights(model.backbone, seed=5, scale=40.0)  # too large for int8
    with pytest.raises(BadModel, match=r"int8-dynamic: only .* `force=True`"):
        export(model, TEXTS, ExportOptions(int8="dynamic"))
    assert not (tmp_path / "model" / "onnx").exists()
    with pytest.raises(BadValue, match="needs texts for its scales"):
        export(model, Texts(), ExportOptions(int8="static"))


def test_a_missing_extra_is_named_and_everything_else_works(exported, texts, tmp_path):
    works = [["info"], ["predict", texts], ["evaluate", "--file", texts, "--no-live", "-o", tmp_path / "run"]]
    needs = [["export"], ["tune"], ["benchmark"], ["predict", texts, "--backend", "onnx"]]
    hidden = (programs.hide, "onnx", "onnxruntime", "openvino", "nncf")
    done = programs.run(*((programs.offramp, [name, exported, *rest], *hidden) for name, *rest in works + needs))
    assert [process.code for process in done] == [0] * len(works) + [2] * len(needs), done
    assert all("pip install '.[onnx]'" in process.stderr for process in done[len(works) :]), done
