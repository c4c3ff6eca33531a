"""Build and check networks of plugins' builders, and check that a factory can rebuild a part."""

from __future__ import annotations

import inspect
import json
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compatkit.errors import PluginError, type_of
from compatkit.plugins.isolation import Owner, PluginWarning
from compatkit.plugins.loading import Offer, shown
from compatkit.plugins.settings import fits, takes_one

if TYPE_CHECKING:
    from torch import Tensor, nn

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+!-]{0,63}")


_ATTRIBUTES: Mapping[str, tuple[str, Any]] = {
    "names": ("a list of model names", tuple[str, ...]),
    "version": ("a text such as '1.2'", str),
    "library": ("a text such as 'timm'", str),
    "like_timm": ("True or False", bool),
}
"""Optional attributes of a factory: description and type."""


def attribute_of(offer: Offer, name: str) -> Any:
    """Return an optional attribute of a factory, None if it is missing.

    Args:
        offer: A plugin's builder.
        name: A key of ``_ATTRIBUTES``.

    Raises:
        PluginError: It has another type.
    """
    expected, kind = _ATTRIBUTES[name]
    stated = getattr(offer.factory, name, None)
    value = tuple(stated) if isinstance(stated, list) else stated
    if value is None or (fits(value, kind) and (not isinstance(value, str) or _VERSION.fullmatch(value))):
        return value
    raise offer.owner.error(f"{name} of its factory is {expected}; got {stated!r:.100}.")


def library_of(offer: Offer) -> str:
    """Return the library for blueprints: the distribution and its version, or the factory's ``library``, ``version``.

    Raises:
        PluginError: One of the attributes is not a plain string.
    """
    name, version = (attribute_of(offer, key) for key in ("library", "version"))
    return f"{name or offer.distribution or offer.key} {version or offer.version or 'unknown'}"


def build_network(offer: Offer, model: str, kwargs: Mapping[str, Any]) -> nn.Module:
    """Call a builder's factory and check its result.

    Drawing weights advances torch's random state; other global state is restored, with a warning.

    Args:
        offer: A plugin's builder.
        model: Name of the model.
        kwargs: Keyword arguments of the model.

    Raises:
        PluginError: The factory does not accept these arguments, fails, or returns no network.
    """
    from torch import nn

    owner, arguments = offer.owner, shown(kwargs) or "no arguments"
    what, remedy = f"building {model!r}", "Draw weights with torch alone, and set nothing global."
    with offer.called(kwargs, what, f"{what} with {arguments} failed", remedy, drawing=True):
        network = offer.factory(model, **kwargs)
    if not isinstance(network, nn.Module):
        actual = f"the class {network.__name__!r}" if inspect.isclass(network) else type_of(network)
        raise owner.error(f"{what} with {arguments} returned {actual}, not a torch.nn.Module.")
    _check_configuration(network, model, owner)
    return network


def _check_configuration(network: nn.Module, model: str, owner: Owner) -> None:
    """Check the ``pretrained_cfg`` of a network, whose faults would show only when it is used."""
    config = getattr(network, "pretrained_cfg", None) or {}
    if not isinstance(config, Mapping):
        raise owner.error(f"pretrained_cfg of {model!r} is {type_of(config)}, not a mapping.")
    for key, (expected, kind) in _CONFIGURATION.items():
        value = config.get(key)
        setting = tuple(value) if isinstance(value, list) else value
        if setting is None or (
            fits(setting, kind) and setting != () and (key != "input_size" or min(setting) > 0)
        ):
            continue
        raise owner.error(f"pretrained_cfg[{key!r}] of {model!r} is {expected}; got {value!r:.100}.")
    layers = config.get("classifier") or ()
    paths = {path for path, _ in network.named_modules()}
    for layer in (layers,) if isinstance(layers, str) else layers:
        if layer not in paths:
            raise owner.error(
                f"pretrained_cfg['classifier'] of {model!r} names {layer!r}, which is no module."
            )


_CONFIGURATION: Mapping[str, tuple[str, Any]] = {
    "input_size": ("three whole numbers above 0: channels, height, width", tuple[int, int, int]),
    "fixed_input_size": ("True or False", bool),
    "mean": ("one number a channel", tuple[float, ...]),
    "std": ("one number a channel", tuple[float, ...]),
    "interpolation": ("a text such as 'bilinear'", str),
    "crop_pct": ("a number", float),
    "crop_mode": ("a text such as 'center'", str),
    "classifier": ("the path of the class layer, or a list of paths", str | tuple[str, ...]),
}


