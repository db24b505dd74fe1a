"""Tiny random encoders of every family, and a small tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

from offramp.encoders.elasticbert import ElasticBertConfig

WORDS = ["good", "bad", "film", "a", "the", "not", "very", "dull", "lovely", "plot", "was", "it", "in", "long", "short"]
LAYERS = 4

COMMON = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
SIZES = COMMON | {"intermediate_size": 24, "max_position_embeddings": 40}

CONFIGS: dict[str, PreTrainedConfig] = {
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(**SIZES, pad_token_id=0),
    "xlm-roberta": XLMRobertaConfig(**SIZES, pad_token_id=0),
    "albert": AlbertConfig(**SIZES, embedding_size=8, num_hidden_groups=2, inner_group_num=2),
    "elasticbert": ElasticBertConfig(**SIZES, num_output_layers=LAYERS, max_output_layers=LAYERS),
    "distilbert": DistilBertConfig(
        vocab_size=40, dim=16, n_layers=LAYERS, n_heads=4, hidden_dim=24, max_position_embeddings=40
    ),
    "electra": ElectraConfig(**SIZES, embedding_size=8),
    "deberta-v2": DebertaV2Config(
        **SIZES,
        relative_attention=True,
        position_biased_input=False,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        conv_kernel_size=3,
        conv_act="gelu",
    ),
    "modernbert": ModernBertConfig(**SIZES, pad_token_id=0, local_attention=6, classifier_pooling="mean"),
    "mpnet": MPNetConfig(**SIZES, pad_token_id=0),
}
FAMILY_NAMES = tuple(CONFIGS)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer with a small vocabulary, [CLS] and [SEP], and token types for pairs."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocab = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=38,
    )


def amplify_weights(model: torch.nn.Module, seed: int, scale: float = 6.0) -> None:
    """Scale random weights, so that layers and predictions differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embedding" not in name:
                parameter.mul_(scale)
            elif name.endswith("bias"):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def save_classifier(name: str, folder: Path, num_labels: int = 3, seed: int = 0, **changes) -> Path:
    """Save a `…ForSequenceClassification` of a family with a tokenizer."""
    torch.manual_seed(seed)
    config = CONFIGS[name].__class__.from_dict(CONFIGS[name].to_dict() | changes)
    config.id2label = {i: f"class {i}" for i in range(num_labels)}
    config.label2id = {f"class {i}": i for i in range(num_labels)}
    model = AutoModelForSequenceClassification.from_config(config).eval()
    amplify_weights(model, seed)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TAGGED_FAMILIES = tuple(name for name in CONFIGS if name != "elasticbert")  # it has no head per token


def piece_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that splits words into pieces, as BERT's does."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = ["go", "##od", "##ly", "fil", "##m", "pl", "##ot", ",", ".", "##s"]
    vocab = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *pieces])}
    core = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=38,
    )


def save_tagger(name: str, folder: Path, seed: int = 0, tags: tuple[str, ...] = TAGS, **changes) -> Path:
    """Save a `…ForTokenClassification` of a family with a tokenizer of word pieces."""
    torch.manual_seed(seed)
    config = CONFIGS[name].__class__.from_dict(CONFIGS[name].to_dict() | changes)
    config.id2label = dict(enumerate(tags))
    config.label2id = {tag: index for index, tag in enumerate(tags)}
    model = AutoModelForTokenClassification.from_config(config).eval()
    amplify_weights(model, seed)
    model.save_pretrained(folder)
    piece_tokenizer().save_pretrained(folder)
    return folder


def save_encoder(name: str, folder: Path, seed: int = 0, **changes) -> Path:
    """Save an encoder of a family without a head, with a tokenizer."""
    torch.manual_seed(seed)
    model = AutoModel.from_config(CONFIGS[name].__class__.from_dict(CONFIGS[name].to_dict() | changes)).eval()
    amplify_weights(model, seed)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def adaptive(name: str, folder: Path, *, seed: int = 0, **options):
    """Return an AdaptiveModel on an encoder of a family, with scaled random heads."""
    from offramp import AdaptiveModel

    model = AdaptiveModel.from_backbone(save_encoder(name, folder, seed), **options)
    amplify_weights(model.exits, seed + 1, scale=20.0)
    return model.eval()


def random_batch(rows: int, seed: int, longest: int = 12, types: bool = True) -> dict[str, torch.Tensor]:
    """Return random token ids of random lengths, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (rows,), generator=generator)
    ids = torch.randint(4, 40, (rows, longest), generator=generator)
    ids[:, 0] = 2
    real = torch.arange(longest) < lengths[:, None]
    batch = {"input_ids": torch.where(real, ids, 0), "attention_mask": real.long()}
    if types:
        second_half = torch.arange(longest) >= (lengths // 2)[:, None]
        batch["token_type_ids"] = (second_half & real).long()
    return batch
