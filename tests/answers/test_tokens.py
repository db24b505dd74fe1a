"""Token classification: entities equal those of transformers' pipeline, in windows, batches and from words."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification, pipeline

from offramp import AdaptiveModel, policies
from offramp.answers import TOKEN
from offramp.answers.token_entities import lost_fraction, objects
from offramp.answers.token_rows import AGGREGATIONS, TokenEncoder
from offramp.answers.token_scores import entity_f1, entity_precision, entity_recall, scores_by_type
from offramp.core.batch import Batch
from offramp.core.loop import run, run_all_exits
from offramp.data.entities import Entities, entities_of_tags, word_spans
from offramp.errors import BadInput, BadModel, BadValue
from offramp.evaluation.traces.recording import record
from tests.taggers import LONG, tagger
from tests.tiny import (
    TAGGED_FAMILIES,
    TAGS,
    WORDS,
    piece_tokenizer,
    save_classifier,
    save_tagger,
    tokenizer,
)

TEXTS = [
    "Goodly films, the plots was dull.",
    "a lovely Film",
    "",
    "it was not very good , very goodly unknown-word in the plot . plots films .",
    "long short",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tagger(tmp_path_factory.mktemp("tagger"), convolution=4)


def pipeline_entities(folder, texts, aggregation):
    """Return the entities of transformers' pipeline, one list per text."""
    tag = pipeline("token-classification", str(folder), aggregation_strategy=aggregation)
    return [tag(text) if text else [] for text in texts]


def assert_same(entities, others):
    assert len(entities) == len(others)
    for entity, other in zip(entities, others, strict=True):
        key = "entity_group" if "entity_group" in other else "entity"
        names = (key, "start", "end", *(["index"] if key == "entity" else []))
        assert {name: entity[name] for name in names} == {name: other[name] for name in names}
        assert entity["score"] == pytest.approx(float(other["score"]), abs=1e-5)
        assert entity["word"].lower().replace(" ", "") == other["word"].replace(" ", "").replace("##", "").lower()


@pytest.mark.parametrize("family", TAGGED_FAMILIES)
def test_full_depth_equals_the_pipeline(family, tmp_path):
    folder, found = save_tagger(family, tmp_path / "tagger", seed=3), 0
    for aggregation in AGGREGATIONS if family == "bert" else ("first", "simple"):
        model = AdaptiveModel.from_backbone(folder, exits="auto", answer_options={"aggregation": aggregation})
        answers = list(model.predict(TEXTS, policy="never"))
        for answer, other in zip(answers, pipeline_entities(folder, TEXTS, aggregation), strict=True):
            assert_same(answer.entities, other)
            found += len(other)
    assert found > 5


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_tokenizers_without_a_prefix_join_tokens_without_a_space_between(tmp_path, aggregation):
    folder = save_tagger("bert", tmp_path / "tagger", seed=3)
    tokenizer().save_pretrained(folder)
    model = AdaptiveModel.from_backbone(folder, exits=[4], answer_options={"aggregation": aggregation})
    texts = ["not-very good,film (the plot)", "a lovely film. dull"]
    for answer, other in zip(model.predict(texts), pipeline_entities(folder, texts, aggregation), strict=True):
        assert_same(answer.entities, other)


def test_transformers_load_a_saved_model(model, tmp_path):
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path / "saved")
    assert isinstance(loaded, AdaptiveModel)
    texts = [text for text in TEXTS if text]
    tag = pipeline("token-classification", str(tmp_path / "saved"), aggregation_strategy="first")
    for text, answer in zip(texts, model.predict(texts, policy="never"), strict=True):
        assert_same(answer.entities, tag(text))
    before, after = (list(m.predict(TEXTS, policy="confidence:0.6")) for m in (model, loaded))
    assert [a.entities for a in before] == [a.entities for a in after]
    assert [a.exit_layer for a in before] == [a.exit_layer for a in after]


def test_a_long_text_is_read_in_windows_and_every_word_once(model):
    whole = model.tokenizer(LONG, return_offsets_mapping=True, add_special_tokens=False)
    runner = model.runner(max_length=24)
    (chunk,) = runner.chunks([LONG, "a film"], progress=False)
    assert (chunk.rows.lengths <= 24).all() and np.bincount(chunk.rows.group).tolist()[1] == 1
    marks, begins, ends = (column.values for column in (chunk.rows.marks, chunk.rows.begins, chunk.rows.ends))
    positions = np.concatenate([np.arange(1, length + 1) for length in chunk.rows.lengths])
    in_first = np.repeat(chunk.rows.group, chunk.rows.lengths) == 0
    used = in_first & (marks == positions)
    words = [offset for offset, token in zip(whole["offset_mapping"], whole.tokens(), strict=True) if token[:2] != "##"]
    assert sorted(begins[used].tolist()) == [start for start, _ in words]
    assert all(LONG[start:end] in LONG.split() for start, end in zip(begins[used], ends[used], strict=True))
    long, short = runner.predict([LONG, "a film"])
    assert long.entities and short.entities == next(iter(runner.predict(["a film"]))).entities
    assert all(LONG[entity["start"] : entity["end"]] == entity["word"] for entity in long.entities)


def in_a_gap(values: np.ndarray) -> float:
    ordered = np.unique(values)
    best = int(np.diff(ordered).argmax())
    return float(ordered[best] + ordered[best + 1]) / 2


def test_replayed_is_live_and_a_batch_is_its_rows(model, tmp_path):
    texts = [" ".join(random.Random(seed).choices(WORDS, k=2 + seed % 11)) for seed in range(60)]
    runner = model.runner()
    trace = record(runner, texts, None, tmp_path / "trace", "own")
    assert trace.group is None and len(trace) == 60
    confidence = TOKEN.confidence(
        torch.from_numpy(np.asarray(trace.logits[:, :-1]).reshape(-1, trace.logits.shape[-1]))
    )
    for policy in (policies.Confidence(in_a_gap(confidence.numpy())), policies.Patience(1), policies.Never()):
        replayed, live = trace.replay(policy), runner.answer(texts, policy=policy)
        assert replayed.layer.tolist() == live.layer.tolist()
        assert replayed.answers.tolist() == live.values.tolist()
        alone = [runner.answer([text], policy=policy) for text in texts]
        assert [a.layer[0] for a in alone] == live.layer.tolist()
        assert [a.values[0] for a in alone] == live.values.tolist()
    windows = record(model.runner(max_length=8), [*texts, LONG], None, tmp_path / "windows", "own")
    assert windows.group is not None and len(windows) == 61 < windows.rows
    live = model.runner(max_length=8).answer([*texts, LONG], policy="confidence:0.5")
    assert windows.replay(policies.Confidence(0.5)).answers.tolist() == live.values.tolist()


def test_the_least_certain_word_decides(model):
    (chunk,) = model.runner().chunks(["a lovely goodly film , plots"], progress=False)
    (batch,) = chunk.batches()
    with torch.no_grad():
        for output in run_all_exits(model.stepper, batch):
            words = [index for index, mark in enumerate(batch.marks[0].tolist()) if mark]
            probabilities = output.tokens[0, words].softmax(-1)
            top = probabilities.topk(2).values
            assert float(TOKEN.confidence(output.logits)) == pytest.approx(float(top[:, 0].min()), abs=1e-6)
            assert float(TOKEN.margin(output.logits)) == pytest.approx(float((top[:, 0] - top[:, 1]).min()), abs=1e-6)
            entropy = (-probabilities * probabilities.log()).sum(-1).max()
            assert float(TOKEN.entropy(output.logits)) == pytest.approx(float(entropy), abs=1e-5)
            log_odds = torch.logit(top[:, 0].prod(), eps=1e-6)
            assert float(TOKEN.log_odds(output.logits, None)[0]) == pytest.approx(float(log_odds), abs=1e-3)


def test_given_words_are_read_by_their_first_token(model):
    words = ("goodly", "u.s.", "film")
    rows = TokenEncoder(piece_tokenizer(), 38)([words, "film"])
    marks = rows.marks.row(0).tolist()
    assert [position for position, mark in enumerate(marks, 1) if mark == position] == [2, 4, 8]
    used = np.flatnonzero(rows.marks.row(0))
    spans = zip(rows.begins.row(0)[used].tolist(), rows.ends.row(0)[used].tolist(), strict=True)
    assert list(spans) == word_spans(words)
    labels = Entities([("PER", 0, 11), ("LOC", 12, 16)], TAGS)
    targets = TOKEN.targets(rows, [labels, Entities([], TAGS)])
    assert targets[0][used].tolist() == [TAGS.index(tag) for tag in ("B-PER", "I-PER", "B-LOC")]
    assert (np.delete(targets[0], used) == -100).all() and targets[1].tolist()[:3] == [-100, 0, -100]


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_exports_predict_as_torch_does(model, tmp_path, backend):
    pytest.importorskip({"onnx": "onnxruntime"}.get(backend, backend))
    import offramp

    model.save_pretrained(tmp_path / "model")
    texts = [" ".join(random.Random(seed).choices([*WORDS, "plots"], k=2 + seed % 9)) for seed in range(40)]
    offramp.export(tmp_path / "model", backend=backend, int8="none", overwrite=True)
    exported = offramp.load(tmp_path / "model", backend=backend)
    for policy in ("never", "layer:2"):
        ours, others = (list(runner.predict(texts, policy=policy)) for runner in (model, exported))
        for answer, other in zip(ours, others, strict=True):
            assert_same(other.entities, answer.entities)
            assert answer.exit_layer == other.exit_layer
    if backend == "openvino":
        return
    for int8 in ("static", "token"):
        offramp.export(tmp_path / "model", backend="onnx", int8=int8, texts=texts[:20], force=True, overwrite=True)
        quantized = offramp.load(tmp_path / "model", backend="onnx")
        together = quantized.answer(texts, policy="layer:2").values.tolist()
        assert together == [quantized.answer([text], policy="layer:2").values[0] for text in texts]


