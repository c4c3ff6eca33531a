"""Arguments that a public class or function does not take are answered, and never by a bare TypeError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compatkit as ck
from compatkit.errors import UsageError, type_of

NO_FIT: Any = object.__new__(ck.Fit)
CALLS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "setting of a trainer": (
        lambda registry: ck.Trainer(steps=1, optimiser="adam"),  # type: ignore[call-arg]
        "optimiser",
        "Trainer has no setting 'optimiser'; did you mean 'optimizer'?",
    ),
    "trainer without steps": (lambda registry: ck.Trainer(), "steps", "Trainer lacks 'steps'; it takes "),  # type: ignore[call-arg]
    "argument of fit": (
        lambda registry: ck.Trainer(steps=1).fit([], regularisers=["dcc"]),  # type: ignore[call-arg]
        "regularisers",
        "Trainer.fit has no argument 'regularisers'; did you mean 'regularizers'?",
    ),
    "task without a cut": (
        lambda registry: ck.Task("a", None, "resnet8_cifar"),
        "cut",
        "lacks 'cut'",
    ),  # type: ignore[call-arg]
    "weight by its place": (
        lambda registry: ck.use("dcc", 0.5),  # type: ignore[misc]
        "weight",
        "use takes name by position; got 2 arguments. Name the others, such as weight=...; there are weight, as_",
    ),
    "use without a name": (lambda registry: ck.use(), "name", "use lacks 'name'"),  # type: ignore[call-arg]
    "folder of data": (
        lambda registry: ck.data.load("digits", rooot="here"),  # type: ignore[call-arg]
        "rooot",
        "load has no argument 'rooot'; did you mean 'root'?",
    ),
    "open": (
        lambda registry: ck.Registry.open(rot="x"),
        "rot",
        "Registry.open has no argument 'rot'; did you mean 'root'",
    ),  # type: ignore[call-arg]
    "publish": (
        lambda registry: registry.publish(NO_FIT, prefx="digits"),
        "prefx",
        "Registry.publish has no argument 'prefx'; did you mean 'prefix'?",
    ),
    "publish by place": (
        lambda registry: registry.publish(NO_FIT, "digits"),
        "prefix",
        "missing argument prefix= to publish a Fit",
    ),
    "publish what": (
        lambda registry: registry.publish(NO_FIT, fit=None, prefix="a"),
        "fit",
        "Registry.publish has no argument 'fit'",
    ),
    "recombine": (
        lambda registry: registry.recombine("a", "b", bn_polcy="batch"),
        "bn_polcy",
        "did you mean 'bn_policy'?",
    ),
    "matrix": (
        lambda registry: registry.matrix("a", "b", batchsize=3),
        "batchsize",
        "did you mean 'batch_size'?",
    ),
    "no fit": (lambda registry: registry.publish(None, prefix="x"), None, "Trainer.fit"),
    "a title that is misspelt": (lambda registry: ck.About(titel="x"), "titel", "did you mean 'title'?"),
    "a number without its name": (
        lambda registry: ck.Trainer("2"),
        "steps",
        "Trainer lacks 'steps' (as steps=...)",
    ),
    "epochs": (lambda registry: ck.Trainer(epochs=3), "epochs", "did you mean 'steps'?"),  # type: ignore[call-arg]
    "learning rate": (
        lambda registry: ck.Trainer(steps=1, learning_rate=0.1),  # type: ignore[call-arg]
        "learning_rate",
        "did you mean 'lr'?",
    ),
    "check": (lambda registry: ck.check(None, None, evidense=()), "evidense", "check has no argument"),  # type: ignore[call-arg, arg-type]
    "check_all": (lambda registry: ck.check_all([], [], chanels={}), "chanels", "did you mean 'channels'?"),  # type: ignore[call-arg]
    "measure": (lambda registry: ck.measure(None, None, [], layer=()), "layer", "did you mean 'layers'?"),  # type: ignore[call-arg, arg-type]
    "read_checkpoint": (lambda registry: ck.read_checkpoint("x", keys="a"), "keys", "did you mean 'key'?"),  # type: ignore[call-arg]
    "load_exported": (lambda registry: ck.load_exported(pth="x"), "pth", "did you mean 'path'?"),  # type: ignore[call-arg]
    "label": (lambda registry: ck.label(nam="cat"), "nam", "did you mean 'name'?"),  # type: ignore[call-arg]
    "DataSet.of": (
        lambda registry: ck.DataSet.of("a", train=([], []), test=([], []), class_names=("b",)),  # type: ignore[call-arg, arg-type]
        "class_names",
        "DataSet.of has no argument 'class_names'",
    ),
    "an argument like no other": (
        lambda registry: registry.load("a", zzz=1),
        "zzz",
        "Registry.load has no argument 'zzz'; it takes reference, verify, require_signature.",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_does_not_fit_is_answered(tmp_path: Path, call: str) -> None:
    made, subject, reply = CALLS[call]
    registry = ck.Registry.init(tmp_path / "parts")
    with pytest.raises(UsageError) as result:
        made(registry)
    assert result.value.subject == subject and reply in str(result.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("int", "an int"),
        ("str", "a str"),
        ("ndarray", "an ndarray"),
        ("uint8", "a uint8"),
        ("NoneType", "a NoneType"),
        ("Unfold", "an Unfold"),
        ("UnionType", "a UnionType"),
        ("LSTM", "an LSTM"),
        ("Linear", "a Linear"),
    ],
)
def test_types_are_told_with_their_article(name: str, message: str) -> None:
    assert type_of(type(name, (), {})()) == message


def test_an_error_of_the_call_itself_is_left_alone() -> None:
    """A TypeError from inside is a defect, and no matter of arguments."""
    from compatkit.foundation.arguments import checks_arguments

    @checks_arguments
    def adds(count: int) -> int:
        return count + "a"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        adds(1)
