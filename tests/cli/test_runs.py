"""The folder of a run: made, told, gone on from, published later; and processes that are ended by signals."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from small import data_set, quick

import compatkit as ck
from compatkit.registry.store import Store
from compatkit.training import checkpoints
from compatkit.training.loop import Loop

RUN = "from compatkit.cli import main; main()"
STATE = "state.safetensors"
LONGER = ("steps = 2", "steps = 5")


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch, run: Any) -> Callable[..., Any]:
    """Run a command line that Ctrl-C interrupts in its first step."""

    def start(*words: object) -> Any:
        take = Loop.step

        def interrupt(self: Loop, task: Any, number: int, reports: bool = False) -> Any:
            if number == 0 and task.name == "left":
                signal.raise_signal(signal.SIGINT)
            return take(self, task, number, reports)

        with monkeypatch.context() as patch:
            patch.setattr(Loop, "step", interrupt)
            return run(*words)

    return start


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch, run: Any) -> Callable[..., Any]:
    """Run a command line that may take no step."""

    def start(*words: object) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(Loop, "step", lambda *args: pytest.fail("a step was taken"))
            return run(*words)

    return start


def folders(registry: Path) -> list[Path]:
    """Return the folders of the runs for a registry in the current folder."""
    return sorted(Path(f"{registry.name}-runs").absolute().iterdir())


def versions(registry: Path) -> dict[str, Any]:
    """Return the latest version of each part with its digest: equal ones have equal bytes, probes and runs."""
    store = Store.open(registry)
    return {name: store.resolve(name) for name in store.names()}


def outside(folder: Path, *roots: Path) -> list[str]:
    """Return the files below a folder that are in none of some roots."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if not any(path.is_relative_to(root) for root in roots)]


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_nothing_is_written_beside_the_registry(
    run: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    file, shared, mine = recipe(), tmp_path / "shared" / "parts", tmp_path / "mine"
    if command == "sweep":
        file.write_text(file.read_text() + '[sweep]\n"trainer.seed" = [0, 1]\n')
    mine.mkdir()
    monkeypatch.chdir(mine)
    ck.Registry.init(shared)
    before = set(outside(tmp_path, shared, mine, tmp_path / "cache"))
    assert run(command, file, "--registry", shared).code == 0
    assert set(outside(tmp_path, shared, mine, tmp_path / "cache")) == before
    assert run("--registry", shared, "verify", "--json").json["faults"] == []
    assert outside(mine) and [path.name for path in mine.iterdir()] == [
        {"train": "parts-runs", "sweep": "parts-sweeps"}[command]
    ]


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize("below", ["", "refs"])
def test_started_in_the_registry_a_run_needs_a_folder(
    run: Any,
    recipe: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    untouched: Any,
    command: str,
    below: str,
) -> None:
    file, root = recipe(), tmp_path / "parts"
    if command == "sweep":
        file.write_text(file.read_text() + '[sweep]\n"trainer.seed" = [0]\n')
    ck.Registry.init(root)
    monkeypatch.chdir(root / below)
    with untouched(tmp_path):
        result = run(command, file, "--json")
    assert result.code == 2 and result.json["error"]["code"] == "usage"
    assert "--out" in result.json["error"]["message"]
    assert run(command, file, "--out", tmp_path / "out").code == 0 and any((tmp_path / "out").iterdir())


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)
def test_the_folder_above_the_registry_may_belong_to_somebody_else(recipe: Any, tmp_path: Path) -> None:
    file, root, mine = recipe(), tmp_path / "shared" / "parts", tmp_path / "mine"
    ck.Registry.init(root)
    mine.mkdir()
    for path in (mine, root, *root.rglob("*")):
        os.chown(path, 54322, 54321)
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_mode & 0o005 != 0o005:
            path.chmod(path.stat().st_mode | 0o005)
    words = ["train", str(file), "--registry", str(root)]
    child = os.fork()
    if child == 0:
        try:
            os.chdir(mine)
            os.environ.update(HOME=str(mine), XDG_CACHE_HOME=str(mine / "cache"))
            os.setgid(54321)
            os.setuid(54322)
            from compatkit.cli import main

            main(words)
        except SystemExit as end:
            os._exit(int(end.code or 0))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "digits/left.head" in Store.open(root).names()
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["parts"]


