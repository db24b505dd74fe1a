"""docs/how-to/reproduce.md: every command of the page runs, in a folder with small versions of what it names."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from offramp.cli.main import main
from offramp.training.recipes import RECIPES
from tests.pages import commands, known_options, option, read, sections
from tests.questions import write_squad
from tests.reviews import rows
from tests.tiny import save_encoder

TESTS = Path(__file__).parents[1]
PAGE = read("how-to/reproduce.md")
DEPTH = 5  # more than the four layers that one of the commands uses
pytestmark = pytest.mark.usefixtures("one_thread")

COMMANDS = {title: commands(text) for title, text in sections(PAGE).items()}
TITLES = [title for title, section_commands in COMMANDS.items() if section_commands]


def test_the_page_has_all_systems_and_their_commands():
    counts = {title: len(section_commands) for title, section_commands in COMMANDS.items()}
    systems = {"DeeBERT": 4, "RomeBERT": 5, "BERxiT": 8, "ElasticBERT": 6, "PABEE": 4, "EBERT": 7}
    assert counts == {"Common options": 0} | systems


def test_every_option_in_the_offramp_column_exists():
    cells = [line.split(" | ", 1)[1] for line in PAGE.splitlines() if line.startswith("| ")]
    named = [option for cell in cells for option in re.findall(r"--[a-z-]+", cell)]
    assert len(named) > 60
    assert set(named) <= known_options()
    recipes = [name for cell in cells for name in re.findall(r"--recipe ([a-z-]+)", cell)]
    assert set(recipes) <= set(RECIPES)


# -- inputs of the commands ------------------------------------------------------------------------


def write_task(folder: Path, header: str, line: str, *, train: int = 16, test: str | None = None) -> None:
    """Write the files of a task; lines are templates with a row's index, text and label (as number, word and value)."""
    folder.mkdir(parents=True)
    for split, count, template in (("train", train, line), ("dev", 8, line), ("test", 3, test or line)):
        lines = [
            template.format(
                index=index,
                text=text,
                label=label,
                word=["not_entailment", "entailment"][label],
                value=2.5 * label + index / 9,
            )
            for index, (text, label) in enumerate(rows(count, seed=count))
        ]
        titles = "index\tsentence" if split == "test" and test else header
        (folder / f"{split}.tsv").write_text("\n".join([titles, *lines]) + "\n")


def write_ebert(folder: Path) -> None:
    """Write EBERT's golden checkpoint with 64 position embeddings."""
    shutil.copytree(TESTS / "golden" / "ebert-bert" / "checkpoint", folder)
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    name = "bert.embeddings.position_embeddings.weight"
    weights[name] = torch.cat([weights[name], weights[name]])[:64]
    torch.save(weights, folder / "pytorch_model.bin")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """A folder with encoders under their names on the Hub, the downloads of GLUE and ELUE, and a DeeBERT checkpoint."""
    root = tmp_path_factory.mktemp("originals")
    deep = {"num_hidden_layers": DEPTH, "max_position_embeddings": 64}
    save_encoder("bert", root / "bert-base-uncased", **deep)
    save_encoder("albert", root / "albert-base-v2", **deep, num_hidden_groups=1, inner_group_num=1)
    save_encoder(
        "elasticbert", root / "fnlp" / "elasticbert-base", **deep, num_output_layers=DEPTH, max_output_layers=DEPTH
    )
    for suite in ("GLUE", "ELUE"):
        write_task(root / suite / "SST-2", "sentence\tlabel", "{text}\t{label}", test="{index}\t{text}")
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        write_task(root / suite / "MRPC", header, "{label}\t1\t2\t{text}\tit was")
    pair = "{index}\t{text}\tit was\t{word}"
    # five batches an epoch: the tenth epoch's last update is the fiftieth, where the static recipe is evaluated
    write_task(root / "GLUE" / "RTE", "index\tsentence1\tsentence2\tlabel", pair, train=160)
    header = "\t".join(
        ["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2"]
    )
    write_task(root / "GLUE" / "STS-B", f"{header}\tscore", "{index}" + "\t-" * 6 + "\t{text}\tit was\t{value:.3f}")
    checkpoint = TESTS / "golden" / "deebert-bert-2" / "checkpoint"
    shutil.copytree(checkpoint, root / "saved_models" / "bert-base" / "SST-2" / "two_stage")
    write_ebert(root / "ebert-checkpoint")
    for split, count in (("train", 6), ("dev", 4)):
        write_squad(root / "SQuAD" / f"{split}-v1.1.json", count)
    return root


# -- the commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize("title", TITLES)
def test_every_command_runs(title, workspace, monkeypatch, capsys):
    monkeypatch.chdir(workspace)
    for command in COMMANDS[title]:
        assert main(command) == 0, f"{shlex.join(command)}\n{capsys.readouterr().err}"
        CHECKS[command[0]](option(command, "--output"), command)


def check_training(output: str, command: list[str]) -> None:
    """Check the recipe, that it is faithful, and that it ran for the published number of epochs."""
    scores = json.loads(Path(output, "scores.json").read_text())
    if "--recipe" in command:
        assert scores["recipe"] == option(command, "--recipe")
    assert scores["recipe_options"]["faithful"]
    published = RECIPES[scores["recipe"]].published.epochs
    epochs = float(option(command, "--epochs")) if "--epochs" in command else published
    assert [stage["epochs"] for stage in scores["stages"]] == [epochs] * len(scores["stages"])
    assert scores["rows"]["calibration"] == 0


def check_evaluation(output: str, command: list[str]) -> None:
    """Check the curves, of every checkpoint with --all-checkpoints."""
    runs = list(Path(output).glob("*/results.json" if "--all-checkpoints" in command else "results.json"))
    assert len(runs) == 1  # a few rows make one checkpoint, at the end
    for run in runs:
        results = json.loads(run.read_text())
        assert len(np.load(run.parent / "each_layer.npy")) == (1 if results["width"] else DEPTH)
        for policy, name in (("entropy", "--thresholds"), ("learned", "--thresholds"), ("patience", "--patience")):
            if policy in command and name in command:
                values = [float(value) for value in option(command, name).split(",")]
                assert sorted(point["parameter"] for point in results["policies"][policy]) == values
        assert ("live" in results) is ("--no-live" not in command)


def check_submission(output: str, command: list[str]) -> None:
    """Check that every row of the test file and every question has a prediction."""
    if option(command, "--format") == "squad":
        assert len(json.loads(Path(output, "predictions_.json").read_text())) == 8
        return
    (file,) = [file for file in Path(output).glob("*.tsv") if "exit_layer" not in file.name]
    assert len(file.read_text().splitlines()) == 1 + 3


def check_conversion(output: str, command: list[str]) -> None:
    """Check that the untrained ramp predicts, and that EBERT's first gate has its padded length."""
    config = json.loads(Path(output, "config.json").read_text())
    if "--pad-to" in command:
        assert config["width"]["pad_to"] == 64
    else:
        assert config["faithful"] and config["ramp"] == "answers"


CHECKS = {
    "train": check_training,
    "evaluate": check_evaluation,
    "predict": check_submission,
    "convert": check_conversion,
}
