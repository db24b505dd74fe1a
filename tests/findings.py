"""Made-up results of an evaluation, for tests of the report page."""

from __future__ import annotations

SCORES = [0.778, 0.813, 0.869, 0.880, 0.884, 0.883]  # per exit, as a small encoder has on SST-2


def point(policy, layers, score, agreement, metrics=("acc",), parameter=None):
    return {
        "policy": policy,
        "parameter": parameter,
        "score": score if metrics else None,
        "scores": dict.fromkeys(metrics, score) if metrics else None,
        "agreement": agreement,
        "mean_layers": layers,
        "cost": layers / 6,
        "speedup": 6 / layers,
        "flops": 28_411_392 * layers,
    }


def curve(name, count, power, metrics=("acc",)):
    """Points from all six layers to the first; the higher the power, the later the score falls."""
    points = []
    for step in range(count):
        share = step / (count - 1)
        score = SCORES[-1] - (SCORES[-1] - SCORES[0]) * share**power
        points.append(point(f"{name}:{share:.2f}", 6 - 5 * share, score, 1 - 0.2 * share**power, metrics, share))
    return points


def example(text, label, answer, score, layer):
    return {"text": text, "label": label, "answer": answer, "score": score, "exit_layer": layer}


def texts():
    """Easy and hard examples."""
    return {
        "easiest": [
            example("a gorgeous , witty , seductive movie .", "positive", "positive", 0.998, 1),
            example("the worst film of the year .", "negative", "negative", 0.996, 1),
            example("compelling from its first scene to its last , and very funny .", "positive", "positive", 0.991, 1),
        ],
        "hardest": [
            example("if this is a failure , it is a glorious failure .", "positive", "negative", 0.61, 6),
            example(["what was once original", "now seems pedestrian ."], None, "negative", 0.55, 5),
            example("it goes on and on and on . " * 40, "negative", "negative", 0.58, 6),
        ],
    }


def model():
    """An encoder of six layers."""
    return {
        "name": "minilm-sst2",
        "fingerprint": "ab12cd34ef567890",
        "family": "bert",
        "depth": 6,
        "layers": [1, 2, 3, 4, 5, 6],
        "labels": ["negative", "positive"],
        "problem": "single_label_classification",
        "policy": "entropy:0.63",
        "parameters": 22_713_216,
    }


def findings(metrics=("acc",), chosen=True, live=True):
    """Results of a model with six layers on SST-2."""
    metrics = list(metrics)
    policies = {
        "entropy": curve("entropy", 60, 5, metrics),
        "patience": curve("patience", 6, 2.5, metrics),
        "learned": curve("learned", 40, 3.4, metrics),
    }
    best = policies["entropy"][37]
    runs = [
        {**best, "seconds": 3.2 / 1.9, "measured_speedup": 1.9},
        {**policies["patience"][3], "seconds": 2.0, "measured_speedup": 1.6},
    ]
    return {
        "offramp": "0.1.0",
        "date": "2026-11-16T06:00:00+00:00",
        "command": "offramp evaluate minilm-sst2 --task sst-2 --data-dir glue --policy entropy,patience,learned",
        "model": model(),
        "data": {"name": "sst-2, dev", "rows": 872, "fingerprint": "99aabbccddeeff00", "metrics": metrics},
        "machine": {"backend": "torch", "dtype": "float32", "device": "cpu", "threads": 2, "cpu": "AMD EPYC 7763"},
        "exits": [
            {
                "exit": layer,
                "layer": layer,
                "scores": dict.fromkeys(metrics, score) if metrics else None,
                "interval": [score - 0.026, score + 0.024] if metrics else None,
                "agreement": agreement,
                "flops": 28_411_392 * layer,
            }
            for layer, score, agreement in zip(range(1, 7), SCORES, [0.80, 0.84, 0.91, 0.95, 0.98, 1.0], strict=True)
        ],
        "policies": policies,
        "oracle": [
            point(f"oracle:{n}", 1 + 0.5 * (1 - 0.5**n), 0.778 + 0.17 * (1 - 0.5**n), 0.9, metrics) for n in range(6)
        ]
        if metrics
        else None,
        "chosen": {
            **best,
            "interval": [0.859, 0.902],
            "agreement_interval": [0.969, 0.989],
            "exits": [212, 301, 158, 96, 49, 56],
        }
        if chosen
        else None,
        "live": runs if live else None,
        "plain_seconds": 3.2 if live else None,
        "live_rows": 512 if live else None,
        "examples": texts(),
        "calibration": {"sentence": "With 90 % confidence, at most 2 % of predictions differ from the full model's."},
    }


def regression():
    results = findings(metrics=["pearson", "spearmanr"])
    results["model"].update(problem="regression", labels=["LABEL_0"])
    results["examples"] = {
        "easiest": [example(["a man plays a flute", "a man is playing"], 4.5, None, 4.42, 1)],
        "hardest": [],
    }
    results["calibration"] = None
    return results


def bare():
    """The minimum that the schema allows."""
    results = findings(metrics=[], chosen=False, live=False)
    for name in ("oracle", "chosen", "live", "plain_seconds", "live_rows", "calibration"):
        del results[name]
    results["policies"] = {}
    results["examples"] = {"easiest": [], "hardest": []}
    for exit_ in results["exits"]:
        del exit_["scores"], exit_["interval"]
    return results


def many_exits():
    """Twenty-four layers, two exits on the last, one per-layer policy with a long name, nine policies."""
    results = findings()
    results["model"].update(depth=24, layers=list(range(1, 25)), name="a-name-without-any-space" * 6)
    results["exits"] = [
        {**results["exits"][0], "exit": n, "layer": min(n, 24), "scores": {"acc": 0.6 + n / 100}} for n in range(1, 26)
    ]
    for name in ("confidence", "margin", "vote", "patience-confidence", "new", "newer"):
        results["policies"][name] = curve(name, 30, 3 + len(name) / 8)
    points = [point for points in results["policies"].values() for point in points]
    for point_ in [results["chosen"], *points]:
        point_["mean_layers"] *= 4
    results["chosen"].update(policy="entropy:" + ",".join(["0.31"] * 25), exits=[35] * 25)
    return results