def test_a_run_has_a_folder_named_after_the_registry_that_is_emptied_once_it_is_published(
    run: Any, recipe: Any, tmp_path: Path
) -> None:
    root = tmp_path / "parts"
    result = run("train", recipe(), "--registry", root)
    (folder,) = folders(root)
    assert result.code == 0 and f"Saving checkpoints to {folder / STATE}" in result.err
    assert folder.name.startswith("recipe-") and [path.name for path in folder.iterdir()] == ["run.json"]
    note = json.loads((folder / "run.json").read_text())
    assert note["published"]["left.head"] == "digits/left.head@1.0.0" and note["registry"] == str(root)


def test_a_run_of_no_steps_is_published_too(run: Any, recipe: Any, tmp_path: Path) -> None:
    result = run("train", recipe(("steps = 2", "steps = 0")), "--registry", tmp_path / "parts")
    assert result.code == 0 and "published digits/left.extractor@1.0.0" in result.out


def test_an_interrupted_run_goes_on_with_the_command_that_it_told(
    run: Any, recipe: Any, tmp_path: Path, interrupted: Any
) -> None:
    calm, torn = tmp_path / "calm", tmp_path / "torn apart"
    assert run("train", recipe(LONGER), "--registry", calm).code == 0
    result = interrupted("train", recipe(LONGER), "--registry", torn)
    assert result.code == 130 and result.out == "" and "[interrupted]" in result.err and not torn.exists()
    line = next(
        entry for entry in result.err.splitlines() if entry.startswith("1 of 5 steps are saved. To resume: ")
    )
    words = shlex.split(line.split(": ", 1)[1])
    assert words[0] == "compatkit"
    again = run(*words[1:])
    assert again.code == 0 and "The run resumes after step 1 of 5: " in again.err
    assert versions(torn) == versions(calm)


def test_programs_are_told_in_json(recipe: Any, tmp_path: Path, interrupted: Any) -> None:
    result = interrupted("train", recipe(LONGER), "--registry", tmp_path / "parts", "--json")
    assert result.code == 130 and result.json["error"]["code"] == "interrupted"


def test_what_makes_another_run_has_another_folder(
    run: Any, recipe: Any, tmp_path: Path, interrupted: Any
) -> None:
    root = tmp_path / "parts"
    words = "train", recipe(LONGER), "--registry", root
    for more in ((), ("--prefix", "other"), ("--logger", f"csv={tmp_path / 'events'}")):
        interrupted(*words, *more)
        assert len(folders(root)) == 1
    interrupted("train", recipe(("steps = 2", "steps = 5\ncheckpoint_every = 3")), "--registry", root)
    assert len(folders(root)) == 1
    interrupted(*words, "--seed", 1)
    for number, change in enumerate(("steps = 5\nlr = 0.02", "steps = 6", "steps = 5\nseed = 4"), 3):
        interrupted("train", recipe(("steps = 2", change)), "--registry", root)
        assert len(folders(root)) == number


def test_a_folder_that_was_named_keeps_the_state(
    run: Any, recipe: Any, tmp_path: Path, untrained: Any
) -> None:
    words = "train", recipe(), "--registry", tmp_path / "parts", "--out", tmp_path / "mine" / "run"
    assert run(*words).code == 0 and (tmp_path / "mine" / "run" / STATE).exists()
    result = untrained(*words, "--prefix", "other")
    assert (
        result.code == 0
        and "The run is finished: " in result.err
        and "published other/left.head@1.0.0" in result.out
    )
    assert not tmp_path.joinpath("parts-runs").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--out", "held"), 2, "holds other files and no run"),
        (("--out", "held/file"), 4, "is not a folder; name another"),
        (("--out", "run", "--checkpoint", "state"), 2, "--out and --checkpoint exclude each other"),
    ],
)
def test_folders_that_no_run_can_have(
    run: Any, recipe: Any, tmp_path: Path, monkeypatch: Any, words: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "file").write_text("mine")
    result = run("train", recipe(), "--registry", "parts", *words)
    assert result.code == code and message in result.err and not (tmp_path / "parts").exists()


