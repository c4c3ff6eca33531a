"""Recombinations on the command line: kept, shown, found, checked, collected, imported, exported, inspected."""

from __future__ import annotations

import json
import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import compatkit as ck

LEFT, RIGHT = "digits/left.extractor", "digits/right.head"


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def registry_root(run: Any, parts: Path) -> Path:
    """A registry that holds a recombination."""
    assert run("recombine", LEFT, RIGHT, "--no-measure", "--publish", "pairs/ab").code == 0
    return parts


@pytest.mark.parametrize("policy", ["batch", "reestimate", "mix:100", "running"])
def test_recombine_publishes_under_the_policy_asked_for(run: Any, parts: Path, policy: str) -> None:
    result = run("recombine", LEFT, RIGHT, "--no-measure", "--bn-policy", policy, "--publish", "pairs/ab")
    assert (
        result.code == 0 and "built; not measured" in result.out and "published pairs/ab@1.0.0" in result.out
    )
    assert "next: compatkit export pairs/ab@1.0.0 ab.safetensors" in result.out
    estimated = policy not in ("batch", "running")
    assert ("statistics are those of 48 images of left/train" in words(result.out)) == estimated
    mixed = "which count as 100 images" in words(run("show", "pairs/ab").out)
    assert mixed == (policy == "mix:100")
    assert ck.Registry.open(parts).load("pairs/ab").bn_policy == policy


class TestWithoutAPolicy:
    """What is published tells single images: with re-estimated statistics, or with its own ones."""

    def test_statistics_are_estimated_where_images_are_read_anyway(
        self, run: Any, parts: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "compatkit.cli.recombine._why_not", lambda cell: ""
        )  # two steps do not train much
        result = run("recombine", LEFT, RIGHT, "--publish", "pairs/ab")
        assert result.code == 0 and "next: compatkit predict pairs/ab@1.0.0 PHOTOS" in result.out
        published = ck.Registry.open(parts).load("pairs/ab")
        assert published.bn_policy == "reestimate"
        document = run("recombine", LEFT, RIGHT, "--publish", "pairs/cd", "--json").json
        assert document["cell"]["settings"]["policy"] == "reestimate"
        test = ck.data.load("left.npz").test
        expected = [test.classes[index] for index in test.labels]
        correct = sum(map(operator.eq, published.predict(test).labels, expected))
        assert document["published_accuracy"]["accuracy"] == correct / len(test)
        assert "Accuracy as published" in result.out
        alone = run("recombine", LEFT, RIGHT, "--json").json["cell"]
        assert alone["settings"]["policy"] == "batch"

    def test_without_measuring_those_of_the_batch_are_warned_of(self, run: Any, parts: Path) -> None:
        result = run("recombine", LEFT, RIGHT, "--no-measure", "--publish", "pairs/ab")
        assert (
            result.code == 0
            and "classified at chance" in result.err
            and "--bn-policy reestimate" in result.err
        )
        assert ck.Registry.open(parts).load("pairs/ab").bn_policy == "batch"
        stated = run(
            "recombine", LEFT, RIGHT, "--no-measure", "--bn-policy", "reestimate", "--publish", "pairs/cd"
        )
        assert stated.code == 0 and "warning" not in stated.err

    def test_parts_of_one_network_keep_their_statistics(self, run: Any, parts: Path) -> None:
        result = run("recombine", LEFT, "digits/left.head", "--no-measure", "--publish", "pairs/own")
        assert result.code == 0 and "warning" not in result.err
        assert ck.Registry.open(parts).load("pairs/own").bn_policy == "running"


def test_what_is_at_chance_is_measured_and_not_published(run: Any, parts: Path) -> None:
    """Two steps of training leave all heads at chance, or undecided."""
    output = run("recombine", LEFT, RIGHT, "--publish", "pairs/ab", "--json")
    document = output.json
    at_chance = document["cell"]["grade"] == "chance"
    assert (document["published"] is None) == at_chance
    assert bool(ck.Registry.open(parts).store.names("pairs/*")) != at_chance
    result = run("recombine", LEFT, RIGHT, "--publish", "pairs/cd")
    assert ("not published: it is at chance. --no-measure publishes" in words(result.out)) == at_chance


@pytest.mark.usefixtures("parts")
def test_a_name_that_is_none_is_refused_before_any_work(run: Any) -> None:
    result = run("recombine", LEFT, RIGHT, "--publish", "Pairs/AB")
    assert result.code == 2 and "Pairs" in result.err and result.out == ""


