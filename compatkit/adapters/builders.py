"""Build whole networks from the name of a builder, a model name and JSON keyword arguments.

All three may come from files. Names are only looked up among what is built in and what is installed; nothing that a
file says is read, fetched, imported or evaluated here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs
from torch import nn

from compatkit.adapters.cutting.assigned import check_buildable
from compatkit.contracts.contract import Blueprint
from compatkit.errors import CompatkitError, FormatError, UnknownName, UsageError, near, type_of
from compatkit.foundation.codec import dumps, loads
from compatkit.plugins import find
from compatkit.plugins import names as installed
from compatkit.plugins.builders import build_network, library_of, models_of

WEIGHTS = frozenset(
    {"pretrained", "pretrained_backbone", "weights", "weights_backbone", "checkpoint_path", "cache_dir"}
)
"""Keyword arguments that ask for weights: they are no part of any blueprint."""
MAX_BYTES, MAX_DEPTH = 2**16, 16
"""Largest and deepest JSON of keyword arguments."""

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}")


class LibraryWarning(UserWarning):
    """A network is built by another version of its library than the one that was recorded."""


@attrs.frozen
class Builder:
    """A source of backbones.

    A network may say of itself what it was made for: a mapping ``pretrained_cfg`` with any of ``input_size``
    (channels, height, width), ``fixed_input_size``, ``mean``, ``std``, ``interpolation``, ``crop_pct`` and
    ``classifier``, the path of its class layer.

    Attributes:
        create: ``create(model, pretrained=False, **kwargs)`` gives the whole network; ``pretrained`` is only passed
            where it was asked for.
        library: What a blueprint records: distribution and version.
        names: Known model names, for messages; None where they cannot be listed.
        knows: Returns whether a name is known, without listing all; None: it is among ``names``.
        barred: Keyword arguments that read files, choose other code or place tensors.
        renamed: Brings tensors that older versions of the library saved under today's names; gives these and what was
            done, in words. None where names never changed.
        own: Names that compatkit brings itself, proposed before others.
    """

    create: Callable[..., nn.Module]
    library: Callable[[], str]
    names: Callable[[], Iterable[str]] | None = None
    knows: Callable[[str], bool] | None = None
    barred: Collection[str] = ()
    renamed: Callable[[str, Mapping[str, Any]], tuple[dict[str, Any], tuple[str, ...]]] | None = None
    own: Collection[str] = ()


def _timm() -> Builder:
    from compatkit.adapters import timm

    own = [one.__name__ for one in timm.OURS]
    return Builder(timm.create, timm.library, timm.names, timm.knows, timm.BARRED, own=own)


def _torchvision() -> Builder:
    from compatkit.adapters import torchvision

    return Builder(
        torchvision.create,
        torchvision.library,
        torchvision.names,
        torchvision.knows,
        torchvision.BARRED,
        torchvision.renamed,
    )


def _plugin(name: str) -> Builder:
    offer = find("builders", name)
    known = models_of(offer)

    def make(model: str, /, *, pretrained: bool = False, **kwargs: Any) -> nn.Module:
        if pretrained:
            raise UsageError(
                f"There are no pretrained weights for {model!r}: {offer.owner} builds networks only. Give the path "
                "of a safetensors file, or leave weights out.",
                subject=model,
            )
        return build_network(offer, model, kwargs)

    return Builder(make, lambda: library_of(offer), None if known is None else lambda: known)


BUILT_IN: Mapping[str, Callable[[], Builder]] = {"timm": _timm, "torchvision": _torchvision}
"""By name, each with an import of its own, so that a network of one library does not wait for the other."""


class _Table(dict[str, Builder]):
    """Fills in a built-in builder on first use, and asks for a plugin each time: plugins may come and be blocked."""

    def __missing__(self, name: str) -> Builder:
        if name in BUILT_IN:
            self[name] = BUILT_IN[name]()
            return self[name]
        there = installed("builders")
        if name in there or ":" in name:
            return _plugin(name)
        known = sorted({*BUILT_IN, *self, *there})
        raise UnknownName(
            f"No builder is called {name!r:.100}; known are {', '.join(known)}. Others are brought by plugins: install "
            f"the package with the key {f'builders.{name}'!r:.100}, or name the file that registers it (--plugin "
            "FILE.py).",
            subject=name,
        )


BUILDERS: dict[str, Builder] = _Table()
"""By the name that a blueprint records: ``"timm"``, ``"torchvision"``, or that of an installed plugin."""


def create(builder: str, model: str, kwargs: Mapping[str, Any], *, pretrained: bool = False) -> nn.Module:
    """Build a whole network.

    Args:
        builder: A key of ``BUILDERS``, such as ``"timm"``.
        model: Name that the builder knows.
        kwargs: Keyword arguments of the model, JSON values.
        pretrained: Whether to load the library's own weights; else they are drawn.

    Raises:
        UnknownName: No such builder or model.
        UsageError: The arguments are not what the model takes, no JSON values, or more than a description.
        PluginError: The plugin that builds it is broken or blocked.
        CutError: The network has lazy layers, or hooks that no part of it would run.
        EnvironmentFailure: Pretrained weights could not be fetched or read.
    """
    source = BUILDERS[builder]
    given: dict[str, Any] = json_kwargs(model, kwargs)
    _refuse(model, given.keys() & set(source.barred))
    _check_model(source, builder, model)
    try:
        whole = source.create(model, **given, **({"pretrained": True} if pretrained else {}))
    except CompatkitError:
        raise
    except Exception as error:  # foreign code may raise anything
        said = ", ".join(f"{name}={value!r}" for name, value in given.items()) or "no arguments"
        raise UsageError(
            f"{builder} does not build {model!r} with {said}: {type(error).__name__}: {error}", subject=model
        ) from error
    if not isinstance(whole, nn.Module):
        raise UsageError(f"Builder {builder!r} gave {type_of(whole)} for {model!r}, not a module.")
    check_buildable(whole, model)
    return whole


def json_kwargs(model: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as a blueprint keeps them: JSON values only, tuples as lists.

    Args:
        model: Name of the model, for messages.
        kwargs: As given by the user.

    Raises:
        UsageError: A value is no JSON, there is too much of it, or weights are asked for here.
    """
    _refuse(model, WEIGHTS & set(kwargs))
    try:
        return loads(dumps(dict(kwargs)), what="they", max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)
    except (FormatError, ValueError) as error:  # ValueError: a whole number of thousands of digits
        raise UsageError(
            f"{model}: keyword arguments must be JSON values, to be stored: {error}", subject=model
        ) from None


