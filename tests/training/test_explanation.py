"""What a run would do, said before it: nothing is left to be guessed, and nothing is trained."""

from __future__ import annotations

import attrs
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import FormatError, PluginError

TASKS = [
    ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
    for seed, name in enumerate(("left", "right"))
]


def test_tasks_owners_hooks_and_execution_are_told_in_their_order() -> None:
    explanation = quick(steps=9).explain(TASKS, ["dcc", ck.use("rotation_prediction", start=2, stop=5)])
    assert [task["task"] for task in explanation.tasks] == ["left", "right"]
    assert (explanation.tasks[0]["batch"], explanation.tasks[0]["steps_an_epoch"]) == (8, 48 // 8)
    assert [owner["owner"] for owner in explanation.owners] == [
        *("left.extractor", "left.head", "right.extractor", "right.head", "shared.dcc", "shared.rotation")
    ]
    assert [owner["moved_by"] for owner in explanation.owners][::2] == [
        *("network/left (adam)", "network/right (adam)", "shared.dcc (adam)")
    ]
    assert explanation.execution["mode"] == "eager"
    text = str(explanation)
    assert "Task left\n" in text and "  network: resnet8_cifar\n  cut: layer2\n" in text
    assert "  steps_per_epoch: 6\n" in text
    assert "rotation_prediction" in text and "2 to 5" in text


def test_every_hyperparameter_is_told() -> None:
    trainer = quick(
        steps=9, optimizer="adamw", lr=0.125, weight_decay=0.5, schedule="cosine", warmup=3, clip_norm=2.0
    )
    task = ck.Task(
        "left", data_set("left"), "resnet8_cifar", "layer2", size=16, augment={"re_prob": 0.25}, smoothing=0.1
    )
    explanation = trainer.explain([task, TASKS[1]], [ck.use("rotation_prediction", weight=0.75, start=2)])
    run = (
        attrs.evolve(trainer, steps=0)
        .fit([task, TASKS[1]], [ck.use("rotation_prediction", weight=0.75, start=2)])
        .run
    )
    stated = {
        name.replace("optimiser", "optimizer"): value
        for name, value in run["trainer"].items()
        if name not in ("scheduling", "steps_are")
    }
    chosen = {"device": "cpu", "precision": run["environment"]["precision"]}
    assert explanation.settings == {**stated, "steps": 9, **chosen}
    assert explanation.regularizers == tuple(run["plugins"])
    assert [task["augment"] for task in explanation.tasks] == [task["augment"] for task in run["tasks"]]
    text = str(explanation).splitlines()
    for line in (
        "  optimizer: adamw",
        "  lr: 0.125",
        "  weight_decay: 0.5",
        "  schedule: cosine",
        "  warmup: 3",
        "  batch_size: 8",
        "  clip_norm: 2.0",
        "  precision: float32",
        "    re_prob: 0.25",
        "  smoothing: 0.1",
    ):
        assert line in text, line
    place = text.index("  rotation_prediction:")
    for name in run["plugins"][0]["settings"]:
        assert any(line.startswith(f"    {name}: ") for line in text[place:])


def test_every_parameter_of_the_run_has_its_owner_and_frozen_heads_are_moved_by_nothing() -> None:
    first = quick(steps=1).fit(TASKS[:1], ["dcc"])
    explanation = quick(steps=1).explain(TASKS[1:], ["dcc"], frozen=first)
    owners = {owner["owner"]: owner for owner in explanation.owners}
    assert set(owners) == {"right.extractor", "right.head", "frozen.dcc"}
    assert owners["frozen.dcc"]["moved_by"] is None and "parameters, optimizer none" in str(explanation)
    network = torch.nn.Sequential(first.tasks["left"].extractor, first.tasks["left"].head)
    count = sum(len(owners[f"right.{side}"]["parameters"]) for side in ("extractor", "head"))
    assert count == len(list(network.parameters()))


def test_nothing_is_trained_and_torchs_random_state_stays() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    quick(steps=10**9).explain(TASKS, ["identical_init", "dcc"])
    assert torch.equal(torch.rand(1), expected)


class Chooses:
    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        setup.tell({"layers": ["conv1", "fc"]})
        setup.tell({"right": {"share": 0.5, "why": "asked for"}})


def test_what_a_plugin_chose_is_shown_and_stands_in_the_manifest() -> None:
    explanation = quick(steps=1).explain(TASKS[1:], ["chooses", "dcc"], factories={"chooses": Chooses})
    chosen = {"layers": ["conv1", "fc"], "right": {"share": 0.5, "why": "asked for"}}
    assert explanation.chosen == explanation.to_json()["chosen"] == {"chooses": chosen}
    expected = [
        "Chosen by chooses",
        "  layers: conv1, fc",
        "  right:",
        "    share: 0.5",
        "    why: asked for",
    ]
    assert "\n".join(expected) in str(explanation)
    run = quick(steps=1).fit(TASKS[1:], ["chooses", "dcc"], factories={"chooses": Chooses}).run
    assert [plugin.get("chosen") for plugin in run["plugins"]] == [chosen, None]


def test_a_choice_is_told_in_the_set_up_in_json_values() -> None:
    class Late:
        setup: ck.SetUp

        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.setup = setup

        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, torch.Tensor]:
            self.setup.tell({"layers": 3})
            return {}

    class Odd:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            setup.tell({"layers": object()})

    with pytest.raises(PluginError, match="tell can only be called in compatkit_set_up"):
        quick(steps=1).fit(TASKS[:1], ["late"], factories={"late": Late})
    with pytest.raises(FormatError, match=r"value\.layers: expected a JSON value, got object"):
        quick(steps=1).fit(TASKS[:1], ["odd"], factories={"odd": Odd})
