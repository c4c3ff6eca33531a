"""What a console and a notebook ask of every value: ``repr``, ``str`` and ``_repr_html_`` of all that users get."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import data_set, quick, write_pack
from torch import nn

import compatkit as ck
from compatkit.errors import CompatkitError

LONGEST = 6000
"""Characters of a repr: a screenful, or a value with all of its settings; no weights and no images."""
PARTS = 8
"""Items of a list or a mapping that are looked at."""
NOT_HANDED_OUT = {
    *("SetUp", "RunInfo", "AveragedNetwork", "Step", "Batch", "LayerCall", "JointStep"),
    *("Pretraining", "Evaluation"),
}
"""Classes whose objects only hooks receive; ``test_what_hooks_receive_is_shown`` has them."""


def ours(value: Any) -> bool:
    return type(value).__module__.split(".")[0] in ("compatkit", "compatkit_plugins", "compatkit_studies")


def inside(value: Any) -> Iterator[Any]:
    """Yield the items of containers, and fields and public properties of values of ours."""
    if isinstance(value, Mapping):
        yield from list(value.values())[:PARTS]
    elif isinstance(value, list | tuple):
        yield from value[:PARTS]
    if not ours(value) or isinstance(value, nn.Module):
        return
    names = dict.fromkeys(getattr(value, "__dict__", ()))
    if attrs.has(type(value)):
        names |= dict.fromkeys(field.name for field in attrs.fields(type(value)))
    names |= dict(inspect.getmembers(type(value), lambda member: isinstance(member, property)))
    for name in names:
        if not name.startswith("_"):
            try:
                yield getattr(value, name)
            except CompatkitError as error:
                yield error


def shown(value: Any) -> str:
    """Return the longest of a value's displays."""
    texts = [repr(value), str(value)]
    if hasattr(value, "_repr_html_") and not isinstance(value, type):
        page = value._repr_html_()
        assert page is None or (isinstance(page, str) and page), type(value)
    assert all(texts), type(value)
    return max(texts, key=len)


