"""Build networks from the name of a builder, a model name and JSON keyword arguments.

All three may come from untrusted files. Names are looked up among built-in builders and installed plugins only; no path
or address in a file is read, fetched, imported or evaluated.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from typing import Any

import attrs
from torch import nn

from compatkit.adapters.cutting.sideeffects import check_buildable
from compatkit.adapters.weights import load_whole
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.own_networks import NETWORKS, OWN, RECORDED_AS, actual_builder
from compatkit.errors import CompatkitError, FormatError, PluginError, UnknownName, UsageError, near, type_of
from compatkit.foundation.codec import dumps, loads
from compatkit.foundation.importable import is_importable
from compatkit.plugins import find
from compatkit.plugins import names as installed
from compatkit.plugins.builders import attribute_of, build_network, library_of
from compatkit.plugins.loading import own_keys

WEIGHTS = frozenset(
    {
        *("pretrained", "pretrained_backbone", "weights", "weights_backbone", "checkpoint_path", "cache_dir"),
        "progress",
    }
)
"""Keyword arguments about weights and their download; a blueprint never contains them."""
MAX_BYTES, MAX_DEPTH = 2**16, 16
"""Largest and deepest JSON of keyword arguments."""

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}")


class LibraryWarning(UserWarning):
    """Warning that a network is built by another version of its library than the recorded one."""


@attrs.frozen
class Builder:
    """A source of backbones.

    A network may describe its inputs in a mapping ``pretrained_cfg`` with any of ``input_size`` (channels, height,
    width), ``fixed_input_size``, ``mean``, ``std``, ``interpolation``, ``crop_pct`` and ``classifier``, the path of its
    class layer.

    Attributes:
        create: ``create(model, pretrained=False, **kwargs)`` returns the network; ``pretrained`` is only passed if it
            is True.
        library: Returns the distribution and version that a blueprint records.
        names: Returns the known model names, for messages; None if they cannot be listed.
        knows: Returns whether a name is known, without listing all; None to look it up in ``names``.
        barred: Keyword arguments that read files, select other code or a device.
        renamed: Renames tensors saved by older versions of the library; returns the tensors and notes on the changes.
            None if names never changed.
        like_timm: Whether models take ``num_classes`` and ``in_chans``, and name themselves in ``pretrained_cfg``, as
            timm's do.
        expression: Returns Python code that builds a model from its name and arguments with the same tensors and
            outputs, without a registry and if possible without compatkit; None if there is none.
    """

    create: Callable[..., nn.Module]
    library: Callable[[], str]
    names: Callable[[], Iterable[str]] | None = None
    knows: Callable[[str], bool] | None = None
    barred: Collection[str] = ()
    renamed: Callable[[str, Mapping[str, Any]], tuple[dict[str, Any], tuple[str, ...]]] | None = None
    like_timm: bool = False
    expression: Callable[[str, Mapping[str, Any]], str | None] = lambda model, kwargs: None


def _timm() -> Builder:
    from compatkit.adapters import timm

    return Builder(
        timm.create,
        timm.library,
        timm.names,
        timm.knows,
        timm.BARRED,
        like_timm=True,
        expression=timm.expression,
    )


def _plugin(name: str) -> Builder:
    offer = find("builders", name)
    known, own = attribute_of(offer, "names"), name in versioned_builders()
    weights, stated = (getattr(offer.factory, key, None) for key in ("pretrained", "expression"))

    def expression(model: str, kwargs: Mapping[str, Any]) -> str | None:
        code = None
        with offer.called({}, "expression", f"its expression of {model!r} failed", "Return a text or None."):
            code = None if stated is None else stated(model, kwargs)
        return _factory_call(offer.factory, model, kwargs) if code is None else code

    def create_network(model: str, /, *, pretrained: bool = False, **kwargs: Any) -> nn.Module:
        if pretrained and weights is None:
            raise UsageError(
                f"{offer.owner} has no pretrained weights for {model!r}. Give the path of a safetensors file, or leave "
                "weights out.",
                subject=model,
            )
        # compatkit's own code needs no check of global state; other threads may be changing that state.
        network = offer.factory(model, **kwargs) if own else build_network(offer, model, kwargs)
        if pretrained and weights is not None:
            load_whole(network, weights(model, network), model)
        return network

    return Builder(
        create_network,
        lambda: library_of(offer),
        None if known is None else lambda: known,
        renamed=getattr(offer.factory, "renamed", None),
        like_timm=bool(attribute_of(offer, "like_timm")),
        expression=expression,
    )


def _factory_call(factory: Callable[..., Any], model: str, kwargs: Mapping[str, Any]) -> str | None:
    """Return the call of a plugin's factory; None if it cannot be imported by its name, as that of a plugin file."""
    module = getattr(factory, "__module__", "")
    name = getattr(factory, "__qualname__", "")
    if not is_importable(module) or getattr(import_module(module), name, None) is not factory:
        return None
    arguments = "".join(f", {key}={value!r}" for key, value in kwargs.items())
    return f"{module}.{name}({model!r}{arguments})"


