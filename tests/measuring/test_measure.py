"""One pass for all metrics: what they see, how layers are named, what is left as it was, every refusal."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import data_set, quick
from torch import Tensor, nn

import compatkit as ck
from compatkit.contracts.contract import Data
from compatkit.errors import DataError, PluginError, UnknownName, UsageError
from compatkit.evaluation.layers import choose, layers_of
from compatkit.evaluation.metrics import Metric, Observation, Result, Table, TableCell
from compatkit.measuring.measurement import Measurement
from compatkit.training.testing import assert_metric


def result(name: str, value: float | None, count: int) -> Result:
    status = "undefined" if value is None else "ok"
    words = {"unit": "1", "direction": "none", "estimator": "plug-in", "paper": "none", "equation": "none"}
    return Result(
        name=name,
        value=value,
        count=count,
        status=status,
        reason="no examples" if value is None else "",
        **words,
    )  # type: ignore[arg-type]


@attrs.define
class Seen:
    """Keeps all that it is shown."""

    kept: list[Observation] = attrs.field(factory=list)

    def init(self) -> int:
        return 0

    def update(
        self,
        state: int,
        images: Tensor,
        labels: Tensor,
        positions: Tensor,
        logits: Tensor,
        inputs: dict[str, Tensor],
        outputs: dict[str, Tensor],
    ) -> int:
        self.kept.append(
            Observation(
                images=images,
                labels=labels,
                positions=positions,
                logits=logits,
                inputs=inputs,
                outputs=outputs,
            )
        )
        return state + len(labels)

    def merge(self, left: int, right: int) -> int:
        return left + right

    def finalize(self, state: int) -> Result:
        return result("seen", float(state) if state else None, state)


@attrs.define
class Distance:
    """Largest difference of weights; looks at no image."""

    def init(self) -> None:
        return None

    def update(self, state: None) -> None:
        raise AssertionError("it is given no batch")

    def merge(self, left: None, right: None) -> None:
        return None

    def finalize(
        self, state: None, layers: dict[str, nn.Module], other_layers: dict[str, nn.Module]
    ) -> Table:
        cells = tuple(
            TableCell(float((layers[name].weight - other_layers[name].weight).detach().abs().max()))  # type: ignore[operator, arg-type]
            for name in layers
            if hasattr(layers[name], "weight")
        )
        words = {"unit": "1", "direction": "none", "estimator": "exact", "paper": "none", "equation": "none"}
        return Table(
            name="distance",
            axes={"layer": tuple(name for name in layers if hasattr(layers[name], "weight"))},
            cells=cells,
            count=0,
            **words,
        )  # type: ignore[arg-type]


class Network(nn.Module):
    """Dropout, normalization, an activation in place, a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.act = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.drop, self.twice, self.fc = nn.Dropout(0.5), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        features = self.act(self.norm(self.stem(images))).mean((2, 3))
        return self.fc(self.drop(self.twice(self.twice(features))))


def network(seed: int = 0) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network().train()


DATA = data_set("digits", count=30)
TENSORS = (torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3)