def test_show_list_and_search_know_it(run: Any, registry_root: Path) -> None:
    reply = words(run("show", "pairs/ab").out)
    assert "kind recombination" in reply and "network resnet8_cifar, put together at layer2" in reply
    assert "bn_policy batch: statistics of each batch" in reply
    assert (
        "extractor digits/left.extractor@1.0.0 sha256:" in reply and "head digits/right.head@1.0.0" in reply
    )
    assert "recombination" in run("ls", "pairs/*").out
    result = run("search", "--kind", "recombination", "--json").json["components"]
    assert [match["name"] for match in result] == ["pairs/ab"] and result[0]["parameters"] > 10_000
    assert run("search", "--parent", RIGHT, "--json").json["total"] == 1
    assert run("log", "pairs/ab").code == 0


@pytest.mark.usefixtures("registry_root")
def test_check_refuses_it_by_kind(run: Any) -> None:
    result = run("check", "pairs/ab", RIGHT)
    assert result.code == 2 and "is of kind recombination" in result.err


def test_care_knows_its_edges(run: Any, registry_root: Path, tmp_path: Path) -> None:
    assert run("verify").code == 0
    assert run("gc", "--json").json["plan"]["totals"]["blobs"]["files"] == 0
    other = tmp_path / "other"
    run("init", other)
    assert run("--registry", other, "import", registry_root, "pairs/*").code == 0
    assert run("--registry", other, "verify").code == 0
    assert ck.Registry.open(other).load("pairs/ab")
    assert run("diff", "pairs/ab", "pairs/ab", "--exit-code").code == 0


def test_verify_tells_of_a_part_that_is_missing(run: Any, registry_root: Path) -> None:
    registry = ck.Registry.open(registry_root)
    lost = registry.store.manifest(RIGHT).payload.file.blob
    registry.store.objects.path(lost).unlink()
    result = run("verify")
    assert result.code == 3 and "blob-missing" in result.out


def test_export_and_inspect(run: Any, registry_root: Path) -> None:
    output = run("export", "pairs/ab", "ab.safetensors")
    text = words(output.out)
    assert output.code == 0 and "wrote ab.safetensors (" in text and "recombination pairs/ab@1.0.0" in text
    call = "compatkit_plugins.networks.build('resnet8_cifar', in_chans=1, num_classes=3)"
    assert f"loads into {call}" in text
    script = (
        "import compatkit_plugins.networks\nfrom safetensors.torch import load_file\n"
        f"{call}.load_state_dict(load_file('ab.safetensors'), strict=True)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert "runs with compatkit.load_exported('ab.safetensors')" in text
    seen = run("inspect", "ab.safetensors")
    text = words(seen.out)
    assert "exported recombination from pairs/ab@1.0.0 sha256:" in text
    assert "parts resnet8_cifar up to layer2; resnet8_cifar after layer2" in text
    assert "bn_policy batch" in text and "classes 0, 1, 2" in text
    result = run("inspect", "ab.safetensors", "--json").json["exported"]
    assert result["kind"] == "recombination" and result["names"] == "whole"
    again = run("export", "pairs/ab", "ab.safetensors", "--names", "parts", "--json").json
    assert not result.get("replaced") and again["replaced"]
    assert run("export", "pairs/ab", "ab.safetensors").out.startswith("replaced ab.safetensors (")
    assert again["exported"]["parts"][0]["prefix"] == "extractor." and again["bytes"] > 10**5


def test_an_export_goes_nowhere_where_it_cannot(run: Any, registry_root: Path, tmp_path: Path) -> None:
    assert run("export", "pairs/ab", tmp_path).code == 2
    result = run("export", "pairs/ab", tmp_path / "nowhere" / "ab.safetensors")
    assert result.code == 4 and "does not exist" in result.err
    assert run("export", "pairs/ba", "x.safetensors").code == 2 and not Path("x.safetensors").exists()
    assert run("export", LEFT, "x.safetensors", "--names", "whole").code == 2


def test_inspect_says_where_a_description_cannot_be_read(run: Any, tmp_path: Path) -> None:
    import torch

    from compatkit.registry.weights.tensorfile import serialize

    file = tmp_path / "odd.safetensors"
    file.write_bytes(serialize({"w": torch.zeros(1)}, json.dumps({"schema": 9})))
    result = run("inspect", file)
    assert (
        result.code == 0
        and "not readable as an export" in result.out
        and "newer compatkit" in words(result.out)
    )
    assert run("inspect", file, "--json").json["exported"] is None