BUILT_IN = "timm"
"""The only builder that is not a plugin, as training also uses timm, for layer groups and mixing images."""


class _Table(dict[str, Builder]):
    """Builders by name: compatkit's are cached, other plugins are looked up each time, as they may be blocked."""

    def __missing__(self, name: str) -> Builder:
        if name in versioned_builders():
            self[name] = _timm() if name == BUILT_IN else _plugin(name)
            return self[name]
        plugins = installed("builders")
        if name in plugins or ":" in name:
            return _plugin(name)
        known = sorted({BUILT_IN, *self, *plugins})
        raise UnknownName(
            f"No builder is called {name!r:.100}; known are {', '.join(known)}. Install the package with the key "
            f"{f'builders.{name}'!r:.100}, or name the file that registers it (--plugin FILE.py).",
            subject=name,
        )


BUILDERS: dict[str, Builder] = _Table()
"""Builders by name: ``"timm"``, or an installed plugin such as ``"compatkit"`` and ``"torchvision"``."""


@functools.cache
def versioned_builders() -> tuple[str, ...]:
    """Return timm and compatkit's own builders: their code changes only with the version of their library."""
    own = sorted(key for key in own_keys() if key.startswith("builders."))
    return (BUILT_IN, *(key.partition(".")[2] for key in own))


def versions(builders: Iterable[str]) -> str | None:
    """Return the versions of compatkit, torch and the libraries of builders; None if code may change without one.

    Args:
        builders: Names of builders.
    """
    import torch

    import compatkit

    names = list(builders)
    if not set(names) <= set(versioned_builders()):
        return None
    libraries = " ".join(BUILDERS[name].library() for name in names)
    return f"compatkit {compatkit.__version__} torch {torch.__version__} {libraries}".strip()


def builder_for(model: str, builder: str | None = None) -> str:
    """Return the given builder, else the one that has a model of this name; timm takes precedence over plugins.

    Args:
        model: Name of the model.
        builder: Builder named by the user or a file, or None.

    Raises:
        UsageError: Several builders other than timm have a model of this name.
    """
    if builder is not None:
        return actual_builder(builder, model)
    if model in NETWORKS:
        return OWN
    if _has(BUILT_IN, model):
        return BUILT_IN
    builders = [name for name in installed("builders") if _has(name, model)]
    if len(builders) > 1:
        raise UsageError(
            f"{' and '.join(builders)} have a model {model!r}; pass one of them as builder.",
            subject=model,
        )
    return builders[0] if builders else BUILT_IN


def _has(builder: str, model: str) -> bool:
    try:
        source = BUILDERS[builder]
    except PluginError:  # a plugin that is broken or blocked has no models
        return False
    return source.knows(model) if source.knows else model in (source.names or tuple)()


def create(builder: str, model: str, kwargs: Mapping[str, Any], *, pretrained: bool = False) -> nn.Module:
    """Build a network.

    Args:
        builder: A key of ``BUILDERS``, such as ``"timm"``.
        model: Model name known to the builder.
        kwargs: Keyword arguments of the model, JSON values.
        pretrained: Whether to load the library's pretrained weights instead of random ones.

    Raises:
        UnknownName: No such builder or model.
        UsageError: The model does not accept the arguments, or they are not JSON values or too large.
        PluginError: The plugin that builds it is broken or blocked.
        CutError: The network has lazy layers, or hooks that its parts would not run.
        WeightsUnavailable: Pretrained weights could not be fetched or read.
    """
    builder = builder_for(model, builder)
    source = BUILDERS[builder]
    arguments: dict[str, Any] = json_kwargs(model, kwargs)
    _refuse(model, arguments.keys() & set(source.barred))
    check_model(builder, model)
    try:
        network = source.create(model, **arguments, **({"pretrained": True} if pretrained else {}))
    except CompatkitError:
        raise
    except Exception as error:  # foreign code may raise anything
        shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "no arguments"
        raise UsageError(
            f"{builder} does not build {model!r} with {shown}: {type(error).__name__}: {error}", subject=model
        ) from error
    if not isinstance(network, nn.Module):
        raise UsageError(f"Builder {builder!r} returned {type_of(network)} for {model!r}, not a module.")
    check_buildable(network, model)
    return network


