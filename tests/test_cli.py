"""The command line as a user meets it: what it writes, and one line and a code for every mistake."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from offramp.cli.main import COMMANDS, main
from tests.tiny import LAYERS, adaptive

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A saved model."""
    root = tmp_path_factory.mktemp("cli")
    made = adaptive("bert", root / "encoder", num_labels=3, policy="patience:1", labels=["no", "perhaps", "yes"])
    made.save_pretrained(root / "model")
    return str(root / "model")


@pytest.fixture
def copied(model, tmp_path):
    """The same model in a folder that may be broken."""
    return Path(shutil.copytree(model, tmp_path / "broken"))


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("a lovely film\n\nbad\n")
    return str(file)


def fails(capsys, *arguments, code=2) -> str:
    """The one line that a failing call prints."""
    try:
        ended = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        ended = stop.code
    out, err = capsys.readouterr()
    assert ended == code, err
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


def answers(capsys, *arguments) -> list[dict]:
    assert main([str(argument) for argument in arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# -- predict ---------------------------------------------------------------------------------------


def test_predict_answers_every_line_also_an_empty_one(model, texts, capsys):
    rows = answers(capsys, "predict", model, texts)
    assert len(rows) == 3
    assert set(rows[0]) == {"label", "score", "exit_layer"}
    assert {row["label"] for row in rows} <= {"no", "perhaps", "yes"}
    rows = answers(capsys, "predict", model, texts, "--all-scores", "--policy", "never")
    assert [row["exit_layer"] for row in rows] == [LAYERS] * 3
    assert set(rows[0]["scores"]) == {"no", "perhaps", "yes"}


def test_predict_reads_standard_input(model, capsys, monkeypatch):
    class Stdin:
        buffer = io.BytesIO(b"a film\nbad")

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert len(answers(capsys, "predict", model, "-")) == 2


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.tsv", "id\tsentence\n1\tgood film\n2\tbad\n", []),
        ("a.tsv", "\ufeffid\tsentence\r\n1\tgood film\r\n2\tbad\r\n", []),
        ("a.tsv", "1\tgood film\n2\tbad\n", ["--no-header", "--text-column", "2"]),
        ("a.csv", 'text,id\n"good film",1\nbad,2\n', []),
        ("a.csv", 'words,id\n"good\nfilm",1\nbad,2\n', ["--text-column", "words"]),
        ("a.jsonl", '{"text": "good film"}\n\n{"text": "bad"}\n', []),
        ("a.jsonl", '"good film"\n"bad"\n', []),
        ("a.json", '{"x": "good film"}\n{"x": "bad"}\n', ["--text-column", "x"]),
        ("a.data", "good film\nbad\n", []),
        ("a.tsv", "id\tsentence\n1\tgood film\n2\tbad\n\n\n", []),
        ("a.csv", "text,id\ngood film,1\nbad,2\n\n", []),
        ("a.data", "sentence\ngood film\nbad", ["--input-format", "tsv"]),
    ],
)
def test_predict_reads_every_format_alike(name, content, options, model, tmp_path, capsys):
    file = tmp_path / name
    file.write_bytes(content.encode())
    plain = tmp_path / "plain.txt"
    plain.write_text("good film\nbad\n")
    assert answers(capsys, "predict", model, file, *options) == answers(capsys, "predict", model, plain)


def test_a_line_separator_inside_a_text_is_no_line_end(model, tmp_path, capsys):
    file = tmp_path / "a.txt"
    file.write_text("good\u0085film\u2028bad\n")
    assert len(answers(capsys, "predict", model, file)) == 1


def test_pairs_are_read_from_two_columns(model, tmp_path, capsys):
    file = tmp_path / "a.tsv"
    file.write_text("q\ts\ngood film\tbad plot\nbad\tfilm\n")
    pairs = answers(capsys, "predict", model, file, "--text-column", "q", "--pair-column", "s")
    single = answers(capsys, "predict", model, file, "--text-column", "q")
    assert len(pairs) == len(single) == 2
    assert pairs != single


