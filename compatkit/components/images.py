"""Find the images of an extractor, for measuring and fitting, and those of a policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from compatkit.contracts.manifest import Manifest
from compatkit.errors import CompatkitError, DataError, PolicyDataMissing, UnknownName, UsageError, type_of
from compatkit.evaluation.component import Component, pinned
from compatkit.registry.policies import Images

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet, Split
    from compatkit.registry.names import Reference
    from compatkit.registry.store import Store

PolicyData = Sequence["Split | DataSet | Callable[[str], Split | DataSet]"]
"""Available images: splits, data sets, or functions from a split's name to one of them."""
FITTED_ON = 1000
"""Limit of images for fitting an adapter: from 30 to 1,000 images accuracy rises by only one to three points."""
OR_SET = "or set COMPATKIT_DATA to the folder of data sets."


def check_tests(data: Any) -> None:
    """Check the ``data`` argument of a matrix.

    Raises:
        UsageError: It is neither a collection of splits nor a mapping to splits; ``subject`` is the wrong value.
    """
    from compatkit.data.dataset import DataSet, Split

    if isinstance(data, Mapping):
        wrong = [item for item in data if not isinstance(item, str)]
        wrong += [item for item in data.values() if not isinstance(item, Split)]
    elif isinstance(data, Collection) and not isinstance(data, str | bytes):
        wrong = [item for item in data if not isinstance(item, Split)]
    else:
        wrong = [data]
    if not wrong:
        return
    item, hint = wrong[0], ""
    if isinstance(item, DataSet):
        hint = " Pass its test set: data.test."
    elif isinstance(item, Split):
        hint = " Put it in a list."
    raise UsageError(
        "data= expects test sets in a list, such as [mnist.test, usps.test], or a mapping from extractor pattern to "
        f"test set; got {type_of(item)}.{hint}",
        subject=item,
    )


def held_out(part: Component, data: Sequence[Split] | Mapping[str, Split]) -> Split:
    """Return the test set that an extractor is measured on.

    Args:
        part: Extractor.
        data: Test sets, matched by the name before the slash (``mnist/train`` and ``mnist/test``); or a mapping from
            extractor pattern or pinned reference to test set.

    Raises:
        DataError: None matches, or more than one.
    """
    if isinstance(data, Mapping):
        own = [split for pattern, split in data.items() if pattern == part.reference]
        hits = own or [split for pattern, split in data.items() if fnmatchcase(part.name, pattern)]
    else:
        hits = [split for split in data if family_of(split.name) == trained_on(part.manifest)]
    if len(hits) != 1:
        passed = list(data) if isinstance(data, Mapping) else [split.name for split in data]
        raise DataError(
            f"{part.reference} needs exactly one test set, but {len(hits)} of {passed} match. It was trained on "
            f"{part.manifest.training.get('data')}: pass the test set of that data set, or a mapping from extractor "
            "pattern to test set."
        )
    return hits[0]


def trained_on(manifest: Manifest) -> str:
    """Return the name of the data set that a component was trained on; empty if unknown."""
    trained: Any = manifest.training.get("data", {})
    return family_of(str(trained.get("name", ""))) if isinstance(trained, Mapping) else ""


def family_of(split: str) -> str:
    """Return ``mnist`` for ``mnist/test``."""
    return split.rsplit("/", 1)[0]


def fitting_images(data: DataSet) -> Split:
    """Return images for fitting an adapter: evenly spaced training images, so that no test image is used."""
    return evenly(data.train)


