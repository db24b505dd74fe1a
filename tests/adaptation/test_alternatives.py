"""What `adapt` suggests if no guarantee is possible on the test texts."""

from __future__ import annotations

import re

import numpy as np

from offramp.adaptation.alternatives import suggest_alternatives
from offramp.calibration.risks import Guarantee
from offramp.evaluation.traces.trace import Trace

GUARANTEE = Guarantee("disagreement", 0.02, 0.9)


def trace_of(rows: int, different: int) -> Trace:
    """Two exits; the first one differs on some rows, on which it is no less confident than on others."""
    logits = np.zeros((rows, 2, 2), np.float32)
    logits[:, :, 0] = 3.0
    logits[:different, 0] = [0.0, 3.0]
    model = {"problem": "single_label_classification", "layers": [1, 4], "depth": 4, "faithful": False}
    ones = np.ones((rows, 2))
    return Trace({"model": model | {"labels": ["a", "b"]}}, logits, ones, ones, np.full(rows, 9), np.arange(rows))


def test_the_smallest_risk_that_saves_layers():
    hint = suggest_alternatives(trace_of(400, 12), GUARANTEE, "confidence")
    assert hint == "A risk of 5 % would allow 4.00 × fewer layers."  # 3 % differ, however many texts there are


def test_the_number_of_texts_that_would_suffice():
    hint = suggest_alternatives(trace_of(400, 5), GUARANTEE, "confidence")
    assert hint.startswith("A risk of 3 % would allow 4.00 × fewer layers. ")
    needed = re.search(r"A risk of 2 % may be possible with about ([\d,]+) test texts instead of 400", hint)
    rows = int(needed[1].replace(",", ""))
    for count, passes in ((400, False), (rows, True)):
        errors = np.zeros(count)
        errors[: int(np.ceil(count * 5 / 400))] = 1
        assert (GUARANTEE.p_value(errors) <= GUARANTEE.level) is passes


def test_exits_that_differ_too_often():
    hint = suggest_alternatives(trace_of(400, 200), GUARANTEE, "confidence")
    assert hint == "The early exits differ from the model too often; more training texts may help."
