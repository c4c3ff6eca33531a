"""Hooks: every one is documented with its exact arguments, has an example, and is exercised by a test."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from compatkit.errors import UsageError
from compatkit.hooks import EFFECTS, Phase, Register, Registration, Training, effect, hookimpl
from compatkit.plugins import EVENTS, KINDS, RunPlugins
from compatkit.plugins.implementations import arguments_of

REPOSITORY = Path(__file__).resolve().parents[1]
HOOKS = {**arguments_of(Registration), **arguments_of(Training)}


@pytest.mark.parametrize("name", HOOKS)
def test_a_page_for_authors_tells_of_the_hook(name: str) -> None:
    pages = (REPOSITORY / "docs" / "how_to").rglob("*.md")
    assert any(re.search(rf"\b{name}\b", page.read_text()) for page in pages)


def test_pages_for_authors_tell_of_no_other_hook() -> None:
    for page in (REPOSITORY / "docs").rglob("*.md"):
        for name, arguments in re.findall(r"`(compatkit_[a-z_]+)\(([^`]*)\)`", page.read_text()):
            assert tuple(re.findall(r"\w+", arguments)) == HOOKS[name], f"{page.name}: {name}"


@pytest.mark.parametrize("name", HOOKS)
def test_hook_has_a_docstring_with_an_example(name: str) -> None:
    layer = Registration if name in arguments_of(Registration) else Training
    text = inspect.getdoc(getattr(layer, name)) or ""
    assert (
        "Example::" in text
        and f"def {name}({', '.join(('self', *HOOKS[name]) if layer is Training else HOOKS[name])})" in text
    )


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_named_by_a_test(name: str) -> None:
    others = (path for path in (REPOSITORY / "tests").rglob("test_*.py") if path != Path(__file__))
    assert any(name in path.read_text() for path in others) or name in EXERCISED


EXERCISED = {
    "compatkit_task": ("task", "seed"),
    "compatkit_set_up": ("setup",),
    "compatkit_pretrain": ("setup", "pretraining"),
    "compatkit_sampler": ("task", "epoch", "order"),
    "compatkit_views": ("step", "batch"),
    "compatkit_joint_losses": ("joint",),
    "compatkit_further_views": ("images",),
    "compatkit_sample_losses": ("step", "losses"),
    "compatkit_losses": ("step",),
    "compatkit_combine_gradients": ("step", "gradients"),
    "compatkit_after_backward": ("step",),
    "compatkit_after_step": ("step",),
    "compatkit_after_epoch": ("step",),
    "compatkit_after_evaluation": ("evaluation",),
    "compatkit_finish": ("setup",),
    "compatkit_teardown": ("setup",),
}


@pytest.mark.parametrize("name", EXERCISED)
def test_event_is_resolved_and_gets_its_arguments(name: str) -> None:
    seen: list[Any] = []
    arguments = EXERCISED[name]
    assert HOOKS[name] == arguments
    space: dict[str, Any] = {"seen": seen}
    exec(f"def hook(self, {', '.join(arguments)}): seen.append(({', '.join(arguments)},))", space)
    mine = type("Mine", (), {name: hookimpl(space["hook"])})
    plugins = RunPlugins.create(["mine"], factories={"mine": mine})
    events = {event: getattr(plugins, event) for event in EVENTS}
    (bound,) = events.pop(name.removeprefix("compatkit_"))
    assert not any(events.values())
    bound.function(*arguments)
    assert seen == [arguments]


def test_events_and_kinds_follow_the_hooks() -> None:
    state = {"compatkit_state", "compatkit_load_state"}
    assert {f"compatkit_{event}" for event in EVENTS} | state == set(arguments_of(Training))
    assert {f"compatkit_{kind}" for kind in KINDS} == set(arguments_of(Registration))


def test_phase_holds_start_and_not_stop() -> None:
    assert [step for step in range(6) if step in Phase(2, 4)] == [2, 3]
    assert 10**9 in Phase() and -1 not in Phase()
    assert 2.0 not in Phase() and "2" not in Phase()


@pytest.mark.parametrize(("start", "stop"), [(-1, None), (0.5, None), (True, None), (3, 3), (3, 1), (0, "4")])
def test_phase_without_a_step_is_refused(start: Any, stop: Any) -> None:
    with pytest.raises(UsageError, match=r"start|stop"):
        Phase(start, stop)


@pytest.mark.parametrize("kind", EFFECTS)
def test_effect_marks_and_returns_the_function(kind: Any) -> None:
    def function() -> None: ...

    assert effect(kind)(function) is function
    assert function.compatkit_effect == kind  # type: ignore[attr-defined]


def test_unknown_effect() -> None:
    with pytest.raises(UsageError, match="one of pure, device, host; got 'clean'"):
        effect("clean")  # type: ignore[arg-type]


def test_register_itself_registers_nothing() -> None:
    with pytest.raises(NotImplementedError):
        Register()("name", dict)