def test_predict_writes_tsv_and_files(model, texts, tmp_path, capsys):
    out = tmp_path / "answers.tsv"
    assert main(["predict", model, texts, "--output", str(out), "--all-scores"]) == 0
    lines = out.read_text().splitlines()
    assert lines[0] == "label\tscore\texit_layer\tno\tperhaps\tyes"
    assert len(lines) == 4
    assert capsys.readouterr().out == ""
    rows = answers(capsys, "predict", model, texts)
    assert [line.split("\t")[0] for line in lines[1:]] == [row["label"] for row in rows]
    assert [int(line.split("\t")[2]) for line in lines[1:]] == [row["exit_layer"] for row in rows]


def test_policy_threshold_and_budget_come_from_the_command_line(model, texts, capsys):
    assert {row["exit_layer"] for row in answers(capsys, "predict", model, texts, "--policy", "layer:3")} == {3}
    rows = answers(capsys, "predict", model, texts, "--policy", "entropy:0", "--threshold", "0,9,0")
    assert {row["exit_layer"] for row in rows} == {2}
    rows = answers(capsys, "predict", model, texts, "--policy", "never", "--max-layers", "1")
    assert {row["exit_layer"] for row in rows} == {1}


def test_long_texts_get_a_note(model, tmp_path, capsys):
    file = tmp_path / "long.txt"
    file.write_text("good " * 200_000 + "\nbad\n")
    assert main(["predict", model, str(file)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err == "offramp: 1 text is longer than 38 tokens; it was cut there.\n"


@pytest.mark.parametrize(
    ("content", "name", "options", "fault"),
    [
        (b"", "a.txt", [], "a.txt is empty"),
        (b"id\tsentence\n", "a.tsv", [], "a.tsv is empty"),
        (b"good\n\xff\xfe\n", "a.txt", [], "line 2: byte 1 (0xff) is not UTF-8"),
        (
            b"a\tb\tsentence\n1\t2\tx\n1\t2\n",
            "a.tsv",
            [],
            "line 3: 2 columns, expected 3 (a, b, sentence). Is a tab missing?",
        ),
        (b"id,text\n1\n", "a.csv", [], "line 2: 1 column, expected 2"),
        (b'id,text\n1,"x\n', "a.csv", [], "line 2: not CSV"),
        (b"a\tb\n1\t2\n", "a.tsv", [], "has the columns a, b; say with --text-column"),
        (b"a\tsentense\n1\t2\n", "a.tsv", ["--text-column", "sentence"], "Did you mean 'sentense'?"),
        (b"a\tb\n", "a.tsv", ["--no-header", "--text-column", "3"], "No column number is called '3'"),
        (b'{"text": "a"}\n{"text": 3}\n', "a.jsonl", [], "line 2: field 'text' holds 3, expected a string"),
        (b'{"text": "a"}\n{"text": \n', "a.jsonl", [], "line 2: not JSON"),
        (b'{"txt": "a"}\n', "a.jsonl", [], "line 1: the fields are txt"),
        (b"[1]\n", "a.jsonl", [], "line 1: expected an object"),
        (b'{"text": "bad \\ud83d"}\n', "a.jsonl", [], "line 1: character 5 of the text is half of a pair"),
        (b"[" * 100_000, "a.jsonl", [], "line 1: not JSON"),
        (b'{"text": ' + b"1" * 5000 + b"}", "a.jsonl", [], "line 1: not JSON"),
        (b"a\tsentence\n1\tx\n\n2\ty\n", "a.tsv", [], "line 3: 1 column, expected 2"),
        (b"a\n", "a.txt", ["--text-column", "x"], "plain text, which has no columns"),
        (b"a\n", "a.txt", ["--policy", "entropi:0.2"], "Did you mean 'entropy'?"),
        (b"a\n", "a.txt", ["--policy", "entropy:nan"], "threshold is nan"),
        (b"a\n", "a.txt", ["--policy", "entropy:-0.1"], "threshold is -0.1"),
        (b"a\n", "a.txt", ["--policy", "entropy:0.1", "--threshold", "nan"], "threshold is nan"),
        (b"a\n", "a.txt", ["--policy", "layer:9"], "No exit sits on layer 9; this model's exits are on 1, 2, 3, 4"),
        (b"a\n", "a.txt", ["--policy", "entropy:0.1,0.2"], "2 thresholds for 4 exits"),
        (b"a\n", "a.txt", ["--policy", "learned:0.1"], "needs an LTE module"),
        (b"a\n", "a.txt", ["--threshold", "0.3"], "has no threshold"),
        (b"a\n", "a.txt", ["--threshold", "x"], "--threshold"),
        (b"a\n", "a.txt", ["--max-layers", "0"], "the first exit sits on layer 1"),
        (b"a\n", "a.txt", ["--batch-tokens", "0"], "batch_tokens is 0"),
    ],
)
def test_predict_names_the_fault_and_writes_nothing(content, name, options, fault, model, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    said = fails(capsys, "predict", model, tmp_path / name, *options, "--output", tmp_path / "out.jsonl")
    assert fault in said
    assert sorted(tmp_path.iterdir()) == before


def test_predict_refuses_what_is_not_there(model, texts, tmp_path, capsys):
    assert "No file" in fails(capsys, "predict", model, tmp_path / "none.txt")
    assert "No folder" in fails(capsys, "predict", tmp_path / "none", texts)
    assert "no config.json" in fails(capsys, "predict", tmp_path, texts)
    assert "is a file" in fails(capsys, "predict", texts, texts)
    assert "there is no folder" in fails(capsys, "predict", model, texts, "--output", tmp_path / "no" / "out.jsonl")


def test_an_existing_output_needs_overwrite(model, texts, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    assert "--overwrite" in fails(capsys, "predict", model, texts, "--output", out)
    assert out.read_text() == "precious"
    assert main(["predict", model, texts, "--output", str(out), "--overwrite"]) == 0
    assert len(out.read_text().splitlines()) == 3


def test_a_broken_input_leaves_an_existing_output_alone(model, tmp_path, capsys):
    out, file = tmp_path / "out.jsonl", tmp_path / "a.txt"
    out.write_text("precious")
    file.write_bytes(b"fine\n\xff\n")
    fails(capsys, "predict", model, file, "--output", out, "--overwrite")
    assert out.read_text() == "precious"


# -- models that are not what they should be ---------------------------------------------------------


def test_truncated_and_corrupt_weights_are_named(copied, texts, capsys):
    file = copied / "model.safetensors"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not safetensors at all", b"\xff" * 100):
        file.write_bytes(content)
        assert "truncated or corrupt" in fails(capsys, "predict", copied, texts)
        assert "truncated or corrupt" in fails(capsys, "info", copied)


def test_missing_and_unexpected_weights_are_named(copied, texts, capsys):
    weights = load_file(copied / "model.safetensors")
    weights["stranger"] = weights.pop("backbone.encoder.layer.0.output.dense.bias")
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    said = fails(capsys, "predict", copied, texts)
    assert "backbone.encoder.layer.0.output.dense.bias is missing" in said
    assert "stranger is not ours" in said
    (copied / "model.safetensors").unlink()
    assert "model.safetensors" in fails(capsys, "info", copied)


def test_weights_of_another_shape_are_named(copied, texts, capsys):
    weights = load_file(copied / "model.safetensors")
    weights["exits.1.classifier.weight"] = torch.zeros(7, 16)
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "exits.1.classifier.weight is (7, 16) instead of (3, 16)" in fails(capsys, "predict", copied, texts)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"policy": {"name": "entropi"}}, "Did you mean 'entropy'?"),
        ({"policy": {"name": "entropy", "threshold": "x"}}, "must be a number"),
        ({"policy": ["x"]}, "is not a policy"),
        ({"problem_type": "multilabel"}, "No problem type is called 'multilabel'. Known: multi_label_classification"),
        ({"exits": [{"layer": 9}]}, "No layer 9"),
        ({"exits": [{"layer": 4, "head": "strange"}]}, "No head is called"),
        ({"exits": 3}, "cannot be read as a model"),
        ({"backbone": {"model_type": "gpt2"}}, "No backbone family is called 'gpt2'"),
        ({"backbone": {"model_type": "nonsense"}}, "nonsense"),
    ],
)
def test_a_config_that_cannot_be_is_refused(change, fault, copied, texts, capsys):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | change))
    assert fault in fails(capsys, "predict", copied, texts)


