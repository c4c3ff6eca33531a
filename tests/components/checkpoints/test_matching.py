"""How the weights of a file differ from those of a network is said shortly, with the nearest names."""

from __future__ import annotations

import torch

from compatkit.components.checkpoints.matching import completed, converted, mismatch_error
from compatkit.registry.weights.tensorchecks import compare

OWN = {
    "layer1.conv.weight": torch.zeros(4, 3, 3, 3),
    "layer1.bn.num_batches_tracked": torch.zeros((), dtype=torch.int64),
    "fc.weight": torch.zeros(10, 4),
}


def test_what_fits_is_no_mismatch() -> None:
    assert not compare(OWN, OWN)
    assert not compare(
        {name: value.half() if value.is_floating_point() else value for name, value in OWN.items()}, OWN
    )


def test_every_way_to_differ_is_told_with_names_and_shapes() -> None:
    state = {
        "layers1.conv.weight": OWN["layer1.conv.weight"],
        "layer1.bn.num_batches_tracked": torch.zeros(()),
        "fc.weight": torch.zeros(7, 4),
    }
    result = compare(state, OWN)
    assert list(result.sentences()) == [
        "1 tensor is missing: layer1.conv.weight (there is layers1.conv.weight)",
        "1 is not known to it: layers1.conv.weight",
        "1 has another shape: fc.weight is 7x4 where 10x4 is expected",
        "1 is of another kind: layer1.bn.num_batches_tracked is float32 where int64 is expected",
    ]
    error = mismatch_error("x.pth", "net of timm", result)
    assert str(error).startswith("x.pth does not contain the weights of net of timm:\n- 1 tensor is missing")
    assert "Name the model" in str(error)


def test_a_long_list_is_cut_short() -> None:
    own = {f"layer{i}.weight": torch.zeros(1) for i in range(5000)}
    (message,) = compare({}, own).sentences()
    assert message == "5,000 tensors are missing: layer0.weight, layer1.weight, layer2.weight and 4,997 more"


def test_counters_that_old_files_lack_are_set_to_zero() -> None:
    old = {name: value for name, value in OWN.items() if "num_batches" not in name}
    result, message = completed(old, OWN)
    assert not compare(result, OWN) and result["layer1.bn.num_batches_tracked"].dtype == torch.int64
    assert message == ("set 1 counters of batch normalization to 0, which old files lack",)
    assert completed(OWN, OWN) == (OWN, ())


def test_precisions_that_are_converted_are_told() -> None:
    half = {name: value.half() if value.is_floating_point() else value for name, value in OWN.items()}
    assert converted(half, OWN) == ("converted 2 tensors from float16 to float32",)
    assert converted(OWN, OWN) == ()
