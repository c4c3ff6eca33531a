"""Two parts that are one network behind a known change of channels, made by hand."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from sample_components import extractor, head, labels, loaded, maps
from small import data_set
from torch import Tensor, nn

from compatkit.components.bridges.building import Ladder
from compatkit.components.bridges.inputs import BridgeInputs, BridgeRequest, bridge_inputs
from compatkit.contracts.contract import Structural
from compatkit.data.dataset import Split
from compatkit.evaluation.component import Component

CLASSES = ("0", "1", "2")


class Features(nn.Module):
    """Four signed maps of gray images of 8x8, then mixed."""

    def __init__(self, mixing: Tensor) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        draw = torch.Generator().manual_seed(0)
        for parameter in self.conv.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw)
        self.mixing = mixing

    def forward(self, images: Tensor) -> Tensor:
        return torch.einsum("oi,nihw->nohw", self.mixing, self.conv(images))


class Head(nn.Module):
    """Two linear layers take the features, as in a residual block with a shortcut."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.main, self.short = nn.Conv2d(4, 6, 3, 2, 1, bias=bias), nn.Conv2d(4, 6, 1, 2, bias=bias)
        self.norm, self.other = nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.last = nn.Linear(6 * 16, 3)
        draw = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw) * 0.5

    def forward(self, features: Tensor) -> Tensor:
        both = self.norm(self.main(features)) + self.other(self.short(features))
        return self.last(both.relu().flatten(1))


def part(name: str, mixing: Tensor) -> Component:
    """Return an extractor."""
    return loaded(
        f"{name}.extractor", extractor(maps(len(mixing), 8, 8, range="signed")), Features(mixing).eval()
    )


def head_of(own: Component, module: nn.Module | None = None) -> Component:
    """Return the head that was made for an extractor."""
    port = own.manifest.contract.structural.outputs[0]
    made = head(port, classes=labels(*CLASSES), norm="batch")
    return loaded("own.head", made, (module or Head()).eval(), trained_with=own)


def images(count: int = 60, **settings: Any) -> Split:
    """Return images with one bright row a class."""
    return data_set("rows", size=(8, 8), count=count, **settings).train


def between(left: Component, own: Component, right: Component | None = None, **settings: Any) -> BridgeInputs:
    """Return what rungs between an extractor and the head of another stand on."""
    request = BridgeRequest(**{"data": images(), "max_images": 40, **settings})
    return bridge_inputs(left, right or head_of(own), own, request)


def climb(inputs: BridgeInputs, **settings: Any) -> Ladder:
    """Return a ladder on it."""
    return Ladder(inputs, settings.get("labels"), settings.get("test"))


def with_ports(part: Component, **ports: Any) -> Component:
    """Return a part with other ports in its contract."""
    contract = part.manifest.contract
    structural: Structural = attrs.evolve(contract.structural, **ports)
    manifest = attrs.evolve(part.manifest, contract=attrs.evolve(contract, structural=structural))
    return attrs.evolve(part, manifest=manifest)
