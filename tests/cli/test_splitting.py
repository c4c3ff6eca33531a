"""split: where a model can be cut, what crosses, parts that are kept, weights that are not downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import compatkit as ck
from compatkit.adapters.offline import OFFLINE as VARIABLE
from compatkit.cli.images import offline
from compatkit.errors import WeightsUnavailable
from compatkit.registry.store import Store


def test_resnet18_at_layer3(run: Any, tmp_path: Path, untouched: Any) -> None:
    with untouched(tmp_path):
        result = run("split", "resnet18", "--cut", "layer3")
    assert result.code == 0 and result.out.startswith(
        "resnet18 cut at layer3: head(extractor(x)) equals the network bitwise"
    )
    for word in ("N x 3 x H x W", "N x 256 x (H + 15) // 16", "14x14 for 224x224", "2,782,784", "N x 1000"):
        assert word in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_parts_are_published_and_make_the_network_again(run: Any, tmp_path: Path) -> None:
    root = tmp_path / "parts"
    words = "split", "resnet20_cifar", "--cut", "layer2", "--kwargs", '{"num_classes": 7}', "--registry", root
    document = run(*words, "--publish", "zoo/small", "--seed", 3, "--json").json
    assert document["published"] == {"extractor": "zoo/small.extractor@1.0.0", "head": "zoo/small.head@1.0.0"}
    extractor, head = document["parts"]["extractor"], document["parts"]["head"]
    assert document["bitwise_equal"] and head["contract"]["structural"]["outputs"][0]["shape"] == ["N", 7]
    assert extractor["blueprint"]["split"] == "layer2" and extractor["parameters"] == 65_552
    assert (
        run(*words, "--publish", "zoo/small", "--seed", 3).out.count("published zoo/small") == 2
    )  # the same again
    registry = ck.Registry.open(root)
    model = registry.recombine("zoo/small.extractor", "zoo/small.head")
    other = run(*words, "--publish", "zoo/small", "--seed", 4, "--json").json
    assert other["published"]["head"] == "zoo/small.head@2.0.0"
    images = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    assert not torch.equal(model(images), registry.recombine("zoo/small.extractor", "zoo/small.head")(images))


def test_the_two_parts_of_one_cut_are_promised_and_no_others(run: Any, tmp_path: Path) -> None:
    root = tmp_path / "parts"

    def cut(*words: object) -> None:
        result = run("--registry", root, "split", "resnet20_cifar", "--kwargs", '{"num_classes": 7}', *words)
        assert result.code == 0, result.err

    cut("--cut", "layer2", "--publish", "zoo/small")
    cut(
        "--cut", "layer2", "--publish", "zoo/small", "--seed", 1
    )  # as trained on: other weights, version 2.0.0
    cut("--cut", "layer2.0", "--publish", "zoo/earlier")  # the first network, cut elsewhere
    result = run("--registry", root, "check", "zoo/small.extractor@1.0.0", "zoo/small.head@1.0.0")
    assert result.code == 0 and result.out.startswith(
        "promised: wiring direct, promise one-network, evidence none"
    )
    assert "one-network (protocol)" in result.out and "Equal shapes" not in result.out
    versions = ("zoo/small", "1.0.0"), ("zoo/small", "2.0.0"), ("zoo/earlier", "1.0.0")
    registry = ck.Registry.open(root)
    promised = [
        (mine, other)
        for mine in versions
        for other in versions
        if registry.check("{}.extractor@{}".format(*mine), "{}.head@{}".format(*other)).promise != "none"
    ]
    assert promised == [(version, version) for version in versions]


def test_untrained_parts_need_to_be_told_their_images(run: Any, parts: Path) -> None:
    kwargs = '{"in_chans": 1, "num_classes": 3}'
    assert run("split", "resnet20_cifar", "--cut", "layer2", "--kwargs", kwargs, "--publish", "raw").code == 0
    result = run("recombine", "raw.extractor", "digits/left.head")
    assert (
        result.code == 2
        and "has no record of its training images" in result.err
        and "--data with a name, path or address" in result.err
    )
    assert run("recombine", "raw.extractor", "digits/left.head", "--data", "left").code in (0, 1)
    assert Store.open(parts).manifest("raw.head").contract.data.labels is None


@pytest.mark.case("G")
def test_nothing_is_downloaded_unless_asked(monkeypatch: Any) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with offline(unless=False):
        assert os.environ[VARIABLE] == "1"
    assert VARIABLE not in os.environ
    with offline(unless=True):
        assert VARIABLE not in os.environ
    with pytest.raises(WeightsUnavailable, match="--download fetches them"), offline(unless=False):
        raise WeightsUnavailable("The pretrained weights of 'x' could not be fetched or read: offline.")


@pytest.mark.case("G")
def test_pretrained_weights_that_are_not_in_the_cache(
    run: Any, tmp_path: Path, monkeypatch: Any, untouched: Any
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    result = run(
        "split",
        "resnet18",
        "--cut",
        "layer3",
        "--pretrained",
        "--registry",
        tmp_path / "parts",
        "--publish",
        "a",
    )
    assert result.code == 4 and "could not be fetched" in result.err and "--download" in result.err
    assert not (tmp_path / "parts").exists()
