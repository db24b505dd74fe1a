"""Training: every recipe, every family, the calibration split, and the files of a run."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from offramp import AdaptiveModel
from offramp.answers import SINGLE_LABEL
from offramp.data.hashes import hash_text, hash_texts
from offramp.data.task import Rows
from offramp.errors import BadValue
from offramp.training.examples import Examples, LengthGroupedSampler, Padder
from offramp.training.holdout import hold_out, read_hashes
from offramp.training.recipes import RECIPES, make_recipe
from offramp.training.run import train
from offramp.training.seeds import train_seeds
from offramp.training.settings import Settings, read_settings
from tests.reviews import rows, settings, weights, write_glue, write_sts
from tests.tiny import FAMILY_NAMES, LAYERS, save_classifier, tokenizer

# -- recipes and families --------------------------------------------------------------------------


FROM_AN_ENCODER = [name for name in RECIPES if name != "imitate"]  # imitate needs a classifier: see test_adapt


@pytest.mark.parametrize("recipe", FROM_AN_ENCODER)
def test_every_recipe_trains_and_writes_a_model(recipe, encoders, glue, tmp_path):
    result = train(settings(encoders["bert"], glue, tmp_path / "out", recipe=recipe, exits=_exits(recipe, [1, 3])))
    model = AdaptiveModel.from_pretrained(result.folder)
    assert result.layers == ((4,) if RECIPES[recipe].single_exit else (1, 3, 4))
    assert [answer.exit_layer for answer in model.predict(["a good film"])] == [4]
    assert not (result.folder / "checkpoints").exists()
    assert model.config.lte == (recipe == "berxit-lte")


def _exits(recipe, layers):
    return "all" if RECIPES[recipe].single_exit else layers


@pytest.mark.parametrize(
    ("family", "recipe"),
    [(family, "romebert-sd-gr") for family in FAMILY_NAMES]
    + [*zip(FAMILY_NAMES, itertools.cycle(["deebert", "elasticbert", "berxit-lte"]), strict=False)],
)
def test_recipes_work_on_every_family(recipe, family, encoders, glue, tmp_path):
    before = AdaptiveModel.from_backbone(encoders[family]).backbone.state_dict()
    result = train(settings(encoders[family], glue, tmp_path / "out", recipe=recipe, max_steps=2))
    after = AdaptiveModel.from_pretrained(result.folder).backbone.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in after if before[key].is_floating_point())


@pytest.mark.parametrize("recipe", FROM_AN_ENCODER)
def test_regressions_work_or_are_refused(recipe, encoders, tmp_path):
    data = write_sts(tmp_path / "elue", 24, 8)
    run_settings = settings(encoders["bert"], data, tmp_path / "out", task="elue-sts-b", recipe=recipe)
    if recipe == "self-distillation":
        with pytest.raises(BadValue, match="self-distillation supports single-label classification only"):
            train(run_settings)
        return
    result = train(run_settings)
    assert result.metric == "corr"
    assert AdaptiveModel.from_pretrained(result.folder).config.problem_type == "regression"


@pytest.mark.parametrize("recipe", ["joint", "romebert-sd-gr", "berxit-lte", "deebert-sd"])
def test_multi_label_works(recipe, encoders, tmp_path):
    lines = [{"text": text, "label": ["kind"] * label + ["long"] * (len(text) > 30)} for text, label in rows(40)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = {"task": None, "data_dir": None, "train_file": str(tmp_path / "train.jsonl")}
    own |= {"dev_file": str(tmp_path / "dev.jsonl"), "recipe": recipe, "class_weights": "balanced"}
    result = train(settings(encoders["bert"], "", tmp_path / "out", **own))
    config = AdaptiveModel.from_pretrained(result.folder).config
    assert config.labels == ("kind", "long")
    assert config.problem_type == "multi_label_classification"
    assert result.metric == "f1_micro"


def test_exits_really_learn(encoders, tmp_path):
    """Every exit separates good from bad after a few epochs; chance is 50 %."""
    data = write_glue(tmp_path / "glue", 400, 60)
    result = train(settings(encoders["bert"], data, tmp_path / "out", recipe="joint", epochs=6))
    assert all(scores["acc"] > 0.8 for scores in result.dev["dev"]), result.dev


# -- properties of recipes ---------------------------------------------------------------------------


def test_deeberts_freeze_is_real(encoders, glue, tmp_path):
    """The second stage moves the early heads and not one bit of the rest."""
    shared = {"recipe": "deebert", "keep_checkpoints": True, "select": "none"}
    result = train(settings(encoders["bert"], glue, tmp_path / "out", **shared))
    first = load_file(result.folder / "checkpoints" / "1-backbone" / "done" / "model.safetensors")
    last = weights(result.folder)
    for name, value in last.items():
        moves = name.startswith(("exits.1.", "exits.2.", "exits.3."))
        assert torch.equal(first[name], value) != moves, name


def test_frozen_parts_are_in_evaluation_mode_and_faithful_ones_are_not(encoders, glue, tmp_path):
    for faithful in (False, True):
        run_settings = settings(encoders["bert"], glue, tmp_path / f"{faithful}", recipe="deebert")
        run = _training_run(run_settings, faithful)
        stage = run.recipe.stages(run.model.config, "sst-2")[1]
        trainer = run.trainer(tmp_path / "here", stage, 1)
        batch = Padder(0)([run.train_rows[index] for index in range(4)])
        trainer.current_gradient_accumulation_steps = 1
        trainer.callback_handler.train_dataloader = [batch]
        trainer.training_step(run.model, batch)
        assert run.model.backbone.training == faithful
        assert run.model.exits.head(1).training
        assert run.model.exits.head(LAYERS).training == faithful
        with_gradient = {name for name, value in run.model.named_parameters() if value.grad is not None}
        assert any(name.startswith("backbone.") for name in with_gradient) == faithful


def _training_run(run_settings, faithful):
    from offramp.training.data import read_data
    from offramp.training.model import build_model
    from offramp.training.run import TrainingRun

    recipe = make_recipe(run_settings.recipe, {"faithful": faithful})
    data = read_data(run_settings)
    return TrainingRun(run_settings, recipe, build_model(run_settings, recipe, data.task), data)


def test_on_the_first_token_the_heads_are_the_published_ones(encoders, glue, tmp_path):
    for recipe, head in (("deebert", "pooler"), ("pabee", "shared")):
        run = _training_run(settings(encoders["bert"], glue, tmp_path / "out", recipe=recipe, pooling="first"), False)
        assert {(spec.head, spec.pooling) for spec in run.model.config.exit_specs} == {(head, "first")}


def test_poolers_start_as_the_pre_trained_one(encoders):
    model = AdaptiveModel.from_backbone(encoders["bert"], pooling="first", num_labels=2)
    pooler = load_file(encoders["bert"] / "model.safetensors")["pooler.dense.weight"]
    assert all(torch.equal(model.exits.head(layer).dense.weight, pooler) for layer in range(1, LAYERS + 1))


def test_a_checkpoint_keeps_its_label_order(tmp_path):
    """RoBERTa's MNLI models have a different class order; the task's labels are matched by name."""
    order = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]
    folder = save_classifier("roberta", tmp_path / "roberta-mnli")
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": dict(enumerate(order)), "label2id": {name: i for i, name in enumerate(order)}}
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "MNLI").mkdir()
    for name in ("train", "dev_matched", "dev_mismatched"):
        cells = [
            ["x"] * 8 + [text, "a film", ("contradiction", "entailment", "neutral")[i % 3]]
            for i, (text, _) in enumerate(rows(30))
        ]
        lines = ["\t".join(str(i) for i in range(11)), *("\t".join(row) for row in cells)]
        (tmp_path / "MNLI" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    run_settings = settings(folder, tmp_path, tmp_path / "out", task="mnli", epochs=0, recipe="joint")
    from offramp.training.data import read_data, reorder_labels
    from offramp.training.model import build_model

    data = read_data(run_settings)
    model = build_model(run_settings, make_recipe("joint"), data.task)
    assert model.config.labels == ("contradiction", "neutral", "entailment")
    assert model.config.exit_specs[-1].head == "family"  # its own head stays
    moved = reorder_labels(data, model.config.labels)
    assert data.dev["dev_matched"].labels[:3] == [0, 1, 2]
    assert moved.dev["dev_matched"].labels[:3] == [0, 2, 1]
    result = train(run_settings)
    assert list(result.dev) == ["dev_matched", "dev_mismatched"]


def test_length_groups_depend_on_seed_and_epoch_alone():
    lengths = np.random.default_rng(0).integers(3, 60, 1000)
    order = LengthGroupedSampler(1000, 7, 8, lengths)
    first = list(order)
    order.set_epoch(1)
    second = list(order)
    order.set_epoch(0)
    assert list(order) == first != second
    assert sorted(first) == sorted(second) == list(range(1000))
    spread = [np.ptp(lengths[first[start : start + 8]]) for start in range(0, 1000, 8)]
    assert np.mean(spread) < 5 < np.mean([np.ptp(lengths[start : start + 8]) for start in range(0, 1000, 8)])


def test_examples_pad_as_the_tokenizer_does():
    texts = [("a good film", "it was long"), ("bad", "the plot"), ("a very very dull film in the long plot", "was it")]
    examples = Examples(SINGLE_LABEL.encode(texts, tokenizer(), 12), np.array([0, 1, 1]))
    batch = Padder(0)([examples[index] for index in range(3)])
    expected = tokenizer()(
        [first for first, _ in texts],
        [second for _, second in texts],
        truncation=True,
        max_length=12,
        padding=True,
        return_tensors="pt",
    )
    assert sorted(batch) == ["attention_mask", "input_ids", "labels", "token_type_ids"]
    assert all(torch.equal(batch[key], expected[key]) for key in expected)


# -- the calibration split -------------------------------------------------------------------------


def test_the_calibration_split_is_stratified_by_seed_and_keeps_copies_together():
    texts = [f"text {index % 700}" for index in range(1000)]  # 300 texts are duplicates
    labels = [int(index % 700 < 140) for index in range(1000)]
    training, held_out = hold_out(Rows(texts, labels), 0.1, seed=1)
    assert sorted([*training, *held_out]) == list(range(1000))
    assert not {texts[i] for i in training} & {texts[i] for i in held_out}
    assert len({texts[i] for i in held_out}) == 70
    assert sum(labels[i] for i in {texts[i]: i for i in held_out}.values()) == 14
    assert np.array_equal(hold_out(Rows(texts, labels), 0.1, seed=1)[1], held_out)
    assert not np.array_equal(hold_out(Rows(texts, labels), 0.1, seed=2)[1], held_out)


def test_the_folder_records_which_rows_were_trained_on(encoders, glue, tmp_path):
    result = train(settings(encoders["bert"], glue, tmp_path / "out", max_steps=1))
    roles = read_hashes(result.folder)
    texts = [text for text, _ in rows(48, 1)]
    assert len(roles["calibration"]) == 5 and len(roles["train"]) == 43 and len(roles["dev"]) == 12
    assert set(roles["train"]) | set(roles["calibration"]) == set(hash_texts(texts))
    assert hash_text(("a", "b")) != hash_text(("a b",))
    assert hash_text(" a ") == hash_text("a")


# -- files of a run ----------------------------------------------------------------------------------


def test_a_config_file_repeats_the_run(encoders, glue, tmp_path):
    first = train(
        settings(encoders["bert"], glue, tmp_path / "one", recipe="romebert-sd", recipe_options={"gamma": 0.5})
    )
    options = read_settings(first.folder / "training.yaml") | {"output": str(tmp_path / "two")}
    second = train(Settings(**options))
    first_weights, second_weights = weights(first.folder), weights(second.folder)
    assert all(torch.equal(first_weights[name], second_weights[name]) for name in first_weights)
    other = train(Settings(**options | {"seed": 7, "output": str(tmp_path / "three")}))
    assert any(not torch.equal(first_weights[name], value) for name, value in weights(other.folder).items())


def test_the_card_describes_the_training(encoders, glue, tmp_path):
    result = train(settings(encoders["bert"], glue, tmp_path / "out", recipe="romebert-sd-gr"))
    text = (result.folder / "README.md").read_text()
    for part in ("sst-2", "romebert-sd-gr", "arXiv:2101.09755", "43 training rows, 5 held out", "gamma 0.9"):
        assert part in text
    assert f"| 4 | {100 * result.dev['dev'][-1]['acc']:.1f} |" in text
    scores = json.loads((result.folder / "scores.json").read_text())
    assert scores["dev"] == result.dev
    history = scores["stages"][0]["history"]
    assert any("eval_exit_2_acc" in entry for entry in history)
    AdaptiveModel.from_pretrained(result.folder).save_pretrained(tmp_path / "copy")
    assert "arXiv:2101.09755" in (tmp_path / "copy" / "README.md").read_text()


def test_seeds_make_a_run_each_and_a_summary(encoders, glue, tmp_path):
    results = train_seeds(settings(encoders["bert"], glue, tmp_path / "out", seeds=[1, 2], max_steps=3))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    accuracy = np.array([[scores["acc"] for scores in result.dev["dev"]] for result in results])
    assert np.allclose(summary["dev"]["dev"]["mean"][:-1], accuracy.mean(0))
    assert np.allclose(summary["dev"]["dev"]["sd"][-1], accuracy.mean(1).std(ddof=1))
    assert (tmp_path / "out" / "seed-2" / "config.json").is_file()


def test_selection_keeps_the_best_checkpoint_and_early_stopping_stops(encoders, glue, tmp_path):
    options = {"epochs": 30, "eval_every": 2, "early_stopping": 2, "select": "2", "keep_checkpoints": True}
    result = train(settings(encoders["bert"], glue, tmp_path / "out", **options))
    stage = json.loads((result.folder / "scores.json").read_text())["stages"][0]
    scores = [entry["eval_exit_2_acc"] for entry in stage["history"] if "eval_exit_2_acc" in entry]
    assert stage["updates"] < 30 * 6
    assert result.dev["dev"][1]["acc"] == pytest.approx(max(scores))
    assert len(scores) - 1 - scores.index(max(scores)) == 2


def test_heads_can_have_a_separate_learning_rate(encoders, glue, tmp_path):
    options = {"head_learning_rate": 1e-2, "weight_decay": 0.1}
    run = _training_run(settings(encoders["bert"], glue, tmp_path / "out", **options), False)
    (stage,) = run.recipe.stages(run.model.config, None)
    groups = run.trainer(tmp_path / "here", stage, 1).parameter_groups(run.model)
    rates = {(group["lr"], group["weight_decay"]): len(group["params"]) for group in groups}
    assert rates == {(5e-3, 0.1): 27, (5e-3, 0.0): 42, (1e-2, 0.1): 4, (1e-2, 0.0): 4}


@pytest.mark.parametrize(
    ("options", "fast"),
    [
        ({}, ["1", "2", "3", "4"]),
        ({"pooling": "first"}, []),  # the published heads have the published rate
        ({"recipe_options": {"faithful": True}}, []),
        ({"head_learning_rate": 2e-5}, []),
        ({"recipe": "berxit-lte"}, ["1", "2", "3", "4", "lte"]),
    ],
)
def test_linear_heads_have_a_higher_learning_rate_by_default(options, fast, encoders, glue, tmp_path):
    run_settings = settings(encoders["bert"], glue, tmp_path / "out", learning_rate=2e-5, **options)
    assert _fast_exits(run_settings, tmp_path) == fast


def test_a_fine_tuned_classifiers_own_head_has_the_usual_learning_rate(glue, tmp_path):
    tuned = save_classifier("bert", tmp_path / "tuned", num_labels=2)
    assert _fast_exits(settings(tuned, glue, tmp_path / "out", learning_rate=2e-5), tmp_path) == ["1", "2", "3"]


def _fast_exits(run_settings, folder):
    """Exits with a higher learning rate than the encoder."""
    run = _training_run(run_settings, run_settings.recipe_options.get("faithful", False))
    (stage,) = run.recipe.stages(run.model.config, None)
    groups = run.trainer(folder / "here", stage, 1).parameter_groups(run.model)
    names = {id(value): name for name, value in run.model.named_parameters()}
    fast = [names[id(value)] for group in groups if group["lr"] == 1e-3 for value in group["params"]]
    return sorted({name.split(".")[1] for name in fast})


def test_tensorboard_gets_the_angle(encoders, glue, tmp_path):
    options = {"recipe": "romebert-sd-gr", "report_to": "tensorboard", "epochs": 2, "log_every": 2}
    result = train(settings(encoders["bert"], glue, tmp_path / "out", **options))
    history = json.loads((result.folder / "scores.json").read_text())["stages"][0]["history"]
    angles = [entry["gr_angle"] for entry in history if "gr_angle" in entry]
    assert angles and all(0 <= angle <= 180 for angle in angles)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = (result.folder / "logs").rglob("events.out.tfevents*")
    board = EventAccumulator(str(file))
    board.Reload()
    written = [event.value for event in board.Scalars("train/gr_angle")]
    assert written == pytest.approx(angles, abs=1e-3)


def test_gradient_checkpointing_runs_layers_twice_and_changes_nothing(encoders, glue, tmp_path):
    calls = []
    options = {"gradient_checkpointing": True, "max_steps": 1}
    run = _training_run(settings(encoders["bert"], glue, tmp_path / "zero", **options), False)
    run.model.backbone.encoder.layer[0].attention.register_forward_hook(lambda *_: calls.append(1))
    run.trainer(tmp_path / "here", run.stages[0], 1).train()
    assert len(calls) >= 2
    plain = train(settings(encoders["bert"], glue, tmp_path / "one"))
    checkpointed = weights(
        train(settings(encoders["bert"], glue, tmp_path / "two", gradient_checkpointing=True)).folder
    )
    assert all(torch.allclose(value, checkpointed[name], atol=1e-6) for name, value in weights(plain.folder).items())
