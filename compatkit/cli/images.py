"""Images for measuring, fitting and policies on the command line, and permission to download."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from compatkit.cli.options import AdmissionOptions, NamedDataOptions
from compatkit.cli.output import warn
from compatkit.errors import DataError, EnvironmentFailure, UnknownName, UsageError

if TYPE_CHECKING:
    from compatkit.components.images import PolicyData
    from compatkit.components.registry import Registry
    from compatkit.contracts.manifest import Manifest
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.conditions import Progress
    from compatkit.registry.copy.admission import Deciding

WAYS = (
    "Say where they are: --recipe FILE (the recipe it was trained with), --data with a name, path or address, "
    "--data-root DIR for the folder of data sets, or --download."
)
NOT_FOUND = "in none of these folders"
"""Part of the error for a known data set that is missing."""


def data_sets(
    registry: Registry,
    extractors: Sequence[str],
    names: Sequence[str],
    recipe: str | None,
    options: NamedDataOptions,
) -> dict[str, DataSet]:
    """Return the data set of each extractor by its reference.

    Args:
        registry: Registry of the extractors.
        extractors: Pinned references.
        names: Data sets by name or path; a single one is used for a single extractor whatever it was trained on.
            Without recipe and names they are found automatically: see ``images_again``.
        recipe: File whose tasks' data sets are used, or None.
        options: Where data sets are, and whether they may be downloaded.

    Raises:
        DataError: An extractor has no test set; the message says how to name one.
    """
    root, download = options.data_root, options.download
    if options.damaged == "skip" and not names:
        raise UsageError(
            "--damaged is for data sets named with --data; a recipe says it itself, and images found again are those "
            "that were trained on."
        )
    if not recipe and not names:
        from compatkit.components.images import images_again

        places = map(registry.store.resolve, extractors)
        return images_again(registry.store, places, WAYS, root=root, download=download)
    from compatkit.components.images import family_of, trained_on
    from compatkit.experiments.recipes import data_sets

    sets = (
        data_sets(recipe, root=root, download=download)
        if recipe
        else [load_data_set(name, root, download, options.damaged) for name in names]
    )
    tests = {data.test.name: data for data in sets}
    chosen = {}
    for reference in extractors:
        family = trained_on(registry.store.manifest(reference))
        known = [data for name, data in tests.items() if family_of(name) == family]
        if len(tests) == 1 and (len(extractors) == 1 or not family) and not recipe:
            known = list(tests.values())
        if len(known) != 1:
            trained = f"trained on {family}" if family else "not trained here"
            raise DataError(
                f"{reference} is {trained}; it needs one test set, but {len(known)} of {', '.join(tests)} fit. {WAYS}",
                subject=reference,
            )
        chosen[reference] = known[0]
    return chosen


def load_data_set(name: str, root: str | None, download: bool, damaged: str = "refuse") -> DataSet:
    """Return a data set by name or path, including those of plugins; an error says how to name one.

    Args:
        name: Name or path.
        root: Folder of data sets, or None.
        download: Whether it may be downloaded.
        damaged: As for ``load``.
    """
    from compatkit.data import load

    try:
        return load(name, root=root, download=download, damaged=damaged)
    except (DataError, UnknownName) as error:
        error.add_note(WAYS)
        raise


def images_and_tests(
    name: str, test: str | None, root: str | None, download: bool, damaged: str = "refuse"
) -> tuple[Split, Split | None]:
    """Return images without labels, and labeled test images if there are any.

    Args:
        name: A folder of image files, or a data set by name, path or address.
        test: Data set whose test images are used; None for those of ``name``.
        root: Folder of data sets.
        download: Whether torchvision may download missing data.
        damaged: As for ``load``.

    Raises:
        DataError: There are no such images.
        UnknownName: There is no such data set.
    """
    from pathlib import Path

    from compatkit.data.unlabeled import is_bare, is_flat, read_unlabeled

    tests = None if test is None else load_data_set(test, root, download, damaged).test
    if is_flat(name) or (name.endswith(".npz") and is_bare(name)):
        return read_unlabeled(name, damaged=damaged), tests
    folder = Path(name).expanduser()
    data = load_data_set(str(folder.absolute()) if folder.is_dir() else name, root, download, damaged)
    return data.train, data.test if tests is None else tests


def tests_for(head: Manifest, reference: str, tests: Split | None) -> Split | None:
    """Return default test images if the head knows one of their classes; else None, with a warning.

    Args:
        head: Manifest of the head to measure.
        reference: Its reference, for the warning.
        tests: Test images of the data set in use.
    """
    if tests is None:
        return None
    from compatkit.contracts.labels import known_classes

    known = head.contract.data.labels or ()
    try:
        pairs = known_classes(tests.classes, known, owners=(tests.name, reference))
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


def found_in(root: str | None, download: bool, damaged: str = "refuse") -> Callable[[str], DataSet]:
    """Return a function that loads the data set of a split's name from the folders on the command line.

    Args:
        root: Folder of data sets, or None.
        download: Whether data sets may be downloaded.
        damaged: As for ``load``.
    """

    def find(name: str) -> DataSet:
        from pathlib import Path

        from compatkit.data import load

        family = name if Path(name).exists() else name.removesuffix("/test").removesuffix("/train")
        return load(family, root=root, download=download, damaged=damaged)

    return find


def images_at_hand(
    names: Sequence[str], root: str | None, download: bool, damaged: str = "refuse", recipe: str | None = None
) -> PolicyData:
    """Return the data sets named on the command line, and a function that finds others by name.

    Args:
        names: Data sets by name or path.
        root: Folder of data sets, or None.
        download: Whether data sets may be downloaded.
        damaged: As for ``load``, of the data sets named.
        recipe: File whose tasks' data sets are returned too, or None.
    """
    find = found_in(root, download, damaged)
    sets: list[Any] = [find(name) for name in names]
    if recipe is not None:
        from compatkit.experiments.recipes import data_sets

        sets += data_sets(recipe, root=root, download=download)
    return (*sets, found_in(root, download))


def deciding_on(options: AdmissionOptions, report: Progress) -> Deciding:
    """Return the decider for arriving versions, according to ``AdmissionOptions``.

    Args:
        options: Options of the command.
        report: Told of measurements.

    Raises:
        UsageError: Images are named without ``--measure``.
    """
    from compatkit.components.deciding import deciding

    if options.names and not options.measure:
        raise UsageError("--data names images to measure on; add --measure.")
    images = images_at_hand(options.names, options.data_root, options.download, options.damaged)
    return deciding(measure=options.measure, data=images, progress=report)


@contextmanager
def named_options() -> Iterator[None]:
    """Add the helpful options to an error about a recipe's missing data set."""
    try:
        yield
    except DataError as error:
        if NOT_FOUND not in str(error):
            raise
        raise DataError(f"{error} Here: --data-root DIR, --download.", subject=error.subject) from error


@contextmanager
def offline(*, unless: bool) -> Iterator[None]:
    """Keep timm and torchvision from downloading weights; cached ones are found.

    Args:
        unless: Allow downloads.

    Raises:
        EnvironmentFailure: Weights are not in the cache; the message names ``--download``.
    """
    if unless:
        yield
        return
    from compatkit.adapters import fetching

    try:
        with fetching.offline():
            yield
    except EnvironmentFailure as error:
        if "could not be fetched" not in str(error):
            raise
        raise EnvironmentFailure(f"{error} --download fetches them.", subject=error.subject) from error
