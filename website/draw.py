"""Draw the pictures of the pages: ``python website/draw.py`` writes four folders of docs/pictures.

Each picture is one function, named after its file. A picture keeps a digest of the sources that drew it, so that a test
tells which ones are out of date.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path

import draw_architecture
import draw_explanations
import draw_methods
import draw_metrics
import sketch

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
FOLDERS = {
    "architecture": draw_architecture,
    "explanation": draw_explanations,
    "methods": draw_methods,
    "metrics": draw_metrics,
}


def drawings() -> dict[str, Callable[[], sketch.Sheet]]:
    """Return what draws each picture, by its path in docs/pictures."""
    return {
        f"{folder}/{name}.png": function
        for folder, module in FOLDERS.items()
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


def digest(function: Callable[[], sketch.Sheet]) -> str:
    """Return the digest of the sources that a picture follows from."""
    sources = inspect.getsource(sketch) + inspect.getsource(function)
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def draw(folder: Path) -> None:
    """Write all pictures below a folder."""
    for name, function in drawings().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        title = (inspect.getdoc(function) or "").partition("\n")[0]
        metadata = {"Title": title, "Source": digest(function), "Software": "compatkit"}
        function().figure.savefig(path, format="png", metadata=metadata)


def main() -> None:
    """Draw into docs/pictures, or into another folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURES, help="folder of the pictures")
    draw(parser.parse_args().out)


if __name__ == "__main__":
    main()
