"""``config.json`` and ``model.safetensors`` of a recombination, from which timm builds and loads the whole network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compatkit.components.cards.contents import ListedComponent
from compatkit.components.composition import EXTRACTOR, HEAD
from compatkit.components.exports.writing import write
from compatkit.components.recombinations import load_recombination
from compatkit.contracts.contract import Data
from compatkit.contracts.manifest import from_bytes
from compatkit.errors import CompatkitError, UsageError
from compatkit.foundation.codec import dumps, loads
from compatkit.registry.remotes.remote import Remote
from compatkit.registry.store import Store

CONFIG, WEIGHTS = "config.json", "model.safetensors"
OWN_KEY = "compatkit"
"""Key of ``config.json`` with the digest of the recombination; by it a file of compatkit is recognized."""
MAX_CONFIG = 2**23
_OF_THESE_WEIGHTS = frozenset(
    {
        *("input_size", "fixed_input_size", "min_input_size", "pool_size", "mean", "std", "interpolation"),
        *("crop_pct", "crop_mode", "num_classes", "first_conv", "classifier", "custom_load"),
    }
)
"""Entries of ``pretrained_cfg`` that hold for any weights of the network; others, such as ``tag``, ``license`` and
``test_input_size``, describe the weights that timm itself offers."""


def is_of_timm(remote: Remote, recombination: ListedComponent) -> bool:
    """Return whether the parts of a recombination are of one network of timm, by their manifests."""
    networks = [
        from_bytes(remote.document(parent.component, str(recombination.reference))).blueprint.network
        for parent in recombination.manifest.parents
        if parent.relation in (EXTRACTOR, HEAD)
    ]
    return len(networks) == 2 and networks[0] == networks[1] and networks[0][0] == "timm"


def write_timm_files(store: Store, recombination: ListedComponent, folder: Path) -> dict[str, Path]:
    """Write a recombination as timm reads it.

    Args:
        store: Registry that has it with its parts.
        recombination: The recombination.
        folder: Existing folder for the files.

    Returns:
        The files by name.

    Raises:
        UsageError: timm cannot build it; the message is the reason.
        CompatkitError: It cannot be loaded.
    """
    from compatkit.adapters.timm import write_config

    manifest = recombination.manifest
    network = load_recombination(store, recombination.reference)
    weights = write(folder / WEIGHTS, network, manifest, digest=recombination.reference.digest)
    whole = weights.description.whole
    if whole is None:
        raise UsageError("its parts are not the halves of one network")
    if weights.description.policy == "batch" and manifest.contract.protocol.norm == "batch":
        raise UsageError("it normalizes with the statistics of each batch, and timm with stored ones")
    data, config = manifest.contract.data, folder / CONFIG
    labels = [label.name for label in data.labels or ()]
    write_config(config, whole.model, whole.kwargs, _images(data), labels)
    values: dict[str, Any] = loads(config.read_bytes(), what=CONFIG, max_bytes=MAX_CONFIG)
    images = {name: value for name, value in values["pretrained_cfg"].items() if name in _OF_THESE_WEIGHTS}
    config.write_bytes(dumps({**values, "pretrained_cfg": images, OWN_KEY: recombination.reference.digest}))
    return {CONFIG: config, WEIGHTS: weights.path}


def described_component(config: bytes | None) -> str | None:
    """Return the digest of the component in a ``config.json`` that compatkit wrote.

    Args:
        config: Content, not trusted; None if there is no file.
    """
    if config is None:
        return None
    try:
        values = loads(config, what=CONFIG, max_bytes=MAX_CONFIG)
    except CompatkitError:
        return None
    digest = values.get(OWN_KEY) if isinstance(values, dict) else None
    return digest if isinstance(digest, str) else None


def _images(data: Data) -> dict[str, Any]:
    """Return the preprocessing by timm's names."""
    return {
        "input_size": [len(data.mean), *data.size],
        "mean": list(data.mean),
        "std": list(data.std),
        "interpolation": data.interpolation,
        "crop_pct": data.crop_pct,
        "crop_mode": data.crop_mode,
    }
