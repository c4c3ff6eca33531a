"""``compatkit predict``: class and probability of each image, by a network of the registry."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from compatkit.cli.images import NamedDataOptions
from compatkit.cli.options import BN_POLICY_SETTINGS, argument, command, device_option, option
from compatkit.cli.output import columns, counted, emit, news, warn
from compatkit.cli.roots import SignatureOptions, open_registry
from compatkit.cli.statistics import ALONE, images_of_statistics, normalizes, policy_for_single_images
from compatkit.contracts.batchnorm import DEFAULT, estimates
from compatkit.contracts.kinds import HEADS
from compatkit.errors import DataError, UsageError
from compatkit.registry.resolving import wrong_kind

if TYPE_CHECKING:
    from compatkit.components.registry import Registry
    from compatkit.data.split import Split
    from compatkit.evaluation.predictions import Prediction
    from compatkit.evaluation.recombination import Recombination
    from compatkit.registry.names import Reference


class PredictOptions(NamedDataOptions, SignatureOptions):
    """Arguments and options of ``predict``."""

    part: str = argument()
    photos: tuple[str, ...] = argument(required=True)
    head: str | None = option("Head for the extractor PART; default: its own.", metavar="HEAD")
    bn_policy: str | None = option(
        "Batch-norm statistics. Default: as published; running for a head with its own extractor; else reestimate, or "
        "batch if no images are found.",
        **BN_POLICY_SETTINGS,
    )
    data: str | None = option("Unlabeled images (100 or more) for reestimate; default: the training images.")
    csv: Path | None = option("Write the rows to a CSV file instead of printing them.", is_output=True)
    batch_size: int = option("Images per batch.", min=1, default=256)
    device: str = device_option


@command("predict", PredictOptions)
def predict_command(options: PredictOptions) -> int | None:
    """Predict the class of each image in PHOTOS (files and folders), with its probability.

    PART is a published recombination, or an extractor, used with --head or its own head. A file that cannot be read
    has a row with the reason; the exit code is then 1.

    Examples:
        # class and probability of each photo
        compatkit predict digits/mixed photos/ --csv classes.csv
        # with an extractor and a head
        compatkit predict digits/mnist.extractor 7.png --head digits/usps.head
    """
    from compatkit.evaluation.assembly import BatchStatisticsWarning
    from compatkit.evaluation.extractor_pass import moved_to

    photos, others = _photos(options.photos)
    model = _model(open_registry(), options)
    if model.bn_policy == "batch" and normalizes([part.manifest for part in model.sources]):
        warn(f"{ALONE} Add --bn-policy reestimate, and --data with 100 or more photos of all classes.")
    with warnings.catch_warnings(), moved_to(model, options.device):
        warnings.simplefilter("ignore", BatchStatisticsWarning)  # the command warns in its own words
        predictions = model.predict(photos, batch_size=options.batch_size, damaged="skip")
    if options.csv is not None:
        predictions.to_csv(options.csv)
    if options.json:
        used = {"parts": [part.reference for part in model.sources], "bn_policy": model.bn_policy}
        rows = [
            {"image": name} | ({"damaged": best.damaged} if best.damaged else _prediction_json(best))
            for name, best in zip(predictions.files, predictions, strict=True)
        ]
        emit({**used, "classes": list(predictions.classes), "predictions": rows, "left_out": others})
    elif options.csv is None:
        click.echo(str(predictions))
    else:
        counts = Counter(label for label in predictions.labels if label)
        lines = [(name, f"{count:,}") for name, count in counts.most_common()]
        columns([("class", "images"), *lines], right=[1])
    if not predictions.damaged:
        return 0
    total = counted(len(predictions), "file")
    warn(f"{len(predictions.damaged):,} of {total} could not be read; their rows say why.")
    return 1


def _photos(paths: tuple[str, ...]) -> tuple[Split, dict[str, int]]:
    """Return the images of files and folders, and counts of the other files in folders, by suffix.

    Raises:
        DataError: A path does not exist, or a folder holds no image.
    """
    import numpy as np

    from compatkit.data.imagefiles import image_files
    from compatkit.data.split import NO_CLASSES, Split

    files, others = list[str](), Counter[str]()
    for name in paths:
        path = Path(name).expanduser().absolute()
        if not path.exists():
            raise DataError(f"There is no file or folder {name}.", subject=name)
        files += _files(path, others) if path.is_dir() else [str(path)]
    root = Path(files[0]).anchor
    images = image_files(Path(root), [file.removeprefix(root) for file in files])
    labels = np.zeros(len(files), dtype=np.int64)
    return Split(images, labels, NO_CLASSES, "photos"), dict(others.most_common())


def _prediction_json(best: Prediction) -> dict[str, Any]:
    return {"label": best.label, "probability": best.probability, "position": best.position}


def _files(folder: Path, others: Counter[str]) -> list[str]:
    """Return the image files of a folder; count what is left out, and warn."""
    from compatkit.data.skipped import SkippedFilesWarning
    from compatkit.data.unlabeled import find_images

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        images = find_images(folder.resolve())
    for warning in caught:
        warn(str(warning.message))
        if isinstance(warning.message, SkippedFilesWarning):
            others.update(warning.message.counts)
    return [images.reader.name(index) for index in range(len(images))]


def _model(registry: Registry, options: PredictOptions) -> Recombination:
    """Return the network.

    Raises:
        UsageError: PART is of another kind, or options do not go with it.
        DataError: Statistics are to be estimated, and no images are found.
    """
    part = registry.store.resolve(options.part)
    kind = registry.store.manifest(part).kind
    if kind == "recombination":
        if options.head is not None:
            raise UsageError(f"{part} is a complete network; leave --head out.", subject=options.head)
        model = cast("Recombination", registry.load(str(part)))
        if options.bn_policy in (None, model.bn_policy) and options.data is None:
            return model
        if model.inserted:
            text = f"{part} has adapters and is used as published; leave --bn-policy and --data out."
            raise UsageError(text, subject=options.part)
        extractor, head = (registry.store.resolve(source.reference) for source in model.sources)
        return _recombined(registry, extractor, head, options)
    if kind in HEADS:
        raise UsageError(f"{part} is a head; expected EXTRACTOR --head {options.part}.", subject=options.part)
    if kind != "extractor":
        raise wrong_kind(part, kind, ("extractor", "recombination"), options.part)
    head = _own_head(registry, part) if options.head is None else registry.store.resolve(options.head)
    return _recombined(registry, part, head, options)


def _recombined(
    registry: Registry, extractor: Reference, head: Reference, options: PredictOptions
) -> Recombination:
    policy = options.bn_policy or (
        "reestimate" if options.data else policy_for_single_images(registry, extractor, head)
    )
    if options.data is not None and not estimates(policy):
        raise UsageError(f"--data is for --bn-policy reestimate and mix:N, not for {policy}; leave it out.")
    images = None
    if estimates(policy):
        try:
            images = images_of_statistics(registry, extractor, options.data, options)
        except DataError as error:
            if options.bn_policy is not None or options.data is not None:
                raise
            warn(f"{error}")
            policy = DEFAULT
    return registry.recombine(str(extractor), str(head), bn_policy=policy, data=images)


def _own_head(registry: Registry, extractor: Reference) -> Reference:
    """Return the newest version of the head that was trained with an extractor, with a message.

    Raises:
        UsageError: There is none, or there are heads of several names.
    """
    from compatkit.contracts.manifest import TRAINED_WITH

    heads = {
        head.name: head
        for head in registry.store.index.search(parent=extractor.digest, kind="head")
        if (TRAINED_WITH, extractor.digest) in head.parents
    }
    if len(heads) != 1:
        which = ", ".join(heads) or "none"
        text = f"{extractor} needs a head; those trained with it are: {which}. Name one with --head."
        raise UsageError(text, subject=str(extractor))
    (head,) = heads.values()
    news(f"with its own head {head}")
    return registry.store.resolve(str(head))
