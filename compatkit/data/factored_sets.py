"""Images with their factors by name: drawn, or read from the published files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from compatkit.data import cars3d_files, celeba_folder, dsprites_file, smallnorb_files
from compatkit.data.factored import Factored, found
from compatkit.data.solid_images import solids
from compatkit.data.sprite_images import sprites
from compatkit.errors import UnknownName, suggest

Read = Callable[[str, Sequence[Path], int, int | None], Factored]


def _dsprites(name: str, folders: Sequence[Path], size: int, count: int | None) -> Factored:
    return dsprites_file.dsprites(found(name, dsprites_file.PATTERNS, folders)[0], count=count, name=name)


def _cars3d(name: str, folders: Sequence[Path], size: int, count: int | None) -> Factored:
    return cars3d_files.cars3d(found(name, cars3d_files.PATTERNS, folders), size=size, name=name)


def _smallnorb(name: str, folders: Sequence[Path], size: int, count: int | None) -> Factored:
    files = found(name, smallnorb_files.PATTERNS, folders)
    return smallnorb_files.smallnorb(files, size=size, name=name)


def _celeba(name: str, folders: Sequence[Path], size: int, count: int | None) -> Factored:
    listed = found(name, celeba_folder.PATTERNS, folders)[0]
    return celeba_folder.celeba(listed.parent, count=count, size=size, name=name)


SETS: dict[str, Read] = {
    "sprites": lambda name, folders, size, count: sprites(size=size),
    "solids": lambda name, folders, size, count: solids(count=count or 5000, size=size),
    "solids-moved": lambda name, folders, size, count: solids(
        count=count or 5000, positions=8, scales=4, size=size, name=name
    ),
    "dsprites": _dsprites,
    "cars3d": _cars3d,
    "smallnorb": _smallnorb,
    "celeba": _celeba,
}
"""By name; ``solids-moved`` have 8 x 8 places and 4 scales."""


def load_factored(
    name: str, *, root: str | os.PathLike[str] | None = None, size: int = 64, count: int | None = None
) -> Factored:
    """Return images with all their factors.

    Args:
        name: A key of ``SETS``.
        root: Folder to look in, in place of ``COMPATKIT_DATA``.
        size: Pixels a side; dSprites' are always 64.
        count: Images, drawn at random from the larger sets; None for all.

    Raises:
        UnknownName: There is no such set.
        DataError: Its files are in no folder (``subject`` is the name), or damaged.
    """
    if name not in SETS:
        raise UnknownName(
            f"There is no set {name!r:.60} of images with factors.{suggest(str(name), SETS)}", subject=name
        )
    folder = root if root is not None else os.environ.get("COMPATKIT_DATA")
    made = SETS[name](name, [Path(folder).expanduser()] if folder else [], size, count)
    return made if count is None else made.take(count)
