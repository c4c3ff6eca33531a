"""The discriminator and the losses of ``adversarial`` and ``adversarial_in_turns``; see there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from compatkit import LayerCall, SetUp, Step, TaskState, autocast, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import WHOLE, Number

from ._generated import ImageObjective
from .reverse_pass._chains import residual


class Critic(nn.Module):
    """A discriminator that also gives its layers.

    Args:
        network: ``image_discriminator``, or another ``conv_chain`` with one output.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor], list[LayerCall]]:
        """Return logits ``(batch, 1)``, the maps of each layer, and the calls of its convolutions."""
        maps, calls = [], []
        for name, layer in self.network.named_children():
            if name.startswith("layer"):
                output = layer.linear(images)  # pyright: ignore[reportCallIssue]
                calls.append(LayerCall(images, output, layer.linear))  # pyright: ignore[reportArgumentType]
                images = layer.act(layer.norm(output))  # pyright: ignore[reportCallIssue]
                maps.append(images)
        return self.network.fc(images.flatten(1)), maps, calls  # pyright: ignore[reportCallIssue]


@attrs.define(eq=False)
class Adversarial(ImageObjective):
    """Trains a discriminator for each task, which the run owns, and the task's network against it.

    Attributes:
        condition: Factor of the average of the task's image, which the discriminator sees beside it and beside the
            network's; 0 for none.
        features: Weight of the loss in feature space.
        channels: Channels of the discriminator's convolutions.
        noise: Deviation of the Gaussian noise on all images that the discriminator sees (Sonderby et al. 2017), so that
            it does not tell them apart at once; 0 for none.
        reverse: Weight of the local reverse pass of the discriminator's convolutions, for real and generated images.

    Raises:
        UsageError: A setting is out of range, or the images cannot be averaged by that factor.
    """

    condition: int = attrs.field(default=0, validator=WHOLE)
    features: float = attrs.field(default=0.0, validator=Number(least=0))
    channels: Sequence[int] = (16, 32, 64, 64)
    noise: float = attrs.field(default=0.0, validator=Number(least=0))
    reverse: float = attrs.field(default=0.0, validator=Number(least=0))
    _critics: dict[str, Critic] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Build the discriminators."""
        ImageObjective.compatkit_set_up(self, setup)
        for state in setup.tasks.values():
            if self.condition and any(side % self.condition for side in state.data.size):
                raise UsageError(
                    f"adversarial: condition must divide both sides of an image, and {self.condition} does not divide "
                    f"those of task {state.name!r}, {state.data.size}. Choose a factor of both, or 0 for none.",
                    subject=state.name,
                )
            self._critics[state.name] = Critic(self._built(setup, state))

    def _built(self, setup: SetUp, state: TaskState) -> nn.Module:
        channels = len(state.data.mean)
        kwargs = {"in_chans": channels * (2 if self.condition else 1), "img_size": list(state.data.size)}
        plan = attrs.evolve(
            state.extractor_blueprint,
            builder="compatkit",
            model="image_discriminator",
            kwargs={**kwargs, "channels": list(self.channels), "num_classes": 1},
            cut="fc",
            approach="fx",
            traced_size=state.data.size,
            width=None,
        )
        return setup.build(plan, "discriminator", state.name)

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the losses of both sides."""
        critic, real, generated = self._critics[step.task.name], step.batch.images, step.features
        shown = self._beside(torch.cat([real, generated.detach()]), real)
        logits, maps, calls = critic(shown)
        of_real, of_made = logits.float().chunk(2)
        losses = {"discriminator": F.softplus(-of_real).mean() + F.softplus(of_made).mean()}
        if self.reverse:
            losses["reverse"] = self.reverse * torch.stack([residual(call) for call in calls]).sum()
        fixed = {name: parameter.detach() for name, parameter in critic.named_parameters()}
        judged, seen, _ = functional_call(critic, fixed, (self._beside(generated, real),))
        losses["generator"] = F.softplus(-judged.float()).mean()
        if self.features:
            distances = [
                F.mse_loss(fake.float(), real.chunk(2)[0].detach().float())
                for fake, real in zip(seen, maps, strict=True)
            ]
            losses["features"] = self.features * torch.stack(distances).mean()
        return losses

    def _beside(self, images: Tensor, real: Tensor) -> Tensor:
        """Return images beside the enlarged averages of the real ones, in channels."""
        if self.noise:
            images = images + self.noise * torch.randn_like(images)
        if not self.condition:
            return images
        low = F.interpolate(
            F.avg_pool2d(real, self.condition), scale_factor=float(self.condition), mode="nearest"
        )
        return torch.cat([images, low.repeat(len(images) // len(real), 1, 1, 1)], 1)
