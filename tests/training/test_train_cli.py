"""`offramp train` as a user meets it: their own data, and one line and a code for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.errors import CannotWrite
from offramp.files.writing import staged_folder
from tests import programs
from tests.calls import fails
from tests.reviews import rows, write_sts
from tests.tiny import tokenizer

FAST = ["--max-steps", "2", "--batch-size", "8", "--cpu", "--max-length", "16"]


@pytest.fixture
def encoder(encoders):
    return encoders["bert"]


def trains(capsys, *arguments) -> str:
    """What a successful call prints on standard output."""
    assert main([str(argument) for argument in ("train", *arguments, *FAST)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def own(folder, name, lines) -> str:
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return str(folder / name)


# -- data of one's own -------------------------------------------------------------------------------


def test_csv_tsv_json_lines_and_parquet_give_the_same_model(encoder, capsys, tmp_path):
    import pandas

    table = [{"review": f'{text}, "it" was', "verdict": ["no", "yes"][label]} for text, label in rows(40)]
    frame = pandas.DataFrame(table)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "a.parquet")
    own(tmp_path, "a.tsv", ["review\tverdict", *(f"{row['review']}\t{row['verdict']}" for row in table)])
    columns = ["--text-column", "review", "--label-column", "verdict"]
    weights = set()
    for ending in ("csv", "tsv", "jsonl", "parquet"):
        file, out = tmp_path / f"a.{ending}", tmp_path / f"out-{ending}"
        printed = trains(capsys, encoder, "--train-file", file, "--dev-file", file, *columns, "-o", out)
        assert "exit 4" in printed and f"Wrote {out}" in printed
        assert AdaptiveModel.from_pretrained(out).config.labels == ("no", "yes")
        weights.add((out / "model.safetensors").read_bytes())
    assert len(weights) == 1


def test_a_hugging_face_data_set_in_a_folder(encoder, capsys, tmp_path):
    """The Hub's code path; the data set lies on the disk."""
    folder = tmp_path / "data"
    folder.mkdir()
    for split, count in (("train", 40), ("validation", 10)):
        lines = [json.dumps({"text": text, "label": ["bad", "fine"][label]}) for text, label in rows(count)]
        own(folder, f"{split}.jsonl", lines)
    trains(capsys, encoder, "--dataset", folder, "-o", tmp_path / "out")
    assert AdaptiveModel.from_pretrained(tmp_path / "out").config.labels == ("bad", "fine")


def test_a_task_from_the_hub_with_classes_in_the_hubs_order(encoder, capsys, tmp_path):
    import datasets

    features = datasets.Features(
        {
            "sentence1": datasets.Value("string"),
            "sentence2": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["not_entailment", "entailment"]),
        }
    )
    for split, count in (("train", 40), ("validation", 10)):
        made = {"sentence1": [], "sentence2": [], "label": []}
        for text, label in rows(count):
            made["sentence1"].append(text)
            made["sentence2"].append("it was")
            made["label"].append(label)
        (tmp_path / "data" / "rte").mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(made, features).to_parquet(tmp_path / "data" / "rte" / f"{split}-0.parquet")
    card = "---\nconfigs:\n- config_name: rte\n  data_files:\n  - split: train\n    path: rte/train-*\n"
    (tmp_path / "data" / "README.md").write_text(card + "  - split: validation\n    path: rte/validation-*\n---\n")
    trains(capsys, encoder, "--task", "rte", "--dataset", tmp_path / "data", "-o", tmp_path / "out")
    assert AdaptiveModel.from_pretrained(tmp_path / "out").config.labels == ("entailment", "not_entailment")
    from offramp.training.data import read_data
    from offramp.training.settings import Settings

    data = read_data(Settings("x", "y", task="rte", dataset=str(tmp_path / "data"), calibration_split=0.0))
    assert data.dev["dev"].labels[:4] == [1, 0, 1, 0]  # the file's 0 is not_entailment, the task's second


def test_values_with_fractions_are_a_regression(encoder, capsys, tmp_path):
    lines = ["text,label", *(f"{text},{label + index % 4 / 4}" for index, (text, label) in enumerate(rows(40)))]
    file = own(tmp_path, "a.csv", lines)
    assert trains(capsys, encoder, "--train-file", file, "--dev-file", file, "-o", tmp_path / "out").startswith("corr")
    assert AdaptiveModel.from_pretrained(tmp_path / "out").config.problem_type == "regression"


