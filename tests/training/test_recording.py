"""Layer records: what layers took and gave in the target pass, nothing else, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from small import data_set, grouped, quick, same_parts
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import compatkit as ck
from compatkit.errors import CompatkitError, PluginError, UnknownName, UsageError
from compatkit.training import objective
from compatkit.training.extra_views import record_mixing_reason
from compatkit.training.layer_recording import LayerCall, Recorder
from compatkit.training.precision import Precision

Look = Callable[[ck.Step], None]
NAMES = ("conv1", "layer2.0.conv1", "fc")


class Records:
    """Asks for layers, lets ``look`` see them, and pulls what they give towards 0."""

    def __init__(self, look: Look = lambda step: None, names: Iterable[str] | None = NAMES) -> None:
        self.look, self.names = look, names

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        for task in setup.tasks.values():
            setup.record_layers(task, linear(task) if self.names is None else self.names)

    @ck.hookimpl
    @ck.effect("pure")
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        self.look(step)
        calls = [call for calls in step.layers.values() for call in calls]
        return {"size": torch.stack([call.output.float().square().mean() for call in calls]).sum()}


def linear(task: ck.TaskState) -> list[str]:
    """Names of all layers with a matrix."""
    return [
        name
        for part in (task.extractor, task.head)
        for name, module in part.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]


def layer(step: ck.Step, name: str) -> nn.Module:
    """Return the layer of a task by its path."""
    for part in (step.task.extractor, step.task.head):
        if name in dict(part.named_modules()):
            return part.get_submodule(name)
    raise AssertionError(name)


def small(name: str = "a", **settings: Any) -> ck.Task:
    inputs = {"model": "resnet8_cifar", "cut": "layer2", "size": 16, **settings}
    return ck.Task(name, data_set(name), **inputs)


def fit(
    task: ck.Task, look: Look, uses: Iterable[Any] = (), *, names: Any = NAMES, **settings: Any
) -> ck.Fit:
    factories = {"records": lambda: Records(look, names)}
    return quick(**{"steps": 1, **settings}).fit([task], ["records", *uses], factories=factories)


@pytest.mark.parametrize(
    ("model", "cut"),
    [
        ("efficientnet_b0", "blocks.2"),
        ("regnety_002", "s2"),
        pytest.param("vgg11_bn", "features.10", marks=pytest.mark.slow),  # a layer of 100 M weights
    ],
)
def test_records_are_what_layers_gave_where_activations_work_in_place(model: str, cut: str) -> None:
    checked: list[str] = []
    switches: list[int] = []

    def look(step: ck.Step) -> None:
        for name, (call,) in step.layers.items():
            assert call.layer is layer(step, name)
            assert torch.equal(layer(step, name)(call.input), call.output), name
            checked.append(name)
        parts = step.task.extractor, step.task.head
        switches.append(
            sum(getattr(module, "inplace", None) is True for part in parts for module in part.modules())
        )

    task = small(model=model, cut=cut, size=32)
    done = fit(task, look, names=None, batch_size=4)
    assert len(checked) > 8
    state = done.tasks["a"]
    after = [entry for part in (state.extractor, state.head) for entry in part.modules()]
    assert sum(getattr(module, "inplace", None) is True for module in after) > switches[0]
    assert not any(entry._forward_hooks or "_layer_notes" in vars(entry) for entry in after)


def test_a_pass_of_several_views_gives_records_of_the_batch_alone() -> None:
    result: dict[str, list[Tensor]] = {"fused": [], "separate": []}
    for passes, value in result.items():
        fit(
            small(),
            lambda step, saved=value: saved.extend(
                t.detach() for (c,) in step.layers.values() for t in c[:2]
            ),
            ["rotation_prediction"],
            passes=passes,
        )
    assert len(result["fused"]) == 2 * len(NAMES)
    for entry, other in zip(result["fused"], result["separate"], strict=True):
        torch.testing.assert_close(entry, other, rtol=1e-4, atol=1e-5)


class Mixed(nn.Module):
    """A layer over tokens first, one over windows of images, and one that knows nothing of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.windows, self.table = nn.Linear(2, 2), nn.Linear(4, 4), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.tokens(x.flatten(1).unflatten(1, (-1, 2)).transpose(0, 1)).transpose(0, 1).flatten(1)
        return self.windows(first.reshape(-1, 4)).reshape(len(x), -1) + self.table(torch.ones(5, 3)).sum()


