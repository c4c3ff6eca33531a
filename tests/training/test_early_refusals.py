"""What a contract, a publish or a matrix would refuse is refused before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from small import data_set, quick

import compatkit as ck
from compatkit.errors import CompatkitError, DataError, InvalidName, UnknownName, UsageError


def task(name: str = "a", classes: tuple[str, ...] = ("0", "1", "2"), **settings: Any) -> ck.Task:
    settings = {"size": 12, **settings}
    return ck.Task(name, data_set("a", classes=classes), "resnet8_cifar", "layer2", **settings)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: task(width=2**16 + 1), UsageError),
        (lambda: task(normalize={"mean": 1e300, "std": 1}), UsageError),
        (lambda: task(normalize={"mean": 0, "std": 1e-300}), UsageError),
        (lambda: task("a" * 60), InvalidName),
        (lambda: quick(steps=0).fit([task(classes=("car", "automobile", "dog"))]), DataError),
        (lambda: quick(steps=0).fit([task(classes=("0", "zero"))]), DataError),
    ],
    ids=["width", "mean", "std", "long name", "synonyms", "numbers"],
)
def test_what_would_be_refused_late(make: Callable[[], Any], kind: type[CompatkitError]) -> None:
    with pytest.raises(kind):
        make()


@pytest.mark.parametrize(
    ("settings", "subject", "near"),
    [
        ({"model": "resnet20"}, "resnet20", "resnet20_cifar"),
        ({"model": "resnet8_cifra"}, "resnet8_cifra", "resnet8_cifar"),
        ({"model": "resnet181", "builder": "torchvision"}, "resnet181", "resnet18"),
        ({"model": "hf-hub:timm/resnet18"}, "hf-hub:timm/resnet18", "a name consists of letters"),
        ({"model": "resnet18", "builder": "tim"}, "tim", "timm"),
        ({"model": "resnet8_cifar", "rest": {"model": "lenet5", "cut": "conv1"}}, "lenet5", "lenet"),
    ],
)
def test_a_task_of_an_unknown_model_is_refused_when_it_is_made(
    settings: dict[str, Any], subject: str, near: str
) -> None:
    with pytest.raises(UnknownName) as caught:
        ck.Task("a", data_set("a"), cut="layer2", **settings)
    assert (caught.value.code, caught.value.subject) == ("unknown-name", subject)
    assert near in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings", "code"),
    [
        ("My Head!", {"outputs": 2}, "invalid-name"),
        ("one", {"classes": [ck.label("0")]}, "usage"),
        ("none", {"classes": []}, "usage"),
    ],
)
def test_heads_that_nothing_could_be_published_or_learned_of(
    name: str, settings: dict[str, Any], code: str
) -> None:
    class Adds:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            with pytest.raises(UsageError) as caught:
                setup.add_auxiliary_head(name, **settings)
            codes.append(caught.value.code)

    codes: list[str] = []
    quick(steps=0).fit([task()], ["x"], factories={"x": Adds})
    assert codes == [code]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_shared_head_of_one_class(frozen: bool) -> None:
    fit = quick(steps=1).fit([task()], ["dcc"])
    fit.auxiliary["dcc"].labels = fit.auxiliary["dcc"].labels[:1]  # type: ignore[index]
    uses = ["dcc"] if frozen else [ck.use("dcc", classes=["0"])]
    with pytest.raises(CompatkitError) as caught:
        quick(steps=0).fit([task("b")], uses, frozen=fit if frozen else None)
    assert caught.value.code in ("usage", "plugin")


def test_sizes_that_leave_one_position_at_the_cut_are_told() -> None:
    with pytest.warns(UserWarning, match="features of 1x1"):
        quick(steps=0).fit([task(size=2)])
    quick(steps=0).fit([task(size=4)])
