"""ONNX: one file for runtimes without torch; its metadata ``compatkit`` describe the network.

Cost: torch traces the network and translates it, some seconds for a ResNet. Weights of more than 2 GB do not fit.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compatkit import hookimpl
from compatkit.errors import MissingDependency
from compatkit.hooks import Register

from ._shapes import any_batch

compatkit_api = 1


@hookimpl
def compatkit_exporters(register: Register) -> None:
    """Offer ``onnx``."""
    register("onnx", export)


def export(
    file: Path, module: nn.Module, inputs: tuple[Any, ...], description: str, opset_version: int | None = None
) -> None:
    """Write a network for any batch size.

    Args:
        file: Path to write.
        module: The network, in eval mode.
        inputs: Example arguments with a batch of two.
        description: JSON that describes the network.
        opset_version: Version of ONNX's operators; torch's default if None.

    Raises:
        MissingDependency: onnx or onnxscript is not installed.
    """
    if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
        raise MissingDependency(
            f"ONNX files need {' and '.join(missing)}, not installed here. Run: pip install 'compatkit[onnx]'",
            subject=missing[0],
        )
    program = torch.onnx.export(
        module,
        inputs,
        dynamo=True,
        dynamic_shapes=any_batch(inputs),
        opset_version=opset_version,
        verbose=False,
    )
    program.model.metadata_props["compatkit"] = description  # pyright: ignore[reportOptionalMemberAccess]
    program.save(file, external_data=False)  # pyright: ignore[reportOptionalMemberAccess]
