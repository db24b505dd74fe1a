"""The families of encoders that can be stepped, one short file per family that differs."""

from __future__ import annotations

from offramp.backbones.albert import Albert
from offramp.backbones.bert import Bert, DistilBert, Electra, Roberta, XlmRoberta
from offramp.backbones.deberta import DebertaV2
from offramp.backbones.elasticbert import ElasticBert
from offramp.backbones.family import Family, HeadShape, Inside, OwnHead
from offramp.backbones.modernbert import ModernBert
from offramp.backbones.mpnet import MPNet
from offramp.registry import Registry

__all__ = ["FAMILIES", "Family", "HeadShape", "Inside", "OwnHead"]

FAMILIES: Registry[Family] = Registry(
    "backbone family",
    [
        Bert(),
        Roberta(),
        XlmRoberta(),
        Albert(),
        ElasticBert(),
        DistilBert(),
        Electra(),
        DebertaV2(),
        ModernBert(),
        MPNet(),
    ],
)