def whole_of(blueprint: Blueprint, *, pretrained: bool = False) -> nn.Module:
    """Build the whole network of a blueprint.

    Args:
        blueprint: Of an extractor or a head.
        pretrained: As for ``create``.
    """
    _of_blueprint(blueprint)
    return create(blueprint.builder, blueprint.model, blueprint.kwargs, pretrained=pretrained)


def _of_blueprint(blueprint: Blueprint) -> Builder:
    """Return the builder of a blueprint.

    Raises:
        UnknownName: It is not here; the message says what brought it.
    """
    try:
        return BUILDERS[blueprint.builder]
    except UnknownName as error:
        brought = blueprint.library.partition(" ")[0]
        file = f": name that file, with --plugin {brought}" if brought.endswith(".py") else ""
        raise UnknownName(
            f"{error} {blueprint.model!r:.100} was built by {blueprint.library!r:.100}{file}.",
            subject=error.subject,
        ) from None


def library_note(blueprint: Blueprint) -> str | None:
    """Return a sentence where another version builds a network than the one recorded, None where it is the same.

    Raises:
        UnknownName: No such builder.
    """
    present = _of_blueprint(blueprint).library()
    if present == blueprint.library:
        return None
    return (
        f"{blueprint.model} was built by {blueprint.library} and is built by {present} here, which may make another "
        "network of the same name."
    )


def _refuse(model: str, barred: Collection[str]) -> None:
    if barred:
        raise UsageError(
            f"{model}: {', '.join(sorted(barred))} is no part of a blueprint, which says how a network is built: not "
            "which weights it gets (ask for weights='pretrained' instead), which code runs, nor on which device.",
            subject=sorted(barred),
        )


def _check_model(source: Builder, builder: str, model: str) -> None:
    """Refuse a model that the builder does not know, before it sees the name."""
    if not _MODEL.fullmatch(model):
        raise UnknownName(
            f"No model is called {model!r:.100}: a name is letters, digits and '_.+-'. Names of files and of "
            "repositories (hf-hub:...) are not taken, because a name may come from somebody else's file.",
            subject=model,
        )
    if source.knows(model) if source.knows else source.names is None:
        return
    known = list(source.names()) if source.names else []
    if source.knows is None and model in known:
        return
    asked = model.partition(".")[0]
    longer = [name for name in source.own if name.startswith(f"{asked}_")]  # resnet8: resnet8_cifar
    close = [*longer, *near(asked, known, 3)]
    close = list(dict.fromkeys(close))[:3]
    hint = f"did you mean {' or '.join(close)}?" if close else f"look it up among the models of {builder}."
    others = [name for name in BUILT_IN if name != builder and model in (BUILDERS[name].names or tuple)()]
    if others:
        hint = f"{' and '.join(others)} has one of this name: say so as builder."
    raise UnknownName(f"No model is called {model!r}; {hint}", subject=model)
