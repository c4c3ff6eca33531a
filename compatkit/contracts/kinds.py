"""Kinds of components."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "extractor", "head", "auxiliary_head", "adapter", "encoder", "latent", "decoder", "recombination"
]
EXTRACTORS = ("extractor", "encoder")
"""Kinds that produce features."""
HEADS = ("head", "auxiliary_head")
"""Kinds that consume features; a shared auxiliary head that classifies may replace a network's own head."""
