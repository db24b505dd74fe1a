from __future__ import annotations

import copy
import itertools
import resource

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offramp.answers import texts as encoding
from offramp.answers.texts import TextRowEncoder
from offramp.core import chunks as batching
from offramp.core.batch import Ragged
from offramp.core.chunks import batches_by_tokens
from offramp.errors import BadInput, BadValue
from tests.tiny import LAYERS, WORDS, adaptive


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return adaptive("bert", tmp_path_factory.mktemp("model") / "encoder", num_labels=3, labels=["no", "perhaps", "yes"])


def random_texts(count: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=draw.integers(0, 12))) for _ in range(count)]


def test_predictions_are_in_the_order_of_the_texts(model):
    texts = random_texts(50)
    alone = [next(iter(model.predict([text], policy="patience:1"))) for text in texts]
    assert len({answer.exit_layer for answer in alone}) > 1
    for budget in (1, 40, 100_000):
        together = list(model.predict(texts, policy="patience:1", batch_tokens=budget, chunk=17))
        assert [answer.exit_layer for answer in together] == [answer.exit_layer for answer in alone]
        assert [answer.label for answer in together] == [answer.label for answer in alone]
        scores = [answer.score for answer in together]
        assert scores == pytest.approx([answer.score for answer in alone], abs=1e-5)


@pytest.mark.parametrize("chunk", [1, 10])
def test_an_endless_iterator_is_read_in_chunks(chunk, model):
    """With `chunk=1` a live queue gets each prediction before the next text is read."""
    taken = 0

    def endless():
        nonlocal taken
        for text in itertools.cycle(random_texts(7)):
            taken += 1
            yield text

    answers = model.predict(endless(), chunk=chunk)
    for number in range(1, 25):
        next(answers)
        assert taken == -(-number // chunk) * chunk


def test_texts_pairs_and_empty_texts_can_be_mixed(model):
    texts = ["good film", ("good film", "bad plot"), "", ("", ""), "bad"]
    answers = list(model.predict(texts))
    assert len(answers) == 5
    alone = [next(iter(model.predict([text]))) for text in texts]
    assert [answer.score for answer in answers] == pytest.approx([answer.score for answer in alone], abs=1e-5)
    assert answers[0].score != pytest.approx(answers[1].score, abs=1e-4)


def test_an_answer_has_all_scores(model):
    answer = next(iter(model.predict(["a lovely film"])))
    assert set(answer.scores) == {"no", "perhaps", "yes"}
    assert sum(answer.scores.values()) == pytest.approx(1, abs=1e-5)
    assert answer.scores[answer.label] == answer.score == max(answer.scores.values())
    assert answer.exit_layer == LAYERS


def test_multi_label_and_regression_answers(tmp_path):
    multi_label = adaptive("bert", tmp_path / "a", num_labels=3, problem_type="multi_label_classification")
    answer = next(iter(multi_label.predict(["a lovely film"])))
    assert answer.label == [label for label, score in answer.scores.items() if score > 0.5]
    assert answer.score == max(answer.scores.values())
    regression = adaptive("bert", tmp_path / "b", num_labels=1)
    answer = next(iter(regression.predict(["a lovely film"])))
    assert answer.label is None
    assert list(answer.scores.values()) == [answer.score]


def test_long_texts_are_truncated_with_a_warning(model, caplog):
    answers = list(model.predict(["good " * 37, "bad " * 200_000, "bad"]))
    assert len(answers) == 3
    assert caplog.messages == ["2 of 3 texts are longer than 38 tokens and are truncated."]
    caplog.clear()
    assert len(list(model.predict(["good " * 36]))) == 1  # just fits
    assert caplog.messages == []


def test_training_mode_is_restored(model):
    model.train()
    scores = [answer.score for answer in model.predict(random_texts(5))]
    assert model.training
    model.eval()
    assert scores == pytest.approx([answer.score for answer in model.predict(random_texts(5))], abs=1e-6)


def test_invalid_arguments_raise_at_the_call(model):
    with pytest.raises(BadInput, match="Pass a single text as a list"):
        model.predict("a text")
    with pytest.raises(BadValue, match="`batch_tokens` must be at least 1, got 0"):
        model.predict(["a"], batch_tokens=0)
    with pytest.raises(BadValue, match="LTE"):
        model.predict(["a"], policy="learned:0.1")
    with pytest.raises(BadInput, match=r"Text 2 must be a string or a pair of strings, got 3\.5"):
        list(model.predict(["a", 3.5]))


def test_progress_is_shown_on_request(model, capsys):
    list(model.predict(random_texts(5), progress=True))
    assert "5" in capsys.readouterr().err
    list(model.predict(random_texts(5)))
    assert capsys.readouterr().err == ""


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 200))
def test_batches_respect_the_token_budget_and_contain_every_row(lengths, budget):
    ordered = np.sort(np.array(lengths))
    cuts = list(batches_by_tokens(ordered, budget))
    assert cuts[0][0] == 0
    assert cuts[-1][1] == len(lengths)
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(cuts))
    for start, stop in cuts:
        assert stop > start
        assert stop - start == 1 or (stop - start) * ordered[stop - 1] <= budget


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=8), st.randoms())
def test_ragged_rows_are_padded_to_the_longest(rows, random):
    picked = [random.randrange(len(rows)) for _ in range(5)]
    table, real = Ragged.from_lists(rows).padded(np.array(picked), pad=0)
    longest = max(1, *(len(rows[row]) for row in picked))
    assert table.tolist() == [rows[row] + [0] * (longest - len(rows[row])) for row in picked]
    assert real.sum(1).tolist() == [len(rows[row]) for row in picked]


