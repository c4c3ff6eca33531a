"""A task without labels beside plugins that look at labels, at answers, or at layers of the head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from adapted import publish_source, target
from small import quick, same_parts
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import UsageError


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> ck.Task:
    """Images without labels, and a network that was trained."""
    root = tmp_path_factory.mktemp("source") / "parts"
    publish_source(root)
    registry = ck.Registry.open(root)
    return registry.task(
        "target", target(), extractor="d/left.extractor", head="d/left.head", supervised=False
    )


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def trained(task: ck.Task, *uses: ck.RegularizerConfig, **settings: Any) -> ck.Fit:
    """Return two steps, of which the head has no trace."""
    assert task.head is not None and task.extractor is not None
    fit = quick(**{"steps": 2, "lr": 1e-3, **settings}).fit([task], uses)
    own = state(fit.tasks["target"].head)
    assert all(torch.equal(value, own[name]) for name, value in task.head.module.state_dict().items())
    moved = state(fit.tasks["target"].extractor)
    assert any(not torch.equal(v, moved[k]) for k, v in task.extractor.module.state_dict().items())
    return fit


def convolutions(task: ck.Task) -> list[str]:
    assert task.extractor is not None
    return [name for name, value in task.extractor.module.named_modules() if isinstance(value, nn.Conv2d)]


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (ck.use("dcc"), "dcc tells classes apart; task 'target' has no labels"),
        (
            ck.use("reverse_pass", variant="full"),
            r"variant='full' .* the head of task 'target'.* variant='local'",
        ),
        (
            ck.use("reverse_pass", variant="first"),
            r"variant='first' .* the head of task 'target'.* variant='local'",
        ),
        (ck.use("layerwise_autoencoder"), "'target' has no labels, so that its head stays as it is"),
        (ck.use("identical_init"), "would draw its weights again"),
    ],
)
def test_what_needs_labels_or_the_head_is_refused(task: ck.Task, use: ck.RegularizerConfig, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        quick(steps=1).fit([task], [use])


def test_the_local_reverse_pass_takes_the_layers_of_the_extractor(task: ck.Task) -> None:
    some = ["conv1", "layer1.0.conv1"]
    for settings, value in (
        ({}, {"layers": convolutions(task)}),
        ({"activation": True, "layers": [*some, "layer3.*"]}, {"activation": True, "layers": some}),
    ):
        fit, same = (trained(task, ck.use("reverse_pass", **item)) for item in (settings, value))
        assert same_parts(fit, same) and fit.history[-1]["losses"] == same.history[-1]["losses"]
    with pytest.raises(UsageError, match=r"left out: .*of the head, which does not run for a task without"):
        quick(steps=1).fit([task], [ck.use("reverse_pass", layers=["layer3.*"])])


def test_a_sampled_reverse_pass_draws_among_the_layers_of_the_extractor(task: ck.Task) -> None:
    """One of its layers in each step: were the head's among them, many steps would have no loss."""
    first = 1 / len(convolutions(task))
    fit = trained(task, ck.use("reverse_pass", sample_layers=first, sample_images=0.5), steps=8)
    losses = [row["losses"]["reverse_pass/loss"] for row in fit.history]
    assert len(losses) == 8 and min(losses) > 0


def test_orthogonality_takes_the_weights_of_the_extractor(task: ck.Task) -> None:
    fit = trained(task, ck.use("orthogonality", kind="so"))
    assert task.extractor is not None
    wanted = 0.0
    for name in convolutions(task):
        rows = task.extractor.module.get_submodule(name).weight.detach().flatten(1).double()  # type: ignore[operator, union-attr]
        rows = rows if rows.shape[0] < rows.shape[1] else rows.T
        wanted += float((rows @ rows.T - torch.eye(len(rows))).square().sum())
    assert fit.history[0]["losses"]["orthogonality/loss"] == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(UsageError, match="no convolution or linear layer left whose weight moves"):
        quick(steps=1).fit([task], [ck.use("orthogonality", layers=["fc"])])


def test_contrasts_train_the_extractor_and_a_head_of_their_own(task: ck.Task) -> None:
    fit = trained(task, ck.use("contrastive", dimensions=4))
    assert list(fit.history[0]["losses"]) == ["contrastive/loss"]
    assert list(fit.auxiliary) == ["contrastive"] and not fit.auxiliary["contrastive"].frozen


def test_a_step_in_which_nothing_gives_a_loss_says_so(task: ck.Task) -> None:
    with pytest.raises(
        UsageError, match=r"it has no labels, and no active regularizer has a loss that trains its extractor"
    ):
        quick(steps=1).fit([task], [ck.use("orthogonality", schedule=[[0, 0.0]])])


def test_layers_of_the_head_are_not_recorded(task: ck.Task) -> None:
    class Asking:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            setup.record_layers(setup.tasks["target"], ["conv1", "fc"])

    with pytest.raises(UsageError, match=r"'fc' cannot be recorded: it belongs to the head of task 'target'"):
        quick(steps=1).fit([task], ["asking"], factories={"asking": Asking})
