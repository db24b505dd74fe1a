"""Traces: one pass over the data, then every policy decides as in the live loop."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from offramp import AdaptiveConfig, AdaptiveModel
from offramp.answers import MULTI_LABEL
from offramp.core.batch import Batch
from offramp.core.loop import run_all_exits
from offramp.errors import BadInput, CannotWrite
from offramp.evaluation.traces import trace
from offramp.evaluation.traces.about import check_trace, data_fingerprint
from offramp.evaluation.traces.operations import count_operations
from offramp.evaluation.traces.reading import read_trace
from offramp.evaluation.traces.recording import record
from offramp.policies.grids import applicable_policies, grid
from offramp.policies.spacing import SIZE
from tests.reviews import rows
from tests.tiny import CONFIGS, FAMILY_NAMES, LAYERS, adaptive

VARIANTS = {
    "classes": {"num_labels": 3},
    "labels": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "value": {"num_labels": 1, "problem_type": "regression"},
    "lte": {"num_labels": 3, "lte": True, "exits": [1, 3, 4]},
}
TEXTS = [text for text, _ in rows(90)] + [("good film", "bad plot"), "", "a"]


@pytest.fixture(scope="module", params=list(VARIANTS))
def recorded(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = adaptive("bert", folder / "encoder", **VARIANTS[request.param])
    return model, record(model.runner(), TEXTS, None, folder / "trace.safetensors", "reviews")


def live(model, policy):
    """Exit layers and predictions of the model itself."""
    answers = list(model.predict(TEXTS, policy=policy))
    return [answer.exit_layer for answer in answers], answers


def test_replayed_is_live_for_every_policy(recorded):
    model, recording = recorded
    model_spec = recording.model_spec
    names = [*applicable_policies(model_spec), "layer"]
    assert len(names) >= 2
    for name in names:
        policies = grid(name, model_spec)
        for policy in policies[:: max(1, len(policies) // 6)]:
            replayed = recording.replay(policy)
            layers, answers = live(model, policy)
            assert replayed.layer.tolist() == layers, policy
            assert np.isclose([answer.score for answer in answers], scores(recording, replayed), atol=1e-5).all(), (
                policy
            )


def scores(recording, replayed):
    logits = torch.from_numpy(np.array(recording.logits[np.arange(len(recording)), replayed.exit - 1]))
    if recording.answer_type.needs_tolerance:
        return logits[:, 0]
    if recording.answer_type is MULTI_LABEL:
        return torch.sigmoid(logits).amax(-1)
    return torch.softmax(logits, -1).amax(-1)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_replayed_is_live_in_every_family(family, tmp_path):
    model = adaptive(family, tmp_path / "encoder", num_labels=2)
    recording = record(model.runner(), TEXTS, None, tmp_path / "t.safetensors", "reviews")
    for policy in grid("entropy", recording.model_spec)[::40]:
        assert recording.replay(policy).layer.tolist() == live(model, policy)[0]


def test_blocks_change_nothing(recorded, monkeypatch):
    _, recording = recorded
    policy = grid(applicable_policies(recording.model_spec)[0], recording.model_spec)[-1]
    complete = recording.replay(policy)
    monkeypatch.setattr(trace, "BLOCK", 7)
    parts = recording.replay(policy)
    assert (complete.exit == parts.exit).all() and (complete.answers == parts.answers).all()


def test_a_stream_of_texts_gives_the_same_trace(recorded, tmp_path):
    model, recording = recorded
    again = record(model.runner(), (text for text in TEXTS), None, tmp_path / "t.safetensors", "reviews")
    assert (again.logits == recording.logits).all() and again.about["data"] == recording.about["data"]


def test_numpy_reads_the_file_and_large_ones_stay_on_the_disk(recorded, tmp_path):
    model, recording = recorded
    labels = np.arange(len(TEXTS))
    file = tmp_path / "t.safetensors"
    saved = record(model.runner(), TEXTS, labels, file, "reviews")
    arrays = load_file(file)
    assert arrays["logits"].shape == (len(TEXTS), len(recording.points), recording.logits.shape[-1])
    assert (arrays["labels"] == labels).all() and (arrays["logits"] == saved.logits).all()
    assert arrays["lengths"].tolist()[-3:] == [7, 2, 3] and (arrays["spent"] > 0).all()
    assert isinstance(saved.logits, np.memmap)
    header = file.read_bytes()
    about = json.loads(json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]["about"])
    assert about["data"]["rows"] == len(TEXTS) and about["machine"]["dtype"] == "float32"


# -- fingerprints --------------------------------------------------------------------------------


def test_a_trace_stays_valid_with_another_policy_but_not_with_other_weights_data_or_dtype(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=2)
    file = tmp_path / "t.safetensors"
    recording = record(model.runner(), TEXTS, None, file, "reviews")
    model.config.policy = {"name": "entropy", "threshold": 0.3}
    model.config.notes = "other words"
    model.save_pretrained(tmp_path / "saved")
    again = AdaptiveModel.from_pretrained(tmp_path / "saved")
    same = data_fingerprint(TEXTS, None, None)
    check_trace(recording, file, again.runner(), same)
    for other in (data_fingerprint(TEXTS[:-1], None, None), data_fingerprint(TEXTS, np.zeros(len(TEXTS)), None)):
        with pytest.raises(BadInput, match="a trace of other data"):
            check_trace(recording, file, model.runner(), other)
    with pytest.raises(BadInput, match="recorded with dtype float32, not bfloat16"):
        check_trace(recording, file, again.to(torch.bfloat16).runner(), same)
    again = AdaptiveModel.from_pretrained(tmp_path / "saved")
    again.tokenizer.model_max_length = 5
    with pytest.raises(BadInput, match="maximum length of 38 tokens, not 5"):
        check_trace(recording, file, again.runner(), same)
    with torch.no_grad():
        next(model.exits.parameters()).add_(1e-3)
    with pytest.raises(BadInput, match="a trace of another model"):
        check_trace(recording, file, model.runner(), same)


def test_data_are_the_same_whatever_the_order_of_a_models_classes():
    fingerprint = data_fingerprint(["a", "b"], np.array([0, 1]), ["no", "yes"])
    assert fingerprint == data_fingerprint(["a", "b"], np.array([1, 0]), ["yes", "no"])
    assert fingerprint != data_fingerprint(["a", "b"], np.array([1, 0]), ["no", "yes"])
    assert fingerprint != data_fingerprint(["a", "b "], np.array([0, 1]), ["no", "yes"])
    several = np.array([[1, 0, 0], [0, 1, 1]])
    assert data_fingerprint("ab", several, list("xyz")) == data_fingerprint("ab", several[:, [2, 0, 1]], list("zxy"))


def test_a_fingerprint_is_of_the_exits_too(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=2)
    before = model.runner().fingerprint
    model.config.exits[0]["temperature"] = 2.0
    assert model.runner().fingerprint != before


# -- mistakes ------------------------------------------------------------------------------------


def test_an_exit_that_returns_nan_is_named_and_no_file_remains(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=2)
    with torch.no_grad():
        model.exits.head(2).classifier.weight.fill_(float("nan"))
    with pytest.raises(BadInput, match="exit on layer 2 returns NaN or infinity for text 1"):
        record(model.runner(), TEXTS, None, tmp_path / "t.safetensors", "reviews")
    assert [path.name for path in tmp_path.iterdir()] == ["encoder"]


def test_no_text_at_all(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=2)
    with pytest.raises(BadInput, match="No texts"):
        record(model.runner(), [], None, tmp_path / "t.safetensors", "reviews")


def test_files_that_are_not_traces_are_refused(recorded, tmp_path):
    model, _ = recorded
    with pytest.raises(BadInput, match="No file"):
        read_trace(tmp_path / "none")
    save_file({"logits": np.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(BadInput, match="not an offramp trace"):
        read_trace(tmp_path / "other.safetensors")
    file = tmp_path / "t.safetensors"
    record(model.runner(), TEXTS, None, file, "reviews")
    with pytest.raises(CannotWrite, match="exists"):
        record(model.runner(), TEXTS, None, file, "reviews")
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(BadInput, match="not a valid trace"):
        read_trace(file)


# -- operations ----------------------------------------------------------------------------------


def test_operations_of_bert_are_those_of_the_formula(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=3, pooling="first")
    config = CONFIGS["bert"]
    hidden, inner, classes = config.hidden_size, config.intermediate_size, 3
    length = np.array([5, 17])
    layer = 8 * length * hidden**2 + 4 * length**2 * hidden + 4 * length * hidden * inner
    head = 2 * hidden**2 + 2 * hidden * classes
    spent, heads = count_operations(model.config).at(length)
    for exit_number in range(1, LAYERS + 1):
        assert np.allclose(spent[:, exit_number - 1], exit_number * (layer + head))
        assert np.allclose(heads[:, exit_number - 1], head)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_operations_grow_with_depth_and_length(family):
    """Counted from the config alone, without weights, and the same as a real model's under torch's counter."""
    config = AdaptiveConfig(backbone=CONFIGS[family])
    spent, heads = count_operations(config).at(np.array([3, 9, 30]))
    assert (np.diff(spent, axis=1) > 0).all() and (np.diff(spent, axis=0) > 0).all()
    assert (heads > 0).all() and (heads < spent).all()
    model = AdaptiveModel(config).eval()
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run_all_exits(model.stepper, Batch.from_tensors(torch.full((1, 9), 5)))
    assert spent[1, -1] == counter.get_total_flops()


# -- grids ---------------------------------------------------------------------------------------


def test_grids_run_from_safe_to_risky(recorded):
    _, recording = recorded
    model_spec = recording.model_spec
    for name in applicable_policies(model_spec):
        policies = grid(name, model_spec)
        assert 1 < len(policies) <= SIZE + 2 and len(set(policies)) == len(policies)
        layers = [recording.replay(policy).layer.mean() for policy in policies]
        if name != "patience-confidence":
            assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(layers)), name
        assert layers[0] >= max(layers) - 1e-9
