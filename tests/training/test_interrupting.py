"""When checkpoints are written, and runs that Ctrl-C or SIGTERM ends: what is kept, and that it goes on bit by bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.training import checkpoints

USES = ["identical_init", "dcc"]


def tasks() -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=16)
        for seed, name in enumerate(("left", "right"))
    ]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps after which a checkpoint was written."""
    steps: list[int] = []
    save = checkpoints.save

    def note(path: Path, loop: Any, run: Any, values: Any, tensors: Any) -> None:
        steps.append(values["step"])
        save(path, loop, run, values, tensors)

    monkeypatch.setattr(checkpoints, "save", note)
    return steps


class TestWhen:
    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({"checkpoint_every": 3, "log_every": 50}, [3, 6, 7]),
            ({"checkpoint_every": 3, "log_every": 2}, [3, 6, 7]),
            ({"checkpoint_every": 7, "log_every": 2}, [7]),
            ({"checkpoint_every": 500}, [7]),
            ({"checkpoint_every": 500, "checkpoint_seconds": None}, [7]),
        ],
    )
    def test_every_so_many_steps_and_at_the_end(
        self, tmp_path: Path, written: list[int], settings: dict[str, Any], expected: list[int]
    ) -> None:
        quick(steps=7, checkpoint=tmp_path / "run", **settings).fit(tasks()[:1])
        assert written == expected

    def test_by_the_clock_too(
        self, tmp_path: Path, written: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each step takes a minute by this clock, and writing a checkpoint no time."""
        now = [0.0]
        monkeypatch.setattr("compatkit.training.run.time.monotonic", lambda: now[0])

        class Slow:
            @ck.hookimpl
            def compatkit_after_step(self, step: ck.Step) -> None:
                now[0] += 60

        trainer = quick(steps=7, checkpoint=tmp_path / "run", checkpoint_seconds=120, log_every=50)
        trainer.fit(tasks()[:1], ["slow"], factories={"slow": Slow})
        assert written == [3, 6, 7]

    def test_not_so_often_that_writing_takes_much_of_the_time(
        self, tmp_path: Path, written: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Writing takes a minute and a step as long: one in twenty minutes."""
        now = [0.0]
        monkeypatch.setattr("compatkit.training.run.time.monotonic", lambda: now[0])
        save = checkpoints.save

        def slowly(*args: Any) -> None:
            now[0] += 60
            save(*args)

        monkeypatch.setattr(checkpoints, "save", slowly)

        class Slow:
            @ck.hookimpl
            def compatkit_after_step(self, step: ck.Step) -> None:
                now[0] += 60

        trainer = quick(steps=25, checkpoint=tmp_path / "run", checkpoint_seconds=120, log_every=50)
        trainer.fit(tasks()[:1], ["slow"], factories={"slow": Slow})
        assert written == [3, 24, 25]


@pytest.mark.parametrize("stopped_after", [1, 3, 5])
def test_a_run_that_ends_between_two_rows_goes_on_with_the_same_rows(
    tmp_path: Path, killed: Callable[..., None], stopped_after: int
) -> None:
    """Rows are means over three steps; losses of a step that no row holds yet are in the checkpoint."""
    settings: dict[str, Any] = {"steps": 7, "log_every": 3, "clip_norm": 1.0}
    whole = quick(**settings).fit(tasks(), USES)
    trainer = quick(**settings, checkpoint=tmp_path / "run", checkpoint_every=1)
    killed(trainer, tasks(), USES, after=stopped_after)
    resumed = trainer.fit(tasks(), USES)
    assert same_parts(whole, resumed) and whole.history == resumed.history
    assert [list(row["losses"]) for row in whole.history] == [list(row["losses"]) for row in resumed.history]


class Sender:
    """Sends this process a signal in the middle of a round, between the steps of two tasks."""

    number: int = signal.SIGINT
    times = 1

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        if step.number == 2 and step.task.name == "left":
            for _ in range(self.times):
                signal.raise_signal(self.number)


class Idle:
    """Takes the place of the sender, so that the plan is the same."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        assert step.number >= 3


class TestSignals:
    def sent(self, trainer: ck.Trainer, **settings: Any) -> None:
        sender = type("Sender", (Sender,), settings)
        trainer.fit(tasks(), [*USES, "sender"], factories={"sender": sender})

    @pytest.mark.parametrize(
        ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
    )
    def test_the_round_is_finished_and_kept_and_the_run_goes_on_from_there(
        self, tmp_path: Path, number: int, raised: type[BaseException]
    ) -> None:
        whole = quick(steps=6, log_every=4).fit(tasks(), USES)
        trainer = quick(steps=6, log_every=4, checkpoint=tmp_path / "run")
        before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(raised) as ended:
            self.sent(trainer, number=number)
        if raised is KeyboardInterrupt:
            assert "after 3 of 6 steps" in str(ended.value) and str(tmp_path / "run") in str(ended.value)
        else:
            assert ended.value.code == 128 + signal.SIGTERM  # type: ignore[attr-defined]
        assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == before
        resumed = trainer.fit(tasks(), [*USES, "sender"], factories={"sender": Idle})
        assert same_parts(whole, resumed) and whole.history == resumed.history

    def test_a_second_one_acts_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.sent(quick(steps=6, checkpoint=tmp_path / "run"), times=2)
        assert not (tmp_path / "run").exists()

    def test_without_a_checkpoint_nothing_is_held_back(self) -> None:
        seen: list[Any] = []

        class Look:
            @ck.hookimpl
            def compatkit_after_step(self, step: ck.Step) -> None:
                seen.append(signal.getsignal(signal.SIGINT))

        quick(steps=1).fit(tasks()[:1], ["look"], factories={"look": Look})
        assert seen == [signal.default_int_handler]

    def test_handlers_of_somebody_else_stay(self, tmp_path: Path) -> None:
        actual: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: actual.append(number))
        try:
            self.sent(quick(steps=4, checkpoint=tmp_path / "run"), number=signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, before)
        assert actual == [signal.SIGTERM]

    def test_another_thread_trains_as_ever(self, tmp_path: Path) -> None:
        fits: list[ck.Fit] = []
        trainer = quick(steps=1, checkpoint=tmp_path / "run")
        thread = threading.Thread(target=lambda: fits.append(trainer.fit(tasks()[:1])))
        thread.start()
        thread.join()
        assert len(fits) == 1

    def test_a_step_that_fails_of_the_signal_is_an_interruption(self, tmp_path: Path) -> None:
        """Ctrl-C also ends the processes of a loader, whose next batch then fails."""

        class Fails:
            @ck.hookimpl
            def compatkit_after_step(self, step: ck.Step) -> None:
                signal.raise_signal(signal.SIGINT)
                raise RuntimeError("DataLoader worker exited unexpectedly")

        with pytest.raises(KeyboardInterrupt):
            quick(steps=6, checkpoint=tmp_path / "run").fit(tasks(), ["f"], factories={"f": Fails})
        assert not (tmp_path / "run").exists()


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from small import data_set, quick
import compatkit as ck

task = ck.Task("left", data_set("left"), "resnet8_cifar", "layer2", size=16)
quick(steps=100_000, log_every=50, checkpoint="run.safetensors", checkpoint_every=1, progress=True).fit(
    [task]
)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, -signal.SIGINT), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_script_that_is_ended_keeps_its_state(tmp_path: Path, number: int, code: int) -> None:
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    running = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    state = tmp_path / "run.safetensors"
    while not state.exists():
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.02)
    running.send_signal(number)
    result = running.communicate(timeout=60)[1]
    assert running.returncode == code, result
    if number == signal.SIGINT:
        assert "steps of each task. The same call resumes" in result and "run.safetensors" in result
