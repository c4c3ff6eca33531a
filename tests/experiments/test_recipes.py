"""Recipes in Python: the examples, overrides, and values compared with the types of what they become."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np
import pytest
import torch
from small import data_set
from swept import read_recipe as read

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.experiments.recipes.values import check_keys, check_values
from compatkit.registry.weights.tensorfile import serialize

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.toml"))
SMALL = """
prefix = "digits"
regularizers = ["identical_init", { name = "dcc", weight = 0.5, as = "common" }]
[trainer]
steps = 5
lr = 1
[[tasks]]
name = "a"
data = { name = "sets/a.npz", train = 24, test = 12, as = "renamed" }
model = "resnet20_cifar"
cut = "layer2"
size = [16, 16]
augment = ["crop"]
normalize = { mean = [0.5], std = [0.25] }
kwargs = { drop_rate = 0.1 }
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "sets").mkdir()
    data = data_set("a")
    np.savez(
        tmp_path / "sets" / "a.npz",
        x_train=data.train.images,
        y_train=data.train.labels,
        x_test=data.test.images,
        y_test=data.test.labels,
        classes=np.array(data.classes),
    )
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"mnist_usps", "cifar_halves"}


@pytest.mark.parametrize(
    "path",
    [path for path in EXAMPLES if path.stem not in ("cifar_halves", "digits_sweep", "photos")],
    ids=lambda path: path.stem,
)
def test_the_examples_are_read(path: Path, packs: Path) -> None:
    plan = read(path, root=str(packs))
    assert plan.trainer.steps >= 100 and len(plan.tasks) == 2 and plan.regularizers
    assert len({task.data.name for task in plan.tasks}) == 2


def test_the_example_of_photos_is_read_from_folders_beside_it(tmp_path: Path) -> None:
    from PIL import Image

    for part, side in (("train", 40), ("val", 30)):
        for name, place in itertools.product(("studio", "phone"), ("cat", "dog")):
            folder = tmp_path / "photos" / name / part / place
            folder.mkdir(parents=True)
            Image.new("RGB", (side, 50)).save(folder / "one.jpg")
    (tmp_path / "examples").mkdir()
    example = next(path for path in EXAMPLES if path.stem == "photos")
    plan = read(shutil.copy(example, tmp_path / "examples"))
    assert [task.data.train.name for task in plan.tasks] == ["studio/train", "phone/train"]
    assert all(task.data.classes == ("cat", "dog") and task.data.train.size is None for task in plan.tasks)


def test_the_example_with_halves_is_read_without_decoding_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    import compatkit.data as data

    specs: list[Mapping[str, Any]] = []

    def load_spec(spec: Mapping[str, Any], **_: Any) -> ck.DataSet:
        specs.append(spec)
        return data_set(f"cifar10-half{spec['half']}", size=(32, 32), channels=3)

    monkeypatch.setitem(data.__dict__, "load_spec", load_spec)
    path = next(path for path in EXAMPLES if path.stem == "cifar_halves")
    plan = read(path)
    assert [spec["half"] for spec in specs] == [1, 2] and "shift" in specs[1]
    assert [task.name for task in plan.tasks] == ["plain", "shifted"]


def test_what_is_written_becomes_tasks_trainer_and_regularizers(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small.parents[1])  # paths are relative to the recipe, not to the current folder
    plan = read(small)
    task = plan.tasks[0]
    assert (task.name, task.model, task.cut, task.size) == ("a", "resnet20_cifar", "layer2", (16, 16))
    assert task.augment == ("crop",) and task.kwargs == {"drop_rate": 0.1} and task.weights is None
    assert task.normalize == {"mean": (0.5,), "std": (0.25,)}
    assert (task.data.name, len(task.data.train), len(task.data.test)) == ("renamed", 24, 12)
    assert plan.trainer == ck.Trainer(steps=5, lr=1)
    assert [(use.name, use.weight, use.as_) for use in plan.regularizers] == [
        ("identical_init", 1.0, "identical_init"),
        ("dcc", 0.5, "common"),
    ]
    assert (plan.prefix, plan.frozen.heads, plan.frozen.statistics) == ("digits", None, "stored")


def test_overrides_win_and_none_is_no_override(small: Path) -> None:
    plan = read(small, steps=9, seed=None, checkpoint="state", prefix="other")
    assert (plan.trainer.steps, plan.trainer.seed, plan.trainer.checkpoint) == (9, 0, "state")
    assert plan.prefix == "other"
    with pytest.raises(UsageError, match=r"\[trainer\]: steps must be a whole number, got 'x'"):
        read(small, steps="x")


def test_a_prefix_may_be_left_to_the_caller(small: Path) -> None:
    small.write_text(small.read_text().replace('prefix = "digits"', ""))
    assert read(small, prefix="mine").prefix == "mine"
    with pytest.raises(UsageError, match="lacks prefix"):
        read(small)


def test_regularizers_may_be_left_out(small: Path) -> None:
    text = small.read_text()
    small.write_text(text[text.index("[trainer]") :])
    assert read(small, prefix="x").regularizers == ()