def test_all_metrics_share_one_pass_in_eval_mode_which_leaves_no_trace() -> None:
    net, seen = network(), Seen()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    calls: list[int] = []
    handle = net.register_forward_hook(lambda module, inputs, gave: calls.append(len(gave)))
    measurement = ck.measure(net, TENSORS, ["accuracy", seen], layers=["norm", "twice"], batch_size=4)
    handle.remove()
    assert calls == [4, 3, 3] and all(module.training for module in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    with torch.no_grad():
        expected = net.eval()(TENSORS[0])
    assert torch.allclose(torch.cat([item.logits for item in seen.kept]), expected, atol=1e-6)
    assert measurement["accuracy"].value == float((expected.argmax(1) == TENSORS[1]).double().mean())  # type: ignore[union-attr]
    assert torch.equal(torch.cat([item.positions for item in seen.kept]), torch.arange(10))
    assert not seen.kept[0].logits.requires_grad


def test_layers_are_seen_as_they_were_before_an_activation_in_place() -> None:
    net, seen = network(), Seen()
    ck.measure(net, TENSORS, [seen], layers=["norm", "act", "twice"], batch_size=10)
    (batch,) = seen.kept
    with torch.no_grad():
        normed = net.eval().norm(net.stem(TENSORS[0]))
        once = net.twice(normed.relu().mean((2, 3)))
    assert torch.allclose(batch.outputs["norm"], normed, atol=1e-6)
    assert torch.allclose(batch.inputs["act"], normed, atol=1e-6)  # the activation overwrites it
    assert torch.allclose(batch.outputs["act"], normed.relu(), atol=1e-6)
    assert set(batch.outputs) == {"norm", "act", "twice#1", "twice#2"}
    assert torch.allclose(batch.outputs["twice#1"], once, atol=1e-6)
    assert torch.equal(batch.outputs["twice#1"], batch.inputs["twice#2"])


def test_a_task_of_a_fit_brings_preprocessing_and_the_paths_of_the_whole_network() -> None:
    fit = quick(steps=2).fit([ck.Task("a", DATA, "resnet8_cifar", "layer2", size=16)])
    seen = Seen()
    measurement = ck.measure(
        fit.tasks["a"], DATA, ["accuracy", seen], layers=["fc", "layer1*"], batch_size=16
    )
    assert {"fc", "layer1.0.conv1"} <= set(seen.kept[0].outputs)
    assert seen.kept[0].images.shape == (15, 1, 16, 16)
    assert measurement.settings["data"] == "digits/test" and measurement.settings["images"] == 30
    with torch.no_grad():
        expected = fit.network("a").eval()(torch.cat([image.images for image in seen.kept])).argmax(1)
    right = float((expected == torch.from_numpy(DATA.test.labels)).double().mean())
    assert measurement.to_json()["results"]["accuracy"]["value"] == pytest.approx(right)


def test_a_recombination_names_layers_of_both_parts(tmp_path: Any) -> None:
    fit = quick(steps=1).fit([ck.Task("a", DATA, "resnet8_cifar", "layer2", size=16)])
    registry = ck.Registry.init(tmp_path / "parts")
    registry.publish(fit, prefix="p")
    model = registry.recombine("p/a.extractor", "p/a.head")
    seen = Seen()
    ck.measure(model, DATA.test, [seen], layers=["conv1", "fc"])
    assert list(seen.kept[0].outputs) == ["conv1", "fc"]


def test_weights_need_no_images() -> None:
    first, other = network(), network(1)
    measurement = ck.measure(first, None, [Distance()], layers=["fc"], other=other).table("distance")
    assert measurement.at(layer="fc").value == float((first.fc.weight - other.fc.weight).detach().abs().max())
    assert measurement.to_json()["cells"] == [attrs.asdict(measurement.cells[0])]


def test_a_missing_result_is_told_with_those_that_there_are() -> None:
    measurement = ck.measure(nn.Flatten(), (torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])), ["accuracy"])
    with pytest.raises(UnknownName) as caught:
        measurement["acuracy"]
    assert caught.value.subject == "acuracy" and "Did you mean 'accuracy'?" in str(caught.value)
    assert "acuracy" not in measurement and measurement.get("acuracy") is None
    assert "accuracy" in measurement and measurement.get("accuracy") is measurement["accuracy"]


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"metrics": "accuracy"}, "accuracy"),
        ({"metrics": 3}, 3),
        ({"metrics": ["accuracy", 3]}, 3),
        ({"metrics": [Seen]}, Seen),
        ({"data": "mnist"}, "mnist"),
        ({"data": 3}, 3),
        ({"layers": 3}, 3),
        ({"layers": [3]}, 3),
    ],
)
def test_arguments_of_another_type(change: dict[str, Any], subject: Any) -> None:
    """A text is not a list of letters."""
    images = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
    with pytest.raises(UsageError) as caught:
        ck.measure(nn.Flatten(), **{"data": images, "metrics": ["accuracy"], **change})
    assert caught.value.subject == subject