def test_labels_spelled_two_ways_are_one(encoder, capsys, tmp_path):
    lines = [f"{text}\t{['no', 'yes', 'no', 'yes', 'No '][index % 5]}" for index, (text, _) in enumerate(rows(40))]
    file = own(tmp_path, "a.tsv", ["text\tlabel", *lines])
    arguments = ["train", encoder, "--train-file", file, "--dev-file", file, "-o", tmp_path / "out", *FAST]
    assert main([str(argument) for argument in arguments]) == 0
    assert "label 'No' is taken for 'no'" in capsys.readouterr().err
    assert AdaptiveModel.from_pretrained(tmp_path / "out").config.labels == ("no", "yes")


def test_an_offramp_model_trains_on(encoder, glue, capsys, tmp_path):
    """Exits alone on a model that was trained before: stage one is skipped."""
    trains(capsys, encoder, "--task", "sst-2", "--data-dir", glue, "--recipe", "joint", "-o", tmp_path / "one")
    arguments = ["--task", "sst-2", "--data-dir", glue, "--recipe", "deebert", "--epochs", "0,1"]
    fast = ["--batch-size", "8", "--cpu", "--max-length", "16"]
    called = ["train", tmp_path / "one", *arguments, "-o", tmp_path / "two", *fast]
    assert main([str(argument) for argument in called]) == 0
    one, two = (AdaptiveModel.from_pretrained(tmp_path / name).state_dict() for name in ("one", "two"))
    same = {name for name in one if one[name].equal(two[name])}
    assert same == {name for name in one if not name.startswith(("exits.1.", "exits.2.", "exits.3."))}


# -- options ------------------------------------------------------------------------------------------


def test_a_config_file_and_the_command_line_on_top(encoder, glue, capsys, tmp_path):
    options = {"backbone": str(encoder), "task": "sst-2", "data-dir": str(glue), "recipe": "pabee", "max_steps": 1}
    (tmp_path / "run.json").write_text(json.dumps(options))
    trains(capsys, "--config", tmp_path / "run.json", "--recipe", "joint", "-o", tmp_path / "out")
    used = yaml.safe_load((tmp_path / "out" / "training.yaml").read_text())
    assert (used["recipe"], used["max_steps"], used["batch_size"]) == ("joint", 2, 8)


def test_numbers_in_files_may_be_written_in_any_way(tmp_path):
    from offramp.training.settings import Settings, read_settings

    (tmp_path / "run.yaml").write_text("learning_rate: 2e-5\nselect: 2\nreport_to: [tensorboard, wandb]\n")
    (tmp_path / "run.json").write_text('{"adam_epsilon": 1e-06}')
    one = Settings("backbone", "output", **read_settings(tmp_path / "run.yaml"))
    assert (one.learning_rate, one.select, one.report_to) == (2e-5, "2", "tensorboard,wandb")
    assert Settings("backbone", "output", **read_settings(tmp_path / "run.json")).adam_epsilon == 1e-6


def test_the_recipes_are_listed_with_papers_and_options(capsys):
    assert main(["train", "--recipe", "list"]) == 0
    printed = capsys.readouterr().out
    assert "arXiv:2004.12993" in printed and '"gamma": 0.9' in printed and "berxit-lte" in printed


# -- mistakes -----------------------------------------------------------------------------------------


