"""The first hour, from its first page to its last: every command and program in order, in one folder, as a new user."""

from __future__ import annotations

import csv
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pages import REPOSITORY, blocks
from PIL import Image

from compatkit.cli import main

FOLDER = REPOSITORY / "docs" / "first_hour"
DEPLOY = "deploy.md"
"""Its program is run here; that of the page before does the same as the commands (tests/test_page_programs.py)."""
ORDER = ("install.md", "demo.md", "photos.md", "deploy.md", "next.md")
COLORS = {"lime": (60, 200, 60), "plum": (150, 60, 150), "rust": (190, 80, 30)}


def photos(folder: Path, train: int, test: int) -> None:
    """Write photos of two places and three classes, which differ in color: the phone's are darker and noisier."""
    for place, (light, noise) in {"studio": (1.0, 20), "phone": (0.6, 35)}.items():
        draw = np.random.default_rng(noise)
        for part, count in {"train": train, "val": test}.items():
            for name, color in COLORS.items():
                target = folder / place / part / name
                target.mkdir(parents=True)
                for number in range(count):
                    pixels = np.array(color) * light + draw.normal(0, noise, (40, 56, 3))
                    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                    image.save(target / f"{number:03}.jpg", quality=90)


def follow(text: str, capsys: Any) -> str:
    """Run the commands of a block; return what they print."""
    shown = ""
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["compatkit"]:
            continue
        with pytest.raises(SystemExit) as end:
            main(words[1:])
        reply = capsys.readouterr()
        assert not end.value.code, f"{line}\n{reply.out}{reply.err}"
        shown += reply.out
        if "12" in words:  # a small sample decodes in this process: starting others costs more
            recipe = Path("photos.toml")
            recipe.write_text(recipe.read_text().replace("[trainer]", "[trainer]\nworkers = 0"))
    return shown


def hour(changes: dict[str, str], capsys: Any) -> dict[str, str]:
    """Follow all pages in the current folder; return what the blocks of each page print."""
    shown: dict[str, str] = {}
    for page in ORDER:
        shown[page] = ""
        for block in blocks(FOLDER / page, "bash", *(["python"] if page == DEPLOY else [])):
            text = block.text
            for before, after in changes.items():
                text = text.replace(before, after)
            if block.language == "bash":
                shown[page] += follow(text, capsys)
            else:
                exec(compile(text, page, "exec"), {})
                shown[page] += capsys.readouterr().out
    return shown


def accuracies_agree(folder: Path, shown: dict[str, str]) -> None:
    """One photo at a time, all at once, and as ``recombine`` says, the published network is as accurate."""
    one_by_one = re.search(r"(\d+) of (\d+) right: ", shown["deploy.md"])
    assert one_by_one
    right, count = map(int, one_by_one.groups())
    with (folder / "classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == count == 3 * len(list((folder / "photos/studio/val/lime").iterdir()))
    assert sum(Path(row["image"]).parent.name == row["label"] for row in rows) == right
    published = re.search(r"Accuracy as published .* (\d+) of (\d+) right", shown["deploy.md"])
    assert published and tuple(map(int, published.groups())) == (right, count)


def test_the_first_hour_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    photos(tmp_path / "photos", 8, 4)
    small = {
        "compatkit demo": "",
        "--size 64 --steps 100": "--size 32 --steps 12",
        "compatkit --registry parts export photos/mixed mixed.pt2 --format torch_export": "",
    }
    accuracies_agree(tmp_path, hour(small, capsys))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_first_hour_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos", 60, 30)
    shown = hour({}, capsys)
    accuracies_agree(tmp_path, shown)
    assert "iiw-dcc" in shown["demo.md"] and (tmp_path / "matrix.html").exists()


def test_the_pages_are_read_in_this_order_and_take_five_commands_to_a_matrix() -> None:
    assert {page.name for page in FOLDER.glob("*.md")} == set(ORDER)
    assert [
        line[4:] for line in (FOLDER / ".nav.yml").read_text().splitlines() if line.endswith(".md")
    ] == list(ORDER)
    for page, following in pairwise(ORDER):
        assert f"]({following})" in (FOLDER / page).read_text().rstrip().splitlines()[-1], page
    install = blocks(FOLDER / "install.md", "bash")[0].text.splitlines()
    assert install[0] in (REPOSITORY / "README.md").read_text(), "the README installs otherwise"
    first = blocks(FOLDER / "photos.md", "bash")[0].text.splitlines()
    commands = [*install[:2], *first]
    assert len(commands) == 5 and commands[-1].startswith("compatkit --registry parts matrix")
