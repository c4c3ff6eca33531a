"""compatkit doctor: a sound installation, and each thing that can be wrong, with what to do and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
from handmade import Hand, part

from compatkit.components.catalogue.overview import overview
from compatkit.components.catalogue.snapshot import Readings, Snapshot
from compatkit.health import libraries, machine, registries, storage
from compatkit.health.doctor import HealthReport, doctor
from compatkit.health.observation import Observation
from compatkit.health.probe import Imported, Probe
from compatkit.registry.local_cache import Verification
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes import named
from compatkit.registry.remotes.named import SavedRemote
from compatkit.registry.store import Store

FACTS = {"cuda": None, "hip": None, "mps": False, "devices": [], "warning": "", "threads": 2}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Install a made-up distribution before all others, in this process and in those that it starts."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def install(
        name: str, version: str = "1.0", *, module: str | None = None, requires: str = "", points: str = ""
    ) -> Path:
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(text + (f"Requires-Dist: {requires}\n" if requires else ""))
        if points:
            (info / "entry_points.txt").write_text(f"[compatkit]\n{points}\n")
        if module is not None:
            (folder / f"{name.replace('-', '_')}.py").write_text(module)
        return folder

    return install


def only(observations: Any, subject: str) -> Observation:
    """Return the one observation of a subject."""
    (found,) = [each for each in observations if each.subject == subject]
    return found


def test_this_installation_is_sound_and_told_as_text_and_json(run: Any) -> None:
    result = run("doctor", "--json")
    assert result.code == 0, result.out
    states = {(each["topic"], each["subject"]): each["state"] for each in result.json["observations"]}
    assert result.json["problems"] == 0
    for subject in ("torch", "torchvision", "timm", "numpy", "torch and torchvision"):
        assert states["libraries", subject] == "ok"
    topics = {topic for topic, _ in states}
    assert topics == {
        *("python", "libraries", "processor", "accelerator", "storage", "terminal", "plugins", "registry"),
        "remotes",
    }


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart"),
        ("import os; os._exit(11)", "exit code 11"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "-11"),
        ("raise SystemExit('no')", "SystemExit"),
        ("1 +", "SyntaxError"),
        ("print('hello'); raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
    ids=["raises", "exits", "crashes", "SystemExit", "syntax", "interrupts"],
)
def test_a_broken_torch_is_a_finding(site: Any, module: str, names: str) -> None:
    site("torch", "2.14.1", module=module)
    imported = Probe.start(["torch"]).results()
    assert names in imported["torch"].error and not imported["torch"].facts
    found = only(libraries.libraries(imported), "torch")
    assert found.state == "problem" and names in found.found and "pip install" in found.remedy


def test_an_import_that_hangs_is_given_up_and_what_follows_is_not_blamed(site: Any) -> None:
    site("slow", module="import time; time.sleep(60)")
    results = Probe.start(["json", "slow", "csv"]).results(timeout=2)
    assert results["json"].error == "" and "more than 2 seconds" in results["slow"].error
    assert results["csv"].error == "not tried after slow"


def test_the_whole_command_works_with_a_broken_torch(site: Any, tmp_path: Path) -> None:
    folder = site("torch", "2.14.1", module="raise OSError('broken')")
    for name in ("torchvision", "timm", "sklearn", "matplotlib", "scipy"):
        (folder / f"{name}.py").write_text("")
    command = [sys.executable, "-m", "compatkit", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    report = json.loads(done.stdout)
    found = only([Observation(**each) for each in report["observations"]], "torch")
    assert done.returncode == 4 and found.state == "problem" and "broken" in found.found


@pytest.mark.parametrize(
    ("version", "wanted"), [("1.13.0", "requires >=2.11"), ("not-a-version", "not installed")]
)
def test_a_version_that_does_not_do_is_a_problem(site: Any, version: str, wanted: str) -> None:
    site("torch", version)
    found = only(libraries.libraries({}), "torch")
    assert found.state == "problem" and wanted in found.found and "torch>=2.11" in found.remedy


@pytest.mark.parametrize(
    ("asks", "state"),
    [
        ("torch==2.14.1", "ok"),
        ("torch (==2.14.1)", "ok"),
        ("torch==2.13.0", "problem"),
        ("numpy", "ok"),
        ("torch<2; extra == 'old'", "ok"),
    ],
)
def test_torch_and_torchvision_are_a_pair_by_their_metadata(site: Any, asks: str, state: str) -> None:
    site("torch", "2.14.1+cpu")
    site("torchvision", "0.29.1", requires=asks)
    found = only(libraries.libraries({}), "torch and torchvision")
    assert found.state == state
    if state == "problem":
        assert "torch==2.13.0" in found.found and "2.14.1" in found.found
        assert "'torch==2.13.0' 'torchvision==0.29.1'" in found.remedy


def test_an_old_library_of_an_extra_is_a_warning(site: Any) -> None:
    site("cryptography", "1.0")
    found = only(libraries.libraries({}), "extra signing")
    assert found.state == "warning" and "cryptography 1.0" in found.found


@pytest.mark.parametrize(
    ("facts", "driver", "state", "names"),
    [
        ({}, "", "ok", "no NVIDIA driver"),
        ({}, "580.1", "warning", "built without CUDA"),
        ({"cuda": "13.0"}, "", "ok", "no NVIDIA driver"),
        ({"cuda": "13.0", "warning": "The NVIDIA driver is too old"}, "470.1", "warning", "too old"),
        ({"mps": True}, "", "ok", "Apple"),
        ({"hip": "6.4"}, "", "ok", "ROCm 6.4"),
    ],
    ids=["nothing", "torch without CUDA", "no driver", "old driver", "Apple", "ROCm"],
)
def test_why_there_is_no_gpu(
    facts: dict[str, Any], driver: str, state: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_driver", lambda: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (found,) = machine.accelerator({**FACTS, **facts})
    assert found.state == state and names in found.found and bool(found.remedy) == (state == "warning")


def test_a_gpu_is_named_with_driver_and_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_driver", lambda: "580.1")
    device = {"name": "NVIDIA H100", "bytes": 80 * 2**30, "capability": "9.0"}
    (found,) = machine.accelerator({**FACTS, "cuda": "13.0", "devices": [device], "bf16": True})
    assert found.subject == "cuda:0"
    assert all(word in found.found for word in ("NVIDIA H100", "80 GB", "9.0", "580.1", "CUDA 13.0", "bf16"))


def test_a_hidden_gpu_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_driver", lambda: "580.1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (found,) = machine.accelerator({**FACTS, "cuda": "13.0"})
    assert found.state == "warning" and "CUDA_VISIBLE_DEVICES=" in found.found


def test_too_many_threads_and_little_memory_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "10000")
    monkeypatch.setattr(machine, "free_memory", lambda: 2**20)
    found = list(machine.processor({"threads": 4, "capability": "AVX2"}))
    assert {each.subject for each in found if each.state == "warning"} == {"threads", "memory"}
    assert "torch uses 4 threads" in only(found, "threads").found


def test_a_terminal_without_utf8_is_a_warning() -> None:
    code = "from compatkit.health.machine import terminal; print([each.state for each in terminal()])"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['warning']\n"


@pytest.fixture
def unwritable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every folder be on a read-only disk; tests may run as root, whom no mode stops."""

    def refuse(*arguments: Any, **settings: Any) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(storage.tempfile, "TemporaryFile", refuse)


