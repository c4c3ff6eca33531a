"""``compatkit adapt``: from a published source and images without labels to a published extractor."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from adapted import publish_source
from PIL import Image
from small import data_set, write_packs

import compatkit as ck

from .conftest import Run

NAMES = ("d/left.extractor", "d/left.head", "--aux", "d/shared.rotation")
QUICK = ("--steps", 2, "--batch-size", 8)


@pytest.fixture(scope="module")
def source_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapt")
    publish_source(folder / "parts")
    write_packs(folder)
    right = data_set("right", seed=1)
    np.savez(folder / "bare.npz", x_train=right.train.images)
    (folder / "photos").mkdir()
    for number, image in enumerate(right.train.images):
        Image.fromarray(image[..., 0]).save(folder / "photos" / f"{number:03}.png")
    return folder


@pytest.fixture
def place(source_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(source_folder, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_it_measures_and_publishes(run: Run, place: Path) -> None:
    words = ("--data", "right", "--data-root", ".", "--publish", "d/right.extractor", *QUICK)
    result = run("--registry", "parts", "adapt", *NAMES, *words)
    assert result.code == 0, result.err
    for word in ("source", "running", "adapted", "of 48", "published d/right.extractor@1.0.0"):
        assert word in result.out
    assert "--bn-policy batch" in result.out
    shown = run("--registry", "parts", "show", "d/right.extractor").out
    assert "right/train, without labels" in shown and "adapted against" in shown
    assert run("--registry", "parts", "verify").code == 0
    matrix = run(
        "--registry", "parts", "matrix", "d/right.extractor", "d/left.head", "--data-root", ".", "--json"
    )
    assert matrix.code == 0 and "warning" not in matrix.err


def test_packs_give_the_same_extractor_and_files_one_that_differs_by_roundings(run: Run, place: Path) -> None:
    tensors, losses = [], []
    for number, name in enumerate(("right.npz", "bare.npz", "photos")):
        words = ("--data", name, *QUICK, "--publish", f"d/x{number}.extractor", "--json")
        result = run("--registry", "parts", "adapt", *NAMES, *words)
        assert result.code == 0, result.out
        assert result.json["published"] == f"d/x{number}.extractor@1.0.0"
        assert result.json["data"]["labelled"] is False
        assert list(result.json["accuracy"]) == (
            ["source, running", "source, batch", "adapted, batch"] if name == "right.npz" else []
        )
        tensors.append(ck.Registry.open("parts").store.manifest(f"d/x{number}.extractor").payload.tensors)
        losses.append(sum(result.json["losses"].values()))
    assert tensors[0] == tensors[1]
    assert losses[2] == pytest.approx(losses[0], rel=0.01)  # Pillow resizes with one rounding more


def test_options_reach_the_trainer_and_the_manifest(run: Run, place: Path) -> None:
    words = (
        "--lr",
        ".001",
        "--optimizer",
        "adam",
        "--weight-decay",
        ".1",
        "--seed",
        3,
        "--frozen-statistics",
        "batch",
    )
    more = (
        "--augment",
        "crop",
        "--checkpoint",
        "run.safetensors",
        "--test",
        "left.npz",
        "--method",
        "rotation_prediction",
    )
    rest = ("--data", "photos", *QUICK, "--publish", "d/x.extractor", "--json")
    refused = run("--registry", "parts", "adapt", *NAMES, *words, *more, *rest)
    assert (
        refused.code == 2 and "frozen auxiliary head" in refused.json["error"]["message"]
    )  # flips, and not turns
    result = run("--registry", "parts", "adapt", *NAMES, *words, *more[:-2], *rest)
    assert result.code == 0, result.out
    assert len(result.json["accuracy"]) == 3 and Path("run.safetensors").exists()
    registry = ck.Registry.open("parts")
    facts = registry.store.read_blob(
        registry.store.manifest("d/x.extractor").training["run"]["blob"]
    ).decode()
    for fact in (
        '"lr":0.001',
        '"optimiser":"adam"',
        '"weight_decay":0.1',
        '"seed":3',
        '"statistics":"batch"',
        '"crop"',
    ):
        assert fact in facts


def test_a_policy_decides_on_what_is_published(run: Run, place: Path) -> None:
    """A name that promises to work with a head is not given to an extractor that does not."""
    policy = ("d/left.extractor", "--mode", "backward", "--data", "left.npz", "--tolerance", "0")
    assert run("--registry", "parts", "policy", "set", *policy).code == 0
    words = ("--data", "photos", "--publish", "d/left.extractor", "--lr", "1", "--optimizer", "adam", *QUICK)
    result = run("--registry", "parts", "adapt", *NAMES, *words, "--version", "1.1.0", "--data-root", ".")
    assert result.code == 1 and "policy-broken" in result.err
    assert len(ck.Registry.open("parts").store.versions("d/left.extractor")) == 1


def test_without_a_name_nothing_is_published(run: Run, place: Path) -> None:
    result = run("--registry", "parts", "adapt", *NAMES, "--data", "photos", *QUICK)
    assert result.code == 0
    assert "not measured" in result.out and "nothing was published" in result.out
    assert len(ck.Registry.open("parts").store.names()) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*NAMES, "--data", "nothing"), "There is no data set 'nothing'"),
        ((*NAMES, "--data", "nothing.npz"), "There is no data set nothing.npz"),
        ((*NAMES, "--data", "parts"), "holds no images"),
        ((*NAMES, "--data", "photos", "--batch-size", 64), "48"),
        ((*NAMES, "--data", "photos", "--version", "1.0.0"), "--version: nothing is published"),
        ((*NAMES, "--data", "photos", "--publish", "Not A Name"), "Not A Name"),
        ((*NAMES, "--data", "photos", "--method", "nothing"), "nothing"),
        (("d/left.head", *NAMES[1:], "--data", "photos"), "expected extractor"),
        ((*NAMES[:3], "d/left.head", "--data", "photos"), "expected auxiliary_head"),
        ((*NAMES[:3], "d/none", "--data", "photos"), "d/none"),
    ],
)
def test_bad_input_is_one_clear_error(run: Run, place: Path, words: tuple[object, ...], message: str) -> None:
    result = run("--registry", "parts", "adapt", *words, "--json")
    assert result.code == 2, result.out
    assert message in result.json["error"]["message"]
    assert len(ck.Registry.open("parts").store.names()) == 3