class TestPublishingLater:
    def refused(self, run: Any, recipe: Any, root: Path) -> Path:
        """Train a second run whose number is taken, and return its folder."""
        assert run("train", recipe(), "--registry", root).code == 0
        result = run("train", recipe(), "--registry", root, "--seed", 1, "--version", "1.0.0")
        assert result.code == 2 and "[version-exists]" in result.err
        (folder,) = (entry for entry in folders(root) if (entry / STATE).exists())
        assert f"To publish it: compatkit publish {folder}" in result.err
        return folder

    def test_under_another_name(self, run: Any, recipe: Any, tmp_path: Path, untrained: Any) -> None:
        root, direct = tmp_path / "parts", tmp_path / "direct"
        folder = self.refused(run, recipe, root)
        recipe(("steps = 2", "steps = 3"))  # what was started counts, whatever became of the recipe
        result = untrained("publish", folder, "--prefix", "other")
        assert result.code == 0 and "published other/left.head@1.0.0" in result.out
        assert "next: compatkit --registry" in result.out and (folder / STATE).exists()
        run("train", recipe(), "--registry", direct, "--seed", 1, "--prefix", "other")
        assert {
            name: version for name, version in versions(root).items() if name.startswith("other")
        } == versions(direct)

    def test_under_another_number_and_into_another_registry(
        self, run: Any, recipe: Any, tmp_path: Path, untrained: Any
    ) -> None:
        folder = self.refused(run, recipe, tmp_path / "parts")
        document = untrained("publish", folder, "--json").json
        assert document["parts"]["left.head"] == "digits/left.head@2.0.0" and set(document["losses"]) == {
            "left",
            "right",
        }
        assert untrained("publish", folder, "--registry", tmp_path / "new").code == 0
        assert Store.open(tmp_path / "new").names() == Store.open(tmp_path / "parts").names()

    def test_the_same_command_with_another_name_trains_nothing_either(
        self, run: Any, recipe: Any, tmp_path: Path, untrained: Any
    ) -> None:
        root = tmp_path / "parts"
        folder = self.refused(run, recipe, root)
        reply = untrained("train", recipe(), "--registry", root, "--seed", 1, "--prefix", "other")
        assert reply.code == 0 and "published other/left.head@1.0.0" in reply.out
        assert not (folder / STATE).exists()
        result = run("publish", folder)
        assert result.code == 2 and "is published already, as other/left.extractor@1.0.0" in result.err

    def test_what_a_policy_refused(self, run: Any, recipe: Any, parts: Path, untrained: Any) -> None:
        words = "--mode", "backward", "--data", "left/test", "--tolerance", "0"
        assert run("policy", "set", "digits/left.extractor", *words).code == 0
        result = run("train", recipe(('cut = "layer2"', 'cut = "layer1"')))
        assert result.code == 1 and "[policy-broken]" in result.err
        (folder,) = folders(parts)
        assert untrained("publish", folder).code == 1
        message = untrained("publish", folder, "--major")
        assert message.code == 0 and "published digits/left.extractor@2.0.0" in message.out

    def test_a_rehearsed_run(self, run: Any, recipe: Any, tmp_path: Path, untrained: Any) -> None:
        root = tmp_path / "parts"
        result = run("train", recipe(), "--registry", root, "--dry-run")
        line = result.out.splitlines()[-1]
        assert line.startswith("next: compatkit publish ")
        words = shlex.split(line.removeprefix("next: compatkit "))
        assert untrained(*words, "--dry-run").out.splitlines()[-2] == "nothing was published"
        assert untrained(*words).code == 0 and "digits/left.head" in Store.open(root).names()

    def test_averages_are_published_as_by_train(
        self, run: Any, recipe: Any, tmp_path: Path, untrained: Any
    ) -> None:
        file = recipe(("steps = 2", "steps = 2\nema = 0.5"))
        run("train", file, "--registry", tmp_path / "parts", "--dry-run")
        result = untrained("publish", *folders(tmp_path / "parts"))
        assert "Publishing the moving averages" in result.err
        manifest = Store.open(tmp_path / "parts").manifest("digits/left.head")
        assert manifest.training["weights"] == "averages"

    def test_a_run_that_is_not_at_its_end(
        self, run: Any, recipe: Any, tmp_path: Path, interrupted: Any
    ) -> None:
        interrupted("train", recipe(LONGER), "--registry", tmp_path / "parts")
        result = run("publish", *folders(tmp_path / "parts"))
        assert result.code == 2 and "compatkit train " in result.err

    def test_folders_that_hold_no_run(self, run: Any, tmp_path: Path) -> None:
        result = run("publish", tmp_path)
        assert result.code == 2 and f"There is no run in {str(tmp_path)!r}" in result.err
        (tmp_path / "run.json").write_text('{"recipe": 1}')
        result = run("publish", tmp_path)
        assert result.code == 3 and "does not describe a run" in result.err
        assert run("publish", tmp_path, "--version", "1.0.0", "--major").code == 2

    def test_python_does_it_from_the_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trainer = quick(steps=2, checkpoint=tmp_path / "run.safetensors")
        task = ck.Task("left", data_set("left"), "resnet8_cifar", "layer2", size=16)
        registry = ck.Registry.init(tmp_path / "parts")
        parts = registry.publish(trainer.fit([task]), prefix="digits")
        monkeypatch.setattr(Loop, "step", lambda *args: pytest.fail("a step was taken"))
        later = registry.publish(trainer.fit([task]), prefix="other")
        digests = [
            registry.store.manifest(item).payload.tensors for item in (*parts.values(), *later.values())
        ]
        assert digests[:2] == digests[2:]


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_second_interruption_while_python_ends_prints_nothing() -> None:
    """Exit handlers run in reverse order: this one, of a library, after that of the command line."""
    late = "import atexit, signal; atexit.register(signal.raise_signal, signal.SIGINT); "
    result = subprocess.run(
        [sys.executable, "-c", late + RUN, "--version"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


def test_a_second_interruption_while_the_first_is_told_prints_nothing(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(error: type[BaseException]) -> Callable[..., None]:
        def call(*words: object, **settings: object) -> None:
            raise error

        return call

    monkeypatch.setattr("compatkit.cli.program", interrupt(click.Abort))
    monkeypatch.setattr("compatkit.cli._report", interrupt(KeyboardInterrupt))
    result = run("ls")
    assert (result.code, result.err) == (130, "")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_process_that_is_ended_goes_on_bit_by_bit(
    run: Any, recipe: Any, tmp_path: Path, number: int, code: int
) -> None:
    """The first checkpoint, of step 1, tells that it trains; the signal comes in the middle of it all."""
    file = recipe(
        ("steps = 2", "steps = 60\nlog_every = 7\ncheckpoint_every = 11"),
        ('"dcc"', '"dcc", "rotation_prediction"'),
    )
    calm, torn = tmp_path / "calm", tmp_path / "torn"
    assert run("train", file, "--registry", calm).code == 0
    running = started("--registry", torn, "train", file)
    runs = tmp_path / "torn-runs"
    while not list(runs.glob(f"*/{STATE}")):
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.02)
    running.send_signal(number)
    out, err = running.communicate(timeout=120)
    assert running.returncode == code and out == "" and "[interrupted]" in err
    (folder,) = folders(torn)
    known = checkpoints.status(folder / STATE)
    assert known is not None and 11 <= known.step < 60
    assert f"{known.step} of 60 steps are saved. To resume: compatkit --registry {torn} train {file}" in err
    again = run("--registry", torn, "train", file)
    assert again.code == 0 and f"resumes after step {known.step} of 60" in again.err
    assert versions(torn) == versions(calm)
