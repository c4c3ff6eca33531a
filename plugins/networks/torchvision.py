"""torchvision: its image classifiers, each with a configuration as timm's models carry one.

What a network was made for is read from the metadata of its default weights, which needs no download.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from torch import Tensor, nn
from torch.hub import get_dir
from torchvision import __version__, models
from torchvision.models import get_model_builder, get_model_weights, list_models

from compatkit import hookimpl
from compatkit.errors import UsageError, WeightsUnavailable
from compatkit.foundation.limits import COUNT
from compatkit.hooks import Register

compatkit_api = 1
OFFLINE = "HF_HUB_OFFLINE"
"""Variable of the environment that keeps every library from fetching weights."""
_AUXILIARY = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}
_OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.(?=[12]\.)")


class MNASNet(models.MNASNet):
    """torchvision's, taking a state dict without version as one of today's: safetensors keeps no version."""

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        stated = {"version": self._version, **local_metadata}
        super()._load_from_state_dict(state_dict, prefix, stated, *args, **kwargs)


@hookimpl
def compatkit_builders(register: Register) -> None:
    """Offer ``torchvision``."""
    register("torchvision", build)


def build(model: str, **kwargs: Any) -> nn.Module:
    """Build a classifier with random weights.

    GoogLeNet and Inception are built without auxiliary outputs (in train mode these give a named tuple in place of
    the logits) and without ``transform_input``: images normalized by mean and std .5 take its place, as the
    configuration says. A Vision Transformer and MaxViT take ``img_size`` as timm's do.

    Args:
        model: torchvision's name of the classifier.
        kwargs: Keyword arguments of the model, timm's ``img_size`` for transformers, and ``in_chans=3``.

    Raises:
        UsageError: Images of other than 3 channels are asked for, or no such image size or class count can be built.
    """
    arguments = _arguments(model, kwargs)
    network = get_model_builder(model)(weights=None, **arguments)
    if isinstance(network, models.MNASNet):
        network.__class__ = MNASNet
    vars(network)["pretrained_cfg"] = _configuration(model, network, arguments)
    return network


def expression(model: str, kwargs: Mapping[str, Any]) -> str | None:
    """Return Python code that builds the same network with torchvision alone; None if that gives another one.

    Args:
        model: torchvision's name of the classifier.
        kwargs: As for ``build``.
    """
    if model in _AUXILIARY or model.startswith("mnasnet"):  # other outputs; weights of an older version
        return None
    arguments = "".join(f", {key}={value!r}" for key, value in _arguments(model, kwargs).items())
    return f"torchvision.models.get_model({model!r}{arguments})"


def renamed(model: str, state: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return tensors under today's names, without auxiliary outputs, and what was done for that, in words.

    Args:
        model: Name of the classifier.
        state: Tensors by name, as torchvision's files hold them.
    """
    current = {_OLD_DENSE.sub(r"\1", name): value for name, value in state.items()}
    changed = len(current.keys() - state.keys())
    notes = [f"renamed {changed} tensors as torchvision does"] if changed else []
    auxiliary = (
        [name for name in current if name.startswith(_AUXILIARY.get(model, ()))]
        if model in _AUXILIARY
        else []
    )
    if auxiliary:
        notes.append(
            f"left out {len(auxiliary)} tensors of auxiliary outputs, which are used in training only"
        )
    return {name: value for name, value in current.items() if name not in set(auxiliary)}, tuple(notes)


