"""Short queries with documents from the words of the tiny tokenizer, and tiny cross-encoders."""

from __future__ import annotations

import json
import random
from pathlib import Path

from offramp import AdaptiveModel
from tests.tiny import WORDS, amplify_weights, save_classifier

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


def random_rankings(count: int, seed: int = 0, most: int = 12) -> list[dict]:
    """Return rankings of 1 to `most` documents of 0 to 12 words."""
    random_ = random.Random(seed)

    def text(low: int, high: int) -> str:
        return " ".join(random_.choices(WORDS, k=random_.randint(low, high)))

    return [
        {"query": text(2, 4), "documents": [text(0, 12) for _ in range(random_.randint(1, most))]} for _ in range(count)
    ]


def write_rankings(file: Path, rankings: list[dict]) -> Path:
    """Write rankings as JSON lines."""
    file.write_text("".join(json.dumps(ranking) + "\n" for ranking in rankings))
    return file


def save_reranker(folder: Path, name: str = "bert", outputs: int = 1, activation: str | None = SIGMOID, **more) -> Path:
    """Save a tiny cross-encoder with random weights, as sentence-transformers does."""
    save_classifier(name, folder, outputs, **more)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    if activation is not None:
        config["sentence_transformers"] = {"version": "5.0.0", "activation_fn": activation}
    if outputs == 2:
        config["id2label"], config["label2id"] = {0: "irrelevant", 1: "relevant"}, {"irrelevant": 0, "relevant": 1}
    file.write_text(json.dumps(config))
    return folder


def reranker(folder: Path, name: str = "bert", outputs: int = 1, exits="auto", **more) -> AdaptiveModel:
    """Return a tiny adaptive reranker with random exits."""
    save_reranker(folder, name, outputs, **more)
    model = AdaptiveModel.from_backbone(folder, exits=exits, heads="attention", problem_type="ranking")
    last = {key: value.clone() for key, value in model.exits[str(model.config.num_layers)].state_dict().items()}
    amplify_weights(model.exits, 1, scale=8.0)
    model.exits[str(model.config.num_layers)].load_state_dict(last)
    return model.eval()
