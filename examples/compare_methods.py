"""Compare DeeBERT, PABEE and RomeBERT on MRPC: train each recipe, evaluate it, put the curves in one figure.

    python examples/compare_methods.py bert-base-uncased --output comparison

MRPC comes from the Hub, or from the official GLUE download with `--data-dir GLUE`. DeeBERT and RomeBERT were published
with entropy thresholds, PABEE with patience; here every model is evaluated with both.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import offramp

RECIPES = ("deebert", "pabee", "romebert-sd-gr")
POLICIES = ("entropy", "patience")


def main() -> None:
    """Train, evaluate, compare."""
    parser = argparse.ArgumentParser(description="Compare three published methods on MRPC.")
    parser.add_argument("backbone", help="a pre-trained encoder: a folder, or a name on the Hub")
    parser.add_argument("--data-dir", help="the official GLUE download (default: from the Hub)")
    parser.add_argument("--output", type=Path, default=Path("comparison"), help="folder of models and results")
    parser.add_argument("--epochs", type=float, help="per stage (default: the paper's)")
    options = parser.parse_args()

    options.output.mkdir(parents=True, exist_ok=True)
    runs = []
    for recipe in RECIPES:
        model, run = options.output / recipe, options.output / f"{recipe}-run"
        offramp.train(
            options.backbone,
            output=model,
            task="mrpc",
            data_dir=options.data_dir,
            recipe=recipe,
            epochs=options.epochs,
            overwrite=True,
        )
        result = offramp.evaluate(model, policy=POLICIES, output=run, overwrite=True)
        best = result.results.exits[-1].scores
        print(f"{recipe}: full model " + ", ".join(f"{name} {score:.3f}" for name, score in best.items()))
        runs.append(run)

    for policy in POLICIES:
        folder = options.output / f"figure-{policy}"
        print(f"\n{policy}\n{offramp.compare(runs, policy=policy, output=folder, overwrite=True)}")
        print(f"Figure: {folder / 'curve.png'}")


if __name__ == "__main__":
    main()
