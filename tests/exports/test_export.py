"""Exported = torch: every family and kind of answer, every precision, one file or several, and what may be wrong."""

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
from offramp.core.loop import every_exit, run
from offramp.errors import BadModel, BadValue
from offramp.exports.one_file import write_one_file
from offramp.exports.options import ExportOptions, Texts
from offramp.exports.run import export
from offramp.policies import parse
from tests.tiny import FAMILY_NAMES, WORDS, livelier, random_batch

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
    """A model in a folder, its heads livened up."""
    model = AdaptiveModel.from_backbone(encoder, **options)
    livelier(model.exits, seed=1, scale=20.0)
    model.save_pretrained(folder)
    return AdaptiveModel.from_pretrained(folder).eval()


def some_texts(count: int, seed: int) -> list[str]:
    picked = np.random.default_rng(seed)
    return [" ".join(picked.choice(WORDS, picked.integers(2, 12))) for _ in range(count)]


TEXTS = Texts(some_texts(40, 0), some_texts(60, 1))


def same_exits(model: AdaptiveModel, stepper, policies: list[str], seeds: int = 4) -> float:
    """How far logits lie apart where rows leave, which must be at the same exits."""
    worst = 0.0
    for seed in range(seeds):
        batch = Batch.of_tensors(**random_batch(9, seed, longest=5 + 3 * seed))
        with torch.inference_mode():
            for policy in policies:
                expected, found = run(model.stepper, batch, parse(policy)), run(stepper, batch, parse(policy))
                assert expected.layer.tolist() == found.layer.tolist()
                worst = max(worst, float((expected.logits - found.logits).abs().max()))
    return worst


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_family_leaves_where_torch_does(family, encoders, tmp_path):
    model = saved(encoders[family], tmp_path / "model", num_labels=3, lte=True)
    told = export(model, TEXTS, ExportOptions(int8="none", exits=[1, 2, 4]))
    assert [spec["layer"] for spec in told.exits] == [1, 2, 4] and min(told.checked["agreement"].values()) == 1
    stepper = offramp.load(tmp_path / "model", backend="onnx").stepper
    narrow = AdaptiveModel.from_backbone(encoders[family], num_labels=3, lte=True, exits=[1, 2, 4])
    narrow.load_state_dict(model.state_dict(), strict=False)
    assert same_exits(narrow.eval(), stepper, ["entropy:0.61", "patience:1", "learned:0.5", "never"]) < 2e-4


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_every_kind_of_answer(variant, encoders, tmp_path):
    model = saved(encoders["bert"], tmp_path / "model", **VARIANTS[variant])
    export(model, Texts(), ExportOptions(int8="none"))
    stepper = offramp.load(tmp_path / "model", backend="onnx").stepper
    batch = Batch.of_tensors(**random_batch(7, 3))
    with torch.inference_mode():
        for expected, found in zip(every_exit(model.stepper, batch), every_exit(stepper, batch), strict=True):
            torch.testing.assert_close(found.raw, expected.raw, atol=2e-4, rtol=1e-4)
    assert same_exits(model, stepper, ["never", "layer:3"]) < 1e-3


@pytest.mark.parametrize("kind", ["static", "token"])
def test_in_int8_a_batch_is_its_rows(kind, encoders, tmp_path):
    model = saved(encoders["bert"], tmp_path / "model", num_labels=3)
    export(model, TEXTS, ExportOptions(int8=kind, force=True))
    runner = offramp.load(tmp_path / "model", backend="onnx")
    assert runner.dtype == f"int8-{kind}"
    together = runner.answer(TEXTS.checked, policy="entropy:0.6")
    alone = [runner.answer([text], policy="entropy:0.6") for text in TEXTS.checked]
    assert together.layer.tolist() == [int(one.layer[0]) for one in alone]
    np.testing.assert_allclose(together.logits, np.concatenate([one.logits for one in alone]), atol=1e-4)
    exact = model.runner().answer(TEXTS.checked, policy="never")
    rounded = runner.answer(TEXTS.checked, policy="never")
    assert (exact.logits.argmax(1) == rounded.logits.argmax(1)).mean() > 0.85
    assert np.corrcoef(exact.logits.ravel(), rounded.logits.ravel())[0, 1] > 0.98


