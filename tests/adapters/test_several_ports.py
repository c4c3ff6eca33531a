"""Ports of tuples: every tensor that crosses has its own shape, layout, dtype and range, whatever its axes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from compatkit.adapters.blueprints import structural
from compatkit.adapters.cutting.signals import port_signal, signal
from compatkit.adapters.fingerprint import observe, probe
from compatkit.contracts.contract import Blueprint, Port, Scaled
from compatkit.errors import CutError
from compatkit.foundation.codec import structure, unstructure
from compatkit.reports.contracts import dimension_formula


def blueprint(side: str, size: tuple[int, int] = (16, 16)) -> Blueprint:
    return Blueprint("timm", "timm 1", "none", {"num_classes": 5}, "cut", side, "declared", size)  # type: ignore[arg-type]


class Calls(nn.Module):
    """A module made of a function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: object) -> object:
        return self.function(x)


def ports_of(
    function: Callable[..., object], size: tuple[int, int] = (16, 16), names=None
) -> tuple[Port, ...]:
    module = Calls(function)
    if names is not None:
        module.port_names = names
    return structural(module, blueprint("extractor", size)).outputs


def strided(x: Tensor, step: int) -> Tensor:
    return x[:, :, ::step, ::step]


def tokens(x: Tensor, patch: int = 8) -> Tensor:
    return (
        x.unfold(2, patch, patch)
        .unfold(3, patch, patch)
        .flatten(2, 3)
        .flatten(3)
        .permute(0, 2, 1, 3)[:, :, 0]
    )


def head_on(ports: tuple[Port, ...], function: Callable[..., object] | None = None) -> tuple[Port, ...]:
    def pooled(inputs: object) -> Tensor:
        first = inputs[0] if isinstance(inputs, tuple) else inputs
        assert isinstance(first, Tensor)
        return first.flatten(2).mean(2).repeat(1, 3)[:, :5]

    return structural(Calls(function or pooled), blueprint("head"), feature_ports=ports).inputs


def test_a_pyramid_has_a_port_for_each_level_with_its_own_rule():
    first, two, three = ports_of(lambda x: (strided(x, 2), strided(x, 4).relu(), x[:, :2, 3:, 3:]))
    assert first == Port(
        "features.0",
        ("N", 3, Scaled("H", 1, 2), Scaled("W", 1, 2)),
        range="signed",
        measured=first.measured,
    )
    assert (two.name, two.shape, two.range) == (
        "features.1",
        ("N", 3, Scaled("H", 3, 4), Scaled("W", 3, 4)),
        "nonnegative",
    )
    assert three.shape == ("N", 2, Scaled("H", plus=-3), Scaled("W", plus=-3))
    assert first.measured.keys() == two.measured.keys() and first.measured["16x16"] == (8, 8)
    assert two.measured["16x16"] == (4, 4)


def test_the_ports_take_the_names_that_the_part_gives():
    result = ports_of(lambda x: (x, x.relu()), names=("features", "stages.1"))
    assert [port.name for port in result] == ["features", "stages.1"]
    for names in (("features",), ("a", "a")):
        with pytest.raises(CutError, match="2 tensors cross, so 2 distinct names are needed"):
            ports_of(lambda x: (x, x.relu()), names=names)


def test_a_list_of_tensors_is_as_good_as_a_tuple_and_one_tensor_alone_is_called_features():
    assert [port.name for port in ports_of(lambda x: [x, x])] == ["features.0", "features.1"]
    assert [port.name for port in ports_of(lambda x: (x,))] == ["features"]


@pytest.mark.parametrize(
    ("function", "shape", "layout"),
    [
        (lambda x: x.mean((2, 3)), ("N", 3), "NC"),
        (tokens, ("N", "L", 64), "NLC"),
        (lambda x: tokens(x).transpose(1, 2), ("N", 64, "L"), "other"),
        (lambda x: x.permute(0, 2, 3, 1), ("N", "H", "W", 3), "NHWC"),
        (lambda x: x.permute(1, 0, 2, 3), (3, "N", "H", "W"), "other"),
        (lambda x: x.unfold(2, 8, 8).unfold(3, 8, 8), ("N", 3, "H8", "W8", 8, 8), "other"),
        (lambda x: x[:, :, None], ("N", 3, 1, "H", "W"), "other"),
        (lambda x: x[:, 0, 0, 0], ("N",), "other"),
        (lambda x: x[:, 0, 0, :7].flatten(), (Scaled("N", times=7),), "other"),
        (lambda x: x[:, :, :4, :4].permute(0, 2, 3, 1).reshape(-1, 3), (Scaled("N", times=16), 3), "other"),
        (lambda x: x[:, :2, 0, 0] @ x[:, :2, 0, 0].T, ("N", "N"), "other"),
    ],
)
def test_one_to_six_axes_are_said_as_they_are(function, shape, layout):
    def dimension(item):
        plain = {"H": Scaled("H"), "W": Scaled("W"), "H8": Scaled("H", 0, 8), "W8": Scaled("W", 0, 8)}
        return plain.get(item, item) if isinstance(item, str) else item

    (port,) = ports_of(function)
    assert (port.shape, port.layout) == (tuple(map(dimension, shape)), layout)
    assert structure(Port, unstructure(port), "port") == port


