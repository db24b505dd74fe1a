"""The tables of the page about policies say what the library does."""

from __future__ import annotations

import json

import pytest
import torch

import offramp
from offramp.errors import BadValue
from offramp.policies import POLICIES
from tests.docs.running import KINDS, TEXTS, run_page
from tests.pages import (
    codes,
    read,
    sections,
    table,
)
from tests.tiny import LAYERS

pytestmark = pytest.mark.usefixtures("one_thread")


def layers(model, policy: str) -> list[int]:
    if policy.startswith("risk:"):  # a judge, as calibrate fits one
        policy = f"{policy}:0,0,0:1,1,1"
    if policy.startswith("top-k:"):  # errors, as calibrate fits them
        policy = f"{policy}:1,1,1"
    if model.config.answer_type.multiple_rows:
        return [answer.exit_layer for answer in model.predict([(TEXTS[0], TEXTS[1:21])] * 2, policy=policy)]
    return [answer.exit_layer for answer in model.predict(TEXTS, policy=policy)]


def test_policies_runs(place):
    run_page("reference/policies.md")
    points = json.loads((place / "three-points" / "results.json").read_text())["policies"]["entropy"]
    assert [point["parameter"] for point in points] == [0.05, 0.1, 0.2]


def test_the_extremes_are_extreme(models):
    found = table(sections(read("reference/policies.md"))["Extreme values"], "policy")
    assert {codes(line[0])[0] for line in found} == set(POLICIES)
    for name, safest, boldest, where in found:
        kinds = ["regression"] if "regression" in name else ["ranking"] if "top-k" in name else ["one label"]
        if codes(name)[0] in ("entropy", "confidence", "margin", "learned", "layer", "patience-confidence"):
            kinds.append("several")
        for kind in kinds:
            assert set(layers(models[kind], codes(safest)[0])) == {LAYERS}, (kind, safest)
            if not codes(boldest):
                continue
            left = set(layers(models[kind], codes(boldest)[0]))
            assert min(left) == 2 if "earliest" in where else left == {int(where)}, (kind, boldest)


def test_the_table_says_what_each_policy_serves(models):
    found = table(sections(read("reference/policies.md"))["Parameters"], "policy")
    assert [codes(line[0])[0].split(":")[0] for line in found] == list(POLICIES)
    for line in found:
        kind_of = POLICIES[codes(line[0])[0].split(":")[0]]
        for kind, cell in zip(KINDS, line[4:], strict=True):
            policy = {"patience": "patience:2:0.1", "layer": "layer:2"}.get(kind_of.name, kind_of.example)
            if cell == "no":
                with pytest.raises(BadValue):
                    layers(models[kind], policy)
            else:
                layers(models[kind], policy)


def test_certain_is_not_never_in_float32(models):
    model = models["one label"]
    sure = offramp.answers.SINGLE_LABEL.confidence(torch.tensor([[17.5, 0.0], [10.0, 0.0]]))
    assert sure[0] == 1 and sure[1] < 1
    lists = ["entropy:1,1,1", "confidence:0,0,0", "margin:0,0,0", "learned:1,1,1,1", "patience-confidence:1:2,2,2"]
    assert all(set(layers(model, written)) <= {1, 2, 3, 4} for written in lists)
    for written in ("vote:1,2,3", "patience:1,2,3", "entropy:1,1"):
        with pytest.raises(BadValue):
            layers(model, written)


def test_a_budget_stops_at_the_deepest_exit_within_it(models):
    answers = models["one label"].predict(TEXTS, policy="never", max_layers=2)
    assert {answer.exit_layer for answer in answers} == {2}