@pytest.mark.parametrize("kind", ["static", "token"])
def test_smoothing_moves_outliers_into_the_weights(kind):
    from onnx import TensorProto, helper, numpy_helper

    from offramp.exports.int8 import quantise
    from offramp.exports.products import observe
    from offramp.runtimes.onnx import OnnxGraph

    rng = np.random.default_rng(0)
    weight, values = rng.normal(size=(16, 8)).astype(np.float32), rng.normal(size=(200, 5, 16)).astype(np.float32)
    values[..., 3] *= 60  # as the residual stream of real encoders has it
    weight[3] /= 60
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "one", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ranges, _ = observe(model, [{"x": values}])
    error = {}
    for smooth in (True, False):
        made = OnnxGraph(quantise(model, kind, ranges, smooth=smooth).SerializeToString())
        error[smooth] = float(np.abs(made({"x": values})["y"] - values @ weight).mean())
    assert error[True] < 0.5 * error[False], error


@pytest.mark.parametrize("kind", ["none", "static", "token"])
@pytest.mark.parametrize("policy", ["entropy:0.6", "confidence:0.7", "risk:0.21:-0.3,0.2,0.1:0.8,1.2,1"])
def test_one_file_leaves_as_the_loop_does(kind, policy, encoders, tmp_path):
    model = saved(encoders["mpnet"], tmp_path / "model", num_labels=3)
    export(model, TEXTS, ExportOptions(int8=kind, force=True))
    file, _ = write_one_file(tmp_path / "model", policy)
    session = onnxruntime.InferenceSession(file)
    stepper = offramp.load(tmp_path / "model", backend="onnx").stepper
    told = session.get_modelmeta().custom_metadata_map
    assert policy.startswith(f"{told['policy']}:{told['threshold']}") and told["exits"] == "1,2,3,4"
    for rows, most in ((1, 4), (5, 4), (17, 4), (6, 2)):
        batch = random_batch(rows, rows, types=False)
        feed = {name: value.numpy() for name, value in batch.items()}
        feed |= {"max_layers": np.array(most), "threshold": np.array(float(policy.split(":")[1]), np.float32)}
        logits, layers = session.run(["logits", "exit_layer"], feed)
        with torch.inference_mode():
            expected = run(stepper, Batch.of_tensors(**batch), parse(policy), most)
        assert layers.tolist() == expected.layer.tolist()
        np.testing.assert_allclose(logits, expected.logits.numpy(), atol=1e-5)
    _, layers = session.run(None, feed | {"threshold": np.array(0.0, np.float32)})
    assert set(layers.tolist()) == ({1} if policy.startswith("confidence") else {2})


def test_openvino_leaves_where_torch_does(encoders, tmp_path):
    model = saved(encoders["bert"], tmp_path / "model", num_labels=3, lte=True)
    export(model, TEXTS, ExportOptions("openvino", int8="none"))
    runner = offramp.load(tmp_path / "model", backend="openvino")
    assert runner.backend == "openvino"
    assert same_exits(model, runner.stepper, ["entropy:0.61", "patience:1", "learned:0.5"]) < 2e-4


def test_openvino_answers_in_several_threads(encoders, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    model = saved(encoders["bert"], tmp_path / "model", num_labels=3)
    export(model, Texts(), ExportOptions("openvino", int8="none"))
    runner = offramp.load(tmp_path / "model", backend="openvino", threads=1)
    parts = [TEXTS.checked[start : start + 6] for start in range(0, 60, 6)]
    expected = [runner.answer(part).logits for part in parts]
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(runner.answer, parts * 5), expected * 5, strict=True):
            np.testing.assert_allclose(found.logits, wanted, atol=1e-5)


