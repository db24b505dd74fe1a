"""Question answering: equalities, windows, and questions through training, evaluation, calibration and prediction."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering

from offramp import AdaptiveModel, policies
from offramp.answers import SPAN
from offramp.answers.span_answers import answer_texts, best_spans, to_char_positions
from offramp.answers.span_summary import (
    CHOICE,
    CONFIDENCE,
    ENTROPY,
    MASKED_LOGIT,
    MAX_ANSWER_TOKENS,
    N_BEST,
    NULL,
    WIDTH,
    summarize_tokens,
)
from offramp.answers.span_windows import QuestionEncoder
from offramp.cli.main import main
from offramp.data.rows import DataOptions, load_rows
from offramp.errors import BadInput
from offramp.evaluation.traces.recording import record
from tests.core.test_equalities import in_a_gap
from tests.questions import contexts_and_questions, write_squad
from tests.tiny import CONFIGS, FAMILY_NAMES, amplify_weights, random_batch, tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
CLOSE = {"atol": 5e-5, "rtol": 1e-4}
FAST = ["--max-steps", "3", "--cpu", "--batch-size", "8", "--max-length", "32", "--select", "none"]
PAIRS = [(question, context) for question, context, _, _ in contexts_and_questions(9)]


@cache
def tiny(encoder: Path, **options) -> AdaptiveModel:
    model = AdaptiveModel.from_backbone(encoder, problem_type=SPAN.name, **options)
    amplify_weights(model.exits, seed=1, scale=20.0)
    return model.eval()


def marked(rows: int, seed: int) -> dict[str, torch.Tensor]:
    """Return a batch whose answers come after the first three tokens."""
    batch = random_batch(rows, seed)
    allowed = (torch.arange(batch["input_ids"].shape[1]) >= 3) & batch["attention_mask"].bool()
    return batch | {"marks": allowed.long() * 3}


# -- the equalities ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [name for name in FAMILY_NAMES if name != "elasticbert"])
def test_never_equals_the_familys_own_question_answering(family, tmp_path):
    torch.manual_seed(0)
    plain = AutoModelForQuestionAnswering.from_config(CONFIGS[family]).eval()
    amplify_weights(plain, 0)
    plain.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    model = AdaptiveModel.from_backbone(tmp_path)
    assert model.config.answer_type is SPAN and model.config.labels == ("start", "end")
    batch = random_batch(5, 3, types=family not in ("distilbert", "roberta", "xlm-roberta", "mpnet", "modernbert"))
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        output, expected = model(**batch, policy="never"), plain(**batch)
    for name in ("start_logits", "end_logits"):
        assert torch.allclose(output[name][real], expected[name][real], **CLOSE), name
        assert (output[name][~real] == MASKED_LOGIT).all()
    targets = {"start_positions": torch.tensor([1, 0, 1, 0, 1]), "end_positions": torch.tensor([1, 0, 1, 0, 1])}
    first_row = {key: value[:1, : int(real[0].sum())] for key, value in batch.items()}
    with torch.no_grad():
        first_targets = {key: value[:1] for key, value in targets.items()}
        single_exit = AdaptiveModel.from_backbone(tmp_path, exits=[model.config.num_layers])
        assert torch.allclose(
            single_exit(**first_row, **first_targets).loss, plain(**first_row, **first_targets).loss, **CLOSE
        )


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_rows_do_not_depend_on_their_batch_and_exits_do_not_change_logits(encoders, family):
    model = tiny(encoders[family], lte=family == "bert")
    batch = marked(7, 5)
    with torch.no_grad():
        exit_logits = model(**batch, output_exits=True).exit_logits
    middle, sure = (in_a_gap(exit_logits[:, :-1, column], 0.5) for column in (ENTROPY, CONFIDENCE))
    chosen = ["never", f"entropy:{middle}", f"confidence:{sure}", "patience:1", "layer:2"]
    exit_layers = set()
    for policy in [*chosen, *(["learned:0.5"] if family == "bert" else [])]:
        with torch.no_grad():
            together = model(**batch, policy=policy)
            alone = [model(**{key: value[[row]] for key, value in batch.items()}, policy=policy) for row in range(7)]
        assert together.exit_layer.tolist() == [int(output.exit_layer) for output in alone], policy
        exit_layers |= {*together.exit_layer.tolist()}
        for row, output in enumerate(alone):
            length = int(batch["attention_mask"][row].sum())
            assert torch.allclose(together.start_logits[row, :length], output.start_logits[0, :length], **CLOSE)
            index = [point.layer for point in model.exits.points].index(int(output.exit_layer))
            assert torch.allclose(together.logits[row], exit_logits[row, index], **CLOSE)
    assert len(exit_layers) > 1


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_replay_equals_live(encoders, family, tmp_path):
    model = tiny(encoders[family])
    model.name_or_path = str(encoders[family])
    runner = model.runner(max_length=24)
    trace = record(runner, PAIRS, None, tmp_path / "trace.safetensors", "own")
    trace = trace.with_examples(PAIRS, None)
    assert len(trace) == len(PAIRS) < trace.rows
    entropies = np.unique(trace.logits[:, :-1, 2])
    for policy in ("never", f"entropy:{(entropies[7] + entropies[8]) / 2:.6f}", "patience:1", "confidence:0.02"):
        live = list(runner.predict(PAIRS, policy=policy))
        replayed = trace.replay(policies.parse(policy))
        assert [answer.text for answer in live] == replayed.answers.tolist()
        starts = np.flatnonzero(np.diff(np.asarray(trace.group), prepend=-1))
        deepest = np.maximum.reduceat(replayed.layer, starts)
        assert [answer.exit_layer for answer in live] == deepest.tolist()
    subset = trace.take(np.array([1, 4, 8]))
    assert subset.replay(policies.parse("patience:1")).answers.tolist() == [
        trace.replay(policies.parse("patience:1")).answers[index] for index in (1, 4, 8)
    ]


def test_save_and_load(encoders, tmp_path):
    model = tiny(encoders["bert"], exits=(2, 4))
    model.name_or_path = str(encoders["bert"])
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "saved")
    assert isinstance(again, AdaptiveModel)
    answer, loaded_answer = (m.answer(*PAIRS[0], policy="entropy:1") for m in (model, again))
    assert answer == loaded_answer and answer.text == PAIRS[0][1][answer.start : answer.end]


# -- windows and answers -------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [9, 12, 20, 38])
def test_windows_cover_every_token_and_each_starts_once(limit):
    windows = QuestionEncoder(tokenizer(), limit, stride=7)(PAIRS)
    assert windows.ids.lengths.max() <= limit
    for number, (_, context) in enumerate(PAIRS):
        starts = []
        for row in np.flatnonzero(windows.group == number):
            tokens = slice(windows.ids.starts[row], windows.ids.starts[row] + windows.ids.lengths[row])
            marks, begins = windows.marks.values[tokens], windows.begins.values[tokens]
            starts += begins[marks == 3].tolist()
        words = context.split()
        assert sorted(starts) == np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()


def test_a_summary_is_the_best_of_all_pairs():
    draw = torch.Generator().manual_seed(0)
    for _ in range(30):
        length = int(torch.randint(6, 50, (), generator=draw))
        logits = 3 * torch.randn(2, length, 2, generator=draw)
        marks = torch.randint(0, 2, (2, length), generator=draw) * 2 + 1
        marks[:, :3] = 0
        summaries = summarize_tokens(logits, marks)
        assert summaries.shape == (2, WIDTH)
        for row in range(2):
            starts = sorted(np.flatnonzero(marks[row] == 3), key=lambda i: -logits[row, i, 0])[:N_BEST]
            ends = sorted(np.flatnonzero(marks[row] >= 1), key=lambda i: -logits[row, i, 1])[:N_BEST]
            pairs = [(i, j) for i in starts for j in ends if 0 <= j - i < MAX_ANSWER_TOKENS]
            best = max(pairs, key=lambda pair: logits[row, pair[0], 0] + logits[row, pair[1], 1])
            best_score = float(logits[row, best[0], 0] + logits[row, best[1], 1])
            null = float(logits[row, 0].sum())
            assert summaries[row, 9:11].tolist() == list(best)
            assert float(summaries[row, 7]) == pytest.approx(best_score, abs=1e-4)
            assert summaries[row, NULL].sum() == pytest.approx(null, abs=1e-4)
            assert summaries[row, CHOICE].tolist() == (list(best) if best_score > null else [0, 0])


def test_a_question_uses_its_best_window_or_no_answer():
    windows = QuestionEncoder(tokenizer(), 12, stride=4)(PAIRS[:2])
    random = torch.Generator().manual_seed(1)
    longest = int(windows.ids.lengths.max())
    marks, real = windows.marks.padded(np.arange(len(windows)), 0)
    logits = torch.randn(len(windows), longest, 2, generator=random)
    summaries = to_char_positions(summarize_tokens(logits, torch.from_numpy(marks)).numpy(), windows)
    spans = best_spans(summaries, windows.group)
    for question in range(2):
        rows = np.flatnonzero(windows.group == question)
        assert spans.window[question] == rows[summaries[rows, 7].argmax()]
    assert real.any() and all(answer_texts(spans, [context for _, context in PAIRS[:2]]))
    empty = best_spans(summaries, windows.group, no_answer=-1e9)
    assert answer_texts(empty, ["x", "y"]).tolist() == ["", ""]
    assert np.allclose(empty.null, best_spans(summaries, windows.group, 1e9).null)


# -- training, evaluation, calibration, prediction ------------------------------------------------


@pytest.fixture(scope="module")
def squad(tmp_path_factory):
    """Official files: 1.1's and 2.0's."""
    root = tmp_path_factory.mktemp("squad")
    for split, count in (("train", 30), ("dev", 12)):
        write_squad(root / f"{split}-v1.1.json", count, seed=len(split))
        write_squad(root / f"{split}-v2.0.json", count, seed=len(split), unanswerable=count // 2)
    return root


@pytest.fixture(scope="module")
def answering(encoders, squad, tmp_path_factory):
    output = tmp_path_factory.mktemp("answering") / "model"
    call = ["train", encoders["bert"], "--task", "squad2", "--data-dir", squad, "--recipe", "joint", *FAST]
    assert main([str(part) for part in [*call, "--calibration-split", "0.3", "-o", output]]) == 0
    return output


def test_evaluate_calibrate_and_predict(answering, squad, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["evaluate", str(answering), "-o", str(run)]) == 0
    stdout = capsys.readouterr().out
    assert "span_f1" in stdout and "exact_match" in stdout
    results = json.loads((run / "results.json").read_text())
    assert results["data"]["rows"] > results["data"]["texts"] == 24
    assert results["questions"]["full"]["NoAns_total"] == 6 and results["questions"]["chosen"]["HasAns_total"] == 18
    page = (run / "report.html").read_text()
    assert results["examples"]["easiest"][0]["text"][0] in page
    assert (
        main(["evaluate", str(answering), "-o", str(tmp_path / "again"), "--trace", str(run / "trace.safetensors")])
        == 0
    )
    capsys.readouterr()
    code = main(["calibrate", str(answering), "--risk", "0.5", "--confidence", "0.5", "--policy", "confidence"])
    stdout = capsys.readouterr().out
    assert code in (0, 1) and "of answers differ" in stdout
    file = tmp_path / "own.csv"
    file.write_text("id,question,context\n7,was it,a lovely film\n8,the plot,it was not very long\n")
    alone = ["evaluate", str(answering), "--file", str(file), "-o", str(tmp_path / "alone")]
    assert main(alone) == 0
    assert json.loads((tmp_path / "alone" / "results.json").read_text())["data"]["metrics"] == []
    capsys.readouterr()
    assert main(["predict", str(answering), str(file)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [*lines[0]] == ["id", "answer", "score", "start", "end", "exit_layer"] and len(lines) == 2
    assert main(["predict", str(answering), str(file), "--format", "tsv"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "id\tanswer\tscore\tstart\tend\texit_layer"


def test_squad_files_contain_the_predictions(answering, squad, tmp_path, capsys):
    file = squad / "dev-v2.0.json"
    assert main(["predict", str(answering), str(file), "--format", "squad", "-o", str(tmp_path / "files")]) == 0
    predictions, nbest, odds = (
        json.loads((tmp_path / "files" / f"{name}_.json").read_text())
        for name in ("predictions", "nbest_predictions", "null_odds")
    )
    model = AdaptiveModel.from_pretrained(answering)
    data = load_rows(str(answering), model.config, DataOptions(), "dev")
    live = list(model.predict(data.rows.texts))
    assert predictions == {name: answer.text for name, answer in zip(data.rows.ids, live, strict=True)}
    for name, texts in nbest.items():
        assert sum(candidate["probability"] for candidate in texts) == pytest.approx(1)
        assert len({candidate["text"] for candidate in texts}) == len(texts) <= N_BEST + 1
        best = next(candidate for candidate in texts if candidate["text"])
        assert predictions[name] == ("" if odds[name] > 0 else best["text"])


@pytest.mark.parametrize(
    "recipe", ["plain", "deebert", "deebert-sd", "pabee", "elasticbert", "romebert-sd", "berxit-lte", "ebert"]
)
def test_every_recipe_trains_spans(recipe, encoders, squad, tmp_path, capsys):
    call = ["train", encoders["bert"], "--task", "squad", "--data-dir", squad, "--recipe", recipe, *FAST]
    call += ["--train-rows", "12", "--max-steps", "1", "--calibration-split", "0", "-o", tmp_path / "model"]
    assert main([str(part) for part in call]) == 0
    assert "span_f1" in capsys.readouterr().out
    model = AdaptiveModel.from_pretrained(tmp_path / "model")
    assert model.config.answer_type is SPAN and model.config.no_answer is None
    assert model.answer("was it", "a lovely film").exit_layer == 4


def test_character_positions_exclude_whitespace_of_tokens(tmp_path):
    """Byte-level tokenizers include the space before a word in its token, or have tokens of only whitespace."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"[UNK]": 1, "[PAD]": 0, "[CLS]": 2, "[SEP]": 3}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast_tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]")
    context = "a  lovely film \u2003 in Köln"
    windows = QuestionEncoder(fast_tokenizer, 30)([("was it", context)])
    words = [context[b:e] for b, e in zip(windows.begins.values, windows.ends.values, strict=True) if e > b]
    assert words == context.split()
    assert ((windows.marks.values > 0) == (windows.ends.values > windows.begins.values)).all()


