"""cuts: where a model can be cut, what crosses, what lies on each side."""

from __future__ import annotations

from typing import Any


def test_places_are_listed_in_the_order_of_the_forward_pass_with_both_sides(run: Any) -> None:
    result = run("cuts", "resnet20_cifar", "--kwargs", '{"num_classes": 10}')
    assert result.code == 0
    lines = {line.split()[0]: line.split() for line in result.out.splitlines() if line}
    assert lines["layer2"][1:4] == ["Sequential", "32x16x16", "65,552"]
    assert lines["layer2"][-1] == "fx" and lines["forward_features"][-1] == "canonical"
    names = list(lines)
    assert names.index("layer1") < names.index("layer2") < names.index("forward_features")
    assert "layer1.2" not in lines and "layer2.0.conv1" not in lines and "fc" not in lines
    assert "next: compatkit split resnet20_cifar --cut layer2" in result.out


def test_all_shows_what_else_crosses_and_what_cannot_be_cut(run: Any) -> None:
    result = run("cuts", "resnet20_cifar", "--all")
    (inner,) = [line for line in result.out.splitlines() if line.startswith("layer2.0.conv1 ")]
    assert "32x16x16, 16x32x32 (also of layer1)" in inner and inner.endswith("declared")
    assert "fc: no later code uses its output" in result.out


def test_programs_get_every_module(run: Any) -> None:
    document = run("cuts", "resnet20_cifar", "--size", "40x48", "--json").json
    (layer,) = [cut for cut in document["cuts"] if cut["name"] == "layer2"]
    assert layer["crossing"] == [["layer2", [32, 20, 24]]]
    assert (layer["approach"], layer["own"], layer["same_as"], layer["refused"]) == ("fx", True, "", "")
    assert sum(layer["parameters"]) == 269_722


def test_bad_arguments_are_usage_errors(run: Any) -> None:
    for words, text in (
        (["cuts", "resnet99"], "No model is called"),
        (["cuts", "resnet20_cifar", "--kwargs", "[1]"], "expects a JSON object"),
        (["cuts", "resnet20_cifar", "--kwargs", "{"], "is not JSON"),
        (["cuts", "resnet20_cifar", "--size", "0x3"], "expects height and width"),
        (["cuts", "resnet20_cifar", "--size", "a"], "expects height and width"),
        (["cuts", "resnet20_cifar", "--builder", "nobody"], "No builder is called"),
        (["split", "resnet20_cifar"], "Missing option '--cut'"),
    ):
        result = run(*words)
        assert result.code == 2 and text in result.err, (words, result.err)
