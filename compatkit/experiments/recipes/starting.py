"""A first recipe for data sets that somebody has: one task each, with parts that fit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.labels import common
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet

SMALL = 64
"""Largest side in pixels of images that a network for small images gets."""
BATCH_SIZE, WARMUP = 64, 20
LAYOUT = """\
# Parts that fit, for {names}.
#
#   compatkit --registry parts train {file}
#   compatkit --registry parts matrix '{prefix}/*.extractor' '{prefix}/*.head' --html matrix.html

prefix = {prefix_value}
regularizers = {regularizers} {reason}

[trainer]
steps = {steps} # of each task; more are more accurate
batch_size = {batch_size}
lr = 0.003
schedule = "cosine"
warmup = {warmup}
"""
TASK = """
[[tasks]]
name = {name}
data = {data}
model = {model} # any of timm or torchvision
cut = {cut} # `compatkit cuts MODEL` lists where it can be cut
size = {size}
"""


@attrs.frozen
class Network:
    """Where the networks of a first recipe come from and are cut.

    Attributes:
        model: Name of a model.
        cut: Module after which it is cut.
        size: Height and width of the images in pixels.
        augment: Augmentation of the training images.
    """

    model: str
    cut: str
    size: int
    augment: str | None

    @classmethod
    def suiting(cls, data: Sequence[DataSet]) -> Network:
        """Return a network for photos, or for small images where all have one size of at most 64 pixels."""
        sizes = [item.train.size for item in data]
        if all(size is not None and max(size) <= SMALL for size in sizes):
            return cls("resnet20_cifar", "layer2", max(16, *(max(size) for size in sizes if size)), None)
        return cls("mobilenetv3_small_050", "blocks.3", 128, "flip")


@attrs.frozen
class StartingRecipe:
    """First recipe for some data sets.

    Attributes:
        text: Content of the file.
        names: Name of each task.
        shared: Classes that all data sets have.
        regularizers: What makes the parts fit.
    """

    text: str
    names: tuple[str, ...]
    shared: tuple[str, ...]
    regularizers: tuple[str, ...]


def starting_recipe(
    sources: Mapping[str, Any],
    data: Sequence[DataSet],
    *,
    file: str,
    prefix: str,
    network: Network,
    steps: int,
) -> StartingRecipe:
    """Return a recipe with one task for each data set.

    Where all have two classes in common, a shared head for these makes the parts fit (``dcc``); else one that predicts
    rotations, which needs no common classes.

    Args:
        sources: Value of each task's key ``data``, by the name or path that was given.
        data: The data sets, in the same order.
        file: Name of the recipe, for the commands at its beginning.
        prefix: Prefix of the published parts.
        network: Network of every task.
        steps: Training steps of each task.

    Raises:
        UsageError: There is one data set only, or one with fewer than two training images.
    """
    if len(data) < 2:
        raise UsageError(
            "A recipe needs two data sets at least, since parts of two networks are exchanged; got "
            f"{len(data)}. Name another folder, such as photos of another camera."
        )
    fewest = min(len(item.train) for item in data)
    if fewest < 2:
        raise UsageError(f"Each data set needs two training images at least; got one with {fewest}.")
    names = _names(list(sources))
    shared = _shared(data)
    fitting = "dcc" if len(shared) > 1 else "rotation_prediction"
    reason = (
        f"# equal initial weights; one shared head for the {len(shared)} common classes"
        if fitting == "dcc"
        else "# equal initial weights; one shared head that predicts rotations, for want of common classes"
    )
    batch_size = BATCH_SIZE
    while batch_size > fewest:
        batch_size //= 2
    text = LAYOUT.format(
        names=", ".join(names),
        file=" ".join(file.split()),
        prefix=prefix,
        prefix_value=_toml(prefix),
        regularizers=_toml(["identical_init", fitting]),
        reason=reason,
        steps=steps,
        batch_size=batch_size,
        warmup=min(WARMUP, steps // 10),
    )
    for name, value in zip(names, sources.values(), strict=True):
        text += TASK.format(
            name=_toml(name),
            data=_toml(value),
            model=_toml(network.model),
            cut=_toml(network.cut),
            size=network.size,
        )
        if network.augment is not None:
            text += f'augment = {_toml(network.augment)} # "imagenet" for long runs: crops, scales, colors\n'
    return StartingRecipe(text, names, shared, ("identical_init", fitting))


def _shared(data: Sequence[DataSet]) -> tuple[str, ...]:
    first = data[0].classes
    indices = set(range(len(first)))
    for other in data[1:]:
        indices &= {index for index, _ in common(first, other.classes)}
    return tuple(first[index] for index in sorted(indices))


def component_name(text: str) -> str:
    """Return a text as one word of a component's name: small letters, digits, hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "data"


def _names(sources: Sequence[str]) -> tuple[str, ...]:
    """Return a task's name for each source: the last word of its path, with a number where it is taken."""
    names: list[str] = []
    for source in sources:
        word = component_name(re.split(r"[/\\]", source.rstrip("/\\"))[-1].partition(".")[0])
        name, number = word, 2
        while name in names:
            name, number = f"{word}-{number}", number + 1
        names.append(name)
    return tuple(names)


def _toml(value: Any) -> str:
    """Return a value of TOML: JSON is one for texts, lists of them and, as an inline table, for tables of texts."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
