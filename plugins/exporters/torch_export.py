"""torch.export: a program that ``torch.export.load`` runs with torch alone; an extra file describes the network.

Cost: torch traces the network, some seconds for a ResNet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from compatkit import hookimpl
from compatkit.hooks import Register

from ._shapes import any_batch

compatkit_api = 1


@hookimpl
def compatkit_exporters(register: Register) -> None:
    """Offer ``torch_export``."""
    register("torch_export", export)


def export(
    file: Path, module: nn.Module, inputs: tuple[Any, ...], description: str, strict: bool = False
) -> None:
    """Write a network for any batch size.

    Args:
        file: Path to write; torch wants it to end in ``.pt2``.
        module: The network, in eval mode.
        inputs: Example arguments with a batch of two.
        description: JSON that describes the network, stored as the extra file ``compatkit.json``.
        strict: Trace Python's bytecode, as ``torch.export.export`` calls it.
    """
    program = torch.export.export(module, inputs, dynamic_shapes=any_batch(inputs), strict=strict)
    torch.export.save(program, file, extra_files={"compatkit.json": description})
