"""Run the blocks of a page in the current folder."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from pathlib import Path

from offramp.cli.main import main
from tests.pages import blocks, commands, option, read, shortened
from tests.reviews import rows

KINDS = {
    "one label": {"num_labels": 3, "lte": True},
    "several": {"num_labels": 3, "lte": True, "problem_type": "multi_label_classification"},
    "regression": {"num_labels": 1, "lte": True, "problem_type": "regression"},
    "ranking": {"num_labels": 1, "lte": True, "problem_type": "ranking"},
}
TEXTS = [text for text, _ in rows(40)]


def write_rows(file: Path, count: int, seed: int, *, labelled: bool = True) -> None:
    """A CSV file with labels, or a text per line."""
    made = rows(count, seed)
    if not labelled:
        file.write_text("".join(f"{text}\n" for text, _ in made))
        return
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([("text", "label"), *((text, ["bad", "good"][label]) for text, label in made)])


def evidence(place: Path) -> dict:
    return json.loads((place / "my-model" / "calibration.json").read_text())


def run_page(name: str, refusing: tuple[str, ...] = ()) -> None:
    """Run every block, in its order; some commands may end with an honest no."""
    for language, block in blocks(read(name)):
        if language == "python":
            exec(compile(block, name, "exec"), {"__name__": "page"})
            continue
        for command in commands(f"```{language}\n{block}```"):  # none in a language other than sh
            if "--output" in command:
                remove(Path(option(command, "--output")))  # another page's
            assert main(shortened(command)) in ((0, 1) if command[0] in refusing else (0,)), shlex.join(command)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
