"""The seam: what differs, which adapters mend it in which order, and that they do so on real tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_components import FEATURES, GRAY

from compatkit.adapters.stitching.layers import build_adapter
from compatkit.contracts.contract import Data, Port, Scaled
from compatkit.contracts.match import adapters_for, wiring
from compatkit.contracts.ports import SizedPorts, grid_at, spatial_at, tensor_shape
from compatkit.contracts.report import Finding
from compatkit.contracts.stitch import describe, describe_missing, on_port, ports_after, project
from compatkit.errors import IncompatibleError, UsageError

WIDE = attrs.evolve(GRAY, size=(8, 16))
HALVES = (Scaled("H", floordiv=4), Scaled("W", floordiv=4))


def findings(outputs: Sequence[Port], inputs: Sequence[Port], data: Data, head_data: Data) -> list[Finding]:
    sides = SizedPorts(tuple(outputs), data.size), SizedPorts(tuple(inputs), head_data.size)
    return [entry.finding(*sides) for entry in wiring(*sides)]


def maps(channels: int, *spatial: Any, layout: Any = "NCHW", **changes: Any) -> Port:
    shape = ("N", channels, *spatial) if layout == "NCHW" else ("N", *spatial, channels)
    return Port("features", shape, layout=layout, **changes)


def tokens(width: int, count: Any, prefix: int = 0, **changes: Any) -> Port:
    return Port("features", ("N", count, width), layout="NLC", prefix_tokens=prefix, **changes)


def vector(width: int, **changes: Any) -> Port:
    return Port("features", ("N", width), layout="NC", **{"pooled": True, **changes})


def plan(output: Port, taken: Port, data: Data = GRAY, head_data: Data = GRAY) -> list[str]:
    return [describe(entry) for entry in adapters_for([output], [taken], data, head_data)]


ORDERS = [
    (
        tokens(8, 5, prefix=1, dtype="bfloat16"),
        maps(6, 4, 4),
        [
            "cast to float32",
            "drop-tokens: leave out 1",
            "permute NLC to NCHW",
            "resize to 4x4",
            "project: 1x1",
        ],
    ),
    (
        maps(8, 4, 4, layout="NHWC", dtype="float64"),
        vector(6, dtype="float16"),
        ["pool: average over the positions", "project: linear layer from 8 to 6 channels", "cast to float16"],
    ),
    (maps(8, 4, 4), tokens(8, 4), ["resize to 2x2", "permute NCHW to NLC"]),
    (
        tokens(8, 9, prefix=5),
        tokens(8, 17, prefix=1),
        ["drop-tokens: keep the first 1, leave out the next 4", "resize to 4x4"],
    ),
    (
        tokens(8, 5, prefix=1),
        maps(8, 1, 1, pooled=True),
        ["pool: average over the positions, without the 1 prefix tokens"],
    ),
    (maps(8, 4, 4, layout="NHWC"), maps(8, 4, 4), ["permute NHWC to NCHW"]),
    (maps(8, 4, 4), maps(8, 4, 4), []),
]


@pytest.mark.parametrize(("output", "taken", "order"), ORDERS)
def test_the_order_of_adapters(output: Port, taken: Port, order: list[str]) -> None:
    result = plan(output, taken)
    assert len(result) == len(order)
    assert all(match.startswith(text) for match, text in zip(result, order, strict=True))


def test_remedies_are_the_adapters_that_would_be_put_in() -> None:
    for output, taken, _ in ORDERS:
        message = findings([output], [taken], GRAY, GRAY)
        expected = [describe_missing(entry) for entry in adapters_for([output], [taken], GRAY, GRAY)]
        assert [line.remedy for line in message if line.severity == "adaptable"] == expected


REFUSED = [
    (vector(8), maps(8, 4, 4), "before its pooling"),
    (vector(8), tokens(8, 4), "before its pooling"),
    (maps(8, 1, 1, pooled=True), maps(8, "h", "w"), "before its pooling"),
    (tokens(8, 16), tokens(8, 17, prefix=1), "class tokens"),
    (maps(8, 4, 4), tokens(8, 17, prefix=1), "class tokens"),
    (tokens(8, 15), maps(8, "h", "w"), "form a grid of their aspect ratio, 8x8"),
    (tokens(8, 15), tokens(8, 16), "form a grid"),
    (maps(8, 4, 4), tokens(8, 15), "form a grid"),
    (maps(8, 4, 4, dtype="int64"), maps(8, 4, 4), "floating-point"),
]


@pytest.mark.parametrize(("output", "taken", "remedy"), REFUSED)
def test_what_no_adapter_mends(output: Port, taken: Port, remedy: str) -> None:
    (refused,) = [
        finding for finding in findings([output], [taken], GRAY, GRAY) if finding.severity == "refuses"
    ]
    assert remedy in refused.remedy
    with pytest.raises(IncompatibleError, match="No adapter makes these parts fit"):
        adapters_for([output], [taken], GRAY, GRAY)


def test_without_a_layout_or_a_batch_axis_only_equal_shapes_are_wired() -> None:
    windows = Port("windows", (Scaled("N", times=4), 49, 8), layout="other")
    shared = Port("bias", (49, 49), layout="other")
    for port in (windows, shared):
        assert plan(port, port) == []
        for axis in range(len(port.shape)):
            shape = list(port.shape)
            shape[axis] = 7
            other = attrs.evolve(port, shape=tuple(shape))
            (result,) = findings([other], [port], GRAY, GRAY)
            assert (result.code, result.severity) == ("layout-differs", "refuses")
    (result,) = findings([windows], [tokens(8, 49)], GRAY, GRAY)
    assert result.actual == "(N + 0) // 1 * 4 + 0 x 49 x 8 (other)"
    assert plan(attrs.evolve(shared, dtype="float16"), shared) == ["cast to float32"]


def test_shapes_without_a_layout_follow_the_images() -> None:
    channels_first = Port("features", ("N", 8, Scaled("H", floordiv=2)), layout="other")
    fixed = attrs.evolve(channels_first, shape=("N", 8, 4))
    assert plan(channels_first, fixed) == []
    (result,) = findings([channels_first], [fixed], attrs.evolve(GRAY, size=(10, 10)), GRAY)
    assert (result.severity, result.actual) == ("refuses", "N x 8 x 5 (other)")
    free = attrs.evolve(channels_first, shape=("N", 8, "L"))
    assert plan(channels_first, free) == plan(free, fixed) == []
    assert findings([attrs.evolve(fixed, shape=(8, 4))], [fixed], GRAY, GRAY)


def test_tokens_form_a_grid_of_the_images_proportions() -> None:
    assert grid_at(tokens(8, 8), (8, 16)) == (2, 4)
    assert grid_at(tokens(8, 10, prefix=2), (8, 16)) == (2, 4)
    assert grid_at(tokens(8, 8), (8, 8)) is None
    assert grid_at(tokens(8, 2), (8, 8)) is None and grid_at(tokens(8, 1, prefix=1), (8, 8)) is None
    assert grid_at(vector(8), (8, 8)) is None and spatial_at(tokens(8, "L"), (8, 8)) is None
    (adapter,) = adapters_for([tokens(8, 8)], [maps(8, "h", "w")], WIDE, WIDE)
    assert adapter.kwargs == {"layout": "NLC", "to": "NCHW", "sides": [2, 4]}
    (adapter,) = adapters_for([tokens(8, 16)], [maps(8, "h", "w")], GRAY, GRAY)
    assert adapter.kwargs == {"layout": "NLC", "to": "NCHW"}, "a square is found again at any size"


def test_tokens_of_an_unknown_count_become_a_map_for_square_images_only() -> None:
    assert plan(tokens(8, "L"), maps(8, "h", "w")) == ["permute NLC to NCHW"]
    with pytest.raises(IncompatibleError, match="aspect ratio, 8x16"):
        adapters_for([tokens(8, "L")], [maps(8, "h", "w")], WIDE, GRAY)


def test_equal_counts_in_other_grids_are_resized() -> None:
    """16 positions as 2x8 are not the 4x4 that the head learnt positions for."""
    strip = attrs.evolve(GRAY, size=(4, 16))
    assert plan(maps(8, 2, 8), tokens(8, 16), strip) == ["resize to 4x4", "permute NCHW to NLC"]
    assert plan(tokens(8, 16), maps(8, 4, 4), strip) == ["permute NLC to NCHW", "resize to 4x4"]
    assert plan(tokens(8, 16), tokens(8, 16), strip) == [], "tokens for tokens are counted"
    assert plan(tokens(8, 4), tokens(8, 16), strip) == ["resize to 4x4"]


def test_a_projection_comes_with_the_positions_that_it_is_fitted_to() -> None:
    """A head that takes any size absorbs another one, but not together with a projection."""
    free, seen = maps(8, "H", "W", measured={"8x8": (2, 2)}), {"8x8": (4, 4)}
    assert plan(maps(8, "H", "W", measured=seen), free) == []
    result = plan(maps(6, "H", "W", measured=seen), free)
    assert [match.split(":")[0] for match in result] == ["resize to 2x2", "project"]
    assert [entry.split(":")[0] for entry in plan(tokens(6, 15), tokens(8, "L", measured={"8x8": (4,)}))] == [
        "project"
    ]


def test_a_vector_of_flattened_maps_is_no_average() -> None:
    report_findings = list(findings([maps(8, 4, 4)], [vector(128, pooled=False)], GRAY, GRAY))
    assert [(match.code, match.severity) for match in report_findings] == [
        ("rank-differs", "adaptable"),
        ("pooled-differs", "warns"),
        ("channels-differ", "adaptable"),
    ]


def test_a_projection_is_clamped_where_the_head_was_trained_after_relu() -> None:
    for kind, clamped in (("nonnegative", True), ("signed", False), ("any", False)):
        (adapter,) = adapters_for([maps(8, 4, 4)], [maps(6, 4, 4, range=kind)], GRAY, GRAY)
        assert adapter.kwargs["nonnegative"] is clamped
        assert ports_after([maps(8, 4, 4)], adapter)[0].range == ("nonnegative" if clamped else "signed")


def test_several_tensors_are_adapted_one_by_one() -> None:
    names = ("features", "skip")
    outputs = [attrs.evolve(maps(8, 4, 4), name="features"), attrs.evolve(maps(4, 8, 8), name="skip")]
    inputs = [attrs.evolve(tokens(8, 16), name="features"), attrs.evolve(maps(4, 2, 2), name="skip")]
    result = adapters_for(outputs, inputs, GRAY, GRAY)
    assert [(match.model, match.kwargs["port"], match.cut_outputs) for match in result] == [
        ("permute", 0, 2),
        ("resize", 1, 2),
    ]
    features: Any = tuple(torch.zeros(tensor_shape(output, GRAY.size, 3)) for output in outputs)
    ports: Any = outputs
    for match in result:
        features, ports = build_adapter(match)(features), ports_after(ports, match)
    assert [tuple(feature.shape) for feature in features] == [(3, 16, 8), (3, 4, 2, 2)]
    assert tuple(port.name for port in ports) == names
    assert not list(findings(ports, inputs, GRAY, GRAY))


def test_an_adapter_of_another_hand_is_described_whatever_it_holds() -> None:
    """A manifest may name arguments that no adapter takes; showing it is no reason to fail."""
    adapter = project(vector(4), 3, False, (8, 8))
    for kwargs in ({}, {"layout": "NC", "channels": 3}, {"layout": "NC", "channels": [1, 2, 3]}):
        assert describe(attrs.evolve(adapter, kwargs=kwargs)) == "project, with invalid arguments"
    assert describe(attrs.evolve(adapter, model="fold")) == "fold"


def test_an_adapter_for_a_tensor_that_is_not_there_is_refused() -> None:
    adapter = on_port(project(vector(4), 3, False, (8, 8)), 1, 2)
    with pytest.raises(UsageError, match="is for tensor 2 of a tuple, but there are 1"):
        ports_after([FEATURES], adapter)
    with pytest.raises(UsageError, match="Unknown adapter 'fold'"):
        ports_after([FEATURES], attrs.evolve(adapter, model="fold", kwargs={}))


def test_a_shape_at_a_size_that_was_never_seen_is_not_guessed() -> None:
    port = tokens(8, "L", measured={"8x8": (4,)})
    assert tensor_shape(port, (8, 8), 3) == (3, 4, 8)
    with pytest.raises(UsageError, match="unknown for images of 9x9; known for 8x8"):
        tensor_shape(port, (9, 9), 3)


SIZES = st.sampled_from([(8, 8), (8, 16), (12, 12)])
DTYPES = st.sampled_from(["float32", "bfloat16", "float64"])
COUNTS = st.sampled_from([1, 2, 3, 4])


@st.composite
def ports(draw: Any, size: tuple[int, int], free: bool) -> Port:
    """A port whose sizes are known for images of ``size``: numbers, followers of the image, or measured."""
    layout = draw(st.sampled_from(["NCHW", "NHWC", "NLC", "NC"]))
    changes = {"dtype": draw(DTYPES), "range": draw(st.sampled_from(["nonnegative", "signed", "any"]))}
    width, image = draw(COUNTS), f"{size[0]}x{size[1]}"
    if layout == "NC":
        return vector(width, pooled=draw(st.booleans()), **changes)
    if layout == "NLC":
        prefix = draw(st.integers(0, 2))
        count = draw(st.sampled_from([size[0] * size[1] // 16, size[0] * size[1] // 4, 4, 6])) + prefix
        if free and draw(st.booleans()):
            return tokens(width, "L", prefix, measured={image: (count,)}, **changes)
        return tokens(width, count, prefix, **changes)
    pooled = draw(st.booleans())
    if not pooled and draw(st.booleans()):
        return maps(width, *HALVES, layout=layout, **changes)
    sides = (1, 1) if pooled else (draw(COUNTS), draw(COUNTS))
    if free and draw(st.booleans()):
        return maps(width, "h", "w", layout=layout, pooled=pooled, measured={image: sides}, **changes)
    return maps(width, *sides, layout=layout, pooled=pooled, **changes)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_adaptable_is_adapted_on_real_tensors_and_then_direct(data: st.DataObject) -> None:
    """Each adapter gives the shape and dtype that its port says; the last gives what the head takes."""
    size, head_size = data.draw(SIZES), data.draw(SIZES)
    output, taken = data.draw(ports(size, True)), data.draw(ports(head_size, True))
    mine, theirs = attrs.evolve(GRAY, size=size), attrs.evolve(GRAY, size=head_size)
    severities = {finding.severity for finding in findings([output], [taken], mine, theirs)}
    if "refuses" in severities:
        with pytest.raises(IncompatibleError):
            adapters_for([output], [taken], mine, theirs)
        return
    adapters = adapters_for([output], [taken], mine, theirs)
    assert bool(adapters) == ("adaptable" in severities)
    port, features = output, torch.randn(tensor_shape(output, size, 2)).to(getattr(torch, output.dtype))
    for adapter in adapters:
        (port,), features = ports_after([port], adapter), build_adapter(adapter, weights(adapter))(features)
        assert tuple(features.shape) == tensor_shape(port, size, 2)
        assert str(features.dtype) == f"torch.{port.dtype}"
    assert port.dtype == taken.dtype and port.layout == taken.layout
    for length, wanted in zip(features.shape[1:], taken.shape[1:], strict=True):
        assert isinstance(wanted, str | Scaled) or length == wanted
    left = findings([port], [taken], mine, theirs)
    assert not {"refuses", "adaptable"} & {name.severity for name in left}


def weights(adapter: Any) -> dict[str, torch.Tensor] | None:
    if adapter.model != "project":
        return None
    inputs, wanted = adapter.kwargs["channels"]
    return {"weight": torch.ones(wanted, inputs), "bias": torch.ones(wanted)}