def mistakes(tmp_path, glue):
    """Arguments, and what the one line says."""
    good = own(tmp_path, "good.tsv", ["text\tlabel", *(f"{text}\t{label}" for text, label in rows(20))])
    strange = own(tmp_path, "strange.tsv", ["text\tlabel", "a film\t1", "the plot\t7"])
    one = own(tmp_path, "one.tsv", ["text\tlabel", *(f"{text}\t1" for text, _ in rows(20))])
    empty = own(tmp_path, "empty.tsv", ["text\tlabel"])
    sts = write_sts(tmp_path / "elue")
    task = ["--task", "sst-2", "--data-dir", glue]
    (tmp_path / "half" / "SST-2").mkdir(parents=True)
    (tmp_path / "half" / "SST-2" / "train.tsv").write_text("sentence\tlabel\na\t1\n")
    files = ["--train-file", good, "--dev-file", good]
    return [
        ([], "Nothing to learn from: give --task"),
        (["--train-file", good, "--dev-file", strange], "strange.tsv, line 3: the label is '7', which is none of 0, 1"),
        (["--train-file", one, "--dev-file", one], "one.tsv has one class only (1)"),
        (["--train-file", empty, "--dev-file", empty], "empty.tsv is empty"),
        (["--train-file", good], "Own data needs --dev-file too"),
        (["--train-file", tmp_path / "no.tsv", "--dev-file", good], "No file"),
        ([*files, "--text-column", "review"], "No column is called 'review'. Known: label, text"),
        ([*files, "--label-column", "verdict"], "No column is called 'verdict'. Known: label, text"),
        ([*files, "--metric", "elo"], "No metric is called 'elo'"),
        (["--task", "sst-2", "--data-dir", tmp_path / "half"], "no SST-2/dev.tsv in"),
        (["--task", "sst-2", "--data-dir", tmp_path / "nowhere"], "No folder"),
        (["--task", "sst2", "--data-dir", glue], "No task is called 'sst2'. Did you mean 'sst-2'?"),
        (["--task", "ax", "--data-dir", glue], "Task ax has no training rows"),
        (["--task", "elue-imdb"], "Task elue-imdb is not on the Hub"),
        ([*task, "--max-length", "999"], "max-length is 999, but the backbone has positions for 40"),
        ([*task, "--recipe", "rome"], "No recipe is called 'rome'"),
        ([*task, "--recipe", "joint", "--gamma", "0.5"], "Recipe joint has no option gamma; it has faithful"),
        ([*task, "--recipe", "static", "--exits", "1,2"], "Recipe static has one exit"),
        ([*task, "--recipe", "deebert", "--exits", "4"], "has only the last one"),
        ([*task, "--recipe", "deebert", "--epochs", "1,2,3"], "epochs names 3 stages, but recipe deebert has 2"),
        (
            ["--task", "elue-sts-b", "--data-dir", sts, "--recipe", "self-distillation"],
            "Recipe self-distillation does not fit a regression",
        ),
        (["--task", "elue-sts-b", "--data-dir", sts, "--class-weights", "balanced"], "A regression has no classes"),
        ([*task, "--class-weights", "1,2,3"], "class-weights are 3, but there are 2 classes"),
        ([*task, "--select", "9"], "select is 9, but the exits sit on 1, 2, 3, 4"),
        ([*task, "--select", "best"], "select is 'best'"),
        ([*task, "--batch-size", "0"], "batch-size is 0; it is at least 1"),
        ([*task, "--learning-rate", "-1"], "learning-rate is -1.0; it is above 0"),
        ([*task, "--calibration-split", "1"], "The calibration split is 1.0"),
        ([*task, "--exits", "3,9"], "No layer 9"),
        ([*task, "--early-stopping", "2", "--select", "none"], "early-stopping needs a score to watch"),
        ([*task, "--label-smoothing", "2"], "label-smoothing is 2.0; it is from 0 to below 1"),
        ([*task, "--class-weights", "2"], "class-weights are 2; say balanced, or a number per class"),
        ([*task, "--seed", "-1"], "seed is -1; it is at least 0"),
        ([*task, "--weight-decay", "-1"], "weight-decay is -1.0; it is at least 0"),
        ([*task, "--metric", "acc"], "Task sst-2 knows its columns and its metric"),
        ([*files, "--metric", "pearson"], "Metric pearson does not fit this single label classification of 2"),
        ([*task, "--recipe", "romebert-sd", "--temperature", "0"], "temperature is 0.0; it is above 0"),
        ([*task, "--recipe", "romebert-sd", "--reduction", "foo"], "argument --reduction: invalid choice: 'foo'"),
        (["--task", "sts-b", "--data-dir", sts], "but sts-b has 10; is it another suite's?"),
        ([*task, "--schedule", "downhill"], "No schedule is called 'downhill'"),
        ([*task, "--schedule", "cosine_with_min_lr"], "No schedule is called 'cosine_with_min_lr'"),
        ([*task, "--report-to", "pigeon"], "Nothing can be reported to 'pigeon' here"),
        ([*task, "--seeds", "1,1"], "seeds are [1, 1]; list whole numbers, each once"),
        ([*task, "--config", tmp_path / "none.yaml"], "Cannot read"),
    ]


@pytest.mark.parametrize("number", range(44))
def test_a_mistake_is_one_line_and_leaves_nothing(number, encoder, glue, capsys, tmp_path):
    (tmp_path / "case").mkdir()
    cases = mistakes(tmp_path / "case", glue)
    assert len(cases) == 44
    arguments, wanted = cases[number]
    output = tmp_path / "out"
    fast = ["--cpu"]
    line = fails(capsys, "train", encoder, *arguments, *fast, "--output", output)
    assert wanted in line
    assert not output.exists() or list(output.iterdir()) == []


