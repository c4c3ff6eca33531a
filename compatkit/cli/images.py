"""Images for measuring, fitting and policies on the command line, and permission to download."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compatkit.cli.options import Options, option
from compatkit.cli.output import warn
from compatkit.errors import DataError, DataUnavailable, UnknownName, UsageError, WeightsUnavailable

if TYPE_CHECKING:
    from compatkit.components.images import PolicyData
    from compatkit.components.registry import Registry
    from compatkit.contracts.manifest import Manifest
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.conditions import Progress
    from compatkit.registry.copy.admission import PolicyCheckFactory

WAYS = "Name them: --recipe FILE, --data with a name, path or address, --data-root DIR, or --download."
recipe_option = option("Use the test sets of this recipe's tasks.")


class DataOptions(Options):
    """Location of data sets."""

    data_root: Path | None = option(
        "Folder of data sets; default: COMPATKIT_DATA, else torchvision's root.", metavar="DIR"
    )
    download: bool = option("Download missing data sets and weights.")

    @property
    def load_arguments(self) -> dict[str, Any]:
        """Root folder and download flag, as arguments of functions that load data sets."""
        return {"root": self.data_root and str(self.data_root), "download": self.download}

    def finder(self, **settings: Any) -> Callable[[str], DataSet]:
        """Return a function that loads the data set of a split by its name, with these settings for ``load``."""

        def find(name: str) -> DataSet:
            from compatkit.data import load

            family = name if Path(name).exists() else name.removesuffix("/test").removesuffix("/train")
            return load(family, **self.load_arguments, **settings)

        return find


class NamedDataOptions(DataOptions):
    """Location of data sets, for commands that name them; in recipes, ``damaged`` is a key."""

    damaged: str = option(
        "What to do with images that cannot be decoded: fail, or leave them out.",
        choices=("refuse", "skip"),
        default="refuse",
    )

    def load(self, name: str) -> DataSet:
        """Return a data set by name or path, including those of plugins; an error says how to name one."""
        from compatkit.data import load

        try:
            return load(name, **self.load_arguments, damaged=self.damaged)
        except (DataError, UnknownName) as error:
            error.add_note(WAYS)
            raise

    def images_and_tests(self, name: str, test: str | None = None) -> tuple[Split, Split | None]:
        """Return images without labels, and labeled test images if there are any.

        Args:
            name: A folder of image files, or a data set by name, path or address.
            test: Data set whose test images are used; None for those of ``name``.

        Raises:
            DataError: There are no such images.
            UnknownName: There is no such data set.
        """
        from compatkit.data.unlabeled import is_image_folder, is_unlabeled_pack, read_unlabeled

        tests = None if test is None else self.load(test).test
        if is_image_folder(name) or (name.endswith(".npz") and is_unlabeled_pack(name)):
            return read_unlabeled(name, damaged=self.damaged), tests
        folder = Path(name).expanduser()
        data = self.load(str(folder.absolute()) if folder.is_dir() else name)
        return data.train, data.test if tests is None else tests

    def at_hand(self, names: Sequence[str], recipe: Path | None = None) -> PolicyData:
        """Return the data sets named on the command line, and a function that finds others by name.

        Args:
            names: Data sets by name or path.
            recipe: File whose tasks' data sets are returned too, or None.
        """
        sets: list[Any] = [self.finder(damaged=self.damaged)(name) for name in names]
        if recipe is not None:
            from compatkit.experiments.recipes import data_sets

            sets += data_sets(recipe, **self.load_arguments)
        return (*sets, self.finder())


class TestSetOptions(NamedDataOptions):
    """The test set of one extractor."""

    name: str | None = option(
        "Test set by name or path; default: that of the extractor's training.", "--data"
    )
    recipe: Path | None = recipe_option

    def data_of(self, registry: Registry, extractor: str) -> DataSet:
        """Return the data set of an extractor by its pinned reference; see ``data_sets``."""
        names = (self.name,) if self.name else ()
        return data_sets(registry, [extractor], self, names, self.recipe)[extractor]


class AdmissionOptions(NamedDataOptions):
    """Options for the policy checks of the receiving registry."""

    measure: bool = option("Measure what policies of the receiving registry require and no result decides.")
    names: tuple[str, ...] = option("Images to measure on, by name or path; may be repeated.", "--data")
    unmeasured: bool = option("Accept versions that policies require to be measured; their logs record it.")

    def policy_checks(self, report: Progress, *, fixed: bool = True) -> PolicyCheckFactory:
        """Return the policy checks for imported or copied versions.

        Args:
            report: Function called with done, total and a description during measurements.
            fixed: Whether the version numbers are fixed, as those of another registry.

        Raises:
            UsageError: Images are named without ``--measure``.
        """
        from compatkit.components.policy_checks import policy_checks

        if self.names and not self.measure:
            raise UsageError("--data names images to measure on; add --measure.")
        data = self.at_hand(self.names)
        return policy_checks(measure=self.measure, data=data, progress=report, fixed=fixed)


def data_sets(
    registry: Registry,
    extractors: Sequence[str],
    options: NamedDataOptions,
    names: Sequence[str] = (),
    recipe: Path | None = None,
) -> dict[str, DataSet]:
    """Return the data set of each extractor by its reference.

    Args:
        registry: Registry of the extractors.
        extractors: Pinned references.
        options: Where data sets are, and whether they may be downloaded.
        names: Data sets by name or path; a single one is used for a single extractor whatever it was trained on.
            Without recipe and names they are found automatically: see ``images_again``.
        recipe: File whose tasks' data sets are used, or None.

    Raises:
        DataError: An extractor has no test set; the message says how to name one.
    """
    if options.damaged == "skip" and not names:
        raise UsageError(
            "--damaged skip is for data sets named with --data; in a recipe, `damaged` is a key."
        )
    from compatkit.components.images import family_of, images_again, trained_on

    if not recipe and not names:
        return images_again(
            registry.store, map(registry.store.resolve, extractors), WAYS, **options.load_arguments
        )
    from compatkit.experiments.recipes import data_sets

    sets = data_sets(recipe, **options.load_arguments) if recipe else map(options.load, names)
    tests = {data.test.name: data for data in sets}
    chosen = {}
    for reference in extractors:
        family = trained_on(registry.store.manifest(reference))
        known = [data for name, data in tests.items() if family_of(name) == family]
        if len(tests) == 1 and (len(extractors) == 1 or not family) and not recipe:
            known = list(tests.values())
        if len(known) != 1:
            trained = f"trained on {family}" if family else "not trained here"
            text = f"{reference} is {trained}; expected one test set, but {len(known)} of {', '.join(tests)} fit."
            raise DataError(f"{text} {WAYS}", subject=reference)
        chosen[reference] = known[0]
    return chosen


def tests_for(head: Manifest, reference: str, tests: Split | None) -> Split | None:
    """Return default test images if the head knows one of their classes; else None, with a warning.

    Args:
        head: Manifest of the head to measure.
        reference: Its reference, for the warning.
        tests: Test images of the data set in use.
    """
    if tests is None:
        return None
    from compatkit.contracts.labels import match_classes

    known = head.contract.data.labels or ()
    try:
        pairs = match_classes(tests.classes, known, owners=(tests.name, reference))
    except DataError as error:
        warn(f"accuracy is not measured: {error}")
        return None
    if any(tests.counts[index] for index, _ in pairs):
        return tests
    if known:
        warn(
            f"accuracy is not measured: {reference} has no class of {tests.name}. Name other images with --test."
        )
    else:
        warn(f"accuracy is not measured: {reference} has no class names.")
    return None


@contextmanager
def named_options() -> Iterator[None]:
    """Name the options that help, in an error about a recipe's missing data set."""
    try:
        yield
    except DataUnavailable as error:
        error.add_note("Here: --data-root DIR, --download.")
        raise


@contextmanager
def offline(*, unless: bool) -> Iterator[None]:
    """Keep timm and torchvision from downloading weights; cached ones are found.

    Args:
        unless: Whether downloads are allowed.

    Raises:
        WeightsUnavailable: Weights are not in the cache; the message names ``--download``.
    """
    if unless:
        yield
        return
    from compatkit.adapters import offline

    try:
        with offline.offline():
            yield
    except WeightsUnavailable as error:
        error.add_note("--download fetches them.")
        raise
