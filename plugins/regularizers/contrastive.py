"""Contrastive prediction: one shared head learns which two views are of one image, on all extractors.

Paper: Chen, Kornblith, Norouzi, Hinton (2020), "A Simple Framework for Contrastive Learning of Visual Representations"
    (SimCLR), arXiv:2002.05709, Sec. 2, App. A (views) and B.9 (small images: no blur, color strength .5, temperature
    .5). Named as a task to try by Gygli et al. (2021), App. A.
Equations: Eq. 1 (NT-Xent), l(i, j) = -log(exp(sim(z_i, z_j) / tau) / sum over k != i of exp(sim(z_i, z_k) / tau)), its
    mean over both views of every image; sim is the cosine, z = s(f_t(view)).
Negatives: both views of the other images in the same batch of the same task. Images of other tasks, whose batches
    take other steps, are never contrasted with them; what tasks have in common is the head. Under several processes
    they are those of the process, under gradient accumulation those of the piece, so that both change the loss.
Differences: the projection head has the shape of a target head (what comes after the cut), as all shared heads, and
    not of two linear layers; crops whose sides would be longer than the image are cut off instead of drawn again; hues
    turn in the plane of YIQ and not of HSV, and colors change in a fixed order and not in a random one.
Cost: an extractor pass twice as large, and twice the batch through one more head, a step; draws on the CPU.
Limits: it needs batches of many images, since negatives come from the batch; so gradient accumulation and several
    processes change the loss. On digits it made nothing fit in two seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from compatkit import AuxiliaryHead, SetUp, Step, autocast, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import FLAG, Number
from compatkit.hooks import Register

compatkit_api = 1
LONGEST = 4 / 3
"""Largest ratio of the sides of a crop."""
CHANGED, GRAY = 0.8, 0.2
"""Share of the views whose colors are changed, and of those that are made gray."""
BRIGHTNESS, HUE = 0.8, 0.2
"""Range of the factors of brightness, contrast and saturation, and of turns of the hue, at a strength of 1."""
YIQ = ((0.299, 0.587, 0.114), (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135))
"""Luma and the two chroma axes of NTSC from red, green and blue."""


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``contrastive``."""
    register("contrastive", Contrastive)