def walked(*roots: Any) -> dict[str, int]:
    """Show all values that hang together with these; return the longest display of each class of ours."""
    waiting, seen, longest = list(roots), {}, dict[str, int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, torch.Tensor | np.ndarray | str | bytes):
            continue
        seen[id(value)] = value  # kept, so that no id is used again
        if ours(value):
            name = type(value).__name__
            longest[name] = max(longest.get(name, 0), len(shown(value)))
        waiting += inside(value)
    return longest


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Everything that a session gets from the public methods, from images to a ranking."""
    folder = tmp_path_factory.mktemp("displays")
    sets = {name: data_set(name, seed=seed) for seed, name in enumerate(("left", "right"))}
    tasks = [ck.Task(name, data, "resnet8_cifar", "layer2", size=(16, 16)) for name, data in sets.items()]
    trainer = quick(steps=2, evaluate_every=2, evaluate_on="test", ema=0.9)
    fit = trainer.fit(tasks, ["identical_init", ck.use("dcc", weight=0.5)])
    registry = ck.Registry.init(folder / "parts")
    registry.publish(fit, prefix="digits", about=ck.About(title="Digits", tags={"a": "b"}))
    tests = [data.test for data in sets.values()]
    left, right, head = "digits/left.extractor", "digits/right.extractor", "digits/right.head"
    matrix = registry.matrix("digits/*.extractor", "digits/*.head", tests)
    network = registry.recombine(left, head, data=tests[0])
    registry.policies.set("digits/right.head", mode="backward", data=tests[1], tolerance=0.5)
    bridge = registry.bridge(left, head, sets["left"].train)
    started = registry.task("again", sets["left"], extractor=left, head="digits/left.head")
    weighted = ck.Task("warm", sets["left"], "resnet8_cifar", "layer2", weights=fit.weights("left"), size=16)
    activations = ck.activations(fit.tasks["left"], tests[0], layers=["layer1"])
    layers = [activations, ck.activations(fit.tasks["right"], tests[0], layers=["layer1"])]
    write_pack(folder, sets["left"])
    recipe = folder / "sweep.toml"
    recipe.write_text(
        'prefix = "swept"\n[trainer]\nsteps = 1\nbatch_size = 8\n[[tasks]]\nname = "left"\ndata = "left.npz"\n'
        'model = "resnet8_cifar"\ncut = "layer2"\nsize = 8\n[sweep]\n"trainer.seed" = [0, 1]\n'
    )
    return [
        *(getattr(ck, name) for name in ck.__all__),
        *(
            fit,
            fit.averaged(),
            registry,
            matrix,
            matrix.compare(matrix),
            matrix.filter(grade="perfect"),
            network,
            bridge,
        ),
        *(
            trainer,
            ck.Trainer(
                steps=2,
                schedule=ck.Schedule(kind="cosine"),
                stop_early=ck.EarlyStopping(patience=3),
                validation=0.2,
                evaluate_every=1,
            ),
        ),
        *(started, weighted, *tasks, *sets.values(), activations, ck.similarity(layers[0], layers[1])),
        *(registry[left], registry.search(), registry.diff(left, right), registry.check(left, head)),
        *(
            registry.check_all("digits/*", "digits/*"),
            registry.maintenance.verify(),
            registry.maintenance.gc(),
        ),
        *(
            registry.policies,
            registry.get(head),
            registry.maintenance.usage(),
            registry.maintenance.log(left),
        ),
        *(network.predict(sets["left"].test), network.predict(sets["left"].test)[0]),
        *(ck.measure(fit.tasks["left"], tests[0], ["accuracy", "gradient_scale"]), ck.label("cat")),
        registry.rank("digits/*.extractor", sets["right"], scores=["logme", "leep"]),
        ck.use("dcc", weight=0.5),
        registry.policies.test("digits/right.head", against=left, data=[tests[1]]),
        *(registry.push(str(folder / "copy"), left, create=True), registry.frozen("digits/shared.*")),
        ck.Sweep.read(recipe),
        ck.Sweep.read(recipe).run(folder / "swept", out=folder / "records"),
        ck.probe((np.eye(6), [0, 1] * 3), (np.eye(6), [0, 1] * 3), kind="logistic"),
    ]


@pytest.fixture(scope="module")
def handed_out(values: list[Any]) -> dict[str, int]:
    """The longest display of each class."""
    return walked(*values)


def test_everything_that_is_handed_out_is_shown(handed_out: dict[str, int]) -> None:
    long = {name: length for name, length in handed_out.items() if length > LONGEST}
    assert long == {}


def test_every_public_class_was_looked_at(handed_out: dict[str, int]) -> None:
    classes = {name for name in ck.__all__ if inspect.isclass(getattr(ck, name))}
    assert classes - NOT_HANDED_OUT - handed_out.keys() == set()


class Watching:
    """A regularizer that keeps what its hooks receive."""

    def __init__(self) -> None:
        self.received: dict[str, int] = {}

    def keep(self, *values: object) -> None:
        self.received |= walked(*values)

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        self.keep(setup, *map(setup.averaged, setup.tasks.values()))

    @ck.hookimpl
    def compatkit_after_evaluation(self, evaluation: ck.Evaluation) -> None:
        self.keep(evaluation)

    @ck.hookimpl
    def compatkit_joint_losses(self, joint: ck.JointStep) -> dict[str, torch.Tensor]:
        self.keep(joint)
        return {}

    @ck.hookimpl
    def compatkit_pretrain(self, setup: ck.SetUp, pretraining: ck.Pretraining) -> dict[str, Any]:
        self.keep(setup, pretraining)
        return {}

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> dict[str, torch.Tensor]:
        self.keep(step, step.batch)
        return {"zero": step.features.sum() * 0}  # type: ignore[union-attr]


def test_what_hooks_receive_is_shown() -> None:
    watching = Watching()
    tasks = [
        ck.Task(name, data_set(name), "resnet8_cifar", "layer2", size=(16, 16)) for name in ("left", "right")
    ]
    trainer = quick(steps=1, ema=0.9, evaluate_every=1, evaluate_on="test")
    trainer.fit(tasks, ["watching"], factories={"watching": lambda: watching})
    assert watching.received.keys() >= NOT_HANDED_OUT - {"LayerCall"}
    assert {name: size for name, size in watching.received.items() if size > LONGEST} == {}
    assert shown(ck.LayerCall(torch.zeros(1), torch.zeros(1), nn.Identity()))


def test_outcomes_and_bridges_are_tables(values: list[Any]) -> None:
    (outcome,) = (value for value in values if isinstance(value, ck.PolicyOutcome))
    (bridge,) = (value for value in values if isinstance(value, ck.Bridge))
    frame = outcome.to_dataframe()
    assert frame["passed"].tolist() == [answer.passed for answer in outcome.answers] and len(frame) == 1
    assert frame["accuracy"].tolist() == [answer.accuracy.accuracy for answer in outcome.answers]
    rungs = bridge.to_dataframe()
    assert rungs["rung"].tolist() == [step.rung for step in bridge.steps]
    assert rungs["rung"][rungs["chosen"]].tolist() == [bridge.chosen]
    assert bridge.to_csv().startswith("extractor,head,rung,chosen,agreement,accuracy,")
