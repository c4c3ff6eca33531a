"""Batch-norm statistics of recombined parts that are to meet single images: published ones, and those that predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from compatkit.cli.images import NamedDataOptions, data_sets
from compatkit.contracts.batchnorm import DEFAULT

if TYPE_CHECKING:
    from compatkit.components.registry import Registry
    from compatkit.contracts.manifest import Manifest
    from compatkit.data.split import Split
    from compatkit.registry.names import Reference

ALONE = (
    "Batch normalization takes the statistics of each batch here, so the class of an image depends on the others: "
    "single images, and images of one class, are classified at chance."
)


def states_policy() -> bool:
    """Return whether the command line states ``--bn-policy``, whose default is for measuring."""
    return click.get_current_context().get_parameter_source("bn_policy") is ParameterSource.COMMANDLINE


def normalizes(parts: Sequence[Manifest]) -> bool:
    """Return whether one of the parts has batch normalization."""
    return any(manifest.contract.protocol.norm == "batch" for manifest in parts)


def policy_for_single_images(registry: Registry, extractor: Reference, head: Reference) -> str:
    """Return the batch-norm policy under which the class of an image depends on no other image.

    Returns:
        ``"running"`` for a head with the extractor that it was trained with, the default policy where neither has
        batch normalization, else ``"reestimate"``.
    """
    from compatkit.contracts.manifest import trained_with

    left, right = registry.store.manifest(extractor), registry.store.manifest(head)
    if not normalizes((left, right)):
        return DEFAULT
    return "running" if str(extractor.digest) in trained_with(right) else "reestimate"


def images_of_statistics(
    registry: Registry, extractor: Reference, name: str | None, options: NamedDataOptions
) -> Split:
    """Return unlabeled images on which to estimate statistics: at most 1,000, evenly drawn.

    Args:
        registry: Registry of the extractor.
        extractor: Extractor whose training images are the default.
        name: A folder of images, or a data set by name, path or address; or None.
        options: Options with the location of data sets.

    Raises:
        DataError: They are not found.
    """
    from compatkit.components.images import evenly, fitting_images

    if name is not None:
        return evenly(options.images_and_tests(name)[0])
    (data,) = data_sets(registry, [str(extractor)], options).values()
    return fitting_images(data)