def _arguments(model: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return torchvision's own keyword arguments."""
    arguments = dict(kwargs)
    if (channels := arguments.pop("in_chans", 3)) != 3:
        raise UsageError(
            f"{model}: torchvision's classifiers take RGB images, in_chans=3; got {channels!r}. Give the images three "
            "channels, or take a model of timm, which builds the first layer for any count.",
            subject=model,
        )
    COUNT.check(model, num_classes=arguments.get("num_classes", 1000))
    if model in _AUXILIARY:
        if arguments.setdefault("aux_logits", False):
            raise UsageError(
                f"{model}: with aux_logits the network gives a named tuple in train mode, not logits. It is built "
                "without auxiliary outputs; leave aux_logits out.",
                subject=model,
            )
        arguments.setdefault("init_weights", True)  # torchvision's default, which warns unless it is stated
    if model.startswith(("vit_", "maxvit")):
        height, width = _sides(model, arguments.pop("img_size", _weights(model).meta["min_size"]))
        if model.startswith("maxvit"):
            arguments.setdefault("input_size", (height, width))
        elif height == width:
            arguments.setdefault("image_size", height)
        else:
            raise UsageError(
                f"{model}: torchvision builds it for square images; got {height} x {width}.", subject=model
            )
    return arguments


def _sides(model: str, size: Any) -> tuple[int, int]:
    """Return height and width from timm's ``img_size``: one number, or two."""
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(sides) == 2 and all(type(side) is int and side > 0 for side in sides):
        return sides
    raise UsageError(
        f"{model}: img_size is one whole number or two (height, width), got {size!r}.", subject=model
    )


def _configuration(model: str, network: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the network was made for, with the names that timm's ``pretrained_cfg`` has."""
    made_for = _weights(model).transforms()
    crop, resized = made_for.crop_size[0], made_for.resize_size[0]
    mean, std = tuple(made_for.mean), tuple(made_for.std)
    if model in _AUXILIARY and not arguments.get("transform_input"):
        mean, std = (0.5,) * 3, (0.5,) * 3
    own = getattr(network, "image_size", None) or arguments.get("input_size") or crop
    height, width = (own, own) if isinstance(own, int) else own
    classes = int(arguments.get("num_classes", 1000))
    return {
        "architecture": model,
        "num_classes": classes,
        "input_size": (3, height, width),
        "fixed_input_size": model.startswith(("vit_", "maxvit")),
        "interpolation": made_for.interpolation.value,
        "crop_pct": crop / resized,
        "crop_mode": "center",
        "mean": mean,
        "std": std,
        "classifier": _class_layer(network, classes),
    }


def _class_layer(network: nn.Module, classes: int) -> str | None:
    """Return the path of the last layer that gives one number a class."""
    for path, module in reversed(list(network.named_modules())):
        width = module.out_features if isinstance(module, nn.Linear) else None
        width = module.out_channels if isinstance(module, nn.Conv2d) else width
        if width == classes:
            return path
    return None


def _weights(model: str) -> Any:
    return get_model_weights(model)["DEFAULT"]


def pretrained(model: str, network: nn.Module) -> dict[str, Tensor]:
    """Return torchvision's default weights under today's names; fetched where the cache lacks them.

    Args:
        model: Name of the classifier.
        network: The network as built, for the counts of batches that older files lack.

    Raises:
        WeightsUnavailable: They could not be fetched or read.
    """
    weights, own = _weights(model), network.state_dict()
    cached = Path(get_dir()) / "checkpoints" / PurePosixPath(weights.url).name
    try:
        if os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE") and not cached.exists():
            raise FileNotFoundError(f"{cached.name} is not in the cache, and {OFFLINE} is set")
        # Never more than tensors: what a checkpoint pickles besides is refused.
        stored = weights.get_state_dict(
            progress=False, check_hash=True, map_location="cpu", weights_only=True
        )
        current, _ = renamed(model, stored)
    except Exception as error:
        why = f"{error}".rstrip(".")
        raise WeightsUnavailable(
            f"The pretrained weights of {model!r} could not be fetched or read: {why}. Connect to the network, or "
            f"put {cached.name} into torch's cache first.",
            subject=model,
        ) from error
    counts = {name: value for name, value in own.items() if name.endswith("num_batches_tracked")}
    return counts | current


build.names = tuple(list_models(module=models))  # type: ignore[attr-defined]
build.library = "torchvision"  # type: ignore[attr-defined]
build.version = __version__.partition("+")[0]  # type: ignore[attr-defined]
build.renamed = renamed  # type: ignore[attr-defined]
build.expression = expression  # type: ignore[attr-defined]
build.pretrained = pretrained  # type: ignore[attr-defined]
