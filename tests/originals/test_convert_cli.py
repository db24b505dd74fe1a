"""`offramp info` and `offramp convert` on the command line."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from offramp.cli.main import main
from tests.calls import fails, json_lines

GOLDEN = Path(__file__).parents[1] / "golden"


def test_info_shows_what_a_model_contains(model, capsys):
    assert main(["info", model]) == 0
    out = capsys.readouterr().out
    for word in ("bert, 4 layers of 16", "no, perhaps, yes", "patience 1", "linear    mean"):
        assert word in out
    assert main(["info", model, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["policy"] == "patience:1"
    assert [point["layer"] for point in facts["exits"]] == [1, 2, 3, 4]
    assert facts["parameters"]["exits"] == 4 * (3 * 16 + 3)


@pytest.mark.parametrize(
    ("case", "family", "title"),
    [
        ("deebert-bert-2", "bert", "DeeBERT"),
        ("deebert-hf-roberta", "roberta", "DeeBERT"),
        ("berxit-roberta", "roberta", "BERxiT"),
        ("elasticbert-released", "elasticbert", "ElasticBERT"),
        ("pabee-albert-groups", "albert", "PABEE"),
    ],
)
def test_convert_writes_a_folder_that_info_reads(case, family, title, tmp_path, capsys):
    out = tmp_path / "model"
    assert main(["convert", str(GOLDEN / case / "checkpoint"), "--output", str(out)]) == 0
    assert title in capsys.readouterr().out
    assert main(["info", str(out)]) == 0
    assert f"{family}, 6 layers" in capsys.readouterr().out
    assert f"Converted from {title}." in (out / "README.md").read_text()
    assert sorted(tmp_path.iterdir()) == [out]


def test_convert_takes_kind_policy_and_layers(tmp_path, capsys):
    source = str(GOLDEN / "romebert-bert" / "checkpoint")
    assert (
        main(["convert", source, "--output", str(tmp_path / "a"), "--kind", "romebert", "--policy", "entropy:0.1"]) == 0
    )
    assert "RomeBERT" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "a")]) == 0
    assert "entropy, threshold 0.1" in capsys.readouterr().out
    static = str(GOLDEN / "elasticbert-static" / "checkpoint")
    assert main(["convert", static, "--output", str(tmp_path / "b"), "--layers", "2"]) == 0
    assert main(["info", str(tmp_path / "b")]) == 0
    assert "2 layers" in capsys.readouterr().out


def test_convert_keeps_the_tokenizer(tmp_path, capsys):
    source = Path(shutil.copytree(GOLDEN / "deebert-bert-2" / "checkpoint", tmp_path / "source"))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
    (source / "vocab.txt").write_text("\n".join(words) + "\n")
    assert main(["convert", str(source), "--output", str(tmp_path / "model"), "--policy", "entropy:0.3"]) == 0
    capsys.readouterr()
    (tmp_path / "a.txt").write_text("good film\nbad film\n")
    assert len(json_lines(capsys, "predict", tmp_path / "model", tmp_path / "a.txt")) == 2


def test_elasticbert_can_be_truncated(tmp_path, capsys):
    dynamic = GOLDEN / "elasticbert-entropy" / "checkpoint"
    assert main(["convert", str(dynamic), "--output", str(tmp_path / "two"), "--layers", "2"]) == 0
    assert main(["info", str(tmp_path / "two")]) == 0
    assert "2 layers" in capsys.readouterr().out
    for layers in ("0", "7", "-1"):
        assert "--layers must be between 1 and 6" in fails(
            capsys, "convert", dynamic, "--output", tmp_path / "x", "--layers", layers
        )


def test_only_a_model_folder_is_overwritten(tmp_path, capsys):
    source, out = GOLDEN / "deebert-bert-2" / "checkpoint", tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("precious")
    assert "is not overwritten" in fails(capsys, "convert", source, "--output", out, "--overwrite")
    assert (out / "thesis.txt").read_text() == "precious"
    for _ in range(2):
        assert main(["convert", str(source), "--output", str(tmp_path / "model"), "--overwrite"]) == 0
    assert sorted(tmp_path.iterdir()) == [tmp_path / "model", out]


def test_links_and_pipes_stay_what_they_are(model, texts, tmp_path):
    real, link, pipe = tmp_path / "real.jsonl", tmp_path / "link.jsonl", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to(real)
    assert main(["predict", model, texts, "--output", str(link), "--overwrite"]) == 0
    assert link.is_symlink()
    assert len(real.read_text().splitlines()) == 3
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    assert main(["predict", model, texts, "--output", str(pipe), "--overwrite"]) == 0
    assert len(reader.communicate(timeout=60)[0].splitlines()) == 3
    assert pipe.is_fifo()


def test_a_pipe_can_be_read(model, tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(f"printf 'good\\nbad\\n' > {pipe}", shell=True)
    assert len(json_lines(capsys, "predict", model, pipe)) == 2
    writer.wait(timeout=60)


class Bomb:
    """A pickle that would create a file if it were executed."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def test_a_pickle_is_never_executed(tmp_path, capsys):
    source = Path(shutil.copytree(GOLDEN / "pabee-bert" / "checkpoint", tmp_path / "source"))
    mark = tmp_path / "executed"
    torch.save({"weight": Bomb(mark)}, source / "pytorch_model.bin")
    assert "not executed" in fails(capsys, "convert", source, "--output", tmp_path / "out")
    with (source / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Bomb(mark), file)
    fails(capsys, "convert", source, "--output", tmp_path / "out")
    assert not mark.exists()
    assert not (tmp_path / "out").exists()


