"""Networks of different architecture in one run: a shared width, a shared head alone, a frozen extractor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from fleets import ALL, NETWORKS, OLD, REST, published, small_data, tasks
from small import quick

import compatkit as ck
from compatkit.errors import UsageError


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    registry = published(tmp_path_factory.mktemp("fleet") / "parts")
    registry.extend("fleet/shared.dcc", ALL[len(OLD) :], "fleet/ten.head")
    return registry


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_three_architectures_share_one_head_and_have_no_other(fleet: ck.Registry) -> None:
    assert [component.name for component in fleet.search(pattern="fleet/*.extractor")] == [
        f"fleet/{name}.extractor" for name in sorted(NETWORKS)
    ]
    assert [component.name for component in fleet.search(pattern="fleet/shared.*")] == [
        "fleet/shared.dcc",
        "fleet/shared.rotation",
    ]
    assert [component.name for component in fleet.search(pattern="fleet/*.head")] == ["fleet/ten.head"]
    head = fleet.store.manifest("fleet/shared.dcc")
    assert (head.blueprint.model, head.blueprint.cut) == (REST["model"], REST["cut"])
    assert "from_width.weight" not in fleet.load("fleet/shared.dcc").state_dict()
    images = torch.zeros(2, 1, 16, 16)
    for name in NETWORKS:
        part = fleet.store.manifest(f"fleet/{name}.extractor")
        assert part.blueprint.width == part.contract.structural.outputs[0].channels == 16
        report = fleet.check(f"fleet/{name}.extractor", "fleet/shared.dcc")
        assert (report.wiring, report.promise) == ("direct", "shared-head")
        features = fleet.load(f"fleet/{name}.extractor")(images)
        assert fleet.load("fleet/shared.dcc")(features).shape == (2, 3)


def test_each_step_is_of_one_extractor_and_of_the_shared_head() -> None:
    """Cycled, one batch each: the loss of one task moves no other task's extractor."""
    seen: list[tuple[str, list[str]]] = []

    class Watch:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.owners = setup.owners
            assert not [owner for owner in setup.owners if owner.endswith(".head")]

        @ck.hookimpl
        def compatkit_after_backward(self, step: ck.Step) -> None:
            moved = [
                owner
                for owner, module in self.owners.items()
                if any(
                    parameter.grad is not None and bool(parameter.grad.any())
                    for parameter in module.parameters()
                )
            ]
            seen.append((step.task.name, moved))
            assert step.logits is None

    quick(steps=2).fit(tasks(), ["dcc", "watch"], factories={"watch": Watch})
    assert seen == [(name, [f"{name}.extractor", "shared.dcc"]) for name in NETWORKS] * 2


def test_own_heads_of_different_architecture_leave_the_choice_of_the_shared_ones() -> None:
    data = small_data()
    inputs = [ck.Task(name, data, *NETWORKS[name], size=16, width=8) for name in ("desk", "phone")]
    fit = quick(steps=1).fit(inputs, [ck.use("dcc", like="phone")])
    assert fit.auxiliary["dcc"].blueprint.model == NETWORKS["phone"][0]
    assert [fit.tasks[name].head_blueprint.model for name in fit.tasks] == [
        NETWORKS[name][0] for name in fit.tasks
    ]
    assert fit.auxiliary["dcc"].module.state_dict()["from_width.weight"].shape == (16, 8, 1, 1)
    with pytest.raises(UsageError, match=r"like='tablet' is no task of this run; its tasks are desk, phone"):
        quick(steps=1).fit(inputs, [ck.use("dcc", like="tablet")])


def test_features_of_different_width_name_the_remedy() -> None:
    inputs = [ck.Task(name, small_data(), *NETWORKS[name], size=16) for name in ("desk", "server")]
    with pytest.raises(UsageError, match=r"'desk' gives \(32, 8, 8\), 'server' gives \(64, 8, 8\).*width=32"):
        quick(steps=1).fit(inputs, ["dcc"])
    wide = [attrs.evolve(task, width=32) for task in inputs]
    assert quick(steps=1).fit(wide, ["dcc"]).history[-1]["losses"]["dcc/loss"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "'width' must be a whole number from 1 to 65,?536, or None; got 0"),
        ({"rest": {"model": "resnet8_cifar"}}, "Task.rest expects a table of model, cut"),
        ({"freeze_extractor": True}, "which needs a trained extractor"),
        ({"rest": REST, "weights": {}}, "weights of a complete network, but rest="),
    ],
)
def test_what_cannot_be_meant_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ck.Task("x", small_data(), "resnet8_cifar", "layer2", **change)


def test_a_task_without_a_head_cannot_be_evaluated_and_needs_a_loss() -> None:
    task = tasks()[1]
    with pytest.raises(UsageError, match="has no head of its own, so it cannot be evaluated"):
        quick(steps=1, evaluate_every=1, evaluate_on="test").fit([task], ["dcc"])
    with pytest.raises(UsageError, match="it has no head of its own, and no active regularizer has a loss"):
        quick(steps=1).fit([task])