def test_everything_else_is_checked_before_images_are_loaded(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import compatkit.data as data

    monkeypatch.setitem(data.__dict__, "load_spec", lambda *args, **kwargs: pytest.fail("loaded"))
    for old, new in (
        ("steps = 5", "stesp = 5"),
        ("size = [16, 16]", "weights = 'none'"),
        ('"dcc"', '"dccc"'),
        ('name = "a"', 'name = "A"'),
        ("cut =", "slpit ="),
        ("size = [16, 16]", 'size = "big"'),
    ):
        small.write_text(SMALL.replace(old, new))
        with pytest.raises(UsageError):
            read(small)


FINE_TUNED = """
prefix = "digits"
[trainer]
steps = 5
optimizer = "adamw"
optimizer_options = { betas = [0.9, 0.95] }
layer_decay = 0.75
schedule = { kind = "cosine", warmup = 2, floor = 0.1 }
[[tasks]]
name = "a"
data = "sets/a.npz"
model = "mobilenetv3_small_050"
cut = "blocks.3"
weights = "nets/one"
freeze_stages = 2
recompute_activations = true
"""


def test_fine_tuning_as_in_timm_is_written_as_it_is_called(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of weights is looked for beside the recipe, also behind local-dir; the hub is asked by the run."""
    folder = small.parent / "nets" / "one"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(serialize({"a": torch.zeros(2)}))
    monkeypatch.chdir(small.parents[1])
    for written, meant in (
        ("nets/one", str(folder)),
        ("local-dir:nets/one", str(folder)),
        *[("hf-hub:me/net",) * 2],
    ):
        small.write_text(FINE_TUNED.replace("nets/one", written))
        plan = read(small)
        (task,) = plan.tasks
        assert (task.weights, task.freeze_stages, task.recompute_activations) == (meant, 2, True)
    rule = plan.trainer.decay
    assert (plan.trainer.optimizer, plan.trainer.layer_decay) == ("adamw", 0.75)
    assert plan.trainer.optimizer_options == {"betas": [0.9, 0.95]}
    assert (rule.kind, rule.warmup, rule.floor) == ("cosine", 2, 0.1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("layer_decay", "layer_decai", "unknown key 'layer_decai'. Did you mean 'layer_decay'"),
        ("freeze_stages", "freeze_stage", "unknown key 'freeze_stage'. Did you mean 'freeze_stages'"),
        ("recompute_activations", "recompute", "unknown key 'recompute'"),
        ('"adamw"', '"adamww"', "There is no optimizer 'adamww'. Did you mean 'adamw'"),
        ("betas", "bettas", "takes no option 'bettas'. Did you mean 'betas'"),
        ("floor", "flor", "[trainer.schedule] has the unknown key 'flor'. Did you mean 'floor'"),
        ("freeze_stages = 2", "freeze_stages = 'two'", "freeze_stages must be a whole number"),
        ("nets/one", "nets/two", "nets/two: No such file or directory. Name a safetensors file"),
        ("nets/one", "nets", "nets/model.safetensors: No such file or directory"),
    ],
)
def test_what_fine_tuning_does_not_take_is_said_with_the_nearest(
    small: Path, old: str, new: str, message: str
) -> None:
    folder = small.parent / "nets" / "one"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(serialize({"a": torch.zeros(2)}))
    small.write_text(FINE_TUNED.replace(old, new))
    with pytest.raises(UsageError) as result:
        read(small)
    assert message in str(result.value) and result.value.code == "usage"


@attrs.frozen
class Thing:
    count: int
    rate: float = 1.0
    word: Literal["one", "two"] | None = None
    name: str = ""
    flag: bool = False
    size: tuple[int, int] | None = None
    words: tuple[str, ...] = ()
    table: Mapping[str, Any] = attrs.field(factory=dict)


@pytest.mark.parametrize(
    "value",
    [
        {"count": 3},
        {
            "count": 0,
            "rate": 2,
            "word": "two",
            "name": "x",
            "flag": True,
            "size": [1, 2],
            "words": ["a"],
            "table": {},
        },
        {"count": 3, "words": []},
    ],
)
def test_values_that_fit(value: dict[str, Any]) -> None:
    made = Thing(**check_values(Thing, value, "here"))
    assert made.count == value["count"] and isinstance(made.words, tuple)


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ({}, "here lacks count"),
        ({"count": 1.0}, "count must be a whole number, got 1.0"),
        ({"count": True}, "count must be a whole number, got True"),
        ({"count": -1}, "count must be finite and not negative, got -1"),
        ({"count": 1, "rate": "1"}, "rate must be a number, got '1'"),
        ({"count": 1, "rate": False}, "rate must be a number"),
        ({"count": 1, "rate": float("inf")}, "rate must be finite"),
        ({"count": 1, "rate": float("nan")}, "rate must be finite"),
        ({"count": 1, "word": "tow"}, "word must be 'one' or 'two', got 'tow'. Did you mean 'two'?"),
        ({"count": 1, "word": 1}, "word must be 'one' or 'two', got 1."),
        ({"count": 1, "name": 5}, "name must be a string, got 5"),
        ({"count": 1, "flag": 1}, "flag must be true or false, got 1"),
        ({"count": 1, "size": [1, 2, 3]}, "size must be a list of 2, each a whole number, got [1, 2, 3]"),
        ({"count": 1, "size": [1, 2.5]}, "size must be a list of 2"),
        ({"count": 1, "size": 7}, "size must be a list of 2"),
        ({"count": 1, "words": "abc"}, "words must be a list, each a string, got 'abc'"),
        ({"count": 1, "words": [1]}, "words must be a list, each a string"),
        ({"count": 1, "table": [1]}, "table must be a table, got [1]"),
        ({"cuont": 1}, "here has the unknown key 'cuont'. Did you mean 'count'? Known are count, rate"),
    ],
)
def test_values_that_do_not_fit_are_told_with_what_would(requested: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_values(Thing, requested, "here")
    assert expected in str(caught.value)


def test_an_unknown_key_without_a_near_one() -> None:
    with pytest.raises(UsageError, match=r"^here has the unknown key 'x'\. Known are long, names\.$"):
        check_keys({"x": 1}, ("long", "names"), "here")
