"""A model folder remembers what it was adapted for: backend, threads, and a guarantee per backend."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

import offramp
from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.model.folder import exports_in
from tests import programs
from tests.adaptation.test_adapt import EASY, classifier, random_texts, write
from tests.calls import json_lines

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory) -> Path:
    """A classifier that was adapted for ONNX Runtime with two threads."""
    root = tmp_path_factory.mktemp("adapted")
    original = classifier("bert", root / "original", 2)
    texts = write(root / "texts.txt", random_texts(700))
    options = [*EASY, "--policy", "risk", "--backend", "onnx", "--int8", "none", "--threads", "2"]
    options += ["--output", root / "fast"]
    assert main([str(part) for part in ("adapt", original, texts, *options)]) == 0
    return root / "fast"


@pytest.fixture
def fast(adapted, tmp_path) -> Path:
    """A copy that tests may change."""
    return Path(shutil.copytree(adapted, tmp_path / "fast"))


def test_the_backend_and_threads_of_adapt_are_the_default(fast, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("offramp.runtimes.loading.usable_threads", lambda: 4)
    runner = offramp.load(fast)
    assert (runner.backend, runner.stepper.threads) == ("onnx", 2)
    assert (offramp.load(fast, threads=1).stepper.threads, offramp.load(fast, "torch").backend) == (1, "torch")
    texts = write(tmp_path / "texts.txt", random_texts(40, seed=3))
    by_default = json_lines(capsys, "predict", fast, texts)
    assert by_default == json_lines(capsys, "predict", fast, texts, "--backend", "onnx")
    assert main(["evaluate", str(fast), "--file", str(texts), "--no-live", "-o", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["machine"]["backend"] == "onnx"
    capsys.readouterr()
    assert main(["info", str(fast)]) == 0
    out = capsys.readouterr().out
    assert "runs in     onnx, 2 threads by default" in out
    assert out.count("With 90 % confidence") == 2 and "  torch " in out and "  onnx " in out


def test_fewer_cores_than_threads(fast, monkeypatch):
    monkeypatch.setattr("offramp.runtimes.loading.usable_threads", lambda: 1)
    assert offramp.load(fast).stepper.threads == 1


def test_the_card_has_a_guarantee_per_backend(fast):
    card = (fast / "README.md").read_text()
    calibrated = offramp.load(fast).config.calibrated
    onnx, torch_sentence = calibrated["sentence"], AdaptiveModel.from_pretrained(fast).config.calibrated["sentence"]
    first = card.index(f'**ONNX Runtime float32** (`backend="onnx"`): {onnx}')
    second = card.index("**PyTorch float32**")
    assert first < second < card.index(torch_sentence, second)
    assert "pip install 'offramp[onnx]'" in card
    assert 'offramp.load("path/to/this/model")  # runs in ONNX Runtime' in card
    assert "`onnx/calibration.json`" in card and "trust_remote_code=True" in card
    policies = next(line for line in card.splitlines() if line.startswith("| Exit policy |"))
    assert policies.startswith("| Exit policy | ONNX Runtime: risk model, threshold") and "; PyTorch: " in policies


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda fast: shutil.rmtree(fast / "onnx"), "has no onnx export"),
        (lambda fast: (fast / "onnx" / "exit-4.onnx").write_bytes(b"no"), "cannot be loaded by onnxruntime"),
    ],
)
def test_without_the_export_torch_is_used_and_one_line_says_why(damage, reason, fast, tmp_path, capsys):
    damage(fast)
    texts = write(tmp_path / "texts.txt", random_texts(5, seed=3))
    assert main(["predict", str(fast), str(texts)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 5
    assert err.count("\n") == 1 and "was adapted for onnx, but runs in torch here: " in err and reason in err


def test_without_onnxruntime_torch_is_used_and_the_extra_is_named(fast, tmp_path):
    texts = write(tmp_path / "texts.txt", random_texts(5, seed=3))
    (done,) = programs.run((programs.offramp, ["predict", fast, texts], programs.hide, "onnxruntime"))
    assert done.code == 0 and len(done.stdout.splitlines()) == 5
    assert done.stderr.count("\n") == 1 and "needs onnxruntime: pip install" in done.stderr


def test_options_of_torch_use_torch(fast, caplog):
    assert offramp.load(fast, dtype="float32").backend == "torch"
    assert "was adapted for onnx, but runs in torch here: `dtype=` and `device=` are options of torch" in caplog.text


# -- saving ---------------------------------------------------------------------------------------


def test_exports_are_saved_with_an_unchanged_model(fast, tmp_path):
    AdaptiveModel.from_pretrained(fast).save_pretrained(tmp_path / "copy")
    again = offramp.load(tmp_path / "copy")
    assert again.backend == "onnx" and again.config.calibrated == offramp.load(fast).config.calibrated
    assert set(exports_in(tmp_path / "copy")) == {"onnx"}
    texts = random_texts(20, seed=4)
    assert (again.answer(texts).logits == offramp.load(fast).answer(texts).logits).all()


def test_exports_of_other_weights_are_not_saved_and_a_warning_says_so(fast, tmp_path, caplog):
    model = AdaptiveModel.from_pretrained(fast)
    with torch.no_grad():
        model.exits.head(4).classifier.bias += 1
    model.save_pretrained(tmp_path / "changed")
    assert f"{fast / 'onnx'} was exported from other weights than those saved" in caplog.text
    assert not (tmp_path / "changed" / "onnx").exists()
    caplog.clear()
    assert offramp.load(tmp_path / "changed").backend == "torch" and caplog.text == ""


def test_weights_saved_in_the_same_folder_take_the_exports_guarantee_off_the_card(fast, caplog):
    model = AdaptiveModel.from_pretrained(fast)
    with torch.no_grad():
        model.exits.head(4).classifier.bias += 1
    model.save_pretrained(fast)
    assert "was exported from other weights than those saved" in caplog.text
    assert "ONNX Runtime" not in (fast / "README.md").read_text()
    assert json.loads((fast / "config.json").read_text()).get("adapted_for") is None
    assert model.config.adapted_for["backend"] == "onnx"  # the model in memory is not changed
    assert offramp.load(fast).backend == "torch"


def test_calibrate_does_not_write_for_another_backend(fast, tmp_path, capsys):
    shutil.rmtree(fast / "onnx")
    before = (fast / "config.json").read_bytes()
    texts = write(tmp_path / "texts.txt", random_texts(400, seed=5))
    assert main(["calibrate", str(fast), "--file", str(texts), "--risk", "0.3"]) == 2
    assert "has no onnx export" in capsys.readouterr().err and (fast / "config.json").read_bytes() == before


def test_an_adapted_model_is_adapted_again_without_a_warning_about_its_export(fast, tmp_path, capsys):
    texts = write(tmp_path / "texts.txt", random_texts(700, seed=9))
    options = [*EASY, "--backend", "onnx", "--int8", "none", "--output", tmp_path / "again"]
    assert main([str(part) for part in ("adapt", fast, texts, *options)]) in (0, 1)
    assert "other weights" not in capsys.readouterr().err


@pytest.mark.parametrize("adapted_for", [{"backend": "onnx"}, {"backend": "torch", "threads": None}])
def test_info_of_entries_without_threads(adapted_for, fast, capsys):
    config = json.loads((fast / "config.json").read_text())
    (fast / "config.json").write_text(json.dumps(config | {"adapted_for": adapted_for}))
    assert main(["info", str(fast)]) == 0
    assert f"runs in     {adapted_for['backend']} by default" in capsys.readouterr().out


# -- pickling -------------------------------------------------------------------------------------


def label_all(batch, runner):
    return {"layer": runner.answer(batch["text"], progress=False).layer.tolist()}


@pytest.mark.parametrize("backend", ["onnx", "openvino", "torch"])
def test_a_runner_can_be_pickled(backend, fast):
    if backend == "openvino":
        offramp.export(fast, random_texts(40), backend="openvino", int8="none")
    runner = offramp.load(fast, backend, threads=1)
    copy = pickle.loads(pickle.dumps(runner))
    texts = random_texts(30, seed=6)
    assert (copy.answer(texts).logits == runner.answer(texts).logits).all()
    assert (copy.backend, copy.fingerprint, copy.stepper.threads) == (backend, runner.fingerprint, 1)


def map_in_workers(folder):
    from datasets import Dataset

    runner, texts = offramp.load(folder, threads=1), random_texts(60, seed=7)
    expected = runner.answer(texts).layer.tolist()
    options = {"batched": True, "batch_size": 20, "num_proc": 2, "fn_kwargs": {"runner": runner}}
    mapped = Dataset.from_dict({"text": texts}).map(label_all, **options)["layer"][:]
    return 0 if mapped == expected else 1


def test_datasets_map_takes_a_runner(fast):
    """In a separate process, because it starts workers."""
    (done,) = programs.run((map_in_workers, fast))
    assert done.code == 0, done.stderr