@pytest.mark.parametrize("statistics", ["stored", "batch"])
def test_a_frozen_extractor_is_bitwise_what_it_was(fleet: ck.Registry, statistics: Any) -> None:
    before, head = state(fleet.load("fleet/server.extractor")), state(fleet.load("fleet/ten.head"))
    task = fleet.task(
        "update",
        small_data(ALL),
        extractor="fleet/server.extractor",
        head="fleet/ten.head",
        freeze_extractor=True,
    )
    fit = quick(steps=2, ema=0.5).fit([task], frozen_statistics=statistics)
    for result in (fit, fit.averaged()):
        assert equal(state(result.tasks["update"].extractor), before)
        assert not equal(state(result.tasks["update"].head), head)
    assert fit.run["tasks"][0]["frozen_extractor"] == statistics
    assert all(parameter.grad is None for parameter in fit.tasks["update"].extractor.parameters())
    parts = fleet.publish(fit, prefix=f"updated/{statistics}")
    assert list(parts) == ["update.head"]
    updated = fleet.store.manifest(parts["update.head"])
    assert [(parent.relation, parent.component) for parent in updated.parents] == [
        ("trained_with", str(fleet.store.resolve("fleet/server.extractor").digest)),
        ("initialised_from", str(fleet.store.resolve("fleet/ten.head").digest)),
    ]
    for name in NETWORKS:
        report = fleet.check(f"fleet/{name}.extractor", parts["update.head"])
        promise = "one-network" if name == "server" else "shared-head"
        assert (report.wiring, report.promise) == ("direct", promise)


def test_a_frozen_extractor_normalizes_by_the_batch_where_that_is_asked_for(fleet: ck.Registry) -> None:
    task = fleet.task("x", small_data(), extractor="fleet/desk.extractor", rest=REST, freeze_extractor=True)
    seen: dict[str, torch.Tensor] = {}

    class Watch:
        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, torch.Tensor]:
            module, images = step.task.extractor, step.batch.images
            with torch.no_grad():
                assert step.features is not None and not step.features.requires_grad
                module.train()
                before = state(module)
                seen["batch"] = module(images)
                module.load_state_dict(before)
                seen["stored"] = module.eval()(images)
            seen["came"] = step.features
            assert torch.equal(step.extract(images, write_statistics=True), step.features)
            return {}

    for statistics in ("stored", "batch"):
        fit = quick(steps=1).fit([task], ["watch"], frozen_statistics=statistics, factories={"watch": Watch})
        assert torch.allclose(seen["came"], seen[statistics], atol=1e-5)
        assert not torch.allclose(seen["stored"], seen["batch"], atol=1e-2)
        assert equal(state(fit.tasks["x"].extractor), state(fleet.load("fleet/desk.extractor")))


def test_with_a_frozen_rotation_head_the_extractor_moves_and_keeps_its_promise(fleet: ck.Registry) -> None:
    task = fleet.task("update", small_data(ALL), extractor="fleet/server.extractor", head="fleet/ten.head")
    frozen = fleet.frozen("fleet/shared.rotation")
    before = state(frozen["rotation"].module)
    uses = [ck.use("rotation_prediction", half_turn="flip")]
    fit = quick(steps=1).fit([task], uses, frozen=frozen)
    assert equal(state(fit.auxiliary["rotation"].module), before)
    assert not equal(state(fit.tasks["update"].extractor), state(fleet.load("fleet/server.extractor")))
    parts = fleet.publish(fit, prefix="moved")
    assert list(parts) == ["update.extractor", "update.head"]
    promises = {"fleet/phone.extractor": "shared-head", parts["update.extractor"]: "one-network"}
    assert {name: fleet.check(name, parts["update.head"]).promise for name in promises} == promises


@pytest.mark.filterwarnings("ignore:Batch normalization takes the statistics of the batch")
def test_one_updated_head_goes_on_all_extractors_and_is_exported(fleet: ck.Registry, tmp_path: Path) -> None:
    data = small_data(ALL)
    matrix = fleet.matrix("fleet/*.extractor", "fleet/ten.head", [data.test])
    assert len(matrix.cells) == 3 and all(cell.restricted is not None for cell in matrix.cells)
    made = fleet.recombine("fleet/phone.extractor", "fleet/ten.head", bn_policy="batch")
    name = fleet.publish(made, "fleet/phone.network")
    written = fleet.export(name, tmp_path / "phone.safetensors")
    assert written.description.names == "parts"
    again = ck.load_exported(tmp_path / "phone.safetensors")
    assert len(again.predict(data.test.images[..., :])) == len(data.test)
    desk = fleet.recombine("fleet/desk.extractor", "fleet/shared.dcc", bn_policy="running")
    assert desk(torch.zeros(2, 1, 16, 16)).shape == (2, 3)


def test_a_pattern_brings_in_no_shared_heads_and_a_name_does(fleet: ck.Registry) -> None:
    test = small_data(ALL).test
    wanted = fleet.matrix("fleet/desk.extractor", "fleet/*", [test])
    assert [head.reference for head in wanted.heads] == ["fleet/ten.head@1.0.0"]
    names = fleet.matrix("fleet/desk.extractor", "fleet/shared.dcc", [small_data().test])
    assert [head.reference for head in names.heads] == ["fleet/shared.dcc@1.0.0"]
