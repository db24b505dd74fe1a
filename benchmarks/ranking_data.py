"""Rankings from real questions: queries with candidate sentences of the same article (SQuAD), and CISI's abstracts.

    python benchmarks/ranking_data.py squad --data DATA --articles dev --candidates 50 --output rankings.jsonl
    python benchmarks/ranking_data.py cisi --data DATA --candidates 50 --output cisi.jsonl

DATA is the folder with SQuAD, GLUE and CISI. A line is {"query", "documents", "relevant"}; `relevant` has a grade per
document. The candidates of a question are those sentences of its article that share most words with it, weighted by
how rare they are (BM25), as a first-stage retriever would return them. The order of the lines is random.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["bm25_order", "cisi_rankings", "squad_articles", "squad_rankings"]

SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(\[])")
WORD = re.compile(r"\w+")
K1, B = 1.2, 0.75


def bm25_order(query: str, documents: Sequence[str]) -> list[int]:
    """Return the indices of the documents, best match first."""
    words = [Counter(WORD.findall(document.lower())) for document in documents]
    mean = sum(sum(counts.values()) for counts in words) / max(1, len(words))
    frequency = Counter(word for counts in words for word in counts)
    scores = []
    for counts in words:
        length = sum(counts.values())
        score = 0.0
        for word in set(WORD.findall(query.lower())) & set(counts):
            rarity = math.log(1 + (len(words) - frequency[word] + 0.5) / (frequency[word] + 0.5))
            score += rarity * counts[word] * (K1 + 1) / (counts[word] + K1 * (1 - B + B * length / mean))
        scores.append(score)
    return sorted(range(len(documents)), key=lambda index: -scores[index])


def squad_articles(file: Path) -> Iterator[tuple[list[list[str]], list[tuple[str, int, int]]]]:
    """Yield the sentences of each article by paragraph, and its questions with paragraph and sentence of the answer."""
    for article in json.loads(file.read_text("utf-8"))["data"]:
        paragraphs, questions = [], []
        for number, paragraph in enumerate(article["paragraphs"]):
            sentences = [part.strip() for part in SENTENCE_END.split(paragraph["context"]) if part.strip()]
            paragraphs.append(sentences)
            for entry in paragraph["qas"]:
                start = entry["answers"][0]["answer_start"]
                position = 0
                for index, sentence in enumerate(sentences):
                    position = paragraph["context"].index(sentence, position) + len(sentence)
                    if start < position:
                        questions.append((entry["question"].strip(), number, index))
                        break
        yield paragraphs, questions


def squad_rankings(file: Path, candidates: int, articles: slice = slice(None)) -> list[dict[str, Any]]:
    """Return one ranking per question; the sentence with the answer is relevant."""
    rankings = []
    for paragraphs, questions in list(squad_articles(file))[articles]:
        sentences = list(dict.fromkeys(sentence for paragraph in paragraphs for sentence in paragraph))
        for question, paragraph, index in questions:
            relevant = paragraphs[paragraph][index]
            documents = [sentences[position] for position in bm25_order(question, sentences)[:candidates]]
            rankings.append(
                {
                    "query": question,
                    "documents": documents,
                    "relevant": [int(document == relevant) for document in documents],
                }
            )
    return rankings


def _records(file: Path) -> Iterator[dict[str, str]]:
    """Yield the records of a CISI file: the text of every field (I, T, A, W)."""
    record: dict[str, str] = {}
    field = ""
    for line in file.read_text("latin-1").split("\n"):
        if match := re.match(r"\.([A-Z])(?: (\d+))?\s*$", line):
            field = match[1]
            if field == "I":
                if record:
                    yield record
                record = {"I": match[2]}
        elif field in ("T", "W"):
            record[field] = f"{record.get(field, '')} {line}".strip()
    yield record


def cisi_rankings(folder: Path, candidates: int) -> list[dict[str, Any]]:
    """Return a ranking for each of the queries that have judgements: the abstracts that BM25 ranks first."""
    abstracts = {
        record["I"]: f"{record.get('T', '')} {record.get('W', '')}" for record in _records(folder / "CISI.ALL")
    }
    judged: dict[str, set[str]] = {}
    for line in (folder / "CISI.REL").read_text("latin-1").split("\n"):
        if parts := line.split():
            judged.setdefault(parts[0], set()).add(parts[1])
    names, texts = list(abstracts), list(abstracts.values())
    rankings = []
    for record in _records(folder / "CISI.QRY"):
        if record["I"] in judged:
            query = record.get("W", "")
            best = bm25_order(query, texts)[:candidates]
            relevant = [int(names[index] in judged[record["I"]]) for index in best]
            rankings.append({"query": query, "documents": [texts[index] for index in best], "relevant": relevant})
    return rankings


def main() -> None:
    """Write a file of rankings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=["squad", "cisi"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--articles", default="dev", help="dev, a slice of the training articles such as 6:, or both: dev,6:"
    )
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--skip", type=int, default=0, help="leave out this many of the shuffled rankings")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    if args.source == "cisi":
        rankings = cisi_rankings(args.data / "CISI", args.candidates)
    else:
        rankings = []
        for part in args.articles.split(","):
            bounds = [] if part == "dev" else [int(bound) if bound else None for bound in part.split(":")]
            file = args.data / "SQuAD" / ("train_subset.json" if bounds else "dev_subset.json")
            rankings += squad_rankings(file, args.candidates, slice(*bounds) if bounds else slice(None))
    random.Random(0).shuffle(rankings)
    rankings = rankings[args.skip :][: args.limit]
    args.output.write_text("".join(json.dumps(ranking, ensure_ascii=False) + "\n" for ranking in rankings), "utf-8")
    answerable = sum(any(ranking["relevant"]) for ranking in rankings)
    print(f"{len(rankings):,} queries; a relevant document is among the candidates of {answerable:,}.")


if __name__ == "__main__":
    main()