def check_model(builder: str, model: str) -> None:
    """Check that builder and model are known; an error suggests similar names.

    Args:
        builder: A key of ``BUILDERS``, such as ``"timm"``.
        model: Model name; any is accepted for a plugin that lists no names.

    Raises:
        UnknownName: No such builder or model.
        PluginError: The plugin that builds it is broken or blocked.
    """
    source = BUILDERS[builder]
    if not _MODEL.fullmatch(model):
        raise UnknownName(
            f"No model is called {model!r:.100}: a name consists of letters, digits and '_.+-'. Files and repositories "
            "(hf-hub:...) are not accepted, because a name may come from an untrusted file.",
            subject=model,
        )
    if source.knows(model) if source.knows else source.names is None:
        return
    known = list(source.names()) if source.names else []
    if source.knows is None and model in known:
        return
    name = model.partition(".")[0]
    own = NETWORKS if builder == RECORDED_AS else ()
    longer = [other for other in sorted(own) if other.startswith(f"{name}_")]  # resnet8: resnet8_cifar
    close = list(dict.fromkeys([*longer, *near(name, [*known, *own], 3)]))[:3]
    hint = f"did you mean {' or '.join(close)}?" if close else f"look it up among the models of {builder}."
    others = [other for other in versioned_builders() if other != builder and _has(other, model)]
    if others:
        hint = f"{' and '.join(others)} has one of this name; pass it as builder."
    raise UnknownName(f"No model is called {model!r}; {hint}", subject=model)


def json_kwargs(model: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as a blueprint stores them: JSON values only, tuples as lists.

    Args:
        model: Name of the model, for messages.
        kwargs: Keyword arguments from the user.

    Raises:
        UsageError: They are not JSON values, are too large, or include weights.
    """
    _refuse(model, WEIGHTS & set(kwargs))
    try:
        return loads(dumps(dict(kwargs)), what="they", max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)
    except (FormatError, ValueError) as error:  # ValueError: an integer of thousands of digits
        raise UsageError(f"{model}: keyword arguments must be JSON values: {error}", subject=model) from None


def whole_of(blueprint: Blueprint, *, pretrained: bool = False) -> nn.Module:
    """Build the network of a blueprint.

    Args:
        blueprint: Blueprint of an extractor or a head.
        pretrained: As for ``create``.
    """
    _builder_of(blueprint)
    return create(blueprint.builder, blueprint.model, blueprint.kwargs, pretrained=pretrained)


def _builder_of(blueprint: Blueprint) -> Builder:
    """Return the builder of a blueprint; an error names the distribution to install."""
    try:
        return BUILDERS[blueprint.network[0]]
    except UnknownName as error:
        distribution = blueprint.library.partition(" ")[0]
        file = f": name that file, with --plugin {distribution}" if distribution.endswith(".py") else ""
        raise UnknownName(
            f"{error} {blueprint.model!r:.100} was built by {blueprint.library!r:.100}{file}.",
            subject=error.subject,
        ) from None


def as_built_here(blueprint: Blueprint) -> Blueprint:
    """Return the blueprint with the current name of its builder, if an older manifest has another one."""
    builder = blueprint.network[0]
    if builder == blueprint.builder:
        return blueprint
    return attrs.evolve(blueprint, builder=builder, library=BUILDERS[builder].library())


def library_note(blueprint: Blueprint) -> str | None:
    """Return a warning if another version than the recorded one builds the network, else None.

    Raises:
        UnknownName: No such builder.
    """
    present = _builder_of(blueprint).library()
    # The version of timm is irrelevant once the network has moved to another builder.
    if present == blueprint.library or blueprint.network[0] != blueprint.builder:
        return None
    return f"{blueprint.model} was built by {blueprint.library} and is built by {present} here; the network may differ."


def _refuse(model: str, barred: Collection[str]) -> None:
    if barred:
        raise UsageError(
            f"{model}: {', '.join(sorted(barred))} cannot be part of a blueprint: weights, code and device are not "
            "stored in it. For pretrained weights pass weights='pretrained'.",
            subject=sorted(barred),
        )
