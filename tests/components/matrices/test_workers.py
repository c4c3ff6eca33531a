"""A matrix measured by other processes: the same figures, and a process that is killed costs its cell only."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from fragile import fragile_parts
from photos import class_folder
from small import data_set, quick, write_packs

import compatkit as ck
from compatkit.cli import main
from compatkit.components.matrices.jobs import RowAnswer, RowJob, blocks, work
from compatkit.components.workers.handing import handed_over, received
from compatkit.errors import EnvironmentFailure, FormatError, UsageError
from compatkit.plugins.launching import Launcher

BOTH = "digits/*.extractor", "digits/*.head"


@pytest.fixture(scope="module")
def tests() -> list[ck.Split]:
    return [data_set(name, seed=seed).test for seed, name in enumerate(("left", "right"))]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks trained together."""
    root = tmp_path_factory.mktemp("template") / "parts"
    tasks = [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
        for seed, name in enumerate(("left", "right"))
    ]
    ck.Registry.init(root).publish(quick(steps=2).fit(tasks, ["identical_init", "dcc"]), prefix="digits")
    return root


@pytest.fixture
def registry(template: Path, tmp_path: Path) -> ck.Registry:
    return ck.Registry.open(shutil.copytree(template, tmp_path / "parts"))


def drafts(registry: ck.Registry) -> list[str]:
    return os.listdir(registry.store.root / "tmp")


def test_two_workers_give_every_figure_of_one_process_and_record_it(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    here = registry.matrix(*BOTH, tests, record=False)
    seen: list[tuple[int, int, str]] = []
    there = registry.matrix(*BOTH, tests, workers=2, progress=lambda *words: seen.append(words))
    assert there.cells == here.cells  # every figure, setting and finding
    assert there.settings["cells"] == {"taken": 0, "measured": 4}
    assert sorted(seen) == [(2, 4, seen[0][2]), (4, 4, seen[1][2])] and seen[0][2] != seen[1][2]
    again = registry.matrix(*BOTH, tests, workers=1)
    assert again.cells == here.cells and again.settings["cells"] == {"taken": 4, "measured": 0}
    assert drafts(registry) == []


def test_figures_that_are_not_recorded_are_shown_all_the_same(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    there = registry.matrix("digits/left.extractor", BOTH[1], tests, record=False, workers=1)
    assert there.settings["cells"] == {"taken": 0, "measured": 2}
    missing = registry.matrix("digits/left.extractor", BOTH[1], tests, fill="none")
    assert {cell.state for cell in missing.cells} == {"missing"}


@pytest.mark.parametrize(
    ("rows", "workers", "expected"),
    [
        (3, 2, ["abcde"]),
        (2, 2, ["abcde"]),
        (1, 2, ["ab", "cde"]),
        (1, 9, ["a", "b", "c", "d", "e"]),
        (2, 5, ["a", "bc", "de"]),
    ],
)
def test_a_row_is_divided_only_where_workers_would_have_nothing_to_do(
    rows: int, workers: int, expected: list[str]
) -> None:
    assert list(blocks("abcde", rows, workers)) == expected


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ck.Registry, list[ck.Split]]]:
    with fragile_parts(tmp_path, monkeypatch) as (registry, sets):
        yield registry, [data.test for data in sets]


def test_a_process_that_is_killed_once_costs_nothing(
    fragile: tuple[ck.Registry, list[ck.Split]], tmp_path: Path
) -> None:
    registry, tests = fragile
    here = registry.matrix(*BOTH, tests, record=False)
    (tmp_path / "wild").write_text("1")
    there = registry.matrix(*BOTH, tests, workers=2)
    assert (tmp_path / "wild").read_text() == "0"
    assert there.cells == here.cells


def test_a_cell_that_kills_every_process_is_missing_and_all_others_stand(
    fragile: tuple[ck.Registry, list[ck.Split]], tmp_path: Path
) -> None:
    registry, tests = fragile
    here = registry.matrix(*BOTH, tests, record=False)
    (tmp_path / "wild").write_text("1000")
    with pytest.warns(UserWarning, match="was not measured with digits/wild.head"):
        there = registry.matrix("digits/calm.extractor", BOTH[1], tests, workers=2)
    states = {cell.head.split("@")[0]: cell.state for cell in there.cells}
    assert states == {
        "digits/calm.head": "measured",
        "digits/other.head": "measured",
        "digits/wild.head": "missing",
    }
    assert there.settings["cells"] == {"taken": 0, "measured": 2, "failed": 1, "missing": 1}
    assert "SIGKILL" in there.cell("digits/calm.extractor", "digits/wild.head").reason
    for head in ("calm", "other"):
        assert there.cell("digits/calm.extractor", f"digits/{head}.head") == here.cell(
            "digits/calm.extractor", f"digits/{head}.head"
        )
    (tmp_path / "wild").unlink()
    whole = registry.matrix("digits/calm.extractor", BOTH[1], tests, workers=2)
    # what stands is not measured again, but for the bound of the row
    assert whole.settings["cells"] == {"taken": 1, "measured": 2}
    assert drafts(registry) == []