def check_builder(offer: Offer, model: str, kwargs: Mapping[str, Any]) -> None:
    """Build a model several times, to detect faults that would show only when a component is loaded.

    Args:
        offer: A plugin's builder.
        model: Name of the model.
        kwargs: Keyword arguments of the model.

    Raises:
        PluginError: A requirement is violated; the message has the remedy.
    """
    if not takes_one(offer.factory):
        raise _error(offer, "takes no model name. Write it as factory(model, **kwargs).")
    known = attribute_of(offer, "names")
    for name in _ATTRIBUTES:
        attribute_of(offer, name)
    if known is not None and model not in known:
        raise _error(offer, f"does not list {model!r} among its names: {', '.join(known)}.")
    try:
        plain = json.loads(json.dumps(kwargs, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise _error(offer, f"has keyword arguments that a manifest cannot store: {error}.") from None
    network, state = _built(offer, model, plain, seed=0)
    _check_same(offer, network, _built(offer, model, plain, seed=0)[0])
    if state == _built(offer, model, plain, seed=1)[1]:
        raise _error(offer, "seeds torch's random state. Draw from it unseeded; the run sets the seed.")
    _check_forward(offer, network, plain)
    if "num_classes" in plain or any(setting.name == "num_classes" for setting in offer.settings):
        _check_classes(offer, model, plain)


def _error(offer: Offer, what: str) -> PluginError:
    return PluginError(f"The builder's factory {offer.factory!r} {what}", plugin=offer.name)


def _built(offer: Offer, model: str, kwargs: Mapping[str, Any], *, seed: int) -> tuple[nn.Module, bytes]:
    """Return a network, and torch's random state after its weights were drawn from ``seed``."""
    import torch

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("error", PluginWarning)
        torch.default_generator.manual_seed(seed)
        try:
            network = build_network(offer, model, kwargs)
        except PluginWarning as warning:
            raise PluginError(str(warning), plugin=offer.name) from warning
        return network, torch.get_rng_state().numpy().tobytes()


def _shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in network.state_dict().items()}


def _check_same(offer: Offer, first: nn.Module, second: nn.Module) -> None:
    import torch

    if {id(weight) for weight in first.parameters()} & {id(weight) for weight in second.parameters()}:
        raise _error(offer, "returns the same weights twice. Build a new network in each call.")
    differing = sorted(dict(_shapes(first).items() ^ _shapes(second).items()))
    if differing:
        raise _error(offer, f"returns another network in the second call: {differing[:3]} differ.")
    right = second.state_dict()
    values = [name for name, value in first.state_dict().items() if not torch.equal(value, right[name])]
    if values:
        raise _error(
            offer, f"draws other weights from the same seed: {values[:3]} differ. Draw them with torch."
        )


def _check_forward(offer: Offer, network: nn.Module, kwargs: Mapping[str, Any]) -> None:
    import torch

    config = getattr(network, "pretrained_cfg", None) or {}
    shape = tuple(config.get("input_size") or (kwargs.get("in_chans", 3), 224, 224))
    images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        logits = [_logits(offer, network, images, mode) for mode in ("train", "eval", "eval")]
    if not torch.equal(logits[1], logits[2]):
        raise _error(offer, "returns a network whose logits vary in eval mode.")


def _logits(offer: Offer, network: nn.Module, images: Tensor, mode: str) -> Tensor:
    try:
        logits: Any = network.train(mode == "train")(images)
    except Exception as error:
        raise _error(
            offer,
            f"returns a network that fails on {' x '.join(map(str, images.shape))} images in {mode} mode: "
            f"{type(error).__name__}: {error}. State other images in pretrained_cfg['input_size'].",
        ) from error
    shape = tuple(getattr(logits, "shape", ()))
    if len(shape) == 2 and shape[0] == len(images):
        return logits
    actual = shape or type(logits).__name__
    raise _error(
        offer, f"returns a network with output {actual} in {mode} mode; expected logits (2, classes)."
    )


def _check_classes(offer: Offer, model: str, kwargs: Mapping[str, Any]) -> None:
    three, four = (_built(offer, model, {**kwargs, "num_classes": count}, seed=0)[0] for count in (3, 4))
    stated = (getattr(three, "pretrained_cfg", None) or {}).get("classifier") or ()
    layers = tuple(f"{path}." for path in ((stated,) if isinstance(stated, str) else stated))
    differing = sorted(dict(_shapes(three).items() ^ _shapes(four).items()))
    rest = [name for name in differing if not name.startswith(layers)]
    if not differing:
        raise _error(offer, "accepts num_classes, but builds the same network for 3 and 4 classes.")
    if rest:
        raise _error(
            offer,
            f"does not state its class layer: {rest} depend on num_classes. Name it in pretrained_cfg['classifier'].",
        )
