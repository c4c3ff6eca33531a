"""Images of a fit come batch by batch, as if all had been prepared at once."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from sample_components import extractor, loaded, maps
from small import data_set
from torch import nn

from compatkit.components import projecting
from compatkit.components.projecting import BATCH, images_for
from compatkit.contracts.contract import Data
from compatkit.evaluation.batchnorm import batches
from compatkit.evaluation.component import Component
from compatkit.evaluation.preprocessing import normalize, prepare

COLOR = Data((8, 8), "RGB", (0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
GRAY = Data((8, 8), "L", (0.5,), (0.25,))


def part(data: Data) -> Component:
    """Return an extractor whose contract asks for such images."""
    manifest = extractor(maps(4, 8, 8))
    manifest = attrs.evolve(manifest, contract=attrs.evolve(manifest.contract, data=data))
    return loaded("some.extractor", manifest, nn.Identity())


@pytest.mark.parametrize("order", [None, 3])
@pytest.mark.parametrize(
    ("data", "size", "channels"),
    [
        (GRAY, (8, 8), 1),  # as they are
        (COLOR, (8, 8), 3),
        (COLOR, (8, 8), 1),  # gray to color
        (GRAY, (8, 8), 3),  # color to gray
        (GRAY, (29, 17), 1),  # another size
        (attrs.evolve(COLOR, interpolation="bicubic", crop_pct=0.9, crop_mode="center"), (21, 30), 1),
        (attrs.evolve(GRAY, interpolation="nearest", crop_pct=0.875), (21, 30), 3),
    ],
)
def test_the_same_bits_as_of_all_images_at_once(
    data: Data, size: tuple[int, int], channels: int, order: int | None
) -> None:
    images = data_set("some", size=size, channels=channels, count=2 * BATCH + 7).train
    whole = prepare(images, data).images
    wanted = [normalize(whole[positions], data) for positions in batches(len(images), BATCH, order)]
    output = list(images_for(part(data), images, order))
    assert len(output) == len(wanted) == 3
    for mine, slow in zip(output, wanted, strict=True):
        assert torch.equal(mine, slow) and mine.stride() == slow.stride()


def test_no_more_than_a_batch_is_prepared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counting(cut: Any, data: Data) -> Any:
        counts.append(len(cut))
        return prepare(cut, data)

    monkeypatch.setattr(projecting, "prepare", counting)
    inputs = images_for(part(GRAY), data_set("some", size=(30, 30), count=1000).train, 0)
    assert not counts and len(next(inputs)) == counts[0] <= BATCH
    assert sum(map(len, inputs)) == 1000 - counts[0] and sum(counts) == 1000 and max(counts) <= BATCH