def test_custom_rows(encoders, squad, tmp_path):
    rows = contexts_and_questions(20)
    table = tmp_path / "own.csv"
    lines = ["question,context,answer,start", *(f"{q},{c},{a},{s}" for q, c, a, s in rows)]
    table.write_text("\n".join(lines) + "\n")
    call = ["train", encoders["bert"], "--task", "squad", "--train-file", table, "--dev-file", squad / "dev-v1.1.json"]
    assert main([str(part) for part in [*call, *FAST, "-o", tmp_path / "model"]]) == 0


def test_through_datasets(encoders, tmp_path):
    for split, count in (("train", 16), ("validation", 6)):
        lines = [
            json.dumps({"id": f"{n}", "question": q, "context": c, "answers": {"text": [a], "answer_start": [s]}})
            for n, (q, c, a, s) in enumerate(contexts_and_questions(count))
        ]
        (tmp_path / "hub").mkdir(exist_ok=True)
        (tmp_path / "hub" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    call = ["train", encoders["bert"], "--task", "squad", "--dataset", tmp_path / "hub", *FAST]
    assert main([str(part) for part in [*call, "--calibration-split", "0", "-o", tmp_path / "model"]]) == 0
    assert main(["evaluate", str(tmp_path / "model"), "-o", str(tmp_path / "run"), "--no-live"]) == 0


@pytest.mark.parametrize("faithful", [True, False])
def test_a_converted_checkpoint_answers(faithful, tmp_path, capsys):
    post = GOLDEN / "ebert-squad-post"
    source = Path(shutil.copytree(GOLDEN / "ebert-squad" / "checkpoint", tmp_path / "source"))
    shutil.copy(post / "vocab.txt", source)
    options = ["--pad-to", "40", "--no-answer", *(["--faithful"] if faithful else [])]
    assert main(["convert", str(source), "-o", str(tmp_path / "model"), *options]) == 0
    call = ["predict", str(tmp_path / "model"), str(post / "squad.json"), "--format", "squad", "--max-length", "40"]
    assert main([*call, "-o", str(tmp_path / "files")]) == 0
    predictions = json.loads((tmp_path / "files" / "predictions_.json").read_text())
    assert [*predictions] == [f"q{number}" for number in range(7)]
    odds = json.loads((tmp_path / "files" / "null_odds_.json").read_text())
    assert all((text == "") is (odds[name] > 0) for name, text in predictions.items())
    capsys.readouterr()
    assert main([*call, "-o", str(tmp_path / "files")]) == 2  # nothing is overwritten without --overwrite
    assert "--overwrite" in capsys.readouterr().err


# -- errors -----------------------------------------------------------------------------------


def damaged(change):
    """Return a function that writes an official file with one error."""

    def write(file: Path) -> None:
        write_squad(file, 4)
        saved = json.loads(file.read_text())
        change(saved["data"][0]["paragraphs"][1])
        file.write_text(json.dumps(saved))

    return write


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (lambda file: file.write_text('{"data": [\n  {"title" 1}]}'), "line 2, column 12: invalid JSON"),
        (lambda file: file.write_text('{"rows": []}'), "missing list `data`; is this a SQuAD JSON file?"),
        (damaged(lambda paragraph: paragraph["qas"][0].pop("id")), "paragraph 2, question 1: missing `id`"),
        (damaged(lambda paragraph: paragraph["qas"][0].pop("answers")), "question 1 (q1): missing list `answers`"),
        (damaged(lambda paragraph: paragraph["qas"][0].update(question=" ")), "question 1 (q1): `question` is empty"),
        (damaged(lambda paragraph: paragraph.update(context="")), "paragraph 2: `context` is empty"),
        (damaged(lambda paragraph: paragraph["qas"][1].update(id="q1")), "two questions have the id 'q1'"),
        (
            damaged(lambda paragraph: paragraph["qas"][0]["answers"][0].update(answer_start="x")),
            "must be a non-negative integer, got 'x'",
        ),
        (
            damaged(lambda paragraph: paragraph["qas"][0].update(answers=[])),
            "1 questions have no answer, the first is q1",
        ),
        (
            damaged(lambda paragraph: paragraph["qas"][0].update(is_impossible=True)),
            "1 questions have no answer, the first is q1",
        ),
    ],
)
def test_invalid_files_raise_one_line(write, line, encoders, squad, tmp_path, capsys):
    file = tmp_path / "faulty.json"
    write(file)
    call = ["train", encoders["bert"], "--task", "squad", "--train-file", file, "--dev-file", squad / "dev-v1.1.json"]
    assert main([str(part) for part in [*call, *FAST, "-o", tmp_path / "model"]]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1 and line in errors[0], errors
    assert not (tmp_path / "model").exists()


def test_files_without_answers_and_other_variants(answering, squad, tmp_path, capsys):
    import gzip

    saved = json.loads((squad / "dev-v2.0.json").read_text())
    for paragraph in saved["data"][0]["paragraphs"]:
        for entry in paragraph["qas"]:
            entry.pop("answers")
            entry.pop("is_impossible", None)
    (tmp_path / "bare.json.gz").write_bytes(gzip.compress(json.dumps(saved).encode()))
    call = ["predict", answering, tmp_path / "bare.json.gz", "--format", "squad", "-o", tmp_path / "files"]
    assert main([str(part) for part in call]) == 0
    call = ["evaluate", answering, "--file", tmp_path / "bare.json.gz", "--no-live", "-o", tmp_path / "run"]
    assert main([str(part) for part in call]) == 0
    rows = [{"id": 0, "question": "was it", "context": "a film"}, {"id": 1, "question": "the", "context": "it was"}]
    rows[1] |= {"answer": "it", "start": 0.0}
    (tmp_path / "late.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    call = ["evaluate", answering, "--file", tmp_path / "late.jsonl", "--no-live", "-o", tmp_path / "late"]
    assert main([str(part) for part in call]) == 0
    assert json.loads((tmp_path / "late" / "results.json").read_text())["questions"]["full"]["NoAns_total"] == 1
    (tmp_path / "between.jsonl").write_text(json.dumps(rows[1] | {"start": 0.6}))
    capsys.readouterr()
    assert main(["evaluate", str(answering), "--file", str(tmp_path / "between.jsonl"), "-o", str(tmp_path / "b")]) == 2
    assert "must be a non-negative integer, in characters, got 0.6" in capsys.readouterr().err
    runner = AdaptiveModel.from_pretrained(answering).runner()
    assert runner.answer([("was it", "a film")] * 3).texts.shape == (3,)
    for bad in (5, None, {"question": "a", "context": "b"}):
        with pytest.raises(BadInput, match="pair of a question and a context"):
            list(runner.predict([bad]))


def test_new_questions_about_trained_contexts_are_reported(encoders, squad, tmp_path, capsys):
    call = ["train", encoders["bert"], "--task", "squad", "--data-dir", squad, *FAST, "-o", tmp_path / "model"]
    assert main([str(part) for part in call]) == 0
    saved = json.loads((squad / "train-v1.1.json").read_text())
    rows = [(entry, paragraph["context"]) for paragraph in saved["data"][0]["paragraphs"] for entry in paragraph["qas"]]
    text = "".join(json.dumps({"question": f"{entry['question']} good", "context": c}) + "\n" for entry, c in rows)
    (tmp_path / "leak.jsonl").write_text(text)
    capsys.readouterr()
    call = ["calibrate", tmp_path / "model", "--file", tmp_path / "leak.jsonl", "--risk", "0.9", "--confidence", "0.5"]
    assert main([str(part) for part in call]) in (0, 1)
    assert "about contexts that were used for training" in capsys.readouterr().err


def test_misplaced_answers_are_skipped_with_a_note(encoders, squad, tmp_path, capsys):
    damaged(lambda paragraph: paragraph["qas"][0]["answers"][0].update(answer_start=900))(tmp_path / "train.json")
    call = ["train", encoders["bert"], "--task", "squad", "--train-file", tmp_path / "train.json"]
    call += ["--dev-file", squad / "dev-v1.1.json", *FAST, "--calibration-split", "0", "-o", tmp_path / "model"]
    assert main([str(part) for part in call]) == 0
    assert "skipped 1 questions whose answer is not at the given position (q1:" in capsys.readouterr().err


def test_errors_are_one_line(answering, model, encoders, squad, tmp_path, capsys):
    plain = tmp_path / "one.1"
    call = ["train", encoders["bert"], "--task", "squad", "--data-dir", squad, "--train-rows", "8", *FAST]
    assert main([str(part) for part in [*call, "--calibration-split", "0", "-o", plain]]) == 0
    (tmp_path / "texts.txt").write_text("a lovely film\n")
    (tmp_path / "empty.csv").write_text("question,context\nwas it, \n")
    two = squad / "dev-v2.0.json"
    calls = {
        ("evaluate", answering, "--policy", "vote:2", "-o", tmp_path / "run"): "vote",
        (
            "evaluate",
            plain,
            "--task",
            "squad2",
            "--file",
            two,
            "-o",
            tmp_path / "run",
        ): "questions that all have answers",
        ("evaluate", plain, "--file", two, "-o", tmp_path / "run"): "use --task squad2",
        ("predict", answering, tmp_path / "empty.csv"): "the context is empty",
        ("predict", answering, tmp_path / "texts.txt"): "the second text is missing",
        ("predict", answering, two, "--format", "squad"): "needs --output",
        ("predict", answering, two): "--format squad",
        (
            *call,
            "--label-smoothing",
            "0.1",
            "-o",
            tmp_path / "new",
        ): "--class-weights and --label-smoothing need classes",
        ("predict", model, two, "--format", "squad", "-o", tmp_path / "files"): "does not support single label",
        ("predict", answering, tmp_path / "empty.csv", "--all-scores"): "--all-scores does not support",
        ("calibrate", answering, "--temperature"): "remove --temperature",
        (*call, "--pooling", "mean", "-o", tmp_path / "new"): "Remove --pooling",
        ("train", answering, "--task", "sst-2", "--data-dir", squad, *FAST, "-o", tmp_path / "new"): "sst-2",
    }
    for parts, line in calls.items():
        capsys.readouterr()
        code = main([str(part) for part in parts])
        errors = capsys.readouterr().err.strip().splitlines()
        assert (code, len(errors)) == (2, 1) and line in errors[0], (parts, errors)
    assert not (tmp_path / "run").exists() and not (tmp_path / "new").exists()
    assert (
        AdaptiveModel.from_pretrained(model).answer("a", "b").label is not None
    )  # a classifier reads it as a pair of texts