def test_convert_errors(tmp_path, capsys):
    source = Path(shutil.copytree(GOLDEN / "deebert-bert-2" / "checkpoint", tmp_path / "source"))
    out = tmp_path / "out"
    assert "Did you mean 'pabee'?" in fails(capsys, "convert", source, "--output", out, "--kind", "pabe")
    assert "No folder" in fails(capsys, "convert", tmp_path / "none", "--output", out)
    assert "ElasticBERT" in fails(capsys, "convert", source, "--output", out, "--layers", "2")
    assert "got nan" in fails(capsys, "convert", source, "--output", out, "--policy", "entropy:nan")
    assert "LTE" in fails(capsys, "convert", source, "--output", out, "--policy", "learned:0.1")
    weights = torch.load(source / "pytorch_model.bin", weights_only=True)
    lost = weights.pop("bert.encoder.highway.2.classifier.weight")
    torch.save(weights, source / "pytorch_model.bin")
    assert "exits.3.classifier.weight is missing" in fails(capsys, "convert", source, "--output", out)
    torch.save(
        weights | {"bert.encoder.highway.2.classifier.weight": lost, "bert.odd": lost}, source / "pytorch_model.bin"
    )
    assert "backbone.odd is unexpected" in fails(capsys, "convert", source, "--output", out)
    (source / "pytorch_model.bin").write_bytes((source / "pytorch_model.bin").read_bytes()[:5000])
    fails(capsys, "convert", source, "--output", out)
    (source / "pytorch_model.bin").unlink()
    assert "neither model.safetensors nor pytorch_model.bin" in fails(capsys, "convert", source, "--output", out)
    (source / "config.json").write_text("{}")
    assert not out.exists()
    source = GOLDEN / "deebert-bert-2" / "checkpoint"
    assert "--no-answer applies to EBERT checkpoints only" in fails(
        capsys, "convert", source, "--output", out, "--no-answer"
    )
    source = GOLDEN / "ebert-bert" / "checkpoint"
    assert "is not a question-answering model" in fails(capsys, "convert", source, "--output", out, "--no-answer")
    out.mkdir()
    assert "--overwrite" in fails(capsys, "convert", GOLDEN / "deebert-bert-2" / "checkpoint", "--output", out)
    assert list(out.iterdir()) == []


def test_entropy_on_a_regression_is_an_error_unless_faithful(tmp_path, capsys):
    source = GOLDEN / "deebert-regression" / "checkpoint"
    line = fails(capsys, "convert", source, "--output", tmp_path / "a", "--policy", "entropy:0.1")
    assert "regression" in line
    assert main(["convert", str(source), "--output", str(tmp_path / "b"), "--policy", "entropy:0.1", "--faithful"]) == 0