def test_a_policy_may_be_written_into_the_config_by_hand(copied, texts, capsys):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"policy": "layer:2"}))
    assert {row["exit_layer"] for row in answers(capsys, "predict", copied, texts)} == {2}


def test_a_plain_model_is_sent_to_from_backbone(folders, texts, capsys):
    for family in ("bert", "roberta", "distilbert", "modernbert"):
        said = fails(capsys, "predict", folders[family], texts)
        assert f"is a plain {family} model; put exits on it with AdaptiveModel.from_backbone" in said


def test_a_config_that_is_no_json_is_refused(copied, texts, capsys):
    (copied / "config.json").write_text("{")
    assert "config.json" in fails(capsys, "predict", copied, texts)


def test_a_model_without_a_tokenizer_says_so(copied, texts, capsys):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copied / name).unlink()
    assert "has no tokenizer" in fails(capsys, "predict", copied, texts)


# -- info and convert -----------------------------------------------------------------------------


def test_info_tells_what_a_model_holds(model, capsys):
    assert main(["info", model]) == 0
    told = capsys.readouterr().out
    for word in ("bert, 4 layers of 16", "no, perhaps, yes", "patience:1", "linear  mean"):
        assert word in told
    assert main(["info", model, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["policy"] == "patience:1"
    assert [one["layer"] for one in facts["exits"]] == [1, 2, 3, 4]
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
    assert "entropy:0.1" in capsys.readouterr().out
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
    assert len(answers(capsys, "predict", tmp_path / "model", tmp_path / "a.txt")) == 2


def test_elasticbert_can_be_cut(tmp_path, capsys):
    dynamic = GOLDEN / "elasticbert-entropy" / "checkpoint"
    assert main(["convert", str(dynamic), "--output", str(tmp_path / "two"), "--layers", "2"]) == 0
    assert main(["info", str(tmp_path / "two")]) == 0
    assert "2 layers" in capsys.readouterr().out
    for layers in ("0", "7", "-1"):
        assert "the checkpoint has 6" in fails(
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
    assert len(answers(capsys, "predict", model, pipe)) == 2
    writer.wait(timeout=60)


class Bomb:
    """A pickle that would leave a mark if it were executed."""

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


def test_convert_names_what_is_wrong(tmp_path, capsys):
    source = Path(shutil.copytree(GOLDEN / "deebert-bert-2" / "checkpoint", tmp_path / "source"))
    out = tmp_path / "out"
    assert "Did you mean 'pabee'?" in fails(capsys, "convert", source, "--output", out, "--kind", "pabe")
    assert "No folder" in fails(capsys, "convert", tmp_path / "none", "--output", out)
    assert "ElasticBERT" in fails(capsys, "convert", source, "--output", out, "--layers", "2")
    assert "threshold is nan" in fails(capsys, "convert", source, "--output", out, "--policy", "entropy:nan")
    assert "LTE" in fails(capsys, "convert", source, "--output", out, "--policy", "learned:0.1")
    weights = torch.load(source / "pytorch_model.bin", weights_only=True)
    lost = weights.pop("bert.encoder.highway.2.classifier.weight")
    torch.save(weights, source / "pytorch_model.bin")
    assert "exits.3.classifier.weight is missing" in fails(capsys, "convert", source, "--output", out)
    torch.save(
        weights | {"bert.encoder.highway.2.classifier.weight": lost, "bert.odd": lost}, source / "pytorch_model.bin"
    )
    assert "backbone.odd is not known" in fails(capsys, "convert", source, "--output", out)
    (source / "pytorch_model.bin").write_bytes((source / "pytorch_model.bin").read_bytes()[:5000])
    fails(capsys, "convert", source, "--output", out)
    (source / "pytorch_model.bin").unlink()
    assert "neither model.safetensors nor pytorch_model.bin" in fails(capsys, "convert", source, "--output", out)
    (source / "config.json").write_text("{}")
    assert not out.exists()
    ebert = GOLDEN / "ebert-bert" / "checkpoint"
    assert "EBERT" in fails(capsys, "convert", ebert, "--output", out)
    out.mkdir()
    assert "--overwrite" in fails(capsys, "convert", GOLDEN / "deebert-bert-2" / "checkpoint", "--output", out)
    assert list(out.iterdir()) == []


def test_entropy_on_a_regression_is_refused_unless_faithful(tmp_path, capsys):
    source = GOLDEN / "deebert-regression" / "checkpoint"
    said = fails(capsys, "convert", source, "--output", tmp_path / "a", "--policy", "entropy:0.1")
    assert "regression" in said
    assert main(["convert", str(source), "--output", str(tmp_path / "b"), "--policy", "entropy:0.1", "--faithful"]) == 0


# -- the whole program, in a process of its own ------------------------------------------------------


def offramp(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "offramp", *map(str, arguments)],
        capture_output=True,
        check=False,
        timeout=300,
        **options,
    )


def test_help_reads_well_and_unknown_commands_get_a_guess(capsys):
    assert main([]) == 0
    told = [capsys.readouterr().out]
    for arguments in (["--help"], *([name, "--help"] for name in COMMANDS)):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
        told.append(capsys.readouterr().out)
    for text in told:
        assert "examples:" in text
        assert max(map(len, text.splitlines())) <= 120
    assert "Did you mean 'predict'?" in fails(capsys, "pedict")
    assert "required" in fails(capsys, "predict")


@pytest.mark.parametrize(("lines", "limit"), [(5000, 100_000), (3, 50)])
def test_a_full_disk_ends_with_2_and_leaves_nothing(lines, limit, model, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("a lovely film\n" * lines)
    done = offramp("predict", model, file, "--output", tmp_path / "out.jsonl", preexec_fn=partial(limit_files, limit))
    assert done.returncode == 2
    assert b"Cannot write" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_stops_a_conversion_too(tmp_path):
    source = GOLDEN / "deebert-bert-2" / "checkpoint"
    done = offramp("convert", source, "--output", tmp_path / "out", preexec_fn=partial(limit_files, 5000))
    assert done.returncode == 2
    assert b"Cannot write" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []


def limit_files(size: int) -> None:
    """No file of this process may grow beyond that."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_standard_output_ends_with_2(model, texts):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "offramp", "predict", model, texts], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2
    assert b"Cannot write standard output: No space left on device" in done.stderr


def test_a_reader_that_leaves_is_no_error(model, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("a lovely film\n" * 20_000)
    done = subprocess.run(
        f"{sys.executable} -m offramp predict {model} {file} | head -n 1", shell=True, capture_output=True, check=False
    )
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""


def test_ctrl_c_ends_with_130_and_leaves_nothing(model, tmp_path):
    """Interrupted in the middle of the work: the input is a pipe that never ends."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "offramp", "predict", model, "-", "--output", tmp_path / "out.jsonl"],
        stdin=read,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(read)
    os.write(write, b"a lovely film\n" * 100)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".out.jsonl*.part")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.glob(".out.jsonl*.part"))
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    os.close(write)
    assert process.returncode == 130
    assert said.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []
