"""The only import of timm: builds its models, and registers our small networks with its own registry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from timm import __version__, create_model, list_models
from timm.models import is_model, is_model_pretrained, register_model
from torch import nn

from compatkit.adapters.inputs import config_of
from compatkit.errors import EnvironmentFailure, UnknownName, UsageError
from compatkit.networks import mobile, plain, residual, wide_residual


def names() -> list[str]:
    """Return every model name that timm knows, ours included, without tags."""
    return list_models()


def library() -> str:
    """Return what a blueprint records, for example ``"timm 1.0.31"``."""
    return f"timm {__version__}"


def create(model: str, *, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Build a model with random weights, or with timm's own where asked.

    Raises:
        UnknownName: timm knows no such model or no such tag of it.
        UsageError: The model does not take these keyword arguments, or has no pretrained weights.
        EnvironmentFailure: Pretrained weights could not be fetched or read.
    """
    architecture, _, tag = model.partition(".")
    if tag and is_model(architecture) and model not in _tagged(architecture):
        known = ", ".join(_tagged(architecture)) or "none"
        raise UnknownName(
            f"timm has no weights tagged {tag!r} for {architecture!r}; it has {known}.",
            subject=model,
        )
    if pretrained and not is_model_pretrained(model):
        raise UsageError(f"There are no pretrained weights for {model!r}. Leave weights out.", subject=model)
    try:
        return create_model(model, pretrained=pretrained, **kwargs)
    except OSError as error:
        raise EnvironmentFailure(
            f"The pretrained weights of {model!r} could not be fetched or read: {error}. Connect to the network, or "
            "put them into timm's cache first.",
            subject=model,
        ) from error
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        given = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
        raise UsageError(f"timm does not build {model!r} with {given}: {error}", subject=model) from error


def _tagged(architecture: str) -> list[str]:
    return list_models(f"{architecture}.*", include_tags=True)


def _entry(function: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Wrap one of our networks as timm calls its entry points."""

    @functools.wraps(function)
    def build(
        pretrained: bool = False,
        pretrained_cfg: Mapping[str, Any] | None = None,
        pretrained_cfg_overlay: Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
        **kwargs: Any,
    ) -> nn.Module:
        if pretrained or pretrained_cfg:
            raise UsageError(
                f"There are no pretrained weights for {function.__name__!r}; use pretrained=False."
            )
        network = function(**kwargs)
        config = {**config_of(network), "architecture": function.__name__, **(pretrained_cfg_overlay or {})}
        vars(network)["pretrained_cfg"] = config
        return network

    return build


OURS = tuple(entry for module in (residual, wide_residual, plain, mobile) for entry in module.ENTRIES)

for _function in OURS:
    if not is_model(_function.__name__):
        register_model(_entry(_function))