RISK = '{"name": "risk", "threshold": 0.8, "offsets": [0.9, 0.2, -0.5, -0.9], "slopes": [0.4, 0.4, 0.4, 0.4]}'


@pytest.mark.parametrize("policy", ["entropy:1.5", "confidence:0.3", RISK])
def test_a_single_graph_exits_as_the_loop_does(model, tmp_path, policy):
    onnxruntime = pytest.importorskip("onnxruntime")
    import offramp
    from offramp.exports.one_file import write_one_file

    model.config.policy = json.loads(policy) if policy == RISK else offramp.policies.parse(policy).to_dict()
    model.save_pretrained(tmp_path / "model")
    texts = [" ".join(random.Random(seed).choices([*WORDS, "plots"], k=1 + seed % 9)) for seed in range(40)]
    offramp.export(tmp_path / "model", backend="onnx", int8="none")
    file, chosen = write_one_file(tmp_path / "model", None)
    rows = TOKEN.encoder(model.tokenizer, 38)(texts, 0)
    batch = Batch.from_rows(rows, np.arange(len(texts)), model.config.backbone.pad_token_id)
    expected = run(offramp.load(tmp_path / "model", backend="onnx").stepper, batch, chosen)
    assert len(set(expected.layer.tolist())) > 2
    feed = {"input_ids": batch.ids, "attention_mask": batch.mask, "token_type_ids": batch.types}
    feed = {name: value.numpy().astype(np.int64) for name, value in feed.items()}
    marks = batch.marks.numpy()
    feed["word_mask"] = (marks == np.arange(1, marks.shape[1] + 1)).astype(np.int64)
    limits = {"threshold": np.array(chosen.threshold, np.float32), "max_layers": np.array(1000)}
    logits, layers = onnxruntime.InferenceSession(file).run(None, feed | limits)
    assert layers.tolist() == expected.layer.tolist()
    labels = [row[mask == 1].tolist() for row, mask in zip(logits.argmax(-1), feed["word_mask"], strict=True)]
    assert labels == [row[row >= 0].tolist() for row in TOKEN.answers(expected.logits.numpy())]


def test_a_single_graph_does_not_join_the_tokens_of_words(tmp_path):
    pytest.importorskip("onnxruntime")
    import offramp

    joined = tagger(tmp_path / "original", answer_options={"aggregation": "average"})
    joined.save_pretrained(tmp_path / "model")
    with pytest.raises(BadValue, match="first, simple and none, not average"):
        offramp.export(tmp_path / "model", backend="onnx", one_file=True)
    assert not (tmp_path / "model" / "onnx").exists()


def test_losses_leave_out_padding_and_unlabelled_tokens():
    torch.manual_seed(0)
    logits, labels = (
        torch.randn(2, 5, 3),
        torch.tensor([[-100, 1, 2, -100, -100, -100], [-100, 0, -100, -100, -100, -100]]),
    )
    expected = torch.nn.functional.cross_entropy(logits[[0, 0, 1], [1, 2, 1]], torch.tensor([1, 2, 0]))
    assert float(TOKEN.loss(logits, labels)) == pytest.approx(float(expected))
    assert float(TOKEN.loss(logits, torch.full((2, 6), -100))) == 0
    teacher = torch.randn(2, 5, 3)
    padded = teacher.clone()
    padded[1, 3:] = -1e4
    cut = logits.clone()
    cut[1, 3:] = -1e4
    real = [(0, i) for i in range(5)] + [(1, i) for i in range(3)]
    rows, columns = zip(*real, strict=True)
    expected = torch.nn.functional.kl_div(
        logits[rows, columns].log_softmax(-1), teacher[rows, columns].softmax(-1), reduction="batchmean"
    )
    assert float(TOKEN.distillation_loss(cut, padded, 1.0, per_row=True)) == pytest.approx(float(expected), abs=1e-6)
    right = torch.nn.functional.one_hot(labels[:, :5].clamp_min(0), 3).float()
    assert TOKEN.error_target(right, labels).tolist() == [0, 0]
    right[0, 2] = torch.tensor([1.0, 0, 0])
    assert TOKEN.error_target(right, labels).tolist() == [1, 0]


