"""`offramp train` on the command line: custom data, options, and one-line errors."""

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


# -- custom data -------------------------------------------------------------------------------------


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
        columns = {"sentence1": [], "sentence2": [], "label": []}
        for text, label in rows(count):
            columns["sentence1"].append(text)
            columns["sentence2"].append("it was")
            columns["label"].append(label)
        (tmp_path / "data" / "rte").mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(columns, features).to_parquet(tmp_path / "data" / "rte" / f"{split}-0.parquet")
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
    printed = trains(capsys, encoder, "--train-file", file, "--dev-file", file, "-o", tmp_path / "out")
    assert printed.splitlines()[1].startswith("corr")
    assert AdaptiveModel.from_pretrained(tmp_path / "out").config.problem_type == "regression"


def test_labels_spelled_two_ways_are_one(encoder, capsys, tmp_path):
    lines = [f"{text}\t{['no', 'yes', 'no', 'yes', 'No '][index % 5]}" for index, (text, _) in enumerate(rows(40))]
    file = own(tmp_path, "a.tsv", ["text\tlabel", *lines])
    arguments = ["train", encoder, "--train-file", file, "--dev-file", file, "-o", tmp_path / "out", *FAST]
    assert main([str(argument) for argument in arguments]) == 0
    assert "label 'No' is treated as 'no'" in capsys.readouterr().err
    assert AdaptiveModel.from_pretrained(tmp_path / "out").config.labels == ("no", "yes")


def test_an_offramp_model_can_be_trained_again(encoder, glue, capsys, tmp_path):
    """Only the exits of a model that was trained before: stage one is skipped."""
    trains(capsys, encoder, "--task", "sst-2", "--data-dir", glue, "--recipe", "joint", "-o", tmp_path / "one")
    arguments = ["--task", "sst-2", "--data-dir", glue, "--recipe", "deebert", "--epochs", "0,1"]
    fast = ["--batch-size", "8", "--cpu", "--max-length", "16"]
    call = ["train", tmp_path / "one", *arguments, "-o", tmp_path / "two", *fast]
    assert main([str(argument) for argument in call]) == 0
    first, second = (AdaptiveModel.from_pretrained(tmp_path / name).state_dict() for name in ("one", "two"))
    same = {name for name in first if first[name].equal(second[name])}
    assert same == {name for name in first if not name.startswith(("exits.1.", "exits.2.", "exits.3."))}


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
    settings = Settings("backbone", "output", **read_settings(tmp_path / "run.yaml"))
    assert (settings.learning_rate, settings.select, settings.report_to) == (2e-5, "2", "tensorboard,wandb")
    assert Settings("backbone", "output", **read_settings(tmp_path / "run.json")).adam_epsilon == 1e-6


def test_the_recipes_are_listed_with_papers_and_options(capsys):
    assert main(["train", "--recipe", "list"]) == 0
    printed = capsys.readouterr().out
    assert "arXiv:2004.12993" in printed and '"gamma": 0.9' in printed and "berxit-lte" in printed


# -- mistakes -----------------------------------------------------------------------------------------


