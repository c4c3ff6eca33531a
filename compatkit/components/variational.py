"""The three components of a variational autoencoder: encoder, mean and log-variance layers, decoder.

The network is cut after ``encoder`` and after ``latent``; the decoder begins with sampling the latent variables (in
eval mode it uses their means). The layers between are one linear map, stored as a projection: the adapter with which
``Registry.recombine`` joins any encoder and decoder.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.blueprints import build_pair, structural
from compatkit.adapters.cutting.planning import plan
from compatkit.adapters.stitching.layers import build_adapter
from compatkit.contracts.contract import Blueprint, Data, Structural
from compatkit.contracts.kinds import Kind
from compatkit.contracts.stitch import ports_after, project
from compatkit.evaluation.feature_statistics import Moments, feature_moments
from compatkit.training.task_state import TaskState

MEAN, LOG_VARIANCE = "latent.mean", "latent.log_variance"
ROLES = {"encoder": "up to its hidden vector", "latent": "mean and log-variance layers", "decoder": "decoder"}


@attrs.frozen(eq=False)
class VAEPart:
    """One of the three components, on the CPU and in eval mode.

    Attributes:
        role: Key of ``ROLES``.
        shape: Ports of the component.
        moments: Moments of the encoder's features; empty for the others, because a check would compare them.
    """

    role: str
    kind: Kind
    blueprint: Blueprint
    module: nn.Module
    shape: Structural
    data: Data
    moments: tuple[Moments, ...] = ()


def is_vae(state: TaskState) -> bool:
    """Return whether a task trained a complete network with mean and log-variance layers under these names."""
    names = state.extractor.state_dict().keys()
    wanted = {f"{layer}.{what}" for layer in (MEAN, LOG_VARIANCE) for what in ("weight", "bias")}
    return state.extractor_blueprint.cut == "decoder" and wanted <= names


def vae_parts(state: TaskState, trained: dict[str, Tensor]) -> tuple[VAEPart, VAEPart, VAEPart]:
    """Cut a trained VAE into its components.

    Args:
        state: State of the task.
        trained: All tensors of the network, on the CPU.

    Raises:
        CutError: It cannot be cut after ``encoder`` or ``latent``.
    """
    own, images = state.extractor_blueprint, state.task.data.train
    sides: dict[str, tuple[nn.Module, nn.Module, Blueprint, Blueprint]] = {}
    for split in ("encoder", "latent"):
        planned = plan(own.model, split, kwargs=own.kwargs, size=own.traced_size, builder=own.builder)
        network, left, right = build_pair(planned.extractor, planned.head, seed=0)
        network.load_state_dict(trained, strict=True)
        sides[split] = left.eval(), right.eval(), planned.extractor, planned.head
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
    joined = Structural(first.outputs, ports_after(first.outputs, linear))
    third = structural(decoder, lower, feature_ports=second.outputs)
    moments = feature_moments(encoder, first.outputs, images, data)
    return (
        VAEPart("encoder", "extractor", blueprint, encoder, first, data, moments),
        VAEPart("latent", "adapter", linear, build_adapter(linear, tensors), joined, data),
        VAEPart("decoder", "head", lower, decoder, third, data),
    )
