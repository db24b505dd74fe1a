"""Checkpoints of the original code bases as our models.

| kind          | whose                                                       |
|---------------|-------------------------------------------------------------|
| `deebert`     | DeeBERT, its Hugging Face port, DeeBERT+SD                  |
| `romebert`    | RomeBERT; the keys are DeeBERT's, only the card tells       |
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
from offramp.files.faults import loading
from offramp.files.writing import staged_folder
from offramp.model.adaptive import AdaptiveModel
from offramp.originals.convert import ebert, elasticbert, highway, pabee
from offramp.originals.convert.checkpoint import Checkpoint, Converted, ConvertOptions, read
from offramp.registry import Registry

__all__ = ["KINDS", "ConvertOptions", "convert", "detect", "read"]


@dataclass(frozen=True)
class Kind:
    """An original: its name, its title for the card, and how its checkpoints are read."""

    name: str
    title: str
    convert: Callable[[Checkpoint, ConvertOptions], Converted]


KINDS: Registry[Kind] = Registry(
    "kind of checkpoint",
    [
        Kind("deebert", "DeeBERT", highway.convert),
        Kind("romebert", "RomeBERT", highway.convert),
        Kind("berxit", "BERxiT", highway.convert),
        Kind("elasticbert", "ElasticBERT", elasticbert.convert),
        Kind("pabee", "PABEE", pabee.convert),
        Kind("ebert", "EBERT", ebert.convert),
    ],
)

# second copies, teachers, buffers: nothing that answers
NOT_OURS = (r"^core\.", r"^slow_", r"position_ids$", r"^predictions\.", r"^sop_classifier\.", r"^cls\.")

TOKENIZERS = {
    "bert": "BertTokenizer",
    "elasticbert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "albert": "AlbertTokenizer",
}
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")


def detect(checkpoint: Checkpoint) -> Kind:
    """The original that wrote a checkpoint, from its keys."""
    if highway.prefix_of(checkpoint) is not None:
        return KINDS["berxit" if highway.is_berxit(checkpoint) else "deebert"]
    if elasticbert.is_elasticbert(checkpoint):
        return KINDS["elasticbert"]
    if pabee.prefix_of(checkpoint) is not None:
        return KINDS["pabee"]
    if ebert.prefix_of(checkpoint) is not None:
        return KINDS["ebert"]
    raise BadModel(
        f"{checkpoint.folder} is of no known original ({', '.join(KINDS)}). "
        "An ordinary classifier gets exits with AdaptiveModel.from_backbone."
    )


def convert(
    source: str | Path,
    output: str | Path,
    *,
    kind: str | None = None,
    options: ConvertOptions = ConvertOptions(),  # noqa: B008 -- frozen
    overwrite: bool = False,
) -> list[str]:
    """Write a model folder from an original's checkpoint; returns what its reader should know."""
    checkpoint = read(Path(source))
    chosen = detect(checkpoint) if kind is None else KINDS[kind]
    if options.pad_to is not None and chosen.name != "ebert":
        raise BadValue("Only an EBERT checkpoint reads padding; leave `pad_to=` out.")
    if options.no_answer and chosen.name != "ebert":
        raise BadValue("Only an EBERT checkpoint may answer questions; leave `no_answer=` out.")
    try:
        converted = chosen.convert(checkpoint, options)
    except KeyError as err:
        raise BadModel(f"{source}: config.json lacks {err}.") from err
    model = _build(checkpoint, converted)
    model.config.choose(options.policy)
    notes = [f"Converted from {chosen.title}.", *converted.notes]
    if options.faithful:
        notes.append("Faithful: it does as the original did, also where nobody should want it.")
    model.config.notes = " ".join(notes)
    tokenizer = _tokenizer(checkpoint.folder, model.config.family.name)
    if tokenizer is None:
        notes.append(
            "The checkpoint has no tokenizer: put the backbone's files beside the model before it reads texts."
        )
    else:
        model.tokenizer = tokenizer
    with staged_folder(Path(output), overwrite) as stage:
        model.save_pretrained(stage)
    return notes


def _build(checkpoint: Checkpoint, converted: Converted) -> AdaptiveModel:
    with loading(checkpoint.folder):
        model = AdaptiveModel(converted.config)
        missing, unknown = model.load_state_dict(converted.weights, strict=False)
    if converted.fresh_classifiers:
        missing = [key for key in missing if ".classifier." not in key]
    left = [key for key in checkpoint.weights if key not in checkpoint.used and not _may_be_left(key, converted)]
    wrong = [f"{key} is missing" for key in missing] + [f"{key} is not known" for key in [*unknown, *left]]
    if wrong:
        rest = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise BadModel(f"{checkpoint.folder} does not hold the weights of its config: {', '.join(wrong[:5])}{rest}.")
    return model.eval()


def _may_be_left(key: str, converted: Converted) -> bool:
    return any(re.search(pattern, key) for pattern in (*NOT_OURS, *converted.leaves))


def _tokenizer(source: Path, family: str) -> PreTrainedTokenizerBase | None:
    if not any((source / name).is_file() for name in VOCABULARIES):
        return None
    with loading(source, "tokenizer"):
        return getattr(transformers, TOKENIZERS[family]).from_pretrained(source)