def test_layers_that_share_weights_are_all_in_int8(encoders, tmp_path):
    import onnx

    model = saved(encoders["albert"], tmp_path / "model", num_labels=3)
    export(model, TEXTS, ExportOptions(int8="static", exits=[4], force=True))
    graph = onnx.load(tmp_path / "model" / "onnx" / "exit-4.onnx").graph
    made = {name: node.op_type for node in graph.node for name in node.output}
    constants = {one.name for one in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul"]
    assert not [node for node in products if node.input[1] in constants]
    assert sum(made.get(node.input[1]) == "DequantizeLinear" for node in products) >= 4 * 6


# -- the command line, on a model that was trained ------------------------------------------------


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
    said = json.loads((folder / "onnx" / "offramp.json").read_text())
    assert said["policy"]["name"] == "entropy" and said["calibrated"]["dtype"] == "int8-token"
    assert (folder / "config.json").read_bytes() == before and (folder / "onnx" / "calibration.json").is_file()
    runner = offramp.load(folder, backend="onnx")
    assert runner.config.calibrated and str(runner.config.exit_policy) == said["calibrated"]["policy"]
    capsys.readouterr()
    assert main(["predict", str(folder), texts, "--backend", "onnx"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["exit_layer"] for one in answers] == runner.answer(["a lovely film", "", "bad"]).layer.tolist()
    assert main(["evaluate", str(folder), "--backend", "onnx", "--no-live", "-o", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["export", str(folder), "--int8", "token", "--overwrite"]) == 0
    assert "What was calibrated on the export before is gone with it" in capsys.readouterr().err
    assert json.loads((folder / "onnx" / "offramp.json").read_text())["policy"] is None
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["machine"]["backend"] == "onnx" and results["model"]["policy"] == said["calibrated"]["policy"]


def test_the_full_float32_model_is_what_an_export_is_compared_with(exported, tmp_path):
    """Of an export whose last exit always answers the same, the evaluation says so."""
    import onnx
    from onnx import numpy_helper

    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    file = folder / "onnx" / "exit-4.onnx"
    graph = onnx.load(file)
    head = [one for one in graph.graph.initializer if list(one.dims) == [2]][-1]
    head.CopyFrom(numpy_helper.from_array(np.array([9, -9], np.float32), head.name))
    onnx.save(graph, file)
    assert main(["evaluate", str(folder), "--backend", "onnx", "--no-live", "-o", str(tmp_path / "run")]) == 0
    last = json.loads((tmp_path / "run" / "results.json").read_text())["exits"][-1]
    assert last["agreement"] < 0.8


def test_tune_keeps_few_exits_and_promises(exported, tmp_path, capsys):
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    assert main(["tune", str(folder), "--risk", "0.1", "--confidence", "0.8", "--batch", "8"]) == 0
    said = json.loads((folder / "onnx" / "offramp.json").read_text())
    assert said["calibrated"]["guarantee"] and said["precision"] == "int8-token"
    out = capsys.readouterr().out
    assert "With 80 % confidence" in out and "and an exit's decision" in out
    before = {file.name: file.read_bytes() for file in (folder / "onnx").iterdir()}
    assert main(["tune", str(folder), "--risk", "0.0005", "--confidence", "0.99"]) == 1
    assert {file.name: file.read_bytes() for file in (folder / "onnx").iterdir()} == before


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda folder: shutil.rmtree(folder / "onnx"), "has no onnx export; make one: `offramp export"),
        (
            lambda folder: (folder / "onnx" / "offramp.json").unlink(),
            "holds no offramp.json: it is not an export of ours, or a part of one. Move it away",
        ),
        (lambda folder: (folder / "onnx" / "offramp.json").write_text("{"), "is damaged"),
        (lambda folder: (folder / "onnx" / "exit-2.onnx").unlink(), "lacks exit-2.onnx"),
        (lambda folder: (folder / "onnx" / "exit-2.onnx").write_bytes(b"no"), "cannot load it"),
        (lambda folder: livened(folder), "its weights have changed since"),
        (lambda folder: warmer(folder), "exits or temperatures have changed"),
        (lambda folder: told(folder, made={"runtime": "onnxruntime 1.2"}), "was written for onnxruntime 1.2"),
        (lambda folder: told(folder, exits=[1, 2, 3, 4]), "`exits` is [1, 2, 3, 4]"),
        (lambda folder: told(folder, calibrated="x"), "`calibrated` is 'x'"),
    ],
)
def test_what_is_wrong_with_an_export_is_one_line(spoil, line, exported, tmp_path, texts, capsys):
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    spoil(folder)
    assert main(["predict", str(folder), texts, "--backend", "onnx"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and line in said[0], said


def livened(folder: Path) -> None:
    model = AdaptiveModel.from_pretrained(folder)
    livelier(model.exits, seed=3)
    model.save_pretrained(folder)


def told(folder: Path, **changes) -> None:
    file = folder / "onnx" / "offramp.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_what_is_not_ours_is_not_replaced(trained, tmp_path, capsys):
    folder = Path(shutil.copytree(trained, tmp_path / "model"))
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_text("somebody's")
    assert main(["export", str(folder), "--int8", "none", "--overwrite"]) == 2
    assert "it is not an export of ours and stays" in capsys.readouterr().err
    assert (folder / "onnx" / "model.onnx").read_text() == "somebody's"


def test_rows_that_made_the_export_do_not_test_it(trained, tmp_path, capsys):
    folder = Path(shutil.copytree(trained, tmp_path / "model"))
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text} {number}\n" for number, text in enumerate(some_texts(200, 7))))
    assert main(["export", str(folder), "--int8", "token", "--force", "--file", str(texts)]) == 0
    capsys.readouterr()
    assert main(["calibrate", str(folder), "--backend", "onnx", "--file", str(texts), "--risk", "0.2"]) == 1
    assert "200 of the rows are left out: the export was made with them" in capsys.readouterr().err


def test_without_the_training_data_an_export_is_not_compared(trained, tmp_path, capsys):
    folder = Path(shutil.copytree(trained, tmp_path / "model"))
    file = folder / "training.yaml"
    file.write_text(
        "".join(f"{line}\n" for line in file.read_text().splitlines() if "data_dir" not in line) + "data_dir: /gone\n"
    )
    assert main(["export", str(folder)]) == 0
    assert "there are no texts" in capsys.readouterr().err
    assert json.loads((folder / "onnx" / "offramp.json").read_text())["precision"] == "int8-token"


def warmer(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["exits"][0]["temperature"] = 2.0
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--exits", "9", "--overwrite"], "No layer 9"),
        (["--backend", "openvino", "--int8", "token"], "take --int8 static or none"),
        (["--one-file", "--exits", "2"], "are of a new export"),
        (["--threads", "0"], "threads is 0"),
        (["--overwrite", "--one-file", "patience:2"], "A single file exits by entropy:T, confidence:T or risk:T"),
        (["--one-file", "confidence:1.5"], "it must lie between 0 and 1"),
        ([], "exists already; give --overwrite"),
    ],
)
def test_what_cannot_be_exported_is_one_line(options, line, exported, capsys):
    assert main(["export", str(exported), *options]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and line in said[0], said


def test_answers_that_change_are_refused(encoders, tmp_path):
    model = saved(encoders["bert"], tmp_path / "model", num_labels=3)
    livelier(model.backbone, seed=5, scale=40.0)  # nothing that int8 could follow
    with pytest.raises(BadModel, match=r"int8-dynamic: an exit keeps .* `force=True`"):
        export(model, TEXTS, ExportOptions(int8="dynamic"))
    assert not (tmp_path / "model" / "onnx").exists()
    with pytest.raises(BadValue, match="taken from texts"):
        export(model, Texts(), ExportOptions(int8="static"))


WITHOUT = """
import sys
for name in ("onnx", "onnxruntime", "openvino", "nncf"):
    sys.modules[name] = None  # as if it were not installed
import offramp.calibration.run, offramp.evaluation.evaluate, offramp.cli.info
from offramp.cli.main import main
model, texts = sys.argv[1:]
assert main(["predict", model, texts]) == 0
for call in (["export", model], ["tune", model], ["benchmark", model], ["predict", model, texts, "--backend", "onnx"]):
    assert main(call) == 2
"""


def test_without_the_extra_everything_else_works_and_it_is_named(exported, texts):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(exported), texts], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "pip install '.[onnx]'" in line]
    assert len(lines) == 4, done.stderr