def test_rows_that_are_not_those_of_images_need_passes_of_their_own() -> None:
    reasons = {}
    for name in ("tokens", "windows", "table"):
        recorder = Recorder(Mixed(), nn.Identity())
        recorder.request("one", [name])
        reasons[name] = record_mixing_reason(recorder, (1, 4, 4))
        rows = recorder.notes[name].rows
        assert rows == ((False, False) if name == "table" else (True, True))
    assert reasons == {
        "tokens": "the recorded rows of the layer 'tokens' do not correspond to images",
        "windows": None,
        "table": None,
    }


def test_other_passes_add_nothing_and_pieces_have_their_own_records() -> None:
    counts: list[tuple[int, ...]] = []

    def look(step: ck.Step) -> None:
        step.extract(step.batch.images, write_statistics=False)
        counts.append(tuple(len(call.input) for calls in step.layers.values() for call in calls))

    fit(small(), look, accumulate=2, evaluate_every=1, validation=0.2, steps=2)
    assert counts == [(4, 4, 4)] * 4


class Shared(nn.Module):
    """One layer twice, an activation in place that no module makes, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4))
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.block(nn.functional.relu(self.block(x), inplace=True)), inplace=True)


def recorded(extractor: nn.Module, names: Iterable[str], images: Tensor) -> Mapping[str, Any]:
    recorder = Recorder(extractor, nn.Identity())
    recorder.request("one", names)
    recorder.dry_run(tuple(images.shape[1:]), Precision("cpu", "float32", False))
    recording = recorder.record(["one"])
    assert recording is not None
    try:
        recording.begin()
        recorder.head(extractor(images))
        return recording.of("one", recording.end())
    finally:
        recorder.close()


def test_a_layer_called_twice_has_two_records_and_one_never_called_none() -> None:
    network, images = Shared(), torch.randn(3, 4)
    result = recorded(network, ["block", "block.0", "unused"], images)
    assert [len(result[name]) for name in ("block", "block.0", "unused")] == [2, 2, 0]
    first, second = result["block.0"]
    assert torch.equal(first.input, images)
    assert torch.equal(first.output, network.block(images))  # before the activation that is no module
    assert torch.equal(second.input, first.output.relu())
    assert torch.equal(result["block"][1].output, second.output)


class Own(nn.Module):
    """Writes into what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu_() * 2


class Pair(nn.Module):
    """Gives two tensors."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), Own()), "'1' cannot be recorded: it writes into its own input"),
        (Pair(), "'0' cannot be recorded: it takes a Tensor and returns a tuple"),
    ],
)
def test_what_cannot_be_recorded_is_refused(network: nn.Module, message: str) -> None:
    whole = network if isinstance(network, nn.Sequential) else nn.Sequential(network, nn.Identity())
    name = "1" if isinstance(network, nn.Sequential) else "0"
    with pytest.raises(UsageError, match=message):
        recorded(whole, [name], torch.randn(4, 4))


class Checkpointed(nn.Module):
    """Computes its layer again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.layer, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer, self.first(x), use_reentrant=self.reentrant)


def test_reentrant_checkpointing_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        UsageError, match=r"'layer' cannot be recorded.*without gradients.*use_reentrant=False"
    ):
        recorded(Checkpointed(True), ["layer"], torch.randn(4, 4))
    assert len(recorded(Checkpointed(False), ["layer"], torch.randn(4, 4))["layer"]) == 1


def test_checkpointing_changes_no_record_and_no_gradient() -> None:
    def run(checkpointing: bool) -> tuple[ck.Fit, list[int]]:
        counts: list[int] = []

        class Recomputes:
            @ck.hookimpl
            def compatkit_set_up(self, setup: ck.SetUp) -> None:
                setup.tasks["a"].extractor.set_grad_checkpointing(checkpointing)  # type: ignore[operator]

        task = small(model="test_vit", cut="forward_features", size=160)
        factories = {
            "records": lambda: Records(lambda step: counts.append(len(step.layers)), None),
            "recomputes": Recomputes,
        }
        return quick(steps=2, batch_size=4).fit(
            [task], ["records", "recomputes"], factories=factories
        ), counts

    plain, recomputed = run(False), run(True)
    assert plain[1] == recomputed[1]
    assert same_parts(plain[0], recomputed[0])


def test_a_plugin_costs_nothing_outside_of_its_steps() -> None:
    hooks: list[int] = []

    class Counts:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            hooks.append(sum(bool(module._forward_hooks) for module in step.task.extractor.modules()))

    factories = {"records": Records, "counts": Counts}
    quick(steps=4).fit([small()], [ck.use("records", start=1, stop=3), "counts"], factories=factories)
    assert [bool(hook) for hook in hooks] == [False, True, True, False]
    late = quick(steps=2).fit([small()], [ck.use("records", start=5)], factories=factories)
    zero = quick(steps=2).fit([small()], [ck.use("records", weight=0)], factories=factories)
    without = quick(steps=2).fit([small()])
    assert same_parts(late, without)
    assert same_parts(zero, without)