def test_files_with_options_that_do_not_exist(encoder, capsys, tmp_path):
    (tmp_path / "run.yaml").write_text("recipee: joint\n")
    assert "No option is called 'recipee'. Did you mean 'recipe'?" in fails(
        capsys, "train", encoder, "--config", tmp_path / "run.yaml", "-o", tmp_path / "out"
    )
    for line, wanted in (
        ("max_steps: many", "`max_steps` is 'many', expected a whole number"),
        ("accumulation: 1.5", "`accumulation` is 1.5, expected a whole number"),
        ("bf16: 3", "`bf16` is 3, expected true or false"),
    ):
        (tmp_path / "run.yaml").write_text(f"{line}\n")
        assert wanted in fails(capsys, "train", encoder, "--config", tmp_path / "run.yaml", "-o", tmp_path / "out")
    (tmp_path / "run.yaml").write_text("a: [\n")
    assert "neither YAML nor JSON" in fails(capsys, "train", encoder, "--config", tmp_path / "run.yaml", "-o", "out")


def test_another_run_in_the_folder_is_left_alone(encoder, glue, capsys, tmp_path):
    task = ["--task", "sst-2", "--data-dir", glue, "-o", tmp_path / "out"]
    trains(capsys, encoder, *task)
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert "--resume to go on with it, or --overwrite" in fails(capsys, "train", encoder, *task, *FAST)
    line = fails(capsys, "train", encoder, *task, *FAST, "--resume", "--recipe", "pabee")
    assert "was begun with recipe joint, not pabee" in line
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert main([str(one) for one in ("train", encoder, *task, *FAST, "--resume")]) == 0
    assert "is finished" in capsys.readouterr().err
    trains(capsys, encoder, *task, "--recipe", "pabee", "--overwrite")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    line = fails(capsys, "train", encoder, *task[:-1], tmp_path / "mine", *FAST, "--overwrite")
    assert "holds other things than a run (thesis.txt)" in line
    assert (tmp_path / "mine" / "thesis.txt").is_file()
    line = fails(capsys, "train", tmp_path / "out", *task, *FAST, "--overwrite")
    assert "holds what the run reads" in line


def test_an_overwritten_model_waits_until_the_new_one_is_there(encoder, glue, capsys, tmp_path):
    task = ["--task", "sst-2", "--data-dir", glue, "-o", tmp_path / "out"]
    trains(capsys, encoder, *task)
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    bad = ["--learning-rate", "3e38", "--select", "none", "--max-steps", "5", "--cpu", "--overwrite"]
    assert main([str(one) for one in ("train", encoder, *task, *bad)]) == 2
    assert "came apart" in capsys.readouterr().err
    (aside,) = tmp_path.glob("out.before-*")
    assert (aside / "model.safetensors").read_bytes() == before
    trains(capsys, encoder, *task, "--overwrite", "--recipe", "pabee")
    assert not aside.exists()


def test_a_folder_of_the_users_beside_the_output_stays(encoder, glue, capsys, tmp_path):
    """`out.before` was removed before and after every run, whoever had made it."""
    for name in ("out.before", "out.before-notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("mine")
    task = ["--task", "sst-2", "--data-dir", glue, "-o", tmp_path / "out", "--max-steps", "1"]
    trains(capsys, encoder, *task)
    trains(capsys, encoder, *task, "--overwrite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.before", "out.before-notes"]
    for name in ("out.before", "out.before-notes"):
        assert (tmp_path / name / "thesis.txt").read_text() == "mine"


def test_when_the_new_folder_cannot_take_the_old_ones_place_the_old_one_is_there(tmp_path, monkeypatch):
    old = tmp_path / "run"
    old.mkdir()
    (old / "config.json").write_text("old")
    replace = Path.replace

    def fails_for_the_new(self, target):
        if self.name == "new":
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fails_for_the_new)
    with pytest.raises(CannotWrite, match="No space left"), staged_folder(old, overwrite=True) as folder:
        (folder / "config.json").write_text("new")
    assert (old / "config.json").read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_model_that_is_trained_on_keeps_its_shape_and_its_labels(encoder, glue, capsys, tmp_path):
    task = ["--task", "sst-2", "--data-dir", glue]
    lines = ["text\tlabel", *(f"{text}\t{['no', 'yes'][label]}" for text, label in rows(40))]
    file = own(tmp_path, "a.tsv", lines)
    trains(capsys, encoder, "--train-file", file, "--dev-file", file, "-o", tmp_path / "own")
    out = ["-o", tmp_path / "two", *FAST]
    line = fails(capsys, "train", tmp_path / "own", *task, *out)
    assert "answers with no, yes (single label classification), the data hold 0, 1" in line
    trains(capsys, encoder, *task, "-o", tmp_path / "one")
    assert "has its exits already; leave --num-layers out" in fails(
        capsys, "train", tmp_path / "one", *task, *out, "--recipe", "static", "--num-layers", "2"
    )
    assert "learning-to-exit module, which this model does not have" in fails(
        capsys, "train", tmp_path / "one", *task, *out, "--recipe", "berxit-lte"
    )


