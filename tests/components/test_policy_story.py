"""The story of examples/policy_story.py comes true: trained to fit stays 1.1.0, trained independently is 2.0.0."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import compatkit as ck
from compatkit.registry.policies import Policy

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "policy_story.py"
EXTRACTOR = "digits/any.extractor"
HEADS = ["digits/any.head@1.0.0", "digits/high.head@1.0.0", "digits/low.head@1.0.0"]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("policy_story", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules["policy_story"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tell(example: ModuleType, plan: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tell the story; hold what it says, what it leaves and what it draws against each other."""
    registry = ck.Registry.init(tmp_path / "parts")
    matrix = example.tell(registry, plan)
    output = capsys.readouterr().out
    policy = registry.policies.of(EXTRACTOR)
    assert isinstance(policy, Policy) and policy.mode == "backward_transitive" and policy.tolerance == 0.03

    assert [str(entry) for entry in registry.store.versions(EXTRACTOR)] == ["1.0.0", "1.1.0", "2.0.0"]
    assert registry.diff(f"{EXTRACTOR}@1.0.0", f"{EXTRACTOR}@1.1.0").equal_shapes
    assert f"{EXTRACTOR}: passes; it may be published as 1.1.0" in output
    assert f"{EXTRACTOR}: fails; it is offered only as 2.0.0" in output

    assert [entry.reference for entry in matrix.heads] == HEADS
    for head in HEADS:
        bound = matrix.cell(f"{EXTRACTOR}@1.0.0", head).restricted
        assert bound is not None and bound.accuracy > 0.85, head
        for version, passes in (("1.1.0", True), ("2.0.0", False)):
            result = matrix.cell(f"{EXTRACTOR}@{version}", head).restricted
            assert result is not None
            assert (result.accuracy >= bound.accuracy - policy.tolerance) == passes, (version, head)
            assert f"{result.accuracy:.3f}" in output
    # alone it is no worse: what it lacks is what was promised to others
    own = registry.matrix(
        f"{EXTRACTOR}@2.0.0",
        "digits/any.head@2.0.0",
        {EXTRACTOR: plan.first.test},  # type: ignore[attr-defined]
        bn_policy="running",
        record=False,
    )
    figure = own.cells[0].restricted
    assert figure is not None and figure.accuracy > 0.85
    assert matrix.to_png(tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")


def test_the_story_on_handwritten_digits(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = example.story(ck.data.load("digits"), 700, 297, steps=160)
    tell(example, plan, tmp_path, capsys)


@pytest.mark.slow
def test_the_story_on_mnist_as_it_is_documented(
    packs: Path, example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = example.story(ck.data.load("mnist", root=packs), 4000, 2000)
    tell(example, plan, tmp_path, capsys)
