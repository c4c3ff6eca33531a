"""What batch normalization could give away: a task about views must be at chance where the views do not differ.

Half of every batch are ordinary digits, which a network learns the task on; half are probes that look the same in all
views, so that nothing but the statistics of the batch could tell which view is shown. A fair network answers the same
for all views of a probe: it is right once in as many answers as there are views, whatever it has learned.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import quick
from torch import Tensor

import compatkit as ck

SIDE, COUNT = 12, 128


@attrs.define(eq=False)
class Witness:
    """Keeps what an auxiliary head is given and answers, and which images of the last batch are probes."""

    head: str
    probes: Tensor
    features: Tensor = attrs.field(init=False)
    logits: Tensor = attrs.field(init=False)
    shown: Tensor = attrs.field(init=False)

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        setup.auxiliary[self.head].module.register_forward_hook(self._keep)

    def _keep(self, module: torch.nn.Module, inputs: tuple[Tensor], answered: Tensor) -> None:
        self.features, self.logits = inputs[0].detach(), answered.detach()

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        self.shown = self.probes[step.batch.index]

    def of_probes(self, values: Tensor) -> Tensor:
        """Return those of ``values``, one a view and image, that are of probes, ``(views, probes, ...)``."""
        return values.unflatten(0, (-1, len(self.shown)))[:, self.shown]


def digits(probes: np.ndarray) -> ck.DataSet:
    """Return digits as all images at even places, and ``probes`` as those at odd ones."""
    source = ck.data.load("digits").converted("RGB").resized((SIDE, SIDE)).train.images[:COUNT]
    images = source.copy()
    images[1::2] = probes[1::2]
    return ck.DataSet.of(
        "half", (images, np.arange(COUNT) % 2), (images[:2], np.arange(2)), ("ordinary", "probe")
    )


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (COUNT, *shape, 3), dtype=np.uint8)


def turned_alike() -> np.ndarray:
    """Return images that quarter turns and mirrors leave as they are."""
    values = noise(SIDE, SIDE).astype(np.int64)
    quarters = sum(np.rot90(values, turns, (1, 2)) for turns in range(4))
    return ((quarters + quarters[:, ::-1]) // 8).astype(np.uint8)


def tiled_alike(grid: int) -> np.ndarray:
    """Return images of equal tiles."""
    return np.tile(noise(SIDE // grid, SIDE // grid), (1, grid, grid, 1))


def plain() -> np.ndarray:
    """Return images of one color each, which crops and mirrors leave as they are."""
    return np.broadcast_to(noise(1, 1), (COUNT, SIDE, SIDE, 3)).copy()


def watched(use: ck.RegularizerConfig, probes: np.ndarray, steps: int) -> Witness:
    """Train with ``use`` in batches of ordinary images and probes; return what was seen in the last step."""
    witness = Witness(
        {"rotation_prediction": "rotation"}.get(use.name, use.name), torch.arange(COUNT) % 2 == 1
    )
    task = ck.Task("half", digits(probes), "resnet8_cifar", "layer2", size=(SIDE, SIDE))
    uses = [use, ck.use("witness", after=(use.name,))]
    quick(steps=steps, batch_size=32).fit([task], uses, factories={"witness": lambda: witness})
    assert witness.shown.any() and not witness.shown.all()
    return witness


def accuracy(witness: Witness) -> float:
    """Return the share of views that a probe classifies correctly."""
    answers = witness.of_probes(witness.logits).argmax(-1)
    return float((answers == torch.arange(len(answers))[:, None]).float().mean())


@pytest.mark.parametrize(
    ("use", "probes", "views"),
    [
        (ck.use("rotation_prediction"), turned_alike(), 4),
        (ck.use("rotation_prediction", half_turn="flip"), turned_alike(), 4),
        (ck.use("jigsaw"), tiled_alike(2), 4),
        (ck.use("jigsaw", grid=3, permutations=6), tiled_alike(3), 6),
    ],
    ids=["rotation", "rotation-flip", "jigsaw", "jigsaw-3"],
)
def test_views_that_do_not_differ_are_told_apart_by_chance(
    use: ck.RegularizerConfig, probes: np.ndarray, views: int
) -> None:
    witness = watched(use, probes, steps=12)
    logits = witness.of_probes(witness.logits)
    assert len(logits) == views
    assert (logits[0].std(0) > 0).any()  # it answers, and not the same for all probes
    torch.testing.assert_close(logits, logits[:1].expand_as(logits), rtol=1e-3, atol=1e-3)
    assert accuracy(witness) == pytest.approx(1 / views, abs=0.05)


def test_views_that_are_normalized_apart_are_told_by_their_statistics() -> None:
    """The leak that the default does not have; without it the test above could not fail."""
    witness = watched(ck.use("rotation_prediction", views="per_view"), turned_alike(), steps=60)
    assert accuracy(witness) > 0.4


def test_two_views_of_a_plain_image_are_one_to_contrastive_prediction() -> None:
    """Without changes of color; normalized apart, each view would carry the statistics of its own draw."""
    witness = watched(ck.use("contrastive", strength=0.0), plain(), steps=5)
    first, other = witness.of_probes(witness.features)
    assert first.std(0).max() > 0.1
    torch.testing.assert_close(first, other, rtol=1e-3, atol=1e-3)


def test_colorization_sees_nothing_but_brightness() -> None:
    """Probes of two colors of one luminance, to 1e-6: what the head is given does not tell which."""
    colors = np.array([(120, 120, 120), twin_of((120, 120, 120))], dtype=np.uint8)
    probes = np.broadcast_to(colors[(np.arange(COUNT) // 2) % 2][:, None, None], (COUNT, SIDE, SIDE, 3))
    witness = watched(ck.use("colorization", cells=1), probes, steps=5)
    (features,) = witness.of_probes(witness.features)
    torch.testing.assert_close(features, features[:1].expand_as(features), rtol=1e-3, atol=1e-3)


def twin_of(color: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return a color of nearly the same luminance (sRGB, D65) that lies far from ``color``."""
    levels = np.arange(256) / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    red, green, blue = (weight * linear for weight in (0.2126729, 0.7151522, 0.0721750))
    luminance = red[:, None, None] + green[None, :, None] + blue[None, None, :]
    wanted = red[color[0]] + green[color[1]] + blue[color[2]]
    far = np.abs(np.arange(256)[:, None, None] - color[0]) > 80
    distance = np.where(far, np.abs(luminance - wanted), np.inf)
    assert distance.min() < 1e-6
    return tuple(int(entry) for entry in np.unravel_index(distance.argmin(), distance.shape))  # type: ignore[return-value]


def test_quarter_turns_move_no_running_statistics() -> None:
    """What networks keep of their images is of upright ones, as without the task."""

    def statistics(*uses: Any) -> dict[str, Tensor]:
        task = ck.Task("half", digits(turned_alike()), "resnet8_cifar", "layer2", size=(SIDE, SIDE))
        fit = quick(steps=1, batch_size=32, lr=1e-30).fit([task], uses)
        return {name: weight for name, weight in fit.weights("half").items() if "running" in name}

    plain_run, with_task = statistics(), statistics("rotation_prediction")
    assert plain_run
    for name, value in plain_run.items():
        torch.testing.assert_close(with_task[name], value, rtol=1e-5, atol=1e-6)