# labelled and predicted tags, and what seqeval 1.2.2 returns for them (precision, recall, F1)
SEQEVAL = [
    ("B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC", (1.0, 1.0, 1.0)),
    ("B-PER I-PER O B-LOC", "B-PER O O B-LOC", (0.5, 0.5, 0.5)),
    ("O I-PER I-PER O", "O B-PER I-PER O", (1.0, 1.0, 1.0)),
    ("B-PER B-PER I-LOC O", "B-PER I-PER I-LOC O", (0.5, 1 / 3, 0.4)),
    ("O O O O", "O B-LOC O O", (0.0, 0.0, 0.0)),
]


def test_a_type_is_kept_if_none_of_its_entities_is_lost():
    names = ("O", "B-PER", "I-PER", "B-LOC")
    full = objects([(("PER", 0, 3), ("PER", 5, 8), ("LOC", 9, 12)), (("LOC", 0, 3),), ()])
    early = objects([(("PER", 0, 3), ("LOC", 9, 12)), (("PER", 0, 3),), (("PER", 0, 3),)])
    assert TOKEN.outcome_names(names, ()) == ["PER", "LOC"]
    assert TOKEN.outcomes(full, names, ()).tolist() == [[True, True], [False, True], [False, False]]
    assert TOKEN.kept_outcomes(early, full, names, ()).tolist() == [[False, True], [True, False], [True, True]]
    tags = objects([(("B-PER", 0, 3),)])  # without aggregation
    assert TOKEN.outcomes(tags, names, ()).tolist() == [[True, False]]


@pytest.mark.parametrize(("gold", "found", "expected"), SEQEVAL)
def test_scores_are_those_of_seqeval(gold, found, expected):
    words = ["a"] * 4
    labels, answers = (objects([tuple(entities_of_tags(words, tags.split())[0])]) for tags in (gold, found))
    scores = [score(answers, labels) for score in (entity_precision, entity_recall, entity_f1)]
    assert scores == pytest.approx(expected)


def test_scores_per_type_and_lost_entities():
    labels = objects([(("PER", 0, 3), ("LOC", 4, 6)), (), (("PER", 0, 1),)])
    answers = objects([(("PER", 0, 3), ("LOC", 4, 7)), (("LOC", 0, 1),), ()])
    scores = scores_by_type(answers, labels)
    assert scores["PER"] == pytest.approx({"precision": 1, "recall": 0.5, "f1": 2 / 3, "support": 2})
    assert scores["LOC"]["f1"] == 0 and entity_f1(answers, labels) == pytest.approx(1 / 3)
    assert lost_fraction(answers, labels).tolist() == pytest.approx([0.5, np.nan, 1], nan_ok=True)
    assert TOKEN.differ(answers, labels).tolist() == [True, True, True]


@pytest.mark.parametrize(
    ("example", "message"),
    [(3, "must be a string or a list of words"), (["a", " "], "word 2 is empty"), ("\ud83d", "UTF-8")],
)
def test_invalid_texts_name_the_row(model, example, message):
    with pytest.raises(BadInput, match=message):
        list(model.predict(["a film", example]))


def test_empty_rows_have_no_entities(model):
    for answer in model.predict(["", " ", []], policy="never"):
        assert answer.entities == [] and answer.score == 1


def test_other_models_and_options_do_not_fit(tmp_path):
    folder = save_tagger("bert", tmp_path / "tagger")
    with pytest.raises(BadModel, match="aggregation"):
        AdaptiveModel.from_backbone(folder, answer_options={"aggregation": "last"})
    with pytest.raises(BadModel, match="at least two labels"):
        AdaptiveModel.from_backbone(folder, labels=["O"], fresh_head=True)
    classifier = save_classifier("bert", tmp_path / "classifier")
    model = AdaptiveModel.from_backbone(classifier, exits="auto", problem_type="token_classification", num_labels=5)
    assert model.exits.untrained_layers()  # a classifier has no head per token: the model must be trained