def nt_xent(first: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Return the normalized temperature-scaled cross-entropy of two views of every image, in nats.

    Args:
        first: Projections of the first views, ``(batch, dimensions)``; computed in float32 at least.
        other: Features of the second views, in the same order.
        temperature: Divisor of cosines.

    Returns:
        A scalar, float32 at least: the mean over both views of all images.
    """
    projections = torch.cat([first, other])
    wide = torch.promote_types(projections.dtype, torch.float32)
    with torch.autocast(projections.device.type, enabled=False):
        unit = F.normalize(projections.to(wide), dim=1)
        similar = unit @ unit.T / temperature
    count = len(first)
    similar = similar.masked_fill(torch.eye(2 * count, dtype=torch.bool, device=unit.device), -torch.inf)
    partner = torch.arange(2 * count, device=unit.device).roll(count)
    return F.cross_entropy(similar, partner)


def cropped(images: Tensor, least_area: float, flip: bool) -> Tensor:
    """Return a crop of each image, resized to its size by bilinear interpolation, drawn from torch's CPU generator.

    Args:
        images: ``(batch, channels, height, width)``.
        least_area: Smallest area of a crop, as a share of the image; areas are uniform from there to 1.
        flip: Whether half of the images are mirrored.

    Returns:
        In the shape of ``images``.
    """
    count = len(images)
    area = least_area + (1 - least_area) * torch.rand(count)
    ratio = torch.exp((2 * torch.rand(count) - 1) * math.log(LONGEST))
    sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1).clamp(max=1)  # width, height
    center = (1 - sides) * (2 * torch.rand(count, 2) - 1)
    mirrored = torch.rand(count) < 0.5
    if flip:
        sides[:, 0] = torch.where(mirrored, -sides[:, 0], sides[:, 0])
    affine = torch.cat([torch.diag_embed(sides), center[:, :, None]], 2)
    grid = F.affine_grid(affine.to(images.device, non_blocking=True), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid.to(images.dtype), padding_mode="border", align_corners=False)


def colored(images: Tensor, strength: float) -> Tensor:
    """Return images in other colors, drawn from torch's CPU generator.

    Brightness and contrast change, of images of three channels saturation and hue too; a fifth of these is made gray.

    Args:
        images: On the scale 0 to 1, ``(batch, 1 or 3, height, width)``.
        strength: Strength of the changes; 1 is the paper's for large images, .5 for small ones.

    Returns:
        In the shape of ``images``.
    """
    count = len(images)
    factors = 1 + BRIGHTNESS * strength * (2 * torch.rand(3, count) - 1)
    turn = 2 * math.pi * HUE * strength * (2 * torch.rand(count) - 1)
    changed, gray = torch.rand(count) < CHANGED, torch.rand(count) < GRAY
    brightness, contrast, saturation = torch.where(changed, factors, torch.ones(()))
    if images.shape[1] == 3:
        mixing = _mixing(saturation, turn * changed) * ~gray[:, None, None]
        mixing = mixing + gray[:, None, None] * torch.tensor([YIQ[0]] * 3)
        mixing = mixing.to(images)
        parts = images.unbind(1)
        images = sum(part[:, None] * mixing[:, :, index, None, None] for index, part in enumerate(parts))  # type: ignore[assignment]
    brightness, contrast = (factor.to(images)[:, None, None, None] for factor in (brightness, contrast))
    bright = images * brightness
    middle = bright.mean((1, 2, 3), keepdim=True)
    return ((bright - middle) * contrast + middle).clamp(0, 1)


def _mixing(saturation: Tensor, turn: Tensor) -> Tensor:
    """Return the matrix of each image that scales and turns its chroma and keeps its luma, ``(batch, 3, 3)``."""
    forth = torch.tensor(YIQ, dtype=torch.float64)
    inner = torch.zeros(len(turn), 3, 3, dtype=torch.float64)
    inner[:, 0, 0] = 1
    inner[:, 1, 1] = inner[:, 2, 2] = saturation.double() * turn.double().cos()
    inner[:, 2, 1] = saturation.double() * turn.double().sin()
    inner[:, 1, 2] = -inner[:, 2, 1]
    return (torch.linalg.inv(forth) @ inner @ forth).float()


@attrs.define(eq=False)
class Contrastive:
    """Trains a shared projection head on two views of every image.

    Extractor and head see both views in one batch (the paper: Sec. 2.2, global BN): normalized apart, their statistics
    would reveal the set of a view, and with it half of the negatives. The extractor's running statistics are not
    updated. Random numbers are drawn for every task, step, micro-batch and process, from the seed of the run.

    Attributes:
        temperature: Divisor of cosines, above 0.
        dimensions: Dimensions of the projection, at least 2.
        least_area: Smallest area of a crop, as a share, above 0 and at most 1. The paper's .08 is small for digits.
        flip: Whether half of the views are mirrored; False for digits.
        strength: Strength of changes of brightness, contrast, saturation and hue, 0 to 1; 0 does not change colors.

    Raises:
        UsageError: A setting outside its range.
    """

    temperature: float = attrs.field(default=0.5, validator=Number(above=0))
    dimensions: int = attrs.field(default=128, validator=Number(least=2, whole=True))
    least_area: float = attrs.field(default=0.08, validator=Number(above=0, most=1))
    flip: bool = attrs.field(default=True, validator=FLAG)
    strength: float = attrs.field(default=0.5, validator=Number(least=0, most=1))
    _head: AuxiliaryHead = attrs.field(init=False)
    _scales: dict[str, tuple[Tensor, Tensor]] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Add the projection head, or take the frozen one."""
        self._head = setup.add_auxiliary_head("contrastive", outputs=self.dimensions)
        for state in setup.tasks.values():
            mean, std = (torch.tensor(values)[:, None, None] for values in (state.data.mean, state.data.std))
            self._scales[state.name] = mean.to(setup.precision.device), std.to(setup.precision.device)

    @hookimpl
    @effect("host")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the mean of NT-Xent over both views of every image.

        Raises:
            UsageError: A plugin left a single image of the batch, which has no negatives.
        """
        if (count := len(step.batch.images)) < 2:
            raise UsageError(
                f"contrastive needs two images at least, one to contrast with the other; a batch of task "
                f"{step.task.name!r} has {count}. Give it larger batches."
            )
        views = torch.cat([self._view(step) for _ in range(2)])
        first, other = self._head(step.extract(views, write_statistics=False)).chunk(2)
        return {"loss": nt_xent(first, other, self.temperature)}

    def _view(self, step: Step) -> Tensor:
        mean, std = self._scales[step.task.name]
        view = cropped(step.batch.images, self.least_area, self.flip)
        if self.strength:
            view = (colored(view * std + mean, self.strength) - mean) / std
        return view.contiguous(memory_format=step.precision.memory_format)
