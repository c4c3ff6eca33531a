"""Build timm's networks and download their weights."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from timm import __version__, create_model, list_models
from timm.models import (
    get_arch_pretrained_cfgs,
    get_deprecated_models,
    is_model,
    is_model_pretrained,
    model_entrypoint,
)
from timm.models._hub import download_from_hf, save_config_for_hf
from torch import nn

from compatkit.adapters.offline import OFFLINE, hub, offline, reachable
from compatkit.errors import UnknownName, UsageError, WeightsUnavailable
from compatkit.foundation.importable import is_importable

BARRED = frozenset(
    {
        *("pretrained_cfg", "pretrained_cfg_overlay", "pretrained_model_args", "pretrained_strict"),
        *("pretrained_filter_fn", "pruned"),
        *("scriptable", "exportable", "no_jit", "features_only", "feature_cfg", "feature_cls"),
        *("model_name", "model_cls", "model_cfg", "variant", "kwargs_filter"),
        *("device", "dtype"),
    }
)
"""Keyword arguments of timm that read files, select other code, or place tensors: none describes a network."""


def names() -> list[str]:
    """Return every model name that timm knows, without tags."""
    return list_models()


def knows(model: str) -> bool:
    """Return whether timm has a model, whatever its tag; much faster than ``names``."""
    return is_model(model.partition(".")[0])


def is_bundled(model: str) -> bool:
    """Return whether a model is timm's own, and not one that a program or another package registered with timm."""
    return knows(model) and model_entrypoint(model.partition(".")[0]).__module__.startswith("timm.")


def library() -> str:
    """Return what a blueprint records, for example ``"timm 1.0.31"``."""
    return f"timm {__version__}"


def create(model: str, /, *, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Build a model with random or pretrained weights.

    Args:
        model: timm's name, optionally with a tag of weights after a dot.
        pretrained: Whether to load timm's weights.
        kwargs: Keyword arguments of ``timm.create_model``.

    Raises:
        UnknownName: timm has no such model or tag, or has renamed the model.
        UsageError: The model has no pretrained weights.
        WeightsUnavailable: Pretrained weights could not be fetched or read.
    """
    _check_name(model)
    if pretrained and not is_model_pretrained(model):
        raise UsageError(f"There are no pretrained weights for {model!r}. Leave weights out.", subject=model)
    lost = pretrained and not os.environ.get(OFFLINE) and not reachable()
    try:
        with offline() if lost else nullcontext():
            return create_model(model, pretrained=pretrained, **kwargs)
    except OSError as error:
        why = f"they are not in the cache, and {hub()} does not respond" if lost else f"{error}".rstrip(".")
        raise WeightsUnavailable(
            f"The pretrained weights of {model!r} could not be fetched or read: {why}. Connect to the network.",
            subject=model,
        ) from error


def write_config(
    file: Path, model: str, kwargs: Mapping[str, Any], images: Mapping[str, Any], labels: Sequence[str]
) -> None:
    """Write the ``config.json`` of a Hub repository, from which timm builds a network with its weights.

    Args:
        file: File to write.
        model: timm's name.
        kwargs: Keyword arguments of ``timm.create_model``.
        images: Preprocessing by timm's names: ``input_size``, ``mean``, ``std``, ``interpolation``, ``crop_pct``,
            ``crop_mode``.
        labels: Names of the classes; empty if unknown.
    """
    arguments = {name: value for name, value in kwargs.items() if name != "num_classes"}
    config = {"pretrained_cfg": dict(images), "label_names": list(labels)}
    save_config_for_hf(create(model, **kwargs), str(file), config, arguments or None)


def fetch(repository: str, files: Sequence[str]) -> Path:
    """Return the folder of files of a Hub repository; they are downloaded if they are not cached.

    Args:
        repository: ``owner/name``, optionally with ``@revision``.
        files: Names of files in it.

    Raises:
        UsageError: The repository does not exist, or lacks one of the files.
        WeightsUnavailable: The files are not cached and could not be downloaded.
    """
    lost = not os.environ.get(OFFLINE) and not reachable()
    wanted = " and ".join(files)
    try:
        with offline() if lost else nullcontext():
            return [Path(download_from_hf(repository, file)) for file in files][-1].parent
    except Exception as error:
        if type(error).__name__ in _REFUSALS:
            raise UsageError(
                f"The Hub has no repository {repository!r} with {wanted} that you may read ({type(error).__name__}). "
                "Expected hf-hub:OWNER/NAME, optionally with @REVISION.",
                subject=repository,
            ) from error
        if not isinstance(error, OSError):
            raise
        why = f"and {hub()} does not respond" if lost else f"and could not be fetched: {error}".rstrip(".")
        raise WeightsUnavailable(
            f"The weights of {repository!r} are not in the cache, {why}. Connect to the network, or name a folder that "
            f"holds {wanted}.",
            subject=repository,
        ) from error


_REFUSALS = (
    *("HFValidationError", "RepositoryNotFoundError", "RevisionNotFoundError"),
    *("RemoteEntryNotFoundError", "AssertionError"),
)
"""Names of errors of huggingface_hub, which is not imported here."""


@functools.lru_cache(1024)
def _check_name(model: str) -> None:
    """Refuse tags that do not exist, and old names, which timm maps to new ones with a warning."""
    architecture, _, tag = model.partition(".")
    renamed = get_deprecated_models()
    if architecture in renamed:
        hint = f"it is {renamed[architecture]!r} now" if renamed[architecture] else "nothing replaces it"
        raise UnknownName(f"timm no longer has a model {architecture!r}; {hint}.", subject=model)
    if tag and is_model(architecture):
        known = list(get_arch_pretrained_cfgs(architecture))
        if model not in known:
            raise UnknownName(
                f"timm has no weights tagged {tag!r} for {architecture!r}; it has {', '.join(known) or 'none'}.",
                subject=model,
            )


def expression(model: str, kwargs: Mapping[str, Any]) -> str | None:
    """Return Python code that builds a network with timm alone, or after an import; None if timm lacks it here.

    Args:
        model: Name of the network, with or without a tag of weights.
        kwargs: Keyword arguments of ``timm.create_model``.
    """
    if not knows(model):
        return None
    module = str(model_entrypoint(model.partition(".")[0]).__module__)
    if not module.startswith("timm.") and not is_importable(module):
        return None
    arguments = "".join(f", {key}={value!r}" for key, value in kwargs.items())
    after = "" if module.startswith("timm.") else f" after import {module}"
    return f"timm.create_model({model!r}{arguments}){after}"
