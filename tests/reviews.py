"""Small labelled data in the words of the tiny tokenizer, and settings of fast training runs, for tests."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from safetensors.torch import load_file

from offramp.training.settings import Settings
from tests.tiny import WORDS

FAST = {"batch_size": 8, "learning_rate": 5e-3, "epochs": 1, "warmup": 0.0, "max_length": 16, "cpu": True}

FILLER = [word for word in WORDS if word not in ("good", "bad", "lovely", "dull")]


def rows(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Sentences with label 1 if they contain a good word and 0 if a bad one, alternating."""
    rng = random.Random(seed)
    examples = []
    for index in range(count):
        label = index % 2
        words = rng.choices(FILLER, k=rng.randint(2, 9))
        words.insert(rng.randint(0, len(words)), rng.choice(["good", "lovely"] if label else ["bad", "dull"]))
        examples.append((f"{' '.join(words)} {index}", label))
    return examples


def write_glue(folder: Path, train: int = 48, dev: int = 12) -> Path:
    """The SST-2 folder of a GLUE download."""
    (folder / "SST-2").mkdir(parents=True)
    for split, count, seed in (("train", train, 1), ("dev", dev, 2)):
        lines = [f"{text}\t{label}" for text, label in rows(count, seed)]
        (folder / "SST-2" / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return folder


def write_sts(folder: Path, train: int = 48, dev: int = 12) -> Path:
    """The STS-B folder of an ELUE download: pairs with a value."""
    (folder / "STS-B").mkdir(parents=True)
    for split, count, seed in (("train", train, 1), ("dev", dev, 2)):
        lines = [
            f"{text}\t{text[:9]}\t{label * 4 + index % 3 / 3:.3f}"
            for index, (text, label) in enumerate(rows(count, seed))
        ]
        (folder / "STS-B" / f"{split}.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n")
    return folder


def settings(encoder, glue, output, **changes) -> Settings:
    """Settings of a training run of a few seconds."""
    values = {"backbone": str(encoder), "output": str(output), "task": "sst-2", "data_dir": str(glue)} | FAST
    return Settings(**values | changes)


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")
