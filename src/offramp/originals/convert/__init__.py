"""Convert checkpoints of the original implementations to offramp models.

| kind          | original                                                    |
|---------------|-------------------------------------------------------------|
| `deebert`     | DeeBERT, its Hugging Face port, DeeBERT+SD                  |
| `romebert`    | RomeBERT; has DeeBERT's keys, so it cannot be detected      |
| `berxit`      | BERxiT, with its LTE module                                 |
| `elasticbert` | ElasticBERT: static, dynamic, released                      |
| `pabee`       | PABEE on BERT and ALBERT                                    |
| `ebert`       | EBERT on BERT and RoBERTa: classification, regression       |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerBase

from offramp.errors import BadModel, BadValue
from offramp.files.load_errors import loading
from offramp.files.writing import staged_folder
from offramp.model.adaptive import AdaptiveModel
from offramp.originals.convert import ebert, elasticbert, highway, pabee
from offramp.originals.convert.checkpoint import Checkpoint, Converted, ConvertOptions, read
from offramp.registry import Registry

__all__ = ["CHECKPOINT_KINDS", "ConvertOptions", "convert", "detect", "read"]


@dataclass(frozen=True)
class CheckpointKind:
    """An original implementation: its name, its title for the model card, and its converter."""

    name: str
    title: str
    convert: Callable[[Checkpoint, ConvertOptions], Converted]


CHECKPOINT_KINDS: Registry[CheckpointKind] = Registry(
    "kind of checkpoint",
    [
        CheckpointKind("deebert", "DeeBERT", highway.convert),
        CheckpointKind("romebert", "RomeBERT", highway.convert),
        CheckpointKind("berxit", "BERxiT", highway.convert),
        CheckpointKind("elasticbert", "ElasticBERT", elasticbert.convert),
        CheckpointKind("pabee", "PABEE", pabee.convert),
        CheckpointKind("ebert", "EBERT", ebert.convert),
    ],
)

# duplicates, teachers, pretraining heads and buffers: not needed for predictions
IGNORED_KEYS = (r"^core\.", r"^slow_", r"position_ids$", r"^predictions\.", r"^sop_classifier\.", r"^cls\.")

TOKENIZERS = {
    "bert": "BertTokenizer",
    "elasticbert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "albert": "AlbertTokenizer",
}
VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")


def detect(checkpoint: Checkpoint) -> CheckpointKind:
    """Return the original implementation that wrote a checkpoint, from its keys."""
    if highway.detect_family(checkpoint) is not None:
        return CHECKPOINT_KINDS["berxit" if highway.is_berxit(checkpoint) else "deebert"]
    if elasticbert.is_elasticbert(checkpoint):
        return CHECKPOINT_KINDS["elasticbert"]
    if pabee.detect_family(checkpoint) is not None:
        return CHECKPOINT_KINDS["pabee"]
    if ebert.detect_family(checkpoint) is not None:
        return CHECKPOINT_KINDS["ebert"]
    raise BadModel(
        f"{checkpoint.folder} is not a known kind of checkpoint ({', '.join(CHECKPOINT_KINDS)}). "
        "To make an ordinary classifier faster, use `offramp adapt`."
    )


def convert(
    source: str | Path,
    output: str | Path,
    *,
    kind: str | None = None,
    options: ConvertOptions = ConvertOptions(),  # noqa: B008 -- frozen
    overwrite: bool = False,
) -> list[str]:
    """Convert a checkpoint to a model folder; return notes for the user."""
    checkpoint = read(Path(source))
    checkpoint_kind = detect(checkpoint) if kind is None else CHECKPOINT_KINDS[kind]
    if options.pad_to is not None and checkpoint_kind.name != "ebert":
        raise BadValue("`pad_to=` applies to EBERT checkpoints only; remove it.")
    if options.no_answer and checkpoint_kind.name != "ebert":
        raise BadValue("`no_answer=` applies to EBERT checkpoints only; remove it.")
    try:
        converted = checkpoint_kind.convert(checkpoint, options)
    except KeyError as err:
        raise BadModel(f"{source}: config.json has no {err}.") from err
    model = _build(checkpoint, converted)
    model.config.resolve_policy(options.policy)
    notes = [f"Converted from {checkpoint_kind.title}.", *converted.notes]
    if options.faithful:
        notes.append("Faithful mode: it reproduces the original's behaviour, including its known flaws.")
    model.config.notes = " ".join(notes)
    tokenizer = _tokenizer(checkpoint.folder, model.config.family.name)
    if tokenizer is None:
        notes.append(
            "The checkpoint has no tokenizer: copy the backbone's tokenizer files into the model folder before use."
        )
    else:
        model.tokenizer = tokenizer
    with staged_folder(Path(output), overwrite) as folder:
        model.save_pretrained(folder)
    return notes


def _build(checkpoint: Checkpoint, converted: Converted) -> AdaptiveModel:
    with loading(checkpoint.folder):
        model = AdaptiveModel(converted.config)
        missing, unexpected = model.load_state_dict(converted.weights, strict=False)
    if converted.has_new_classifiers:
        missing = [key for key in missing if ".classifier." not in key]
    unused = [key for key in checkpoint.weights if key not in checkpoint.used and not _is_ignored(key, converted)]
    errors = [f"{key} is missing" for key in missing] + [f"{key} is unexpected" for key in [*unexpected, *unused]]
    if errors:
        rest = f" and {len(errors) - 5} more" if len(errors) > 5 else ""
        raise BadModel(f"{checkpoint.folder}: the weights do not match the config: {', '.join(errors[:5])}{rest}.")
    return model.eval()


def _is_ignored(key: str, converted: Converted) -> bool:
    return any(re.search(pattern, key) for pattern in (*IGNORED_KEYS, *converted.ignored_keys))


def _tokenizer(source: Path, family: str) -> PreTrainedTokenizerBase | None:
    if not any((source / name).is_file() for name in VOCABULARY_FILES):
        return None
    with loading(source, "tokenizer"):
        return getattr(transformers, TOKENIZERS[family]).from_pretrained(source)
