"""``compatkit recipe`` writes what ``train`` takes, for any images, and refuses what would fail later."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from photos import class_folder
from small import data_set, write_pack

import compatkit as ck
from compatkit.cli import main


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with photos of cats and dogs in two places, and of owls and newts in a third."""
    monkeypatch.chdir(tmp_path)
    for place in ("Studio 1", "phone"):
        class_folder(Path("photos", place), {"cat": 12, "dog": 12})
    class_folder(Path("photos", "zoo"), {"newt": 12, "owl": 12})
    return tmp_path


def run(capsys: Any, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    shown = capsys.readouterr()
    return int(end.value.code or 0), shown.out, shown.err


def test_what_is_written_trains_and_its_matrix_is_that_of_both_folders(photos: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, "recipe", "photos/Studio 1", "photos/phone", "--size", "32", "--steps", "1")
    assert code == 0 and "compatkit --registry parts train photos.toml" in out
    tables = tomllib.loads(Path("photos.toml").read_text())
    assert tables["regularizers"] == ["identical_init", "dcc"] and tables["prefix"] == "photos"
    assert [task["name"] for task in tables["tasks"]] == ["studio-1", "phone"]
    assert [task["data"] for task in tables["tasks"]] == ["photos/Studio 1", "photos/phone"]
    assert tables["trainer"]["batch_size"] == 16, "there are 22 training images of each"
    assert run(capsys, "--registry", "parts", "--quiet", "train", "photos.toml")[0] == 0
    assert set(ck.Registry("parts")) >= {"photos/studio-1.extractor", "photos/phone.head"}
    code, out, _ = run(
        capsys, "--registry", "parts", "--json", "matrix", "photos/*.extractor", "photos/*.head"
    )
    assert code == 0 and len(json.loads(out)["cells"]) == 4


def test_without_common_classes_a_rotation_head_makes_parts_fit(photos: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, "--json", "recipe", "photos/phone", "photos/zoo", "--out", "other/r.toml")
    assert code == 4, "there is no folder 'other'"
    code, out, _ = run(capsys, "--json", "recipe", "photos/phone", "photos/zoo", "--out", "r.toml")
    said = json.loads(out)
    assert (code, said["shared_classes"], said["tasks"]) == (0, [], ["phone", "zoo"])
    assert said["regularizers"] == ["identical_init", "rotation_prediction"]
    assert tomllib.loads(Path("r.toml").read_text())["regularizers"] == said["regularizers"]


def test_paths_start_at_the_recipes_folder_and_equal_names_are_numbered(photos: Path, capsys: Any) -> None:
    class_folder(Path("more", "phone"), {"cat": 9, "dog": 9})
    Path("recipes").mkdir()
    words = ("photos/phone", "more/phone", str(photos / "photos" / "Studio 1"), "--damaged", "skip")
    assert run(capsys, "recipe", *words, "--out", "recipes/all.toml")[0] == 0
    first, second, third = tomllib.loads(Path("recipes/all.toml").read_text())["tasks"]
    assert (first["name"], second["name"], third["name"]) == ("phone", "phone-2", "studio-1")
    assert first["data"] == {"name": "../photos/phone", "damaged": "skip"}
    assert third["data"]["name"] == str(photos / "photos" / "Studio 1")
    assert run(capsys, "--registry", "parts", "train", "recipes/all.toml", "--explain")[0] == 0


def test_small_images_of_one_size_get_a_network_for_them(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        write_pack(tmp_path, data_set(name, size=(24, 20)))
    assert run(capsys, "recipe", "one", "two", "--data-root", ".", "--out", "r.toml")[0] == 0
    task = tomllib.loads(Path("r.toml").read_text())["tasks"][0]
    assert (task["model"], task["size"], task["data"]) == ("resnet20_cifar", 24, "one")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("photos/phone",), "two data sets at least"),
        (("photos/phone", "photos/nowhere"), "photos/nowhere"),
        (("photos/phone", "photos/zoo", "--model", "resnet18"), "--model and --cut"),
        (("photos/phone", "photos/zoo", "--model", "resnet81", "--cut", "layer3"), "resnet81"),
        (("photos/phone", "photos/zoo", "--out", "mine.toml"), "mine.toml exists"),
    ],
)
def test_what_would_fail_later_is_refused_and_nothing_is_written(
    photos: Path, capsys: Any, words: tuple[str, ...], said: str
) -> None:
    Path("mine.toml").write_text("# mine")
    code, _, err = run(capsys, "recipe", *words)
    assert code == 2 and said in " ".join(err.split())
    assert [path.name for path in Path().glob("*.toml")] == ["mine.toml"]
    assert Path("mine.toml").read_text() == "# mine"
