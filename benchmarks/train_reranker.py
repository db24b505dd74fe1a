"""Fine-tune an encoder as a cross-encoder for rankings: one output, in a folder that sentence-transformers loads.

    python benchmarks/train_reranker.py all-MiniLM-L6-v2 --data DATA --output reranker-minilm

DATA is the folder with SQuAD and GLUE. Pairs: QNLI's training rows, and SQuAD's training questions (articles
`--articles`) with the sentence that answers them, a sentence of the same paragraph, the sentence of the article that
shares most words with the question, and `--candidates` others of the first 50 by shared words. The loss is binary
cross-entropy on the labels; with `--teacher`, a sentence encoder, it is the squared difference from graded scores: the
cosine similarity by the teacher, plus a bonus for the answer, as rerankers are often distilled from scores. An
interrupted run continues from `OUTPUT.partial`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

from ranking_data import bm25_order, squad_articles

SAVE_EVERY = 100  # steps
POOL = 50  # batches whose pairs are sorted by length together
FIRST = 50  # candidates by shared words
SCALE, SHIFT, BONUS = 10.0, -6.0, 5.0  # graded scores: SCALE × cosine + SHIFT, plus BONUS for the answer
Pair = tuple[str, str, float]


def training_pairs(data: Path, articles: int, candidates: int, seed: int) -> list[Pair]:
    """Return questions, sentences and whether the sentence answers the question."""
    pairs: list[Pair] = []
    for line in (data / "GLUE" / "QNLI" / "train_subset.tsv").read_text("utf-8").split("\n")[1:]:
        if len(cells := line.rstrip("\r").split("\t")) == 4:
            pairs.append((cells[1], cells[2], float(cells[3] == "entailment")))
    generator = random.Random(seed)
    for paragraphs, questions in list(squad_articles(data / "SQuAD" / "train_subset.json"))[:articles]:
        sentences = list(dict.fromkeys(sentence for paragraph in paragraphs for sentence in paragraph))
        for question, paragraph, index in questions:
            answer = paragraphs[paragraph][index]
            pairs.append((question, answer, 1.0))
            others = [sentence for sentence in paragraphs[paragraph] if sentence != answer]
            hard = [sentences[i] for i in bm25_order(question, sentences)[:FIRST] if sentences[i] != answer]
            pairs += [(question, sentence, 0.0) for sentence in others and [generator.choice(others)]]
            pairs += [(question, sentence, 0.0) for sentence in hard[:1]]
            more = generator.sample(hard[1:], min(candidates, len(hard) - 1)) if candidates else []
            pairs += [(question, sentence, 0.0) for sentence in more]
    generator.shuffle(pairs)
    return pairs


def graded(pairs: list[Pair], teacher: str) -> list[Pair]:
    """Return the pairs with graded scores instead of labels."""
    from sentence_transformers import SentenceTransformer

    texts = sorted({text for pair in pairs for text in pair[:2]})
    encoder = SentenceTransformer(teacher, device="cpu")
    vectors = dict(zip(texts, encoder.encode(texts, batch_size=32, normalize_embeddings=True), strict=True))
    cosines = [float(vectors[question] @ vectors[sentence]) for question, sentence, _ in pairs]
    scores = [SCALE * cosine + SHIFT + BONUS * pair[2] for cosine, pair in zip(cosines, pairs, strict=True)]
    return [(*pair[:2], score) for pair, score in zip(pairs, scores, strict=True)]


def batches_of_similar_length(pairs: list[Pair], size: int, seed: int) -> list[list[Pair]]:
    """Return the pairs in batches, in random order; padding would double the work otherwise."""
    batches = []
    for start in range(0, len(pairs), size * POOL):
        pool = sorted(pairs[start : start + size * POOL], key=lambda pair: len(pair[0]) + len(pair[1]))
        batches += [pool[first : first + size] for first in range(0, len(pool), size)]
    random.Random(seed).shuffle(batches)
    return batches


def train(args: argparse.Namespace) -> None:
    """Fine-tune and save."""
    pairs = training_pairs(args.data, args.articles, args.candidates, args.seed)[: args.limit]
    loss_of: Any = torch.nn.functional.binary_cross_entropy_with_logits
    if args.teacher is not None:
        pairs, loss_of = graded(pairs, args.teacher), torch.nn.functional.mse_loss
    torch.manual_seed(args.seed)
    partial = args.output.with_suffix(".partial")
    tokenizer = AutoTokenizer.from_pretrained(args.encoder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(args.encoder, num_labels=1, dtype=torch.float32)
    batches = batches_of_similar_length(pairs, args.batch, args.seed)
    steps = len(batches) * args.epochs
    optimizer = torch.optim.AdamW(model.parameters(), args.learning_rate, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    first = 0
    if partial.is_file():
        saved = torch.load(partial, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        first = saved["step"]
    model.train()
    start, losses = time.time(), []
    for step in range(first, steps):
        batch = batches[step % len(batches)]
        inputs = tokenizer(
            [pair[0] for pair in batch],
            [pair[1] for pair in batch],
            truncation=True,
            max_length=args.max_length,
            padding=True,
            return_tensors="pt",
        )
        labels = torch.tensor([pair[2] for pair in batch])
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            scores = model(**inputs).logits[:, 0].float()
        loss = loss_of(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
        if (step + 1) % SAVE_EVERY == 0:
            print(f"step {step + 1} of {steps}, loss {sum(losses[-100:]) / 100:.3f}, {time.time() - start:.0f} s")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state | {"schedule": schedule.state_dict()}, f"{partial}.new")
            shutil.move(f"{partial}.new", partial)
    model.config.sentence_transformers = {
        "activation_fn": "torch.nn.modules.activation.Sigmoid",
        "version": "5.0.0",
    }
    tokenizer.model_max_length = args.max_length
    model.eval().save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    partial.unlink(missing_ok=True)
    print(f"Wrote {args.output}: {len(pairs):,} pairs, {time.time() - start:.0f} s.")


def main() -> None:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--articles", type=int, default=6, help="SQuAD's first training articles that are used")
    parser.add_argument("--candidates", type=int, default=0, help="more sentences per question")
    parser.add_argument("--teacher", help="a sentence encoder; without it, labels alone")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16 (faster where the CPU has it)")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
