"""Token classification: entities equal those of transformers' pipeline, in windows, batches and from words."""

from __future__ import annotations

import pytest
from transformers import pipeline

from offramp import AdaptiveModel
from offramp.answers.token_rows import AGGREGATIONS
from tiny import TAGGED_FAMILIES, save_tagger

TEXTS = [
    "Goodly films, the plots was dull.",
    "a lovely Film",
    "",
    "it was not very good , very goodly unknown-word in the plot . plots films .",
    "long short",
]
RESULTS = ("start", "end")


def expected(folder, texts, aggregation):
    """Return the entities of transformers' pipeline, one list per text."""
    tag = pipeline("token-classification", str(folder), aggregation_strategy=aggregation)
    return [tag(text) if text else [] for text in texts]


def assert_same(entities, others):
    assert len(entities) == len(others)
    for entity, other in zip(entities, others, strict=True):
        key = "entity_group" if "entity_group" in other else "entity"
        assert {name: entity[name] for name in (key, *RESULTS)} == {name: other[name] for name in (key, *RESULTS)}
        assert entity["score"] == pytest.approx(float(other["score"]), abs=1e-5)
        assert entity["word"].lower().replace(" ", "") == other["word"].replace(" ", "").replace("##", "").lower()


@pytest.mark.parametrize("family", TAGGED_FAMILIES)
def test_full_depth_equals_the_pipeline(family, tmp_path):
    folder = save_tagger(family, tmp_path / "tagger", seed=3)
    found = 0
    for aggregation in AGGREGATIONS if family == "bert" else ("first", "simple"):
        model = AdaptiveModel.from_backbone(folder, exits="auto", answer_options={"aggregation": aggregation})
        answers = list(model.predict(TEXTS, policy="never"))
        for answer, other in zip(answers, expected(folder, TEXTS, aggregation), strict=True):
            assert_same(answer.entities, other)
            found += len(other)
    assert found > 5