def test_a_tensor_that_all_images_share_has_no_batch_axis():
    image, table, follows = ports_of(
        lambda x: (x, torch.ones(7, 4), torch.ones(x.shape[2] // 4 * (x.shape[3] // 4), 6))
    )
    assert image.layout == "NCHW"
    assert (table.shape, table.layout, table.measured) == ((7, 4), "other", {})
    assert (follows.shape, follows.layout) == (("L", 6), "other")
    assert follows.measured["16x16"] == (16,)


def test_equal_token_counts_share_a_symbol_and_others_do_not():
    result = ports_of(lambda x: (tokens(x), tokens(x, 4), tokens(x).relu()))
    assert [port.shape[1] for port in result] == ["L", "L2", "L"]


def test_dtypes_are_those_that_came_out():
    result = ports_of(lambda x: (x, x.half(), x > 0, x[:, 0].long()))
    assert [port.dtype for port in result] == ["float32", "float16", "bool", "int64"]
    assert [port.range for port in result] == ["signed", "signed", "nonnegative", "nonnegative"]


def test_nothing_is_said_of_the_range_of_values_without_an_order_and_indices_are_not_averages():
    complex_, empty, indices, vector = ports_of(
        lambda x: (x + 1j, x[:, :0], x.flatten(2).argmax(2), x.mean((2, 3)))
    )
    assert (complex_.range, empty.range, indices.range) == ("any", "any", "nonnegative")
    assert [port.pooled for port in (complex_, indices, vector)] == [False, False, True]


def only_at_16(x: Tensor) -> Tensor:
    assert x.shape[2:] == (16, 16)
    return x


class OneSize(nn.Module):
    """Tokens or channels first, of a network that takes one image size only: nothing follows the image."""

    def __init__(self, turned: bool, width: int = 24, count: int | None = None) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.turned = turned
        if count is not None:
            self.num_patches = count

    def forward(self, x: Tensor) -> Tensor:
        result = self.patches(only_at_16(x)).flatten(2)
        return result if self.turned else result.transpose(1, 2)


@pytest.mark.parametrize(
    ("module", "layout"),
    [
        (OneSize(turned=False), "NLC"),
        (OneSize(turned=True), "other"),
        (OneSize(turned=False, width=16, count=16), "NLC"),  # of both counts, the network knows one
        (OneSize(turned=False, width=16), "other"),
        (Calls(lambda x: tokens(only_at_16(x), 4)), "other"),  # 16 x 16: either may be the grid
        (Calls(lambda x: tokens(only_at_16(x), 4)[:, :, :5]), "NLC"),
        (Calls(lambda x: tokens(only_at_16(x), 4)[:, :, :5].transpose(1, 2)), "other"),
    ],
)
def test_where_nothing_follows_the_image_tokens_are_told_from_channels(module, layout):
    (port,) = structural(module, blueprint("extractor")).outputs
    assert (port.layout, port.prefix_tokens) == (layout, 0)


def test_a_head_leaves_open_only_sizes_that_it_was_run_at():
    ports = ports_of(lambda x: (x, tokens(x)[:, :1, :5].expand(-1, 4, -1), x[:, :, :, :6]))
    assert [port.spatial for port in head_on(ports)] == [("H", "W"), (4,), ("H", 6)]
    assert head_on(head_on(ports)) == head_on(ports)


def test_a_later_port_of_tokens_has_the_prefix_of_the_first_where_it_has_as_many():
    def repeated(x: Tensor) -> tuple[Tensor, ...]:
        patches = tokens(x, 4)
        front = torch.cat([patches[:, :2], patches], dim=1)
        return front, front.relu(), patches

    module = Calls(repeated)
    module.num_prefix_tokens = 2  # type: ignore[assignment]
    result = structural(module, blueprint("extractor")).outputs
    assert [port.prefix_tokens for port in result] == [2, 2, 0]


def multiples(x: Tensor, step: int) -> Tensor:
    if x.shape[2] % step or x.shape[3] % step:
        raise RuntimeError("no such size")
    return strided(x, step)


@pytest.mark.parametrize(("step", "size"), [(8, (16, 16)), (14, (28, 42)), (32, (64, 32))])
def test_a_network_that_takes_only_multiples_says_of_what(step, size):
    result = structural(Calls(lambda x: multiples(x, step)), blueprint("extractor", size))
    (image,), (port,) = result.inputs, result.outputs
    assert (image.shape, image.multiple_of) == (("N", 3, "H", "W"), step)
    assert port.shape == ("N", 3, Scaled("H", 0, step), Scaled("W", 0, step))
    assert all(int(side) % step == 0 for key in port.measured for side in key.split("x"))


def test_a_network_that_takes_one_size_only_says_that():
    def fixed(x: Tensor) -> Tensor:
        assert x.shape[2:] == (16, 16)
        return x

    result = structural(Calls(fixed), blueprint("extractor"))
    assert (result.inputs[0].shape, result.inputs[0].multiple_of) == (("N", 3, 16, 16), 1)
    assert (result.outputs[0].shape, result.outputs[0].measured) == (("N", 3, 16, 16), {"16x16": (16, 16)})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: {"a": x}, "returned a dict"),
        (lambda x: (x, 3), "returned a tuple"),
        (lambda x: (), "returned a tuple"),
        (lambda x: x.sum(), "at least one axis"),
        (lambda x: torch.ones(3, 4), "No output has a batch axis"),
        (lambda x: (x,) * len(x), "2 images gave 2 tensors, 3 gave 3"),
        (lambda x: x.squeeze(), "must depend on the batch size in one way"),
        (lambda x: x if len(x) > 1 else x[0, 0, 0, 5000], "does not take a batch of one image"),
    ],
)
def test_what_no_port_can_say_is_refused(function, message):
    def only_here(x: Tensor) -> object:
        assert x.shape[2:] == (16, 16)
        return function(x)

    with pytest.raises(CutError, match=message):
        ports_of(only_here)