def test_one_layer_is_named_without_a_list() -> None:
    network = nn.Sequential(nn.Linear(3, 3))
    images = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
    assert ck.measure(network, images, ["accuracy"], layers="0").settings["layers"] == ["0"]


def test_a_table_is_asked_for_by_its_name() -> None:
    measurement = ck.measure(network(), TENSORS, ["accuracy"])
    with pytest.raises(UnknownName, match=r"'accuracy' is a single figure, not a table\."):
        measurement.table("accuracy")
    with pytest.raises(UnknownName, match="no result 'accurate'"):
        measurement.table("accurate")


@attrs.define
class Agreement(Seen):
    def update(self, state: int, logits: Tensor, other_logits: Tensor) -> int:  # type: ignore[override]
        return state + int((logits.argmax(1) == other_logits.argmax(1)).sum())


def test_two_networks_see_the_same_images() -> None:
    first = network()
    assert ck.measure(first, TENSORS, [Agreement()], other=first)["seen"].value == 10.0  # type: ignore[union-attr]
    assert_metric(Agreement)


@attrs.define
class Apart(Seen):
    def update(  # type: ignore[override]
        self, state: int, outputs: dict[str, Tensor], other_outputs: dict[str, Tensor]
    ) -> int:
        self.kept.append((outputs, other_outputs))
        return state


def test_layers_that_both_networks_have_are_recorded_for_each_of_them() -> None:
    stem, seen = nn.Linear(4, 4), Apart()
    images = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2
    first, other = (nn.Sequential(act, stem) for act in (nn.Identity(), nn.ReLU()))
    ck.measure(first, images, [seen], layers=["1"], other=other, batch_size=2)
    ck.measure(first, images, [seen], layers=["1"], other=first, batch_size=2)
    with torch.no_grad():
        own, another = first(images[0]), other(images[0])
    for kept, expected in ((seen.kept[:3], another), (seen.kept[3:], own)):
        assert all(list(outputs) == ["1"] for pair in kept for outputs in pair)
        torch.testing.assert_close(torch.cat([outputs["1"] for outputs, _ in kept]), own)
        torch.testing.assert_close(torch.cat([outputs["1"] for _, outputs in kept]), expected)


@attrs.define
class Given(Seen):
    def update(self, state: int, images: Tensor, other_inputs: dict[str, Tensor]) -> int:  # type: ignore[override]
        self.kept.append((images, other_inputs["layer1.0.conv1"]))
        return state


def test_another_network_gets_the_images_as_it_wants_them() -> None:
    tasks = [
        ck.Task(name, data_set(name, seed=place), "resnet8_cifar", "layer2", size=12)
        for place, name in enumerate("ab")
    ]
    first, other = quick(steps=1).fit(tasks).tasks.values()
    assert first.data != other.data
    seen, alone = Given(), Given()
    ck.measure(first, tasks[0].data.test, [seen], layers=["layer1.0.conv1"], other=other)
    ck.measure(other, tasks[0].data.test, [alone], layers=["layer1.0.conv1"], other=copy.deepcopy(other))
    assert not torch.equal(seen.kept[0][0], alone.kept[0][0])
    assert torch.equal(seen.kept[0][1], alone.kept[0][1])
    both = Given()
    ck.measure(
        first, tasks[0].data.test, [both], layers=["layer1.0.conv1"], other=other, preprocessing=first.data
    )
    assert not torch.equal(both.kept[0][1], alone.kept[0][1])