def mistakes(tmp_path, glue):
    """Arguments, and a part of the expected error."""
    good = own(tmp_path, "good.tsv", ["text\tlabel", *(f"{text}\t{label}" for text, label in rows(20))])
    strange = own(tmp_path, "strange.tsv", ["text\tlabel", "a film\t1", "the plot\t7"])
    single = own(tmp_path, "one.tsv", ["text\tlabel", *(f"{text}\t1" for text, _ in rows(20))])
    empty = own(tmp_path, "empty.tsv", ["text\tlabel"])
    sts = write_sts(tmp_path / "elue")
    task = ["--task", "sst-2", "--data-dir", glue]
    (tmp_path / "half" / "SST-2").mkdir(parents=True)
    (tmp_path / "half" / "SST-2" / "train.tsv").write_text("sentence\tlabel\na\t1\n")
    files = ["--train-file", good, "--dev-file", good]
    return [
        ([], "No training data: use --task"),
        (["--train-file", good, "--dev-file", strange], "strange.tsv, line 3: unknown label '7', expected one of 0, 1"),
        (["--train-file", single, "--dev-file", single], "one.tsv has only one class (1)"),
        (["--train-file", empty, "--dev-file", empty], "empty.tsv contains no rows"),
        (["--train-file", good], "Missing --dev-file"),
        (["--train-file", tmp_path / "no.tsv", "--dev-file", good], "File not found"),
        ([*files, "--text-column", "review"], "Unknown column 'review'. Available: label, text"),
        ([*files, "--label-column", "verdict"], "Unknown column 'verdict'. Available: label, text"),
        ([*files, "--metric", "elo"], "Unknown metric 'elo'"),
        (["--task", "sst-2", "--data-dir", tmp_path / "half"], "no SST-2/dev.tsv in"),
        (["--task", "sst-2", "--data-dir", tmp_path / "nowhere"], "Folder not found"),
        (["--task", "sst2", "--data-dir", glue], "Unknown task 'sst2'. Did you mean 'sst-2'?"),
        (["--task", "ax", "--data-dir", glue], "Task ax has no training rows"),
        (["--task", "elue-imdb"], "Task elue-imdb is not on the Hub"),
        ([*task, "--max-length", "999"], "--max-length must be at most 40, the backbone's maximum, got 999"),
        ([*task, "--recipe", "rome"], "Unknown recipe 'rome'"),
        ([*task, "--recipe", "joint", "--gamma", "0.5"], "Recipe joint has no option gamma. Available: faithful"),
        ([*task, "--recipe", "static", "--exits", "1,2"], "Recipe static has a single exit"),
        ([*task, "--recipe", "deebert", "--exits", "4"], "has only the last exit"),
        (
            [*task, "--recipe", "deebert", "--epochs", "1,2,3"],
            "--epochs has 3 numbers, but recipe deebert has 2",
        ),
        (
            ["--task", "elue-sts-b", "--data-dir", sts, "--recipe", "self-distillation"],
            "Recipe self-distillation supports single-label classification only, not regression",
        ),
        (
            ["--task", "elue-sts-b", "--data-dir", sts, "--class-weights", "balanced"],
            "but the task is regression",
        ),
        ([*task, "--class-weights", "1,2,3"], "--class-weights has 3 numbers, but there are 2 classes"),
        ([*task, "--select", "9"], "--select is 9, but the exit layers are 1, 2, 3, 4"),
        ([*task, "--select", "best"], "--select must be auto, mean, last, none or an exit layer, got 'best'"),
        ([*task, "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        ([*task, "--learning-rate", "-1"], "--learning-rate must be greater than 0, got -1.0"),
        ([*task, "--calibration-split", "1"], "--calibration-split must be at least 0 and below 1, got 1.0"),
        ([*task, "--exits", "3,9"], "must be layers from 0 to 4, got 3, 9"),
        (
            [*task, "--early-stopping", "2", "--select", "none"],
            "--early-stopping needs a selection score",
        ),
        ([*task, "--label-smoothing", "2"], "--label-smoothing must be at least 0 and below 1, got 2.0"),
        ([*task, "--class-weights", "2"], "--class-weights must be balanced, or one number per class"),
        ([*task, "--seed", "-1"], "--seed must be at least 0, got -1"),
        ([*task, "--weight-decay", "-1"], "--weight-decay must be at least 0, got -1.0"),
        ([*task, "--metric", "acc"], "Task sst-2 has fixed columns and metrics; remove --metric"),
        ([*files, "--metric", "pearson"], "Metric pearson does not support single label classification with 2 outputs"),
        ([*task, "--recipe", "romebert-sd", "--temperature", "0"], "--temperature must be greater than 0, got 0.0"),
        ([*task, "--recipe", "romebert-sd", "--reduction", "foo"], "argument --reduction: invalid choice: 'foo'"),
        (["--task", "sts-b", "--data-dir", sts], "but sts-b has 10 columns; is the file from another"),
        ([*task, "--schedule", "downhill"], "Unknown schedule 'downhill'"),
        ([*task, "--schedule", "cosine_with_min_lr"], "Unknown schedule 'cosine_with_min_lr'"),
        ([*task, "--report-to", "pigeon"], "--report-to names 'pigeon', which is unknown or not installed"),
        ([*task, "--seeds", "1,1"], "--seeds must be different whole numbers, such as 1,2,3, got [1, 1]"),
        ([*task, "--config", tmp_path / "none.yaml"], "Cannot read"),
    ]


@pytest.mark.parametrize("number", range(44))
def test_a_mistake_is_one_line_and_writes_nothing(number, encoder, glue, capsys, tmp_path):
    (tmp_path / "case").mkdir()
    cases = mistakes(tmp_path / "case", glue)
    assert len(cases) == 44
    arguments, message = cases[number]
    output = tmp_path / "out"
    fast = ["--cpu"]
    line = fails(capsys, "train", encoder, *arguments, *fast, "--output", output)
    assert message in line
    assert not output.exists() or list(output.iterdir()) == []


def test_files_with_options_that_do_not_exist(encoder, capsys, tmp_path):
    (tmp_path / "run.yaml").write_text("recipee: joint\n")
    assert "Unknown option 'recipee'. Did you mean 'recipe'?" in fails(
        capsys, "train", encoder, "--config", tmp_path / "run.yaml", "-o", tmp_path / "out"
    )
    for line, message in (
        ("max_steps: many", "`max_steps` must be a whole number, got 'many'"),
        ("accumulation: 1.5", "`accumulation` must be a whole number, got 1.5"),
        ("bf16: 3", "`bf16` must be true or false, got 3"),
    ):
        (tmp_path / "run.yaml").write_text(f"{line}\n")
        assert message in fails(capsys, "train", encoder, "--config", tmp_path / "run.yaml", "-o", tmp_path / "out")
    (tmp_path / "run.yaml").write_text("a: [\n")
    assert "not valid YAML or JSON" in fails(capsys, "train", encoder, "--config", tmp_path / "run.yaml", "-o", "out")


def test_another_run_in_the_folder_is_not_changed(encoder, glue, capsys, tmp_path):
    task = ["--task", "sst-2", "--data-dir", glue, "-o", tmp_path / "out"]
    trains(capsys, encoder, *task)
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert "--resume to continue it, or --overwrite" in fails(capsys, "train", encoder, *task, *FAST)
    line = fails(capsys, "train", encoder, *task, *FAST, "--resume", "--recipe", "pabee")
    assert "was started with --recipe joint, not pabee" in line
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert main([str(argument) for argument in ("train", encoder, *task, *FAST, "--resume")]) == 0
    assert "is finished" in capsys.readouterr().out
    trains(capsys, encoder, *task, "--recipe", "pabee", "--overwrite")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    line = fails(capsys, "train", encoder, *task[:-1], tmp_path / "mine", *FAST, "--overwrite")
    assert "contains files that are not part of a run (thesis.txt)" in line
    assert (tmp_path / "mine" / "thesis.txt").is_file()
    line = fails(capsys, "train", tmp_path / "out", *task, *FAST, "--overwrite")
    assert "contains an input of the run" in line


def test_an_overwritten_model_is_kept_until_the_new_one_is_complete(encoder, glue, capsys, tmp_path):
    task = ["--task", "sst-2", "--data-dir", glue, "-o", tmp_path / "out"]
    trains(capsys, encoder, *task)
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    bad = ["--learning-rate", "3e38", "--select", "none", "--max-steps", "5", "--cpu", "--overwrite"]
    assert main([str(argument) for argument in ("train", encoder, *task, *bad)]) == 2
    assert "diverged" in capsys.readouterr().err
    (backup,) = tmp_path.glob("out.before-*")
    assert (backup / "model.safetensors").read_bytes() == before
    trains(capsys, encoder, *task, "--overwrite", "--recipe", "pabee")
    assert not backup.exists()


def test_other_folders_next_to_the_output_are_not_removed(encoder, glue, capsys, tmp_path):
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


def test_the_old_folder_is_restored_if_it_cannot_be_replaced(tmp_path, monkeypatch):
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


def test_a_model_that_is_trained_again_keeps_its_exits_and_labels(encoder, glue, capsys, tmp_path):
    task = ["--task", "sst-2", "--data-dir", glue]
    lines = ["text\tlabel", *(f"{text}\t{['no', 'yes'][label]}" for text, label in rows(40))]
    file = own(tmp_path, "a.tsv", lines)
    trains(capsys, encoder, "--train-file", file, "--dev-file", file, "-o", tmp_path / "own")
    out = ["-o", tmp_path / "two", *FAST]
    line = fails(capsys, "train", tmp_path / "own", *task, *out)
    assert "predicts no, yes (single label classification), but the labels of the data are 0, 1" in line
    trains(capsys, encoder, *task, "-o", tmp_path / "one")
    assert "already has exits; remove --num-layers" in fails(
        capsys, "train", tmp_path / "one", *task, *out, "--recipe", "static", "--num-layers", "2"
    )
    assert "learning-to-exit module, which this model does not have" in fails(
        capsys, "train", tmp_path / "one", *task, *out, "--recipe", "berxit-lte"
    )


def test_converted_models_can_be_trained_again(glue, capsys, tmp_path):
    """A golden DeeBERT checkpoint has nameless labels and, faithful, a ramp that answers."""
    golden = Path(__file__).parents[1] / "golden" / "deebert-bert-2" / "checkpoint"
    for name, more in (("plain", []), ("faithful", ["--faithful"])):
        model = tmp_path / name
        assert main(["convert", str(golden), "--output", str(model), *more]) == 0
        tokenizer().save_pretrained(model)
        trains(capsys, model, "--task", "sst-2", "--data-dir", glue, "-o", tmp_path / f"{name}-trained")
        assert AdaptiveModel.from_pretrained(tmp_path / f"{name}-trained").config.labels == ("0", "1")


def test_short_rows_and_rows_without_a_label_are_skipped_with_a_warning(encoder, capsys, tmp_path):
    lines = [
        "text\tlabel",
        *(f"{text}\t{label}" for text, label in rows(40)),
        "too short",
        "no label\t",
        "1 again\t1.0",
    ]
    file = own(tmp_path, "a.tsv", lines)
    call = ["train", encoder, "--train-file", file, "--dev-file", file, "-o", tmp_path / "out", *FAST]
    assert main([str(argument) for argument in call]) == 0
    warnings = capsys.readouterr().err
    assert "skipped 1 rows with too few or too many columns, the first in line 42" in warnings
    assert "skipped 1 rows without a label, the first in line" in warnings
    assert AdaptiveModel.from_pretrained(tmp_path / "out").config.labels == ("0", "1")


def test_json_lines_with_nonsense_are_named(encoder, capsys, tmp_path):
    good = [json.dumps({"text": text, "label": label}) for text, label in rows(20)]
    for line, message in (
        ('{"text": "a", "label": "seven"}', "line 21: unknown label 'seven'"),
        ('{"text": "a \\ud83d", "label": 1}', "line 21: character 3 of the text is an unpaired surrogate"),
    ):
        train, dev = own(tmp_path, "good.jsonl", good), own(tmp_path, "bad.jsonl", [*good, line])
        files = ["--train-file", train, "--dev-file", dev]
        assert message in fails(capsys, "train", encoder, *files, "-o", tmp_path / "out", *FAST)


def test_several_seeds_do_not_change_other_runs(encoder, glue, capsys, tmp_path):
    task = ["--task", "sst-2", "--data-dir", glue]
    trains(capsys, encoder, *task, "-o", tmp_path / "out")
    line = fails(capsys, "train", encoder, *task, *FAST, "--seeds", "1,2", "-o", tmp_path / "out")
    assert "contains another run; choose another folder" in line
    printed = trains(capsys, encoder, *task, "--seeds", "3", "-o", tmp_path / "several")
    assert "seed 3" in printed
    line = fails(capsys, "train", encoder, *task, *FAST, "--seeds", "5,3", "-o", tmp_path / "several")
    assert "seed-3 contains another run" in line
    assert not (tmp_path / "several" / "seed-5").exists()


def fill_the_disk_after_a_checkpoint() -> None:
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


def test_a_full_disk_while_saving_keeps_the_last_good_checkpoint(encoder, glue, tmp_path):
    """The second checkpoint does not fit: one line, code 2; with free space the run is resumed and ends."""
    task = ["--task", "sst-2", "--data-dir", glue, "-o", tmp_path / "out", "--save-every", "2", "--cpu"]
    call = ["train", encoder, *task, "--epochs", "2", "--batch-size", "8"]
    (failed,) = programs.run((programs.offramp, call, fill_the_disk_after_a_checkpoint))
    assert failed.code == 2, failed.stderr
    (error,) = [line for line in failed.stderr.splitlines() if line.startswith("offramp:")]
    assert "Cannot write" in error and "checkpoint-4" in error, failed.stderr
    assert "Training rows:" in failed.stdout
    checkpoints = [path.name for path in (tmp_path / "out" / "checkpoints" / "1-joint").glob("checkpoint-*")]
    assert checkpoints == ["checkpoint-2"]
    (done,) = programs.run((programs.offramp, [*call, "--resume"]))
    assert done.code == 0, done.stderr
    assert "checkpoint-2" in done.stdout
