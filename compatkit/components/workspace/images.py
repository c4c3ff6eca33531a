"""The images that an extractor was trained on, found again: where they lay when it was published, else by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from compatkit.components.loading import pinned, trained_on
from compatkit.data.loading import load
from compatkit.data.specification import load_spec
from compatkit.errors import CompatkitError, DataError, UnknownName
from compatkit.plugins.discovery import providers

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet, Split
    from compatkit.registry.names import Reference
    from compatkit.registry.store import Store

FITTED_ON = 1000
"""Images that an adapter is fitted on at most: from 30 to 1,000 accuracy rises by one to three points only."""
OR_SET = "or set COMPATKIT_DATA to the folder of data sets."


def fitting_images(data: DataSet) -> Split:
    """Return images to fit an adapter on: evenly spread training images, so that no test image is used."""
    step = -(-len(data.train) // FITTED_ON)
    return data.train if step == 1 else data.train.take(range(0, len(data.train), step))


def images_again(
    store: Store,
    extractors: Iterable[Reference],
    remedy: str,
    *,
    root: str | None = None,
    download: bool = False,
) -> dict[str, DataSet]:
    """Return the data set that each extractor was trained on, by the extractor's name.

    Its very images are taken from where they lay when it was published on this machine. Where they are gone, changed
    or were never here, the data set of that name is taken, with a warning if it holds other images.

    Args:
        store: Where the extractors are.
        extractors: Resolved references.
        remedy: How the caller can name images, for the error.
        root: Folder of data sets; what was remembered does not count then.
        download: Whether torchvision may fetch what is missing.

    Raises:
        DataError: An extractor was not trained here, or its images cannot be loaded.
    """
    loaded: dict[str, DataSet] = {}
    chosen: dict[str, DataSet] = {}
    for reference in extractors:
        manifest, name = store.manifest(reference), pinned(reference)
        family, trained = trained_on(manifest), manifest.training.get("data")
        if not family or not isinstance(trained, Mapping):
            raise DataError(f"{name} was not trained here, so it names no images. {remedy}", subject=name)
        digest = str(trained.get("digest"))
        if root is None and digest not in loaded:
            again = _remembered(store, name, digest)
            loaded |= {digest: again} if again is not None else {}
        if digest in loaded:
            chosen[reference.name] = loaded[digest]
            continue
        if family not in loaded:
            try:
                loaded[family] = load(family, root=root, download=download, providers=providers())
            except (DataError, UnknownName) as error:
                raise DataError(
                    f"{name} was trained on {family!r}, which could not be loaded. {error} {remedy}",
                    subject=name,
                ) from error
        seen = loaded[family].train
        seen = seen if trained.get("labelled", True) else seen.unlabelled()
        if seen.digest != digest:
            warnings.warn(
                f"{name} was trained on other images than the {family!r} found here (a subset, or changed by its "
                "recipe). The plain test set is used; name the recipe's own images to use those.",
                stacklevel=4,
            )
        chosen[reference.name] = loaded[family]
    return chosen


def _remembered(store: Store, name: str, digest: str) -> DataSet | None:
    """Return the data set with exactly these training images, None if it is not known; warn where it is gone."""
    known: Any = store.memory.source(digest)
    if known is None:
        return None
    where = " in ".join(filter(None, (known["spec"]["name"], known["root"])))
    try:
        data = load_spec(known["spec"], root=known["root"], providers=providers())
    except CompatkitError as error:
        warnings.warn(
            f"{name} was trained on {where}, which cannot be loaded any more: {error}", stacklevel=5
        )
        return None
    if data.train.digest != digest:
        warnings.warn(f"{name} was trained on {where}, which holds other images now.", stacklevel=5)
        return None
    return data
