"""``compatkit extend``, and recipes whose tasks start from components: an update from the command line alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fleets import ALL, published, small_data
from small import write_pack

import compatkit as ck

from .conftest import Run

UPDATE = """
prefix = "updated"

[trainer]
steps = 1
batch_size = 8
precision = "float32"

[[tasks]]
name = "update"
data = "d.npz"
extractor = "fleet/server.extractor"
head = "fleet/ten.head"
freeze_extractor = true

[frozen]
statistics = "batch"
"""


@pytest.fixture(scope="module")
def fleet_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extend")
    published(folder / "parts")
    write_pack(folder, small_data(ALL))
    (folder / "update.toml").write_text(UPDATE)
    return folder


@pytest.fixture
def place(fleet_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(fleet_folder, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_a_head_is_extended_and_updated(run: Run, place: Path) -> None:
    words = ("--registry", "parts")
    made = run(
        *words, "extend", "fleet/shared.dcc", "--classes", "frog, truck", "--publish", "fleet/ten.head"
    )
    assert made.code == 0, made.err
    assert "0, 1, 2, frog, truck: the last 2 are new" in made.out
    assert "published fleet/ten.head@1.0.0" in made.out
    shown = run(*words, "show", "fleet/ten.head").out
    assert "extended from" in shown and "fleet/shared.dcc" in shown
    done = run(*words, "train", "update.toml", "--json")
    assert done.code == 0, done.err
    assert done.json["parts"] == {"update.head": "updated/update.head@1.0.0"}
    registry = ck.Registry.open("parts")
    facts = registry.store.manifest("updated/update.head")
    assert facts.training["steps"] == 1
    matrix = run(
        *words, "matrix", "fleet/*.extractor", "updated/update.head", "--recipe", "update.toml", "--json"
    )
    assert matrix.code == 0, matrix.err
    assert run(*words, "verify").code == 0


@pytest.mark.parametrize(
    ("classes", "name", "message"),
    [
        ("frog,", "fleet/x.head", "expects names separated by commas"),
        ("frog,zero", "fleet/x.head", "has this class already, as '0'"),
        ("frog", "../x", "../x"),
    ],
)
def test_what_cannot_be_extended_is_said(
    run: Run, place: Path, classes: str, name: str, message: str
) -> None:
    result = run("--registry", "parts", "extend", "fleet/shared.dcc", "--classes", classes, "--publish", name)
    assert result.code == 2 and message in result.err


def test_a_head_of_rotations_and_a_name_of_another_kind_are_refused(run: Run, place: Path) -> None:
    words = ("--registry", "parts", "extend")
    result = run(*words, "fleet/shared.rotation", "--classes", "a", "--publish", "fleet/x.head")
    assert result.code == 2 and "was trained by rotation_prediction" in result.err
    result = run(*words, "fleet/shared.dcc", "--classes", "frog", "--publish", "fleet/shared.dcc")
    text = " ".join(result.err.split())
    assert result.code == 2 and "fleet/shared.dcc@1.0.0 is of kind auxiliary head, and this would be" in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "freeze_extractor",
            'model = "resnet8_cifar"\nfreeze_extractor',
            "got model. Allowed are name",
        ),
        ('extractor = "fleet/server.extractor"\n', "", "got no extractor"),
        ('"fleet/server.extractor"', "3", "extractor must be the name of a component, got 3"),
        ('"fleet/server.extractor"', '"fleet/absent"', "fleet/absent"),
    ],
)
def test_a_task_that_starts_from_components_names_them_and_no_network(
    run: Run, place: Path, old: str, new: str, message: str
) -> None:
    (place / "update.toml").write_text(UPDATE.replace(old, new))
    result = run("--registry", "parts", "train", "update.toml")
    assert result.code == 2 and message in result.err
