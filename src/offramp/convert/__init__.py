"""Checkpoints of the original code bases as our models.

| kind          | whose                                                       |
|---------------|-------------------------------------------------------------|
| `deebert`     | DeeBERT, its Hugging Face port, DeeBERT+SD                  |
| `romebert`    | RomeBERT; the keys are DeeBERT's, only the card tells       |
| `berxit`      | BERxiT, with its LTE module                                 |
| `elasticbert` | ElasticBERT: static, dynamic, released                      |
| `pabee`       | PABEE on BERT and ALBERT                                    |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import transformers

from offramp import card, policies
from offramp.convert import elasticbert, highway, pabee
from offramp.convert.checkpoint import Checkpoint, Converted, Options, read
from offramp.errors import BadModel
from offramp.loading import loading
from offramp.model import AdaptiveModel
from offramp.registry import Registry
from offramp.writing import staged_folder

__all__ = ["KINDS", "Options", "convert", "detect", "read"]


@dataclass(frozen=True)
class Kind:
    """An original: its name, its title for the card, and how its checkpoints are read."""

    name: str
    title: str
    convert: Callable[[Checkpoint, Options], Converted]


KINDS: Registry[Kind] = Registry(
    "kind of checkpoint",
    [
        Kind("deebert", "DeeBERT", highway.convert),
        Kind("romebert", "RomeBERT", highway.convert),
        Kind("berxit", "BERxiT", highway.convert),
        Kind("elasticbert", "ElasticBERT", elasticbert.convert),
        Kind("pabee", "PABEE", pabee.convert),
    ],
)

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
    if any(".predictor." in key for key in checkpoint.weights):
        raise BadModel(f"{checkpoint.folder} is an EBERT checkpoint; converting those is not supported yet.")
    raise BadModel(
        f"{checkpoint.folder} is of no known original ({', '.join(KINDS)}). "
        "An ordinary classifier gets exits with AdaptiveModel.from_backbone."
    )


def convert(
    source: str | Path,
    output: str | Path,
    *,
    kind: str | None = None,
    options: Options = Options(),  # noqa: B008 -- frozen
    overwrite: bool = False,
) -> list[str]:
    """Write a model folder from an original's checkpoint; returns what its reader should know."""
    checkpoint = read(Path(source))
    chosen = detect(checkpoint) if kind is None else KINDS[kind]
    try:
        converted = chosen.convert(checkpoint, options)
    except KeyError as err:
        raise BadModel(f"{source}: config.json lacks {err}.") from err
    model = _build(checkpoint, converted)
    policies.parse(options.policy).check(model.config.problem, model.stepper.exits, options.faithful)
    notes = [f"Converted from {chosen.title}.", *converted.notes]
    if options.faithful:
        notes.append("Faithful: it does as the original did, also where nobody should want it.")
    with staged_folder(Path(output), overwrite) as stage:
        model.save_pretrained(stage)
        if not _save_tokenizer(checkpoint.folder, model.config.family.name, stage):
            notes.append(
                "The checkpoint has no tokenizer files: put the backbone's beside the model before it reads texts."
            )
        (stage / "README.md").write_text(card.model_card(model.config, notes=" ".join(notes)), encoding="utf-8")
    return notes


def _build(checkpoint: Checkpoint, converted: Converted) -> AdaptiveModel:
    with loading(checkpoint.folder):
        model = AdaptiveModel(converted.config)
        missing, unknown = model.load_state_dict(converted.weights, strict=False)
    if converted.fresh_classifiers:
        missing = [key for key in missing if ".classifier." not in key]
    wrong = [f"{key} is missing" for key in missing] + [f"{key} is not known" for key in unknown]
    if wrong:
        rest = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise BadModel(f"{checkpoint.folder} does not hold the weights of its config: {', '.join(wrong[:5])}{rest}.")
    return model.eval()


def _save_tokenizer(source: Path, family: str, target: Path) -> bool:
    if not any((source / name).is_file() for name in VOCABULARIES):
        return False
    with loading(source):
        getattr(transformers, TOKENIZERS[family]).from_pretrained(source).save_pretrained(target)
    return True
