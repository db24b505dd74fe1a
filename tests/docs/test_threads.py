"""The page about threads and processes: the same predictions in all of them."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import offramp
from tests.docs.running import run_page
from tests.reviews import rows

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory) -> str:
    """A saved model with exits that disagree, and a policy."""
    place = tmp_path_factory.mktemp("machine") / "model"
    models["one label"].save_pretrained(place)
    model = offramp.AdaptiveModel.from_pretrained(place)
    model.config.policy = {"name": "entropy", "threshold": 0.7}
    model.save_pretrained(place)
    return str(place)


MANY = [text for text, _ in rows(400)]


def told(runner, texts: list[str]) -> list[tuple[str, int, float]]:
    return [(answer.label, answer.exit_layer, round(answer.score, 4)) for answer in runner.predict(texts)]


def test_machine_runs(place, capsys):
    run_page("how-to/threads.md")
    printed = capsys.readouterr().out
    assert len((place / "answers-2.jsonl").read_text().splitlines()) == 6
    assert [len(part) for part in json.loads(printed.splitlines()[-1])] == [2, 1, 1, 1]


def test_one_runner_in_four_python_threads_answers_as_in_one(folder):
    whole = told(offramp.load(folder), MANY)
    assert len({layer for _, layer, _ in whole}) > 1
    runner = offramp.load(folder)
    starts = (0, 100, 200, 300)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda start: told(runner, MANY[start:] + MANY[:start]), starts))
    for start, answers in zip(starts, found, strict=True):
        assert answers == whole[start:] + whole[:start]


def test_another_number_of_torch_threads_gives_the_same_answers(folder):
    found = []
    for threads in (2, 1):
        found.append(told(offramp.load(folder, threads=threads), MANY[:100]))
        assert torch.get_num_threads() == threads  # of the whole process
    assert found[0] == found[1]


def answer_in_a_child(runner, texts: list[str], answers) -> None:
    torch.set_num_threads(1)  # threads of the parent's are not there after a fork
    answers.send(told(runner, texts))


def test_children_of_a_fork_after_load_answer_like_their_parent(folder):
    runner = offramp.load(folder)
    context = multiprocessing.get_context("fork")
    halves = [MANY[:200], MANY[200:]]
    pipes = [context.Pipe(duplex=False) for _ in halves]
    children = [
        context.Process(target=answer_in_a_child, args=(runner, half, sending), daemon=True)
        for half, (_, sending) in zip(halves, pipes, strict=True)
    ]
    for child in children:
        child.start()
    assert all(receiving.poll(60) for receiving, _ in pipes)
    found = [receiving.recv() for receiving, _ in pipes]
    for child in children:
        child.join(60)
    assert found[0] + found[1] == told(runner, MANY)