def test_the_order_is_that_of_the_data_unless_seeded() -> None:
    seen = Seen()
    ck.measure(network(), TENSORS, [seen], layers=["fc"], seed=1)
    order = seen.kept[0].positions
    assert order.tolist() != list(range(10)) and torch.equal(seen.kept[0].images, TENSORS[0][order])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layers": ["fcc"]}, UnknownName, r"no layer 'fcc'. Did you mean 'fc'\? Its layers are stem, norm"),
        ({"layers": []}, UsageError, r"need layers; name some"),
        ({"data": None}, UsageError, "need data=: they use"),
        ({"data": DATA}, UsageError, "plain module has no preprocessing"),
        ({"data": (TENSORS[0], TENSORS[1][:4])}, DataError, "10 images come with 4 labels"),
        (
            {"network": network().half()},
            DataError,
            r"The network does not take images .* of torch.float32: .*Check their shape .*network.float",
        ),
        (
            {"other": network().half()},
            DataError,
            r"The other network does not take images .* of torch.float32: .*Check their shape .*network.float",
        ),
        ({"metrics": ["acuracy"]}, UnknownName, "accuracy"),
        ({"metrics": [Agreement()]}, UsageError, "pass the second as other="),
        ({"metrics": [Seen(), Seen()]}, UsageError, "return a result named"),
        ({"precision": "float8"}, UsageError, "'precision' must be one of"),
        ({"network": "resnet"}, UsageError, "Expected a torch module"),
    ],
)
def test_refusals(change: dict[str, Any], error: type[Exception], message: str) -> None:
    settings: dict[str, Any] = {
        "network": network(),
        "data": TENSORS,
        "metrics": [Seen()],
        "layers": ["fc"],
        **change,
    }
    with pytest.raises(error, match=message):
        ck.measure(settings.pop("network"), settings.pop("data"), settings.pop("metrics"), **settings)


def test_values_that_are_not_finite_are_refused_by_layer_and_batch() -> None:
    images = TENSORS[0].clone()
    images[7] = np.inf
    net = network()
    with pytest.raises(DataError, match=r"'stem' is given 64 non-finite values of 320, first in batch 2"):
        ck.measure(net, (images, TENSORS[1]), [Seen()], layers=["stem"], batch_size=5)
    assert net.training and not net.stem._forward_hooks


