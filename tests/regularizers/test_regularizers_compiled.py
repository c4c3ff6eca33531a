"""Steps with the reverse pass or orthogonality, compiled: the weights of eager ones, by one graph for all tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small import data_set, quick
from torch._dynamo.testing import CompileCounterWithBackend

import compatkit as ck
from compatkit.training import objective


@pytest.fixture
def fresh() -> Iterator[None]:
    objective._compiled.cache_clear()
    torch._dynamo.reset()
    yield
    objective._compiled.cache_clear()
    torch._dynamo.reset()


@pytest.fixture
def traced(fresh: None, monkeypatch: pytest.MonkeyPatch) -> CompileCounterWithBackend:
    """Torch's compiler without the code generator; counts what is compiled."""
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr(objective, "BACKEND", counter)
    return counter


def chain(name: str = "a") -> ck.Task:
    kwargs = {"filters": 4, "convolutions": 2, "units": 8}
    return ck.Task(name, data_set(name), "simple_cnn", "blocks", size=12, kwargs=kwargs)


def residual() -> ck.Task:
    return ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)


def compare(tasks: list[ck.Task], name: str, **settings: Any) -> None:
    """With SGD: Adam's first steps are the signs of gradients, rounded ones too."""
    fits = [
        quick(steps=2, optimizer="sgd", lr=0.01, execution=how).fit(tasks, [ck.use(name, **settings)])
        for how in ("eager", "compile")
    ]
    assert fits[1].run["environment"]["execution"] == {"mode": "compile", "reason": "asked for"}
    for task in tasks:
        for key, value in fits[0].weights(task.name).items():
            torch.testing.assert_close(
                fits[1].weights(task.name)[key], value, rtol=1e-4, atol=1e-5, msg=f"{task.name}: {key}"
            )


@pytest.mark.parametrize("settings", [{}, {"sample_images": 0.25}])
def test_one_graph_serves_two_tasks(traced: CompileCounterWithBackend, settings: dict[str, Any]) -> None:
    compare([chain("a"), chain("b")], "reverse_pass", **settings)
    assert traced.frame_count == 1


@pytest.mark.parametrize("settings", [{"variant": "full"}, {"variant": "first"}, {"activation": True}])
def test_every_variant_is_compiled(traced: CompileCounterWithBackend, settings: dict[str, Any]) -> None:
    compare([chain()], "reverse_pass", **settings)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("reverse_pass", {}),
        ("reverse_pass", {"sample_images": 0.25}),
        ("reverse_pass", {"activation": True, "layers": ["layer1.0.conv1"]}),
        ("orthogonality", {"kind": "so"}),
    ],
)
def test_the_code_generator_of_torch_computes_the_same(name: str, settings: dict[str, Any]) -> None:
    compare([residual()], name, **settings)


@pytest.mark.slow
def test_generators_and_discriminators_are_compiled(traced: CompileCounterWithBackend) -> None:
    task = ck.Task("a", data_set("a", size=(16, 16)), "super_resolution", "generator", size=16)
    uses = [ck.use("image_error"), ck.use("adversarial", condition=4, features=1.0, reverse=0.1)]
    eager, compiled = (
        quick(steps=2, optimizer="sgd", lr=0.01, execution=how).fit([task], uses)
        for how in ("eager", "compile")
    )
    assert compiled.run["environment"]["execution"]["mode"] == "compile" and traced.frame_count == 1
    for key, value in eager.weights("a").items():
        torch.testing.assert_close(compiled.weights("a")[key], value, rtol=1e-4, atol=1e-5)
