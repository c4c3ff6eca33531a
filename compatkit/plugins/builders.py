"""Builders of networks that plugins offer: what they know, what is recorded, and the networks that they give."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from compatkit.errors import CompatkitError, UsageError, type_of
from compatkit.plugins.importing import state_kept
from compatkit.plugins.loading import Offer, tell
from compatkit.plugins.owners import Owner, raised
from compatkit.plugins.settings import check_settings, fits

if TYPE_CHECKING:
    from torch import nn

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+!-]{0,63}")


def models_of(offer: Offer) -> tuple[str, ...] | None:
    """Return the model names that a factory lists as ``names``; None where it lists none.

    Raises:
        PluginError: They are not a list of texts.
    """
    names = getattr(offer.factory, "names", None)
    if names is None:
        return None
    listed = isinstance(names, Sequence) and not isinstance(names, str)
    if not listed or not all(isinstance(one, str) for one in cast("Sequence[object]", names)):
        raise offer.owner.error(f"names of its factory is a list of model names; got {names!r:.100}.")
    return tuple(cast("Sequence[str]", names))


def library_of(offer: Offer) -> str:
    """Return what blueprints record: the distribution, and its version or the factory's own ``version``.

    Raises:
        PluginError: ``version`` is no text such as ``"1.2"``.
    """
    version = getattr(offer.factory, "version", None) or offer.version or "unknown"
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise offer.owner.error(f"version of its factory is a text such as '1.2'; got {version!r:.100}.")
    return f"{offer.distribution or offer.key} {version}"


def build_network(offer: Offer, model: str, kwargs: Mapping[str, Any]) -> nn.Module:
    """Call a builder's factory and check what it gives.

    Drawing weights moves torch's random state, as it should; other global state is put back, with a warning.

    Raises:
        PluginError: The factory does not take these arguments, fails, or gives no network.
    """
    from torch import nn

    owner = offer.owner
    check_settings(kwargs, offer.settings, owner)
    given = ", ".join(f"{name}={value!r}" for name, value in kwargs.items()) or "no arguments"
    try:
        with state_kept(drawing=True) as changed:
            network = offer.factory(model, **kwargs)
    except (Exception, SystemExit) as error:
        if isinstance(error, CompatkitError) and not isinstance(error, UsageError):
            error.add_note(f"Raised by {owner}, building {model!r}.")
            raise
        raise owner.error(f"building {model!r} with {given} failed: {raised(error)}") from error
    tell(changed, owner, f"building {model!r}", "Draw weights with torch alone, and set nothing global.")
    if not isinstance(network, nn.Module):
        what = f"the class {network.__name__!r}" if inspect.isclass(network) else f"{type_of(network)}"
        raise owner.error(f"building {model!r} with {given} gave {what}, not a network (torch.nn.Module).")
    _check_configuration(network, model, owner)
    return network


def _check_configuration(network: nn.Module, model: str, owner: Owner) -> None:
    """Refuse a ``pretrained_cfg`` that would only fail where it is used."""
    config = getattr(network, "pretrained_cfg", None) or {}
    if not isinstance(config, Mapping):
        raise owner.error(f"pretrained_cfg of {model!r} is {type_of(config)}, not a mapping.")
    for key, (expected, kind) in _CONFIGURATION.items():
        value = config.get(key)
        given = tuple(value) if isinstance(value, list) else value
        if given is None or (fits(given, kind) and given != () and (key != "input_size" or min(given) > 0)):
            continue
        raise owner.error(f"pretrained_cfg[{key!r}] of {model!r} is {expected}; got {value!r:.100}.")
    layers = config.get("classifier") or ()
    paths = {path for path, _ in network.named_modules()}
    for layer in (layers,) if isinstance(layers, str) else layers:
        if layer not in paths:
            raise owner.error(
                f"pretrained_cfg['classifier'] of {model!r} names {layer!r}, which is no module of it."
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