def test_a_layer_that_is_not_called_or_changes_its_shape_is_refused() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle, self.batch = nn.Identity(), nn.Identity(), 0

        def forward(self, images: Tensor) -> Tensor:
            self.batch += 1
            return self.used(images[:, :, : 8 // self.batch]).mean((2, 3))

    with pytest.raises(DataError, match="'idle' was not called in batch 1"):
        ck.measure(Sometimes(), TENSORS, [Seen()], layers=["idle"])
    listed = nn.Sequential(nn.ModuleDict({"inner": nn.Conv2d(1, 1, 1)}), nn.Flatten())
    assert list(choose(layers_of({"": listed}), ["*"])) == ["0.inner", "1"], "a list of modules is not called"
    assert list(choose(layers_of({"": listed}), ["0"])) == ["0"]
    with pytest.raises(DataError, match=r"'used' had shapes .* in the first batch and .* in batch 2"):
        ck.measure(Sometimes(), TENSORS, [Seen()], layers=["used"], batch_size=5)


def made(**settings: Any) -> Table:
    words = {"unit": "1", "direction": "none", "estimator": "plug-in", "paper": "none", "equation": "none"}
    return Table(**{"name": "t", "count": 1, **words, **settings})  # type: ignore[arg-type]


def test_a_table_is_read_by_names() -> None:
    defined = (TableCell(1.0), TableCell(2.0))
    cells = (*defined, TableCell(None, "undefined", "no image"), TableCell(4.0, "degenerate", "one image"))
    table = made(axes={"layer": ("a", "b"), "class": ("x", "y")}, cells=cells)
    assert table.at(layer="a", **{"class": "y"}).value == 2.0
    assert [names for names, _ in table] == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert np.isnan(table.values[1, 0]) and table.values.shape == (2, 2)
    for names in ({"layer": "c", "class": "x"}, {"layer": "a"}, {"layer": "a", "class": "x", "z": "y"}):
        with pytest.raises(UnknownName):
            table.at(**names)


def test_a_small_table_is_printed_cell_by_cell_and_a_large_one_by_its_shape() -> None:
    tables = {
        "one": made(axes={"this": ("a",), "other": ("b",)}, cells=(TableCell(0.25),)),
        "two": made(
            axes={"layer": ("a", "b")}, cells=(TableCell(0.5), TableCell(None, "undefined", "no image"))
        ),
        "many": made(axes={"this": tuple("abc"), "other": tuple("abcd")}, cells=(TableCell(0.5),) * 12),
        "empty": made(axes={"layer": ()}, cells=()),
    }
    lines = [line.split() for line in str(Measurement(tables, {})).splitlines()[1:]]
    assert lines == [
        ["one", "0.25", "1", "1", "ok"],
        ["two", "(a)", "0.5", "1", "1", "ok"],
        ["two", "(b)", "1", "1", "undefined", "no", "image"],
        ["many", "table", "of", "3", "this", "x", "4", "other", "1", "1"],
        ["empty", "table", "of", "0", "layer", "1", "1"],
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"axes": {"layer": ("a", "b")}, "cells": (TableCell(1.0),)},
        {"axes": {"layer": ("a", "a")}, "cells": (TableCell(1.0), TableCell(1.0))},
        {"axes": {"layer": ("a",)}, "cells": (TableCell(None),)},
        {"axes": {"layer": ("a",)}, "cells": (TableCell(float("nan")),)},
        {"axes": {"layer": ("a",)}, "cells": (TableCell(1.0, "degenerate"),)},
    ],
)
def test_a_table_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(PluginError):
        made(**settings)


@attrs.define
class Batchwise(Seen):
    """Mean of each layer: a sum of means, which depends on the batches."""

    def update(self, state: Any, outputs: dict[str, Tensor]) -> Any:  # type: ignore[override]
        return state + float(outputs["act"].mean())

    def finalize(self, state: Any) -> Any:
        return result("mean", state or None, 1), made(axes={"layer": ("act",)}, cells=(result_cell(state),))


def result_cell(state: float) -> TableCell:
    return TableCell(state) if state else TableCell(None, "undefined", "no examples")


@attrs.define
class Asks(Seen):
    def update(self, state: Any, output: Any) -> Any: ...  # type: ignore[override]


@attrs.define
class Twins(Seen):
    def finalize(self, state: Any) -> Any:
        return result("a", 1.0, 1), result("a", 1.0, 1)


@attrs.define
class Number(Seen):
    def finalize(self, state: Any) -> Any:
        return 3.0


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Batchwise, "by smaller batches"),
        (Asks, r"has the unknown argument 'output'. Did you mean 'outputs'\?"),
        (Twins, "two results with the same name"),
        (Number, "returned float"),
    ],
)
def test_authors_are_told_what_does_not_hold(factory: Callable[..., Metric], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        assert_metric(factory)


def test_metrics_of_layers_and_of_weights_conform() -> None:
    assert_metric(Seen)
    assert_metric(Distance)


def test_a_seed_changes_the_order_of_the_images_and_no_figure() -> None:
    images = data_set("shuffled").test
    torch.manual_seed(0)
    shape = nn.Sequential(nn.Flatten(), nn.Linear(12 * 12, len(images.classes)))
    preprocessing = Data((12, 12), "L", (0.5,), (0.5,))
    figures = [
        ck.measure(shape, images, ["accuracy"], preprocessing=preprocessing, batch_size=7, seed=seed)[
            "accuracy"
        ].value
        for seed in (None, 0, 1)
    ]
    assert figures == [figures[0]] * 3