def test_every_instance_sees_what_it_asked_for() -> None:
    seen: dict[str, tuple[str, ...]] = {}

    def records(key: str, names: tuple[str, ...]) -> Records:
        return Records(lambda step: seen.__setitem__(key, tuple(step.layers)), names)

    factories = {
        "left": lambda: records("left", ("conv1", "fc")),
        "right": lambda: records("right", ("conv1", "layer1")),
    }
    quick(steps=1).fit([small()], ["left", "right"], factories=factories)
    assert seen == {"left": ("conv1", "fc"), "right": ("conv1", "layer1")}


def test_names_are_checked_before_the_first_step() -> None:
    with pytest.raises(UnknownName, match=r"no layer 'layer2.0.conv' .*Did you mean .*'layer2.0.conv2'"):
        fit_of(["layer2.0.conv"])
    with pytest.raises(UnknownName, match="no layer ''"):
        fit_of([""])
    with pytest.raises(PluginError, match=r"expects several names, such as \['conv1'\]"):
        fit_of("conv1")


def fit_of(names: Any) -> ck.Fit:
    try:
        return fit(small(), lambda step: None, names=names)
    except CompatkitError as error:
        if isinstance(error.__cause__, UnknownName):
            raise error.__cause__ from None
        raise


def test_layers_are_chosen_before_the_first_step() -> None:
    class Late:
        @ck.hookimpl
        def compatkit_finish(self, setup: ck.SetUp) -> None:
            setup.record_layers(setup.tasks["a"], ["conv1"])

    with pytest.raises(PluginError, match="record_layers can only be called in compatkit_set_up"):
        quick(steps=1).fit([small()], ["late"], factories={"late": Late})


def test_an_error_leaves_nothing_in_the_modules() -> None:
    saved: list[ck.TaskState] = []

    def look(step: ck.Step) -> None:
        saved.append(step.task)
        raise ValueError("stop")

    with pytest.raises(PluginError, match="stop"):
        fit(small(model="efficientnet_b0", cut="blocks.2", size=32), look, names=None)
    modules = [module for part in (saved[0].extractor, saved[0].head) for module in part.modules()]
    assert not any(module._forward_hooks or "_layer_notes" in vars(module) for module in modules)
    assert any(getattr(module, "inplace", None) is True for module in modules)


def test_half_precision_and_accumulation() -> None:
    kinds: set[torch.dtype] = set()
    fit(small(), lambda step: kinds.add(step.layers["layer2.0.conv1"][0].output.dtype), precision="bf16")
    assert kinds == {torch.float32}  # cast up: losses are computed outside of autocast
    whole = fit(grouped(), lambda step: None, names=("conv1", "fc"), optimizer="sgd", steps=2)
    parts = fit(grouped(), lambda step: None, names=("conv1", "fc"), optimizer="sgd", steps=2, accumulate=4)
    for key, value in whole.weights("a").items():
        torch.testing.assert_close(parts.weights("a")[key], value, rtol=1e-4, atol=1e-6, msg=key)


def test_records_are_compiled_with_the_loss_and_serve_the_next_task(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounterWithBackend("eager")
    objective._compiled.cache_clear()
    torch._dynamo.reset()
    monkeypatch.setattr(objective, "BACKEND", counter)
    try:
        fits = [
            quick(steps=2, optimizer="sgd", execution=execution).fit(
                [small("a"), small("b")], [ck.use("records", stop=1)], factories={"records": Records}
            )
            for execution in ("eager", "compile")
        ]
    finally:
        objective._compiled.cache_clear()
        torch._dynamo.reset()
    assert fits[1].run["environment"]["execution"]["mode"] == "compile"
    assert counter.frame_count == 2  # with records, and without
    for name in ("a", "b"):
        for key, value in fits[0].weights(name).items():
            torch.testing.assert_close(fits[1].weights(name)[key], value, rtol=1e-4, atol=1e-5, msg=key)


def test_who_wanted_records_is_named_where_a_loss_cannot_be_compiled() -> None:
    def look(step: ck.Step) -> None:
        print(step.layers["conv1"][0].output.sum().item())

    request = fit(small(), look, execution="compile")
    result = request.run["environment"]["execution"]
    assert result["mode"] == "eager"
    assert (
        "task 'a', with layers recorded for 'records': torch.compile cannot compile the step"
        in result["reason"]
    )


def test_a_call_knows_its_layer() -> None:
    layer = nn.Identity()
    call = LayerCall(torch.zeros(1), torch.ones(1), layer)
    assert (call.input, call.output, call.layer) == tuple(call)