@pytest.mark.usefixtures("unwritable")
def test_a_read_only_disk_is_a_problem_for_folders_and_a_warning_for_a_registry(tmp_path: Path) -> None:
    hand = Hand.init(tmp_path / "parts")
    folders = list(storage.storage())
    assert {each.subject: each.state for each in folders} == dict.fromkeys(
        ("cache", "configuration", "temporary files"), "problem"
    )
    assert all("EROFS" in each.found and each.remedy for each in folders)
    found = only(storage.file_system(hand.root), "registry's folder")
    assert found.state == "warning" and "EROFS" in found.found


def test_without_a_home_the_folders_are_findings() -> None:
    code = (
        "from compatkit.health import registries, storage;"
        "print(sorted({each.state for each in [*storage.storage(), *registries.registry(None),"
        "*registries.remotes(ask=False)]}))"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOME", "XDG", "COMPATKIT"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "ok" in done.stdout, done.stderr


def test_little_space_and_missing_hard_links_are_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand.init(tmp_path / "parts")
    before = sorted(hand.root.rglob("*"))

    def refuse(*arguments: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(storage.os, "link", refuse)
    monkeypatch.setattr(storage, "LOW_SPACE", 2**80)
    found = {each.subject: each.state for each in storage.file_system(hand.root)}
    assert found == {"registry's file system": "ok", "hard links": "warning", "free space": "warning"}
    assert sorted(hand.root.rglob("*")) == before


@pytest.fixture
def hand(tmp_path: Path) -> Hand:
    """A registry of one head, sound but for its missing weights."""
    hand = Hand.init(tmp_path / "parts")
    hand.publish("digits/mnist.head", "1.0.0", hand.put(part("head")))
    return hand


def found_in(root: Path) -> list[Observation]:
    """Return what is found about a registry itself."""
    return [each for each in registries.registry(root) if each.topic == "registry"]


def test_a_registry_is_counted_and_its_faults_are_told(hand: Hand) -> None:
    found = found_in(hand.root)
    assert "layout 1" in only(found, "in force").found and "1 names, 1 versions" in only(found, "index").found
    faults = [each for each in found if each.subject == "quick verification"]
    assert any(each.damaged and each.state == "problem" and "blob" in each.found for each in faults)
    assert all(each.remedy for each in faults)


def test_the_last_full_verification_is_told_here_and_in_the_catalogue(hand: Hand) -> None:
    """A quick one and one of some names are not remembered, and what was remembered is replaced."""
    store = Store.open(hand.root)

    def told() -> list[str]:
        health = dict(overview(Snapshot.of(Readings(store))).health)
        return [
            only(found_in(hand.root), "last full verification").found,
            health["last verify on this computer"],
        ]

    before = told()
    assert all(text.startswith("none known") for text in before)
    examine(store, deep=False)
    examine(store, patterns=["*"])
    assert told() == before
    earliest = datetime.now(UTC).replace(microsecond=0)
    report = examine(store)
    here, catalogue = told()
    time, _, found = catalogue.partition(": ")
    assert earliest <= datetime.fromisoformat(time) <= datetime.now(UTC)
    assert here == f"{catalogue} (on this computer)" and f"{report.count('error'):,} error" in found
    assert only(found_in(hand.root), "last full verification").state == "warning"
    store.local_cache.remember_verification(Verification("2026-01-02T03:04:05+00:00", 0, 0))
    assert told()[1] == "2026-01-02T03:04:05+00:00: sound"


def test_an_empty_registry_is_sound(tmp_path: Path) -> None:
    assert {each.state for each in found_in(Hand.init(tmp_path / "parts").root)} == {"ok"}


@pytest.mark.parametrize(
    ("marker", "damaged"),
    [
        ("{", True),
        (None, False),
        ('{"layout":9,"min_reader":9,"min_writer":9,"hash":"sha256","id":"x"}', True),
    ],
    ids=["damaged", "missing", "newer"],
)
def test_a_registry_that_cannot_be_read_is_a_problem(hand: Hand, marker: str | None, damaged: bool) -> None:
    path = hand.root / "compatkit.json"
    path.unlink()
    if marker is not None:
        path.write_text(marker)
    report = HealthReport(tuple(found_in(hand.root)))
    first = report.observations[0]
    assert (first.subject, first.state, first.damaged) == ("in force", "problem", damaged)
    assert report.exit_code == 3


def test_a_folder_that_is_no_registry_and_a_missing_one_are_problems_of_the_environment(
    tmp_path: Path,
) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        report = HealthReport(tuple(registries.registry(folder)))
        assert report.exit_code == 4 and [each.state for each in report.observations] == ["problem"]


def test_no_registry_is_no_problem_and_a_large_one_is_not_verified(
    hand: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = registries.registry(None)
    assert (found.state, found.found) == ("ok", "none")
    monkeypatch.setattr(registries, "MOST", 0)
    assert "not done" in only(found_in(hand.root), "quick verification").found
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(hand.root))
    assert "COMPATKIT_REGISTRY" in only(registries.registry(None), "in force").found


def test_remotes_are_asked_on_request_only(hand: Hand, memory: str, tmp_path: Path) -> None:
    assert [each.found for each in registries.remotes(ask=False)] == ["none"]
    named.add("here", SavedRemote.of(str(hand.root)))
    named.add("gone", SavedRemote.of(str(tmp_path / "gone")))
    named.add("far", SavedRemote.of(memory))
    assert {each.state for each in registries.remotes(ask=False)} == {"ok"}
    asked = {each.subject: each.state for each in registries.remotes(ask=True)}
    assert asked == {"here:": "ok", "gone:": "problem", "far:": "problem"}


def test_a_remote_as_registry_is_named_without_its_secrets() -> None:
    (found,) = registries.registry("s3://key:hidden@bucket/parts")
    assert found.state == "ok" and "hidden" not in found.found


def test_plugins_that_cannot_be_used_are_warnings(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site(
        "good-plugins", module="", points="regularizers.shy = good_plugins\nregularizers.twice = good_plugins"
    )
    site("other", module="raise RuntimeError('nothing works')", points="regularizers.twice = other")
    site("bad", points="regularizers.lost = gone_module\nsoups.minestrone = other\nmetrics.bad = other")
    monkeypatch.setenv("COMPATKIT_DISABLE_PLUGINS", "shy")
    from compatkit.health.installed_plugins import plugins

    found = [each for each in plugins(None) if not each.subject.startswith("compatkit")]
    states = {each.subject: (each.state, each.found) for each in found}
    assert states["regularizers.lost"][0] == "warning" and "gone_module" in states["regularizers.lost"][1]
    assert states["soups.minestrone"][0] == "warning"
    assert states["regularizers.twice"][0] == "warning" and "other" in states["regularizers.twice"][1]
    assert states["regularizers.shy"][0] == "ok" and "blocked" in states["regularizers.shy"][1]
    assert "metrics.bad" not in states  # it is not imported
    assert "not imported" in states["good-plugins 1.0"][1]
    imported = {"bad:metrics.bad": Imported("RuntimeError: nothing works")}
    tried = only(plugins(imported), "metrics.bad")
    assert tried.state == "warning" and "nothing works" in tried.found


def test_plugins_are_imported_in_a_process_of_their_own(site: Any) -> None:
    site("bad", module="raise RuntimeError('nothing works')", points="metrics.bad = bad")
    results = Probe.start(["bad:metrics.bad"], "compatkit.health.plugin_probe").results()
    assert "nothing works" in results["bad:metrics.bad"].error and "bad" not in sys.modules


def test_an_error_of_a_look_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    @attrs.frozen
    class NoProcess:
        def results(self, timeout: float = 0) -> dict[str, Imported]:
            return {"torch": Imported("not tried")}

    def fail() -> Iterator[Observation]:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(Probe, "start", lambda *arguments: NoProcess())
    monkeypatch.setattr(storage, "storage", fail)
    report = doctor()
    assert "unforeseen" in only(report.observations, "storage").found and report.exit_code == 4
    assert only(report.observations, "encoding").topic == "terminal"
    assert "unforeseen" in str(report)
