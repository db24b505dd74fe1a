"""Make my classifier faster: adapt a fine-tuned model, check it on new texts, predict with it.

    python examples/faster_classifier.py my-classifier texts.txt --output fast-classifier --backend onnx

`my-classifier` is any fine-tuned Hugging Face classifier. `texts.txt` holds a few thousand unlabelled texts, one per
line. The last tenth of the texts is kept back to check the result.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import offramp


def main() -> None:
    """Adapt, check, predict."""
    parser = argparse.ArgumentParser(description="Make a fine-tuned classifier faster.")
    parser.add_argument("model", help="a fine-tuned Hugging Face classifier")
    parser.add_argument("texts", type=Path, help="one text per line, without labels")
    parser.add_argument("--output", default="fast-classifier", help="where the faster model is written")
    parser.add_argument("--risk", type=float, default=0.02, help="maximum fraction of changed predictions")
    parser.add_argument("--backend", default="torch", help="torch, onnx or openvino")
    options = parser.parse_args()

    texts = [line for line in options.texts.read_text("utf-8").splitlines() if line.strip()]
    held_out = len(texts) // 10
    training, new = texts[:-held_out], texts[-held_out:]

    # 1. Train exits that imitate the classifier, choose a threshold, test the guarantee.
    fast = offramp.adapt(
        options.model, training, output=options.output, risk=options.risk, backend=options.backend, overwrite=True
    )
    if not fast:
        raise SystemExit(fast.reason)
    print(fast.guarantee)
    print(fast.measured)

    # 2. Compare it with the original classifier on texts that `adapt` has not seen.
    check = offramp.evaluate(options.output, new, reference=options.model, live=False)
    chosen = check.results.chosen
    print(
        f"On {len(new)} new texts: {chosen.agreement:.1%} same predictions, {chosen.mean_layers:.2f} layers on average."
    )

    # 3. Predict, and see at which layer texts exit.
    answers = list(fast.predict(new))
    exits = Counter(answer.exit_layer for answer in answers)
    for layer, count in sorted(exits.items()):
        print(f"layer {layer:2}  {'█' * round(40 * count / len(answers)):40}  {count / len(answers):.0%}")
    print(f"Report: {fast.report}")


if __name__ == "__main__":
    main()
