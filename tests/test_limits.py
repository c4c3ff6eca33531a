"""What a setting or an argument may be: every bound, and a message that says it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.foundation.limits import COUNT, FLAG, PATH, SEED, WHOLE, Number, OneOf
from compatkit.plugins.discovery import find, names


def refused(validator: Any, value: Any) -> str:
    """Return what is said of a value, or nothing where it is taken."""
    made = attrs.make_class("Made", {"rate": attrs.field(validator=validator)})
    try:
        made(value)
    except UsageError as error:
        assert error.subject == "rate"
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("validator", "taken", "not_taken", "words"),
    [
        (Number(least=0), (0, 0.0, 3.5), (-1e-9, "1", None, True), "a number from 0 up"),
        (Number(above=0), (1e-9, 7), (0, -1), "a number above 0"),
        (COUNT, (1, 10**9), (0, 1.0, 2.5, True), "a whole number from 1 up"),
        (Number(above=0, below=1), (0.5,), (0, 1), "a number above 0 and below 1"),
        (Number(least=0, most=1), (0, 1), (-0.1, 1.1), "a number from 0 to 1"),
        (Number(least=1, optional=True), (None, 1), (0,), "a number from 1 up, or None"),
        (Number(), (-2.5, 0), ("1", None), "a finite number"),
        (Number(above=0, most=1), (1,), (0, 1.1), "a number above 0 and up to 1"),
        (Number(most=10**6, whole=True), (10**6,), (10**6 + 1,), "a whole number up to 1,000,000"),
        (SEED, (0, 2**63 - 1), (-1, 1.5), "a whole number from 0 to below 9,223,372,036,854,775,808"),
        (FLAG, (True, False), ("no", 1, None), "True or False"),
        (PATH, ("a", Path("a"), None), (3,), "a path, or None"),
        (WHOLE, (0, 10**400), (-1, "0"), "a whole number from 0 up"),
        (
            OneOf(("loss", "accuracy"), optional=True),
            ("loss", None),
            ("f1", 1),
            "one of loss, accuracy, or None",
        ),
        (OneOf(("loss", "accuracy")), ("loss",), ("f1", None, 1), "one of loss, accuracy"),
    ],
)
def test_bounds(validator: Any, taken: tuple[Any, ...], not_taken: tuple[Any, ...], words: str) -> None:
    assert [refused(validator, entry) for entry in taken] == [""] * len(taken)
    for entry in not_taken:
        assert refused(validator, entry) == f"'rate' must be {words}; got {entry!r}."


def test_a_word_that_is_nearly_one_of_them_is_answered_with_that_one() -> None:
    assert refused(OneOf(("loss", "accuracy")), "los").endswith("got 'los'. Did you mean 'loss'?")
    assert refused(OneOf(("off", "on")), None).endswith("got None.")
    with pytest.raises(UsageError, match="export: 'names' must be one of whole, parts; got") as caught:
        OneOf(("whole", "parts")).check("export", names=["parts"])
    assert caught.value.subject == "names"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_within_no_bounds(value: float) -> None:
    assert "got" in refused(Number(least=0), value) and "got" in refused(Number(above=0), value)


def test_infinity_is_taken_where_it_means_no_bound() -> None:
    assert refused(Number(above=0, infinite=True), math.inf) == ""
    assert "got -inf" in refused(Number(above=0, infinite=True), -math.inf)
    assert "got nan" in refused(Number(above=0, infinite=True), math.nan)


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), np.float32(3), np.float64(3)])
def test_numbers_of_numpy_become_those_of_python_which_json_can_hold(value: Any) -> None:
    made = attrs.make_class("Made", {"rate": attrs.field(validator=Number(least=0))}, frozen=True)(value)
    assert type(made.rate) is type(value.item()) and made.rate == 3
    assert "got" in refused(COUNT, np.float64(3)) and "got" in refused(WHOLE, np.bool_(True))


def test_a_run_with_numbers_of_numpy_is_recorded(tmp_path: Path) -> None:
    trainer = quick(steps=np.int64(1), lr=np.float32(0.5), checkpoint=tmp_path / "run.checkpoint")
    fit = trainer.fit([ck.Task("a", data_set("rows"), "resnet8_cifar", "layer2")])
    assert fit.run["trainer"]["steps"] == 1 and fit.run["trainer"]["lr"] == 0.5


def test_settings_of_plugins_in_numbers_of_numpy_are_recorded(tmp_path: Path) -> None:
    task = ck.Task("a", data_set("rows"), "resnet8_cifar", "layer2")
    fit = quick(steps=1).fit([task], [ck.use("bss", count=np.int64(2))])
    assert fit.run["plugins"][0]["settings"]["count"] == 2


def test_arguments_of_functions_have_the_same_limits() -> None:
    COUNT.check("Generator", latent=1, start=8)
    with pytest.raises(
        UsageError, match="Generator: 'start' must be a whole number from 1 up; got 0"
    ) as caught:
        COUNT.check("Generator", latent=1, start=0)
    assert caught.value.subject == "start"
    with pytest.raises(DataError):
        Number(below=1).check("Shift", DataError, hue=1.0)
    with pytest.raises(UsageError, match=r"Convert the int64 by \.item\(\)\."):
        COUNT.check("Generator", latent=np.int64(1))  # would reach a manifest as it is


@pytest.mark.parametrize("value", [10**400, 10**5000], ids=["10**400", "10**5000"])
def test_an_integer_that_no_float_can_hold_is_no_number(value: int) -> None:
    with pytest.raises(UsageError, match="got an integer of"):
        Number(least=0).check("Shift", hue=value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0}, "'lr' must be a number above 0; got 0"),
        ({"lr": math.nan}, "'lr' must be a number above 0; got nan"),
        ({"lr": "fast"}, "'lr' must be a number above 0; got 'fast'"),
        ({"momentum": -1}, "'momentum' must be a number from 0 up; got -1"),
        ({"weight_decay": -1}, "'weight_decay' must be a number from 0 up; got -1"),
        ({"warmup": 1.5}, "'warmup' must be a whole number from 0 up; got 1.5"),
        ({"optimizer": "loin"}, "There is no optimizer 'loin'. Did you mean 'lion'"),
        ({"precision": "fp8"}, "'precision' must be one of auto, float32, bf16; got 'fp8'"),
        (
            {"execution": "fast"},
            "'execution' must be one of auto, eager, compile, graph, compile\\+graph; got 'fast'",
        ),
        ({"schedule": "linear"}, "'schedule' must be step, cosine, constant, or a Schedule; got 'linear'"),
        ({"schedule": ck.Schedule("cosine"), "warmup": 5}, "'warmup' is given next to a Schedule"),
    ],
)
def test_a_trainer_that_cannot_train_is_not_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ck.Trainer(steps=1, **settings)


@pytest.mark.parametrize(
    ("settings", "subject"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"deterministic": "no"}, "deterministic"),
        ({"channels_last": "yes"}, "channels_last"),
        ({"checkpoint": 3}, "checkpoint"),
        ({"stop_early": 5}, "stop_early"),
    ],
)
def test_a_trainer_takes_no_other_types(settings: dict[str, Any], subject: str) -> None:
    with pytest.raises(UsageError) as caught:
        ck.Trainer(steps=1, **settings)
    assert caught.value.subject == subject


@pytest.mark.parametrize(
    "changed",
    [
        {"data": "mnist"},
        {"data": None},
        {"model": None},
        {"cut": ["layer2"]},
        {"builder": []},
        {"kwargs": None},
        {"weights": 3},
        {"supervised": "no"},
        {"recompute_activations": 1},
    ],
    ids=str,
)
def test_a_task_takes_no_other_types(changed: dict[str, Any]) -> None:
    settings = {"name": "a", "data": data_set("rows"), "model": "resnet8_cifar", "cut": "layer2"}
    with pytest.raises(UsageError) as caught:
        ck.Task(**{**settings, **changed})
    assert caught.value.subject == next(iter(changed))


@pytest.mark.parametrize(
    "settings", [{"seed": True}, {"seed": 2**70}, {"batch_size": 0}, {"batch_size": True}]
)
def test_measure_refuses_what_is_no_seed_or_batch(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        ck.measure(torch.nn.Flatten(), data_set("rows"), ["accuracy"], **settings)
    assert caught.value.subject == next(iter(settings))


def test_a_plugin_that_declares_a_setting_again_keeps_its_limit() -> None:
    lost = [
        f"{kind.__name__}.{field.name}"
        for group in ("regularizers", "metrics")
        for kind in (find(group, name).factory for name in names(group))
        if isinstance(kind, type) and attrs.has(kind)
        for field in attrs.fields(kind)
        for above in kind.__mro__[1:]
        if attrs.has(above) and field.validator is None
        for other in attrs.fields(above)
        if other.name == field.name and other.validator is not None
    ]
    assert not lost
