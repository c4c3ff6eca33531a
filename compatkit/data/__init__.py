"""Data sets: images with class names, read from packs, from torchvision's folders, or made in code.

Everything is imported when it is first used, so that listing and checking components stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compatkit.data.cars3d_files import cars3d
    from compatkit.data.celeba_folder import celeba
    from compatkit.data.dataset import DataSet, Split, describe
    from compatkit.data.dsprites_file import dsprites
    from compatkit.data.factored import Factored
    from compatkit.data.factored_sets import load_factored
    from compatkit.data.forecasts import flow_forecasts
    from compatkit.data.loading import load
    from compatkit.data.normal_vectors import gaussian, gaussian_normalization
    from compatkit.data.smallnorb_files import smallnorb
    from compatkit.data.smoke_images import captured_smoke, smoke
    from compatkit.data.solid_images import solids
    from compatkit.data.specification import load_spec
    from compatkit.data.sprite_images import sprites

_HOMES = {
    "DataSet": "compatkit.data.dataset",
    "Factored": "compatkit.data.factored",
    "Split": "compatkit.data.dataset",
    "captured_smoke": "compatkit.data.smoke_images",
    "cars3d": "compatkit.data.cars3d_files",
    "celeba": "compatkit.data.celeba_folder",
    "describe": "compatkit.data.dataset",
    "dsprites": "compatkit.data.dsprites_file",
    "flow_forecasts": "compatkit.data.forecasts",
    "gaussian": "compatkit.data.normal_vectors",
    "gaussian_normalization": "compatkit.data.normal_vectors",
    "load": "compatkit.data.loading",
    "load_factored": "compatkit.data.factored_sets",
    "load_spec": "compatkit.data.specification",
    "smallnorb": "compatkit.data.smallnorb_files",
    "smoke": "compatkit.data.smoke_images",
    "solids": "compatkit.data.solid_images",
    "sprites": "compatkit.data.sprite_images",
}

__all__ = [
    "DataSet",
    "Factored",
    "Split",
    "captured_smoke",
    "cars3d",
    "celeba",
    "describe",
    "dsprites",
    "flow_forecasts",
    "gaussian",
    "gaussian_normalization",
    "load",
    "load_factored",
    "load_spec",
    "smallnorb",
    "smoke",
    "solids",
    "sprites",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'compatkit.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