def evenly(split: Split) -> Split:
    """Return at most ``FITTED_ON`` images of a split, evenly spaced."""
    step = -(-len(split) // FITTED_ON)
    return split if step == 1 else split.take(range(0, len(split), step))


def images_again(
    store: Store,
    extractors: Iterable[Reference],
    remedy: str,
    *,
    root: str | None = None,
    download: bool = False,
) -> dict[str, DataSet]:
    """Return the data set that each extractor was trained on, by pinned reference.

    The images are loaded from where they were when the extractor was published on this machine. If they are missing or
    changed, or were never on this machine, the data set of that name is loaded, with a warning if it differs.

    Args:
        store: Registry of the extractors.
        extractors: Resolved references.
        remedy: How the caller can supply images, for the error message.
        root: Directory of data sets, which overrides recorded locations.
        download: Whether torchvision may download missing data.

    Raises:
        DataError: The data set of an extractor is unknown, or cannot be loaded.
    """
    from compatkit.data.loading import load

    loaded: dict[str, DataSet] = {}
    chosen: dict[str, DataSet] = {}
    for reference in extractors:
        manifest, name = store.manifest(reference), pinned(reference)
        family, trained = trained_on(manifest), manifest.training.get("data")
        if not family or not isinstance(trained, Mapping):
            raise DataError(f"{name} has no record of its training images. {remedy}", subject=name)
        digest = str(trained.get("digest"))
        if root is None and digest not in loaded and (data := _recorded(store, name, digest)) is not None:
            loaded[digest] = data
        if digest in loaded:
            chosen[name] = loaded[digest]
            continue
        if family not in loaded:
            try:
                loaded[family] = load(family, root=root, download=download)
            except (DataError, UnknownName) as error:
                raise DataError(
                    f"{name} was trained on {family!r}, which could not be loaded. {error} {remedy}",
                    subject=name,
                ) from error
        train = loaded[family].train
        train = train if trained.get("labelled", True) else train.unlabeled()
        if train.digest != digest:
            warnings.warn(
                f"{name} was trained on other images than the {family!r} found here (a subset, or changed by its "
                "recipe). This test set is used; name the recipe's own images to use those.",
                stacklevel=5,
            )
        chosen[name] = loaded[family]
    return chosen


def _recorded(store: Store, name: str, digest: str) -> DataSet | None:
    """Return the data set with these training images from its recorded location, or None; warn if it changed."""
    from compatkit.data.specification import load_spec

    source: Any = store.local_cache.source(digest)
    if source is None:
        return None
    location = " in ".join(filter(None, (source["spec"]["name"], source["root"])))
    try:
        data = load_spec(source["spec"], root=source["root"])
    except CompatkitError as error:
        warnings.warn(
            f"{name} was trained on {location}, which can no longer be loaded: {error}", stacklevel=6
        )
        return None
    if data.train.digest != digest:
        warnings.warn(f"{name} was trained on {location}, which contains other images now.", stacklevel=6)
        return None
    return data


def policy_images(wanted: Images, available: PolicyData = ()) -> Split:
    """Return the images of a policy from ``available``, or else load them by name; the digest must match.

    Args:
        wanted: Name and digest of the images.
        available: Available images; both splits of a data set are tried.

    Raises:
        PolicyDataMissing: No images have this digest; the message lists those of the same name.
        UsageError: ``available`` is not a list of images; ``subject`` is the wrong value.
    """
    from compatkit.data.dataset import DataSet, Split

    several = isinstance(available, Collection) and not isinstance(available, str)
    allowed = Split | DataSet | Callable
    wrong = [item for item in available if not isinstance(item, allowed)] if several else [available]
    if wrong:
        raise UsageError(
            f"data= expects images of a policy in a list, such as [mnist.test]; got {type_of(wrong[0])}.",
            subject=wrong[0],
        )
    differing: dict[str, str] = {}
    reason = ""
    for item in (*available, _data_set_of):
        try:
            splits = _splits(item(wanted.name) if callable(item) else item)
        except CompatkitError as error:
            reason = f"{error} "
            continue
        for split in splits:
            if split.digest == wanted.digest:
                return split
            if split.name == wanted.name:
                differing[split.digest] = split.name
    if differing:
        listed = "; ".join(f"{name}, {digest}" for digest, name in differing.items())
        reason = f"The available images, labels or classes differ: {listed}. "
    raise PolicyDataMissing(
        f"the policy needs {wanted.name}, {wanted.digest}, which is not available. {reason}Pass those images (data=; "
        "on the command line --data NAME, --recipe FILE or --data-root DIR).",
        subject=wanted,
    )


def _splits(data: Split | DataSet) -> tuple[Split, ...]:
    from compatkit.data.dataset import DataSet

    return (data.train, data.test) if isinstance(data, DataSet) else (data,)


def _data_set_of(name: str) -> DataSet:
    """Load the data set of a split such as ``mnist/test``.

    Raises:
        UnknownName: There is no such data set.
        DataError: It is missing from the directories of data sets, or damaged.
    """
    from compatkit.data.loading import load

    return load(name.rpartition("/")[0] or name)
