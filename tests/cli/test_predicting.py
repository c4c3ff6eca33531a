"""predict: photos in folders, single files and arrays; whose statistics; what cannot be read, and what was left out."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from photos import encoded, photo

import compatkit as ck
from compatkit.data.unlabeled import read_unlabeled
from compatkit.evaluation import extractor_pass
from compatkit.evaluation.extractor_pass import moved_to

LEFT, RIGHT, OWN = "digits/left.extractor", "digits/right.head", "digits/left.head"


@pytest.fixture
def photos(parts: Path) -> Path:
    """A folder with images of several kinds and sizes, in two folders, beside the registry."""
    folder = parts.parent / "photos"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    for number in range(6):
        content = encoded(photo(12 + number, 30 - number, seed=number))
        (folder / "ab"[number % 2] / f"{number}.png").write_bytes(content)
    return folder


def predicted(run: Any, *words: object) -> Any:
    result = run("predict", *words, "--json")
    assert result.code in (0, 1), result.err
    return result.json


def test_rows_are_those_of_python(run: Any, parts: Path, photos: Path) -> None:
    result = predicted(run, LEFT, photos, "--head", RIGHT)
    data = ck.data.load("left", root=parts.parent)
    model = ck.Registry.open(parts).recombine(LEFT, RIGHT, data=data.train)
    expected = model.predict(photos)
    assert result["bn_policy"] == "reestimate" and result["classes"] == list(expected.classes)
    assert result["parts"] == [f"{LEFT}@1.0.0", f"{RIGHT}@1.0.0"]
    rows = result["predictions"]
    assert [row["image"] for row in rows] == list(expected.files) and len(rows) == 6
    for row, best in zip(rows, expected, strict=True):
        assert (row["label"], row["position"]) == (best.label, best.position)
        assert row["probability"] == pytest.approx(best.probability, abs=1e-6)
    text = run("predict", LEFT, photos, "--head", RIGHT)
    assert text.code == 0 and "warning" not in text.err
    assert text.out.splitlines()[0].split() == ["image", "class", "probability"]
    assert [line.split()[:2] for line in text.out.splitlines()[1:]] == [
        [str(Path(row["image"]).relative_to(photos)), row["label"]] for row in rows
    ]


def test_without_a_head_it_is_the_extractors_own(run: Any, parts: Path, photos: Path) -> None:
    text = run("predict", LEFT, photos)
    assert text.code == 0 and "with its own head digits/left.head@1.0.0" in text.err
    result = predicted(run, LEFT, photos)
    model = ck.Registry.open(parts).recombine(LEFT, OWN)
    assert result["bn_policy"] == "running" == model.bn_policy
    assert [row["label"] for row in result["predictions"]] == model.predict(photos).labels


@pytest.mark.parametrize("number", range(6))
def test_a_photo_alone_is_told_as_among_others(run: Any, photos: Path, number: int) -> None:
    together = predicted(run, LEFT, photos, "--head", RIGHT)["predictions"]
    alone = predicted(run, LEFT, photos / "ab"[number % 2] / f"{number}.png", "--head", RIGHT)["predictions"]
    assert len(alone) == 1
    (same,) = [row for row in together if row["image"] == alone[0]["image"]]
    assert alone[0]["probability"] == pytest.approx(same["probability"], abs=1e-5)


def test_files_and_folders_come_in_one_answer(run: Any, photos: Path) -> None:
    os.chdir(photos.parent)
    result = predicted(run, LEFT, "photos/a/0.png", "photos/b")["predictions"]
    names = [row["image"].removeprefix(f"{photos}/") for row in result]
    assert names == ["a/0.png", "b/1.png", "b/3.png", "b/5.png"]


def test_what_cannot_be_read_has_a_row_with_the_reason(run: Any, photos: Path) -> None:
    (photos / "a" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    (photos / "b" / "notes.txt").write_text("not an image")
    (photos / "b" / "phone.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    text = run("predict", LEFT, photos)
    assert text.code == 1 and "1 of 7 files could not be read" in text.err
    assert ".txt: 1" in text.err and ".heic: 1" in text.err
    (line,) = [line for line in text.out.splitlines() if "broken.jpg" in line]
    assert "not read" in line
    result = predicted(run, LEFT, photos)
    (row,) = [row for row in result["predictions"] if "damaged" in row]
    assert row["image"].endswith("broken.jpg") and row["damaged"] and set(row) == {"image", "damaged"}
    assert result["left_out"] == {".heic": 1, ".txt": 1}
    names = predicted(run, LEFT, photos / "b" / "notes.txt", photos / "a" / "0.png")["predictions"]
    assert ["damaged" in row for row in names] == [True, False]
    alone = run("predict", LEFT, photos / "a" / "broken.jpg")
    assert alone.code == 1 and "not read" in alone.out


def test_rows_as_csv(run: Any, photos: Path, tmp_path: Path) -> None:
    (photos / "a" / "broken.jpg").write_bytes(b"no image")
    text = run("predict", LEFT, photos, "--csv", tmp_path / "rows.csv")
    assert text.code == 1 and f"wrote {tmp_path / 'rows.csv'}" in text.out
    with open(tmp_path / "rows.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = predicted(run, LEFT, photos)["predictions"]
    assert [row["image"] for row in rows] == [row["image"] for row in expected]
    assert [row["label"] for row in rows] == [row.get("label", "") for row in expected]
    assert [bool(row["damaged"]) for row in rows] == ["damaged" in row for row in expected]
    refused = run("predict", LEFT, photos, "--csv", tmp_path / "nowhere" / "rows.csv")
    assert refused.code == 4 and refused.out == ""


class TestStatistics:
    def test_those_of_the_batch_are_warned_of(self, run: Any, photos: Path) -> None:
        text = run("predict", LEFT, photos, "--head", RIGHT, "--bn-policy", "batch")
        assert text.code == 0 and "classified at chance" in text.err and "--bn-policy reestimate" in text.err

    def test_images_name_where_they_are_estimated(self, run: Any, parts: Path, photos: Path) -> None:
        words = LEFT, photos, "--head", RIGHT
        result = predicted(run, *words, "--data", photos)
        model = ck.Registry.open(parts).recombine(LEFT, RIGHT, data=read_unlabeled(photos))
        assert [row["label"] for row in result["predictions"]] == model.predict(photos).labels
        assert result["bn_policy"] == "reestimate"
        assert result["predictions"] != predicted(run, *words)["predictions"]
        mixed = predicted(run, *words, "--data", photos, "--bn-policy", "mix:100")
        assert mixed["bn_policy"] == "mix:100"
        refused = run("predict", *words, "--data", photos, "--bn-policy", "running")
        assert refused.code == 2

    def test_images_that_are_not_found_leave_those_of_the_batch(
        self, run: Any, photos: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for file in photos.parent.glob("*.npz"):
            file.unlink()
        monkeypatch.setenv("COMPATKIT_DATA", str(photos))
        text = run("predict", LEFT, photos, "--head", RIGHT)
        assert text.code == 0 and "classified at chance" in text.err
        refused = run("predict", LEFT, photos, "--head", RIGHT, "--bn-policy", "reestimate")
        assert refused.code == 2


class TestRecombinations:
    def test_a_published_one_predicts_as_it_was_published(self, run: Any, photos: Path) -> None:
        words = "recombine", LEFT, RIGHT, "--no-measure", "--bn-policy", "reestimate", "--publish", "pairs/ab"
        assert run(*words).code == 0
        result = predicted(run, "pairs/ab", photos)
        assert result["bn_policy"] == "reestimate"
        assert result == predicted(run, LEFT, photos, "--head", RIGHT)
        assert run("predict", "pairs/ab", photos, "--head", RIGHT).code == 2

    def test_its_policy_can_be_another(self, run: Any, photos: Path) -> None:
        words = "recombine", LEFT, RIGHT, "--no-measure", "--bn-policy", "batch", "--publish", "pairs/ab"
        published = run(*words)
        assert (
            "classified at chance" in published.err
            and "next: compatkit predict pairs/ab@1.0.0" in published.out
        )
        assert "classified at chance" in run("predict", "pairs/ab", photos).err
        again = predicted(run, "pairs/ab", photos, "--bn-policy", "reestimate")
        assert again == predicted(run, LEFT, photos, "--head", RIGHT)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((LEFT, "nowhere"), "data"),
        ((LEFT, "empty"), "data"),
        ((OWN, "photos"), "usage"),
        (("digits/shared.dcc", "photos"), "usage"),
        (("digits/none", "photos"), "not-found"),
        ((LEFT, "photos", "--head", "digits/none"), "not-found"),
        ((LEFT, "photos", "--head", LEFT), "usage"),
    ],
)
def test_what_does_not_go_is_refused(run: Any, photos: Path, words: tuple[str, ...], code: str) -> None:
    (photos.parent / "empty").mkdir()
    result = run("predict", *words, "--json")
    assert result.code == 2 and result.json["error"]["code"] == code


def test_the_network_runs_on_the_device(run: Any, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    @contextmanager
    def watched(module: Any, device: str) -> Iterator[None]:
        devices.append(device)
        with moved_to(module, device):
            yield

    monkeypatch.setattr(extractor_pass, "moved_to", watched)
    assert predicted(run, LEFT, photos, "--device", "cpu:0") == predicted(run, LEFT, photos)
    assert devices == ["cpu:0", "cpu"]
    refused = run("predict", LEFT, photos, "--device", "nowhere", "--json")
    assert refused.code == 4 and refused.json["error"]["code"] == "environment"
