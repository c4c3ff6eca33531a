"""The recipe of a small sweep, and its data, that tests of sweeps and of the command share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from small import write_packs

from compatkit.experiments.recipes import Recipe, check, loader
from compatkit.experiments.recipes.files import single

TASK = """
[[tasks]]
name = "right"
data = "right.npz"
model = "resnet8_cifar"
cut = "layer2"
size = [8, 8]
"""
"""The second of two tasks."""
RECIPE = f"""
prefix = "digits"

[trainer]
steps = 3
batch_size = 8
precision = "float32"
log_every = 1
device = "cpu"

[[tasks]]
name = "left"
data = "left.npz"
model = "resnet8_cifar"
cut = "layer2"
size = [8, 8]
{TASK}
[sweep]
"""


def write_recipe(folder: Path, lines: tuple[str, ...], change: tuple[tuple[str, str], ...]) -> Path:
    """Write packs and the recipe with lines of [sweep] and with pieces replaced."""
    folder.mkdir(exist_ok=True)
    write_packs(folder, size=(8, 8))
    text = RECIPE
    for old, new in change:
        assert old in text
        text = text.replace(old, new)
    (folder / "small.toml").write_text(text + "\n".join(lines) + "\n")
    return folder / "small.toml"


def read_recipe(path: str | Path, *, root: str | None = None, **settings: Any) -> Recipe:
    """Read a recipe and load its data sets."""
    file = Path(path)
    return check(single(file), file, **settings).load(loader(file, root, download=False))