def test_converted_models_train_on_faithful_ones_too(glue, capsys, tmp_path):
    """A golden DeeBERT checkpoint has nameless labels and, faithful, a ramp that answers."""
    golden = Path(__file__).parents[1] / "golden" / "deebert-bert-2" / "checkpoint"
    for name, more in (("plain", []), ("faithful", ["--faithful"])):
        model = tmp_path / name
        assert main(["convert", str(golden), "--output", str(model), *more]) == 0
        tokenizer().save_pretrained(model)
        trains(capsys, model, "--task", "sst-2", "--data-dir", glue, "-o", tmp_path / f"{name}-trained")
        assert AdaptiveModel.from_pretrained(tmp_path / f"{name}-trained").config.labels == ("0", "1")


def test_short_rows_and_rows_without_a_label_are_skipped_and_told(encoder, capsys, tmp_path):
    lines = [
        "text\tlabel",
        *(f"{text}\t{label}" for text, label in rows(40)),
        "too short",
        "no label\t",
        "1 again\t1.0",
    ]
    file = own(tmp_path, "a.tsv", lines)
    called = ["train", encoder, "--train-file", file, "--dev-file", file, "-o", tmp_path / "out", *FAST]
    assert main([str(one) for one in called]) == 0
    told = capsys.readouterr().err
    assert "1 rows with too few or too many columns were skipped, the first in line 42" in told
    assert "1 rows without a label were skipped, the first at" in told
    assert AdaptiveModel.from_pretrained(tmp_path / "out").config.labels == ("0", "1")


def test_json_lines_with_nonsense_are_named(encoder, capsys, tmp_path):
    good = [json.dumps({"text": text, "label": label}) for text, label in rows(20)]
    for line, wanted in (
        ('{"text": "a", "label": "seven"}', "line 21: the label is 'seven'"),
        ('{"text": "a \\ud83d", "label": 1}', "line 21: character 3 of the text is half of a pair"),
    ):
        train, dev = own(tmp_path, "good.jsonl", good), own(tmp_path, "bad.jsonl", [*good, line])
        files = ["--train-file", train, "--dev-file", dev]
        assert wanted in fails(capsys, "train", encoder, *files, "-o", tmp_path / "out", *FAST)


def test_several_seeds_leave_other_runs_alone(encoder, glue, capsys, tmp_path):
    task = ["--task", "sst-2", "--data-dir", glue]
    trains(capsys, encoder, *task, "-o", tmp_path / "out")
    line = fails(capsys, "train", encoder, *task, *FAST, "--seeds", "1,2", "-o", tmp_path / "out")
    assert "holds another run; name another folder" in line
    printed = trains(capsys, encoder, *task, "--seeds", "3", "-o", tmp_path / "several")
    assert "seed 3" in printed
    line = fails(capsys, "train", encoder, *task, *FAST, "--seeds", "5,3", "-o", tmp_path / "several")
    assert "seed-3 holds another run" in line
    assert not (tmp_path / "several" / "seed-5").exists()


def fill_the_disk_behind_a_checkpoint() -> None:
    """From the second checkpoint on, no file may grow beyond 30 kB."""
    import resource

    from transformers import Trainer

    save, saved = Trainer._save_checkpoint, []

    def full(self, *args):
        if saved:
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
        saved.append(1)
        save(self, *args)

    Trainer._save_checkpoint = full


def test_a_full_disk_while_saving_leaves_the_last_good_checkpoint(encoder, glue, tmp_path):
    """The second checkpoint does not fit: one line, code 2; with room again the run goes on and ends."""
    task = ["--task", "sst-2", "--data-dir", glue, "-o", tmp_path / "out", "--save-every", "2", "--cpu"]
    call = ["train", encoder, *task, "--epochs", "2", "--batch-size", "8"]
    (failed,) = programs.run((programs.offramp, call, fill_the_disk_behind_a_checkpoint))
    assert failed.code == 2, failed.stderr
    understood, fault = [line for line in failed.stderr.splitlines() if line.startswith("offramp:")]
    assert "Training rows:" in understood and "Cannot write" in fault and "checkpoint-4" in fault, failed.stderr
    left = [path.name for path in (tmp_path / "out" / "checkpoints" / "1-joint").glob("checkpoint-*")]
    assert left == ["checkpoint-2"]
    (done,) = programs.run((programs.offramp, [*call, "--resume"]))
    assert done.code == 0, done.stderr
    assert "checkpoint-2" in done.stderr
