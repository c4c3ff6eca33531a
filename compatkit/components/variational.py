"""The three components of a variational autoencoder: encoder, mean and log-variance layers, decoder.

The encoder is cut behind ``encoder``, the decoder behind ``latent`` (it begins with the drawing of latent variables,
which in eval mode are their means). The layers between are one linear map, so that they are kept as a projection: the
adapter with which ``Registry.recombine`` joins any encoder and decoder.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.blueprints import build_pair, structural
from compatkit.adapters.cutting.planning import plan
from compatkit.adapters.stitching.layers import build_adapter
from compatkit.contracts.contract import Blueprint, Data, Kind, Structural
from compatkit.contracts.stitch import after, project
from compatkit.evaluation.feature_statistics import Moments, feature_moments
from compatkit.training.task_state import TaskState

MEAN, LOG_VARIANCE = "latent.mean", "latent.log_variance"
ROLES = {"encoder": "up to its hidden vector", "latent": "mean and log-variance layers", "decoder": "decoder"}


@attrs.frozen(eq=False)
class VAEPart:
    """One of the three, on the CPU and in eval mode.

    Attributes:
        role: A key of ``ROLES``.
        shape: Its ports.
        moments: Of the features that an encoder gives. A decoder has none: a check would compare them with those.
    """

    role: str
    kind: Kind
    blueprint: Blueprint
    module: nn.Module
    shape: Structural
    data: Data
    moments: tuple[Moments, ...] = ()


def is_vae(state: TaskState) -> bool:
    """Return whether a task trained a whole network with mean and log-variance layers under these names."""
    names = state.extractor.state_dict().keys()
    wanted = {f"{layer}.{what}" for layer in (MEAN, LOG_VARIANCE) for what in ("weight", "bias")}
    return state.extractor_blueprint.cut == "decoder" and wanted <= names


def vae_parts(state: TaskState, trained: dict[str, Tensor]) -> tuple[VAEPart, VAEPart, VAEPart]:
    """Cut a trained VAE into its components.

    Args:
        state: Of the task.
        trained: All tensors of the network, on the CPU.

    Raises:
        CutError: It cannot be cut behind ``encoder`` or ``latent``.
    """
    own, images = state.extractor_blueprint, state.task.data.train
    sides: dict[str, tuple[nn.Module, nn.Module, Blueprint, Blueprint]] = {}
    for split in ("encoder", "latent"):
        made = plan(own.model, split, kwargs=own.kwargs, size=own.traced_size, builder=own.builder)
        whole, left, right = build_pair(made.extractor, made.head, seed=0)
        whole.load_state_dict(trained, strict=True)
        sides[split] = left.eval(), right.eval(), made.extractor, made.head
    data = attrs.evolve(state.data, labels=None)
    encoder, _, blueprint, _ = sides["encoder"]
    before, decoder, upper, lower = sides["latent"]
    first, second = structural(encoder, blueprint), structural(before, upper)
    width = len(trained[f"{MEAN}.bias"]) + len(trained[f"{LOG_VARIANCE}.bias"])
    linear = project(first.outputs[0], width, False, data.size)
    tensors = {
        what: torch.cat([trained[f"{layer}.{what}"] for layer in (MEAN, LOG_VARIANCE)])
        for what in ("weight", "bias")
    }
    joined = Structural(first.outputs, after(first.outputs, linear))
    third = structural(decoder, lower, feature_ports=second.outputs)
    moments = feature_moments(encoder, first.outputs, images, data)
    return (
        VAEPart("encoder", "extractor", blueprint, encoder, first, data, moments),
        VAEPart("latent", "adapter", linear, build_adapter(linear, tensors), joined, data),
        VAEPart("decoder", "head", lower, decoder, third, data),
    )
