"""``compatkit recipe DATA DATA...``: write a first recipe for one's own images."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.cli.images import NamedDataOptions
from compatkit.cli.options import argument, command, option
from compatkit.cli.output import emit, next_step, paragraph
from compatkit.contracts.labels import first_names
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet


class RecipeOptions(NamedDataOptions):
    """Arguments and options of ``recipe``."""

    data: tuple[str, ...] = argument(nargs=-1, required=True)
    out: Path | None = option(
        "Recipe to write; default: named after the folder of the first DATA.", is_output=True
    )
    model: str | None = option("Model of each task; default: a small one for the size of the images.")
    cut: str | None = option("Module after which the model is cut, if you name a model.")
    size: int | None = option("Height and width of the images, in pixels.", min=8)
    steps: int = option("Training steps of each task.", min=1, default=300)


@command("recipe", RecipeOptions, registry=False)
def recipe_command(options: RecipeOptions) -> int | None:
    """Write a recipe that trains one network for each DATA such that their parts fit.

    DATA is a folder of class folders, or any other name, path or address of a data set.

    Examples:
        # two folders of class folders
        compatkit recipe photos/studio photos/phone
        # another network
        compatkit recipe photos/studio photos/phone --model resnet18 --cut layer3 --out resnet.toml
    """
    from compatkit.experiments.recipes.starting import Network, component_name, starting_recipe
    from compatkit.reports.writing import write

    if (options.model is None) != (options.cut is None):
        raise UsageError(
            "--model and --cut go together. `compatkit cuts MODEL` lists where a model can be cut."
        )
    above = Path(options.data[0]).absolute().parent.name if Path(options.data[0]).exists() else ""
    out = options.out or Path(f"{component_name(above)}.toml")
    if out.exists():
        raise UsageError(f"{out} exists. Name another file with --out, or remove it.", subject=out)
    data = [options.load(name) for name in options.data]
    network = Network.suiting(data)
    if options.model is not None and options.cut is not None:
        network = attrs.evolve(network, model=options.model, cut=options.cut)
    if options.size is not None:
        network = attrs.evolve(network, size=options.size)
    made = starting_recipe(
        {name: _value(name, out, options.damaged) for name in options.data},
        data,
        file=str(out),
        prefix=component_name(out.stem),
        network=network,
        steps=options.steps,
    )
    _check(made.text, out, data)
    write(out, made.text)
    if options.json:
        shown = {"tasks": made.names, "shared_classes": made.shared, "regularizers": made.regularizers}
        return emit({"recipe": str(out), **{key: list(value) for key, value in shown.items()}})
    for name, item in zip(made.names, data, strict=True):
        paragraph(
            f"{name}: {len(item.train):,} training and {len(item.test):,} test images in {len(item.classes)} classes"
        )
    paragraph(
        f"Common classes: {first_names(made.shared) if made.shared else 'none'}. Parts are made to fit by "
        f"{' and '.join(made.regularizers)}."
    )
    root = ("--data-root", options.data_root) if options.data_root else ()
    next_step("--registry", "parts", "train", out, *root, registry=False)
    return None


def _check(text: str, out: Path, data: Sequence[DataSet]) -> None:
    """Refuse what `train` would refuse, before the file is written: an unknown model, or a name that TOML lacks."""
    from compatkit.experiments.recipes import check

    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeEncodeError) as error:
        raise UsageError(
            "A recipe cannot hold one of these names, which is no valid text. Rename the folder or --out."
        ) from error
    following = iter(data)
    check(tables, out).load(lambda _: next(following))


def _value(name: str, out: Path, damaged: str) -> Any:
    """Return the value of a task's key ``data``: a local path from the recipe's folder on, and what else was asked."""
    path = Path(name)
    if path.exists() and not path.is_absolute():
        name = Path(os.path.relpath(path, out.absolute().parent)).as_posix()
        name = name if "/" in name else f"./{name}"
    return name if damaged == "refuse" else {"name": name, "damaged": damaged}