def test_a_head_takes_the_tuple_and_keeps_names_layouts_and_order():
    ports = ports_of(lambda x: (strided(x, 2), x.relu(), torch.ones(7)))
    first, two, three = head_on(ports)
    assert (first.name, first.shape, first.range) == ("features.0", ("N", 3, "H", "W"), "signed")
    assert (two.name, two.shape, two.range) == ("features.1", ("N", 3, "H2", "W2"), "nonnegative")
    assert (three.name, three.shape, three.layout) == ("features.2", (7,), "other")


def test_a_head_that_needs_one_size_has_fixed_ports():
    ports = ports_of(lambda x: (strided(x, 2), x))
    linear = nn.Linear(3 * 8 * 8, 5)
    result = head_on(ports, lambda inputs: linear(inputs[0].flatten(1)))
    assert [port.shape for port in result] == [("N", 3, 8, 8), ("N", 3, 16, 16)]
    assert [port.measured for port in result] == [{"16x16": (8, 8)}, {"16x16": (16, 16)}]


@pytest.mark.parametrize("function", [None, lambda inputs: inputs[0][:, :, :4, :4].flatten(1)[:, :5]])
def test_deriving_a_head_from_its_own_ports_changes_nothing(function):
    ports = ports_of(lambda x: (strided(x, 2), x, x[:, 0, :2, :2].reshape(-1, 2)))
    result = head_on(ports, function)
    assert head_on(result, function) == result


def test_a_probe_of_several_inputs_gives_them_as_one_tuple():
    module = Calls(lambda inputs: (inputs[0] + inputs[1].sum(), inputs[2].float()))
    result = observe(module, (2, 3), (4,), (2, 2), dtypes=["float32", "float32", "bool"])
    first, second, third = signal((2, 3)), signal((4,), 1001), signal((2, 2), 1002) >= 0
    expected = torch.cat([(first + second.sum()).flatten(), third.float().flatten()]).double()
    sketch = [float(expected @ signal((10,), k + 1).double()) / 10**0.5 for k in range(16)]
    assert result.probe.sketch == pytest.approx(sketch, rel=1e-12)
    assert result.probe.shapes == ((2, 3), (4,), (2, 2))
    assert [tuple(output.shape) for output in result.outputs] == [(2, 3), (2, 2)]
    assert probe(module, (2, 3), (4,), (2, 2), dtypes=["float32", "float32", "bool"]) == result.probe


def test_inputs_of_every_dtype_are_fixed_too():
    assert port_signal((3,), 0, "float16").dtype == torch.float16
    assert torch.equal(port_signal((9,), 2, "bool"), signal((9,), 1002) >= 0)
    assert port_signal((3,), 1, "int64").tolist() == [0, 0, 0]


def test_one_image_is_enough():
    """A batch of one is run too: a module that squeezes it away is found, see above; others have a rule."""
    seen: list[int] = []

    def noting(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x

    ports_of(noting)
    assert {1, 2, 3} == set(seen)


class WithClassToken(nn.Module):
    """Patches with a class token before them, of a network that does not say so."""

    def __init__(self, token: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 4, 4)
        if token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        token = self.cls_token if hasattr(self, "cls_token") else patches[:1, :1]
        return torch.cat([token.expand(len(x), -1, -1), patches], dim=1), patches


@pytest.mark.parametrize(("token", "prefix"), [(True, [1, 0]), (False, [0, 0])])
def test_a_class_token_is_seen_where_the_network_does_not_count_it(token, prefix):
    result = structural(WithClassToken(token), blueprint("extractor", (16, 24)))
    assert [port.prefix_tokens for port in result.outputs] == prefix


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (Scaled("N", times=196), "196 N"),
        (Scaled("H", 1, 2), "(H + 1) // 2"),
        (Scaled("H", 0, 4, 1, times=2), "(H // 4) * 2 + 1"),
    ],
)
def test_sizes_in_words(first, text):
    assert dimension_formula(first) == text
    assert first.at(8) == {"196 N": 1568, "(H + 1) // 2": 4, "(H // 4) * 2 + 1": 5}[text]