def test_a_damaged_part_costs_its_row(registry: ck.Registry, tests: list[ck.Split]) -> None:
    manifest = registry.store.manifest("digits/left.extractor")
    digest = manifest.payload.file.blob.removeprefix("sha256:")
    (path,) = registry.store.root.rglob(f"*{digest[4:]}*")
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="digits/left.extractor@1.0.0 was not measured"):
        matrix = registry.matrix(*BOTH, tests, workers=2)
    assert matrix.settings["cells"] == {"taken": 0, "measured": 2, "failed": 2, "missing": 2}


def test_a_worker_that_does_not_see_the_registry_is_an_error(
    registry: ck.Registry, tests: list[ck.Split], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = RowJob(str(tmp_path), str(tmp_path / "gone"), ("a", "", "b"), (), None, {}, True)
    assert str(tmp_path / "gone") in RowAnswer.loads(work(json.dumps(attrs.asdict(elsewhere)))).unseen

    def answers(self: Launcher, work: Any, jobs: list[str], labels: list[str]) -> Iterator[tuple[int, str]]:
        job = json.loads(jobs[0])
        job["images"] += "-elsewhere"  # as where another registry lies at the same path
        yield 0, work(json.dumps(job))

    monkeypatch.setattr(Launcher, "answers", answers)
    with pytest.raises(EnvironmentFailure) as error:
        registry.matrix(*BOTH, tests, workers=2)
    assert error.value.subject == str(registry.store.root)
    assert drafts(registry) == []


def test_a_remote_that_is_only_read_has_no_workers(registry: ck.Registry, tests: list[ck.Split]) -> None:
    remote = f"memory://{registry.store.id[:12]}/parts"
    registry.push(remote, create=True)
    with pytest.raises(UsageError) as error:
        ck.Registry.open(remote).matrix(*BOTH, tests, workers=2)
    assert error.value.subject == remote


@pytest.mark.parametrize(
    "settings",
    [{"workers": 0}, {"launcher": "sequential", "workers": 2}, {"launcher": "sequential", "cluster": "here"}],
)
def test_settings_that_contradict_each_other_are_refused(
    registry: ck.Registry, tests: list[ck.Split], settings: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        registry.matrix(*BOTH, tests, **settings)


def test_processes_of_this_machine_take_no_cluster(registry: ck.Registry, tests: list[ck.Split]) -> None:
    with pytest.raises(ck.errors.PluginError, match="address"):
        registry.matrix(*BOTH, tests, launcher="process", cluster="ray://head:10001")


def test_the_command_measures_in_processes(
    registry: ck.Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_packs(tmp_path)
    words = ["--registry", str(registry.store.root), "matrix", *BOTH, "--data", str(tmp_path / "left.npz")]
    words += ["--data", str(tmp_path / "right.npz"), "--json"]
    with pytest.raises(SystemExit) as end:
        main([*words, "--workers", "2"])
    there = json.loads(capsys.readouterr().out)
    assert end.value.code == 0 and there["settings"]["cells"] == {"taken": 0, "measured": 4}
    with pytest.raises(SystemExit) as end:
        main(words)
    assert json.loads(capsys.readouterr().out)["cells"] == there["cells"]


def test_images_arrive_as_they_were(tmp_path: Path, registry: ck.Registry) -> None:
    class_folder(tmp_path / "photos", {"ant": 8, "bee": 8})
    photos = ck.data.load(tmp_path / "photos").test
    plain = data_set("left").test.subset(7)
    lazily = photos.resized((12, 10)).converted("L").take(range(len(photos) - 1))
    with handed_over(registry.store.root, [plain, lazily, photos, plain]) as files:
        assert len(files) == 3 == len(drafts(registry))
        for split in (plain, lazily, photos):
            arrived = received(Path(files[split.digest]))
            assert (arrived.name, arrived.classes, arrived.sample) == (
                split.name,
                split.classes,
                split.sample,
            )
            assert arrived.digest == split.digest and arrived.size == split.size
            assert (arrived.labels == split.labels).all()
            for position in range(len(split)):
                assert arrived.image(position).tobytes() == split.image(position).tobytes()
                assert not split.lazy or arrived.name_of(position) == split.name_of(position)
    assert drafts(registry) == []


def test_a_file_of_images_that_is_cut_off_or_changed_is_refused(
    tmp_path: Path, registry: ck.Registry
) -> None:
    split = data_set("left").test
    with handed_over(registry.store.root, [split]) as files:
        data = Path(files[split.digest]).read_bytes()
    for name, content in (
        ("cut", data[:-9]),
        ("changed", bytes([data[0] ^ 1]) + data[1:]),
        ("other", b"x" * 99),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError) as error:
            received(tmp_path / name)
        assert error.value.subject == tmp_path / name
