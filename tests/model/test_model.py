from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, Trainer, TrainingArguments, pipeline

from offramp import AdaptiveModel
from offramp.answers import SINGLE_LABEL
from offramp.errors import BadInput, BadModel, BadValue, UnknownName
from offramp.policies import Entropy
from tests.core.test_equalities import in_a_gap
from tests.tiny import LAYERS, adaptive, amplify_weights, random_batch, save_classifier, save_encoder, tokenizer

TEXTS = ["a lovely film", "dull", "the plot was not very good", "bad bad bad", "it was long", "in the film", "lovely"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved adaptive model with an exit policy."""
    root = tmp_path_factory.mktemp("model")
    model = adaptive("bert", root / "encoder", num_labels=3, labels=["no", "perhaps", "yes"])
    batch = tokenizer()(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        entropies = SINGLE_LABEL.entropy(model(**batch, output_exits=True).exit_logits[:, :-1])
        candidates = [Entropy(round(in_a_gap(entropies, share / 10), 4)) for share in range(1, 10)]
        best = max(candidates, key=lambda policy: len(model(**batch, policy=policy).exit_layer.unique()))
    model.config.policy = best.to_dict()
    model.save_pretrained(root / "model")
    return root / "model"


def test_auto_classes_and_pipeline_exit_early(saved):
    assert AutoConfig.from_pretrained(saved).model_type == "offramp"
    model = AutoModelForSequenceClassification.from_pretrained(saved)
    assert isinstance(model, AdaptiveModel)
    assert isinstance(AutoModel.from_pretrained(saved), AdaptiveModel)
    answers = list(model.predict(TEXTS))
    assert len({answer.exit_layer for answer in answers}) > 1  # otherwise the test proves nothing
    piped = pipeline("text-classification", model=str(saved), tokenizer=str(saved))
    for batch_size in (1, 4):
        outputs = piped(TEXTS, batch_size=batch_size)
        assert [output["label"] for output in outputs] == [answer.label for answer in answers]
        assert [output["score"] for output in outputs] == pytest.approx([answer.score for answer in answers], abs=1e-5)


def test_the_folder_has_the_files_of_a_transformers_model(saved):
    names = {path.name for path in saved.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    keys = load_file(saved / "model.safetensors").keys()
    assert "backbone.embeddings.word_embeddings.weight" in keys
    assert f"exits.{LAYERS}.classifier.weight" in keys
    assert not [key for key in keys if not key.startswith(("backbone.", "exits."))]
    config = json.loads((saved / "config.json").read_text())
    assert config["policy"]["name"] == "entropy"
    assert (
        f"| Exit policy | entropy, threshold {config['policy']['threshold']:.3g} |" in (saved / "README.md").read_text()
    )
    assert str(saved.parent) not in (saved / "config.json").read_text()


def test_training_returns_the_plain_sum_of_the_exits_losses(saved):
    model = AdaptiveModel.from_pretrained(saved).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batch, labels = random_batch(6, seed=1), torch.tensor([0, 1, 2, 0, 1, 2])
    out = model(**batch, labels=labels)
    assert out.exit_logits.shape == (6, LAYERS, 3)
    expected = sum(torch.nn.functional.cross_entropy(out.exit_logits[:, i], labels) for i in range(LAYERS))
    torch.testing.assert_close(out.loss, expected)
    out.loss.backward()
    untouched = [name for name, value in model.named_parameters() if value.grad is None]
    assert untouched == []


@pytest.mark.parametrize(
    ("problem", "classes", "labels"),
    [
        ("multi_label_classification", 3, torch.tensor([[1, 0, 1], [0, 0, 0]])),
        ("regression", 1, torch.tensor([0.5, 2.0])),
    ],
)
def test_each_problem_type_has_its_loss(problem, classes, labels, tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=classes, problem_type=problem)
    out = model(**random_batch(2, seed=1), labels=labels)
    logits = out.exit_logits
    if problem == "regression":
        expected = ((logits[..., 0] - labels[:, None]) ** 2).mean(0).sum()
    else:
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        expected = sum(loss(logits[:, i], labels.float()) for i in range(LAYERS))
    torch.testing.assert_close(out.loss, expected)


def test_a_plain_trainer_trains_it(saved, tmp_path):
    model = AdaptiveModel.from_pretrained(saved)
    batch = random_batch(24, seed=2)
    rows = [
        {key: value[row] for key, value in batch.items()} | {"labels": int(batch["input_ids"][row, 1] % 3)}
        for row in range(24)
    ]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        per_device_train_batch_size=8,
        num_train_epochs=15,
        learning_rate=5e-3,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.6 * before
    answers = trainer.predict(rows)
    assert answers.predictions.shape == (24, 3)
    assert (answers.predictions.argmax(-1) == answers.label_ids).mean() > 0.8
    logits, layers, exit_logits = trainer.predict(rows, ignore_keys=[]).predictions
    assert layers.shape == (24,)
    assert exit_logits.shape == (24, LAYERS, 3)
    assert (logits[layers == LAYERS] == exit_logits[layers == LAYERS, -1]).all()


def test_a_call_may_override_policy_threshold_and_budget(saved):
    model = AdaptiveModel.from_pretrained(saved)
    batch = random_batch(5, seed=4)
    assert model(**batch, policy="never").exit_layer.tolist() == [LAYERS] * 5
    assert model(**batch, policy="layer:2").exit_layer.tolist() == [2] * 5
    assert model(**batch, policy="entropy:0.0", threshold=5.0).exit_layer.tolist() == [1] * 5
    assert model(**batch, policy="never", max_layers=3).exit_layer.tolist() == [3] * 5
    assert model.config.exit_policy.name == "entropy"


def test_half_precision_loads_as_float32_by_default(saved, tmp_path):
    folder = tmp_path / "half"
    AdaptiveModel.from_pretrained(saved).half().save_pretrained(folder)
    assert load_file(folder / "model.safetensors")["exits.1.classifier.weight"].dtype == torch.float16
    assert AdaptiveModel.from_pretrained(folder).dtype == torch.float32
    assert AutoModelForSequenceClassification.from_pretrained(folder).dtype == torch.float32
    assert AdaptiveModel.from_pretrained(folder, dtype=torch.bfloat16).dtype == torch.bfloat16
    half = save_classifier("bert", tmp_path / "plain")
    AutoModelForSequenceClassification.from_pretrained(half).half().save_pretrained(half)
    assert AdaptiveModel.from_backbone(half).dtype == torch.float32


def test_a_classifier_keeps_its_head_and_labels_by_default(folders):
    model = AdaptiveModel.from_backbone(folders["roberta"], exits=[2, 4])
    assert [(spec.layer, spec.head, spec.pooling) for spec in model.config.exit_specs] == [
        (2, "linear", "mean"),
        (4, "family", "first"),
    ]
    assert model.config.labels == ("class 0", "class 1", "class 2")
    other = AdaptiveModel.from_backbone(folders["roberta"], labels=["ham", "spam"])
    assert {spec.head for spec in other.config.exit_specs} == {"linear"}
    assert other.config.labels == ("ham", "spam")


def test_poolers_start_from_the_pre_trained_one(tmp_path):
    folder = save_encoder("bert", tmp_path / "bert")
    pooler = load_file(folder / "model.safetensors")["pooler.dense.weight"]
    model = AdaptiveModel.from_backbone(folder, pooling="first")
    for layer in range(1, LAYERS + 1):
        assert torch.equal(model.exits.head(layer).dense.weight, pooler)
    shared = AdaptiveModel.from_backbone(folder, heads="shared")
    assert torch.equal(shared.exits["shared"].dense.weight, pooler)


def test_elasticbert_exits_take_their_own_layers_pooler(tmp_path):
    folder = save_encoder("elasticbert", tmp_path / "elastic")
    weights = load_file(folder / "model.safetensors")
    model = AdaptiveModel.from_backbone(folder, exits=[2, 4])
    for layer in (2, 4):
        assert torch.equal(model.exits.head(layer).dense.weight, weights[f"encoder.pooler.{layer - 1}.dense.weight"])
    first = AdaptiveModel.from_backbone(folder, exits="all", num_layers=3)
    assert first.config.num_layers == 3
    assert torch.equal(first.exits.head(3).dense.weight, weights["encoder.pooler.2.dense.weight"])


def test_a_model_of_the_first_layers_exits_at_the_last_of_them(tmp_path):
    for family in ("bert", "modernbert", "mpnet"):
        folder = save_encoder(family, tmp_path / family)
        torch.manual_seed(0)
        part = AdaptiveModel.from_backbone(folder, num_layers=2, num_labels=3)
        assert part.config.num_layers == 2
        out = part(**random_batch(3, seed=1, types=False), policy="never")
        assert out.exit_layer.tolist() == [2] * 3


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_gradient_checkpointing_changes_no_gradient(family, tmp_path):
    model = adaptive(family, tmp_path / "encoder", num_labels=3).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batch, labels = random_batch(4, seed=1), torch.tensor([0, 1, 2, 0])
    gradients = []
    for checkpointing in (False, True):
        model.zero_grad()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**batch, labels=labels).loss.backward()
        gradients.append([value.grad.clone() for value in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


# -- errors --------------------------------------------------------------------------------------


def test_missing_and_unexpected_weights_are_reported(saved, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    weights = load_file(folder / "model.safetensors")
    weights["exits.9.classifier.weight"] = weights.pop("exits.2.classifier.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        BadModel, match=r"exits\.2\.classifier\.weight is missing, exits\.9\.classifier\.weight is unexpected"
    ):
        AdaptiveModel.from_pretrained(folder)


def test_an_encoder_with_missing_weights_raises(tmp_path):
    folder = save_encoder("bert", tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"lacks 1 weights: encoder\.layer\.1\.output\.dense\.weight"):
        AdaptiveModel.from_backbone(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exits": [1, 9]}, "must be layers from 0 to 4, got 1, 9"),
        ({"exits": [-1, 4]}, "must be layers from 0 to 4, got -1, 4"),
        ({"exits": [2, 1, 4]}, "ascending order"),
        ({"exits": []}, "empty"),
        ({"exits": "some"}, "must be 'auto', 'all' or a list of layers from 0 to 4"),
        ({"exits": ["1", 4]}, "must be integers"),
        ({"num_layers": 7}, "must be between 1 and 4"),
        ({"exits": 4}, "must be 'auto', 'all' or a list of layers from 0 to 4"),
        ({"num_labels": 0}, "at least one label"),
        ({"labels": []}, "at least one label"),
        ({"policy": "learned:0.1"}, "LTE"),
        ({"policy": ["entropy"]}, "is not a policy"),
        ({"num_labels": 3, "labels": ["a", "b"]}, "there are 2 labels"),
        ({"policy": "entropy:nan"}, "threshold must be finite and at least 0, got nan"),
        ({"num_labels": 1, "policy": "entropy:0.1"}, "regression"),
    ],
)
def test_invalid_exits_raise(options, message, tmp_path):
    folder = save_encoder("bert", tmp_path / "bert")
    with pytest.raises(BadValue, match=message):
        AdaptiveModel.from_backbone(folder, **options)


def test_the_full_model_is_always_an_exit(tmp_path):
    model = AdaptiveModel.from_backbone(save_encoder("bert", tmp_path / "bert"), exits=[1, 3])
    assert [spec.layer for spec in model.config.exit_specs] == [1, 3, 4]


def test_unknown_names_get_a_suggestion(tmp_path):
    folder = save_encoder("bert", tmp_path / "bert")
    with pytest.raises(UnknownName, match="Did you mean 'pooler'"):
        AdaptiveModel.from_backbone(folder, heads="poolr")
    with pytest.raises(UnknownName, match="Did you mean 'mean'"):
        AdaptiveModel.from_backbone(folder, pooling="meen")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(UnknownName, match=r"Unknown backbone family 'gpt2'.*albert, bert"):
        AdaptiveModel.from_backbone(folder)


def test_an_offramp_model_is_not_a_backbone(saved):
    with pytest.raises(BadModel, match="already"):
        AdaptiveModel.from_backbone(saved)


def test_left_padding_raises(saved):
    model = AdaptiveModel.from_pretrained(saved)
    batch = random_batch(2, seed=0)
    flipped = {key: value.flip(1) for key, value in batch.items()}
    with pytest.raises(BadInput, match="padded on the left"):
        model(**flipped)


def test_max_layers_below_the_first_exit_raises(saved):
    model = AdaptiveModel.from_pretrained(saved)
    with pytest.raises(BadValue, match=r"must be at least 1 \(the first exit's layer\), got 0"):
        model(**random_batch(2, seed=0), max_layers=0)


def test_a_model_without_a_folder_needs_a_tokenizer(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=2)
    amplify_weights(model.exits, seed=3)
    model.config._name_or_path = model.name_or_path = ""
    with pytest.raises(BadModel, match=r"Set model\.tokenizer"):
        list(model.predict(["a film"]))
    model.tokenizer = tokenizer()
    assert len(list(model.predict(["a film"]))) == 1


@pytest.mark.parametrize("family", ["bert", "elasticbert"])
def test_tokenizer_files_can_be_copied_into_a_model_folder(family, tmp_path):
    model = adaptive(family, tmp_path / "encoder", num_labels=3)
    expected = [answer.score for answer in model.predict([("good film", "bad plot")])]
    model.save_pretrained(tmp_path / "model")
    words = sorted(tokenizer().get_vocab().items(), key=lambda item: item[1])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "model" / name).unlink()
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(word for word, _ in words) + "\n[MASK]\n")
    loaded = AdaptiveModel.from_pretrained(tmp_path / "model")
    scores = [answer.score for answer in loaded.predict([("good film", "bad plot")])]
    assert scores == pytest.approx(expected, abs=1e-5)  # including token types


def test_a_classifier_without_its_pooler_raises(tmp_path):
    folder = save_classifier("bert", tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    for part in ("weight", "bias"):
        del weights[f"bert.pooler.dense.{part}"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"lacks 2 weights: bert\.pooler"):
        AdaptiveModel.from_backbone(folder)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_classifier_without_architectures_in_its_config_raises(family, tmp_path):
    folder = save_classifier(family, tmp_path / family)
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadModel, match=r"has a classifier, but its config\.json has no `architectures`"):
        AdaptiveModel.from_backbone(folder)


def test_a_checkpoint_with_more_layers_than_its_config_raises(tmp_path):
    folder = save_encoder("bert", tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(BadModel, match=r"has weights that do not match its config\.json: encoder\.layer\.3"):
        AdaptiveModel.from_backbone(folder)


def test_labels_are_kept_when_only_the_depth_changes(folders):
    model = AdaptiveModel.from_backbone(folders["bert"], num_layers=2)
    assert model.config.labels == ("class 0", "class 1", "class 2")
    assert {spec.head for spec in model.config.exit_specs} == {"linear"}


def test_dtype_and_torch_dtype_are_accepted(saved, folders):
    assert AdaptiveModel.from_backbone(folders["bert"], dtype="bfloat16").dtype == torch.bfloat16
    assert AdaptiveModel.from_backbone(folders["bert"], torch_dtype=torch.bfloat16).dtype == torch.bfloat16
    assert AdaptiveModel.from_backbone(folders["bert"], dtype="auto").dtype == torch.float32
    assert AdaptiveModel.from_pretrained(saved, torch_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_a_pipeline_on_a_half_precision_folder_computes_in_float32(saved, tmp_path):
    model = AdaptiveModel.from_pretrained(saved)
    assert model.tokenizer is not None
    model.half().save_pretrained(tmp_path / "half")
    half = str(tmp_path / "half")
    assert pipeline("text-classification", model=half, tokenizer=half).model.dtype == torch.float32


def test_a_resized_vocabulary_is_saved_and_loaded(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=2)
    model.resize_token_embeddings(50)
    model.save_pretrained(tmp_path / "model")
    assert AdaptiveModel.from_pretrained(tmp_path / "model").get_input_embeddings().num_embeddings == 50


def test_the_card_follows_the_config_unless_the_user_wrote_one(saved, tmp_path):
    model = AdaptiveModel.from_pretrained(saved, policy="patience:2")
    model.save_pretrained(tmp_path / "model")
    card = tmp_path / "model" / "README.md"
    assert "| Exit policy | patience 2 |" in card.read_text()
    model.config.policy = "vote:3"
    model.save_pretrained(tmp_path / "model")
    assert "| Exit policy | vote, threshold 3 |" in card.read_text()
    card.write_text("mine")
    model.save_pretrained(tmp_path / "model")
    assert card.read_text() == "mine"