def test_predictions_run_on_the_models_device(model):
    assert next(iter(model.predict(["a"]))).score == pytest.approx(
        next(iter(model.to(torch.device("cpu")).predict(["a"]))).score
    )


def test_lone_surrogates_are_reported(model):
    with pytest.raises(BadInput, match="unpaired surrogate"):
        list(model.predict(["fine", "bad \ud83d"]))


def test_the_characters_of_a_chunk_are_bounded(model, monkeypatch):
    monkeypatch.setattr(batching, "CHUNK_CHARACTERS", 100)
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield "good film " * 5

    assert len(list(itertools.islice(model.predict(endless()), 1))) == 1
    assert taken == 3


@pytest.mark.parametrize("side", ["right", "left"])
def test_only_the_needed_part_of_a_long_text_is_tokenised(side, model, monkeypatch):
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.truncation_side = side
    long = " ".join(random_texts(300))
    texts = [long, "good film", (long, "bad plot"), ("bad plot", long), (long, long), " " * 3000 + "good " * 40]
    expected = [
        tokenizer(*([text] if isinstance(text, str) else text), truncation=True, max_length=16) for text in texts
    ]
    seen = []
    monkeypatch.setattr(type(tokenizer), "__call__", recording_lengths(type(tokenizer).__call__, seen))
    tokens = TextRowEncoder(tokenizer, 16)
    rows = tokens(texts, 0)
    ids = rows.ids
    assert [list(row) for row in np.split(ids.values, np.cumsum(ids.lengths)[:-1])] == [
        row["input_ids"] for row in expected
    ]
    assert rows.truncated == 5
    assert (max(seen) > 3000) is (side == "right")  # the text that starts with spaces needs a second pass
    seen.clear()
    tokens(texts[:-1], 0)
    assert max(seen) <= 16 * encoding.CHARS_PER_TOKEN
    seen.clear()
    assert tokens([" " * 30_000 + "good"] * 2, 0).truncated == 2  # the rest is never read, but counted as truncated
    assert max(seen) <= 16 * encoding.MAX_CHARS_PER_TOKEN


@pytest.mark.parametrize("side", ["right", "left"])
def test_long_pairs_are_cut_before_they_are_truncated_together(side, model, monkeypatch):
    """Truncating a pair of two long texts takes their product of time and memory."""
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.truncation_side = side
    sides = [" ".join(random_texts(count)) for count in (1, 20, 21, 80, 81)]
    pairs = [(first, second) for first in sides for second in sides]
    expected = [tokenizer(*pair, truncation=True, max_length=33)["input_ids"] for pair in pairs]
    seen = []
    monkeypatch.setattr(type(tokenizer), "__call__", recording_pairs(type(tokenizer).__call__, seen))
    rows = TextRowEncoder(tokenizer, 33)(pairs, 0)
    assert [list(row) for row in np.split(rows.ids.values, np.cumsum(rows.ids.lengths)[:-1])] == expected
    longest = max(len(tokenizer.tokenize(text)) for text in seen)
    assert longest <= 33 + 2 * encoding.MARGIN < max(len(tokenizer.tokenize(text)) for text in sides)


def recording_pairs(call, seen):
    def wrapper(self, *texts, **options):
        if len(texts) == 2 and texts[1] is not None:
            seen.extend(text for column in texts for text in column)
        return call(self, *texts, **options)

    return wrapper


def recording_lengths(call, seen):
    def wrapper(self, *texts, **options):
        seen.extend(len(text) for column in texts for text in column or ())
        return call(self, *texts, **options)

    return wrapper


def test_a_text_of_fifty_million_characters_needs_bounded_memory(model):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(list(model.predict(["good film " * 5_000_000]))) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB; it took 7 GB


def test_a_model_of_pairs_rejects_single_texts(model):
    for inputs, valid, invalid, message in (
        (["question", "answer"], ("a", "b"), "a", "Text 2 is a single text, but this model was trained on pairs."),
        (["text"], "a", ("a", "b"), "Text 2 is a pair, but this model was trained on single texts."),
    ):
        pairs = copy.deepcopy(model)
        pairs.config.inputs = inputs
        assert len(list(pairs.predict([valid]))) == 1
        with pytest.raises(BadInput, match=message):
            list(pairs.predict([valid, invalid]))


def test_empty_texts_work_without_special_tokens(tmp_path):
    from tokenizers.processors import TemplateProcessing

    bare = adaptive("bert", tmp_path / "encoder", num_labels=2)
    bare.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    assert len(list(bare.predict(["", "good film", ("", "")]))) == 3
