"""Which images an extractor is measured on, and adapters are fitted on: its own data set's, wherever it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from compatkit.cli.output import warn
from compatkit.errors import DataError, UnknownName

if TYPE_CHECKING:
    from compatkit.components.workspace import Registry
    from compatkit.contracts.manifest import Manifest
    from compatkit.data.dataset import DataSet, Split

WAYS = (
    "Say where they are: --recipe FILE (the recipe it was trained with), --data NAME or the path of an .npz pack, "
    "--data-root DIR for the folder of data sets, or --download."
)


def test_images(held: Registry, extractors: Sequence[str], **where: Any) -> dict[str, Split]:
    """Return the test set of each extractor by its name; see ``data_sets``."""
    return {name: data.test for name, data in data_sets(held, extractors, **where).items()}


def data_sets(
    held: Registry,
    extractors: Sequence[str],
    *,
    recipe: str | None,
    names: Sequence[str],
    root: str | None,
    download: bool,
) -> dict[str, DataSet]:
    """Return the data set of each extractor by its name.

    Args:
        held: Where the extractors are.
        extractors: Pinned references.
        recipe: File whose tasks' data sets are taken.
        names: Data sets by name or path; a single one is taken for a single extractor whatever it was trained on.
            Without recipe and names they are found again: see ``images_again``.
        root: Folder of data sets.
        download: Whether torchvision may fetch what is missing.

    Raises:
        DataError: An extractor has no test set; the message says how to name one.
    """
    if not recipe and not names:
        from compatkit.components.workspace.images import images_again

        places = map(held.store.resolve, extractors)
        return images_again(held.store, places, WAYS, root=root, download=download)
    from compatkit.components.loading import family_of, trained_on

    manifests = {reference: held.store.manifest(reference) for reference in extractors}
    sets = (
        _of_recipe(recipe, root, download)
        if recipe
        else [load_data_set(name, root, download) for name in names]
    )
    tests = {data.test.name: data for data in sets}
    chosen = {}
    for reference, manifest in manifests.items():
        family = trained_on(manifest)
        known = [data for name, data in tests.items() if family_of(name) == family]
        if len(tests) == 1 and (len(manifests) == 1 or not family) and not recipe:
            known = list(tests.values())
        if len(known) != 1:
            trained = f"trained on {family}" if family else "not trained here"
            raise DataError(
                f"{reference} is {trained}; it needs one test set, and {len(known)} of {', '.join(tests)} fit. {WAYS}",
                subject=reference,
            )
        chosen[reference.split("@")[0]] = known[0]
    return chosen


def load_data_set(name: str, root: str | None, download: bool) -> DataSet:
    """Return a data set by name or path, those of plugins too; an error says how to name one."""
    from compatkit.data import load
    from compatkit.plugins.discovery import providers

    try:
        return load(name, root=root, download=download, providers=providers())
    except (DataError, UnknownName) as error:
        raise type(error)(f"{error} {WAYS}", subject=error.subject) from error


def images_and_tests(
    name: str, test: str | None, root: str | None, download: bool
) -> tuple[Split, Split | None]:
    """Return images whose labels are not read, and labelled ones to measure on, where there are some.

    Args:
        name: A folder of image files, a data set by name, or the path of an .npz pack.
        test: Data set whose test images are taken; None takes those of ``name``.
        root: Folder of data sets.
        download: Whether torchvision may fetch what is missing.

    Raises:
        DataError: There are no such images.
        UnknownName: There is no such data set.
    """
    from pathlib import Path

    from compatkit.data.loading import is_path
    from compatkit.data.unlabelled import is_bare, read_unlabelled

    tests = None if test is None else load_data_set(test, root, download).test
    if Path(name).expanduser().is_dir() or (is_path(name) and is_bare(name)):
        return read_unlabelled(name), tests
    data = load_data_set(name, root, download)
    return data.train, data.test if tests is None else tests


def tests_for(head: Manifest, reference: str, tests: Split | None) -> Split | None:
    """Return test images that nobody named, where the head knows a class of them; else None, with a warning.

    Args:
        head: Manifest of the head that is to be measured.
        reference: Of the head, for the warning.
        tests: Those of the data set whose images are used.
    """
    if tests is None:
        return None
    from compatkit.contracts.labels import known_classes

    known = head.contract.data.labels or ()
    try:
        pairs = known_classes(tests.classes, known, whose=(tests.name, reference))
    except DataError as error:
        warn(f"accuracy is not measured: {error}")
        return None
    if any(tests.counts[place] for place, _ in pairs):
        return tests
    why = (
        f"{tests.name} and {reference} have no class in common" if known else f"{reference} names no classes"
    )
    warn(f"accuracy is not measured: {why}. --test NAME takes other test images.")
    return None


def _of_recipe(path: str, root: str | None, download: bool) -> list[DataSet]:
    from compatkit.experiments.recipes import data_sets

    return data_sets(path, root=root, download=download)
