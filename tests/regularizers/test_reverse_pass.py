"""The local reverse pass: the formula against a slow reference, on chains, real networks, and in every way to run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch
import torch.nn.functional as F
from small import data_set, grouped, quick, same_parts
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import CompatkitError, PluginError, UnknownName, UsageError
from compatkit_plugins.regularizers.reverse_pass import ReversePass, reverse_pass
from compatkit_plugins.regularizers.reverse_pass.local import local_loss


def calls(network: nn.Module, images: Tensor) -> dict[str, list[ck.LayerCall]]:
    """Run a network; return the records of its dense layers and convolutions."""
    result: dict[str, list[ck.LayerCall]] = {}
    hooks = [
        layer.register_forward_hook(
            lambda layer, inputs, output, name=name: result.setdefault(name, []).append(
                ck.LayerCall(inputs[0], output, layer)
            )
        )
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    network(images)
    for hook in hooks:
        hook.remove()
    return result


def matrix(layer: nn.Module, like: Tensor) -> Tensor:
    """Return M of a layer, column by column: what it gives for each unit vector, less what it gives for zeros."""
    units = torch.eye(like[0].numel(), dtype=like.dtype).reshape(-1, *like.shape[1:])
    nothing = layer(torch.zeros_like(like[:1]))
    return (layer(units) - nothing).flatten(1).T


def reference(records: Mapping[str, Sequence[ck.LayerCall]]) -> Tensor:
    """Equation 3, with the matrix of every layer built: the mean over images and elements, the sum over layers."""
    total = torch.zeros((), dtype=torch.float64)
    for called in records.values():
        for taken, _, layer in called:
            m, d = matrix(layer, taken), taken.flatten(1).T
            total = total + (m.T @ (m @ d) - d).square().mean()
    return total


def test_the_loss_and_its_gradients_are_those_of_the_equations() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 9, 5),
    ).double()
    images = torch.randn(3, 2, 6, 5, dtype=torch.float64)
    records = calls(network, images)
    loss = local_loss(records, dict.fromkeys(records, 1.0))
    assert loss is not None
    got = torch.autograd.grad(loss, list(network.parameters()), retain_graph=True, allow_unused=True)
    slow = reference(calls(network, images))
    expected = torch.autograd.grad(slow, list(network.parameters()), allow_unused=True)
    torch.testing.assert_close(loss, slow)
    for entry, other in zip(got, expected, strict=True):
        torch.testing.assert_close(
            torch.zeros(()) if entry is None else entry, torch.zeros(()) if other is None else other
        )


def test_on_a_linear_chain_it_is_how_far_each_matrix_is_from_its_own_inverse() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3, bias=False))
    images = torch.randn(5, 6)
    first, second = (layer.weight for layer in network)
    hidden = network[0](images)
    expected = sum(
        (d @ m.T @ m - d).square().sum() / d.numel() for m, d in ((first, images), (second, hidden))
    )
    loss = local_loss(calls(network, images), {"0": 1.0, "1": 1.0})
    torch.testing.assert_close(loss, expected)
    by_hand = local_loss(
        {"0": [ck.LayerCall(torch.tensor([[3.0]]), torch.tensor([[6.0]]), scaled(2.0))]}, {"0": 0.5}
    )
    assert float(by_hand.detach()) == 0.5 * (2 * 2 * 3 - 3) ** 2  # type: ignore[union-attr]


def scaled(weight: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def test_a_target_that_is_detached_gets_no_gradient() -> None:
    images = torch.randn(4, 3, requires_grad=True)
    layer = nn.Linear(3, 3)
    record = {"0": [ck.LayerCall(images, layer(images.detach()), layer)]}
    saved = local_loss(record, {"0": 1.0})
    torch.autograd.grad(saved, images, retain_graph=True)  # type: ignore[arg-type]
    loss = local_loss(record, {"0": 1.0}, detach_target=True)
    assert torch.autograd.grad(loss, images, allow_unused=True) == (None,)  # type: ignore[arg-type]


def test_a_layer_of_weight_0_costs_nothing_and_one_called_twice_counts_twice() -> None:
    layer, images = nn.Linear(3, 3), torch.randn(4, 3)
    call = ck.LayerCall(images, layer(images), layer)
    once, twice = local_loss({"0": [call]}, {"0": 1.0}), local_loss({"0": [call, call]}, {"0": 1.0})
    torch.testing.assert_close(2 * once, twice)  # type: ignore[operator]
    assert local_loss({"0": [call]}, {"0": 0.0}) is None


def test_singular_values_of_active_directions_become_1() -> None:
    """Appendix A.2 of the paper: small initial weights, inputs of which two directions are strong."""
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(8, 8))[0]
    inputs = torch.randn(256, 2) * torch.tensor([3.0, 2.0]) @ basis[:2]
    layer = nn.Linear(8, 4)
    with torch.no_grad():
        layer.weight.mul_(0.05)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        loss = local_loss({"0": [ck.LayerCall(inputs, layer(inputs), layer)]}, {"0": 1.0})
        assert loss is not None
        loss.backward()
        optimizer.step()
    _, sigma, right = torch.linalg.svd(layer.weight.detach())
    torch.testing.assert_close(sigma[:2], torch.ones(2), atol=0.02, rtol=0)
    assert float(sigma[2]) < 0.4  # no data there, so nothing pulls
    torch.testing.assert_close((right[:2] @ basis[:2].T).norm(), torch.tensor(2.0).sqrt(), atol=0.02, rtol=0)


def small(name: str = "a", **settings: Any) -> ck.Task:
    inputs = {"model": "resnet8_cifar", "cut": "layer2", "size": 16, **settings}
    return ck.Task(name, data_set(name), **inputs)


def plugin_of(task: ck.Task, **settings: Any) -> ReversePass:
    """Return a plugin after its set-up for a task."""
    made: list[ReversePass] = []

    def make() -> ReversePass:
        made.append(reverse_pass(**settings))
        return made[0]

    quick(steps=1, batch_size=4).fit([task], ["rr"], factories={"rr": make})
    return made[0]


def test_all_layers_but_the_class_layer_are_reversed_and_gates_are_not() -> None:
    chosen = plugin_of(small()).selections["a"]
    assert "conv1" in chosen.layers and dict(chosen.left_out) == {"fc": "class layer"}
    gated = plugin_of(small(model="efficientnet_b0", cut="blocks.2", size=32)).selections["a"]
    reasons = set(gated.left_out.values())
    assert reasons == {"class layer", "gate: works on pooled features inside of a block"}
    assert all(".se." in name for name, why in gated.left_out.items() if "gate" in why)
    names = plugin_of(small(), layers=["layer2.*", "fc", "!*.conv2"]).selections["a"]
    assert names.layers == ("layer2.0.downsample.0", "layer2.0.conv1", "fc") or set(names.layers) >= {"fc"}
    assert not any(name.endswith("conv2") for name in names.layers)


def test_the_loss_of_a_run_is_the_formula_on_its_first_batch() -> None:
    seen: list[float] = []

    class Slow:
        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, Tensor]:
            network = nn.Sequential(step.task.extractor, step.task.head)
            records = calls(network, step.batch.images)
            saved = {name: record for name, record in records.items() if not name.endswith("fc")}
            seen.append(float(reference_by_conv(saved)))
            return {}

    fit = quick(steps=1).fit([small()], ["reverse_pass", "slow"], factories={"slow": Slow})
    assert fit.history[0]["losses"]["reverse_pass/loss"] == pytest.approx(seen[0], rel=1e-4)


def reference_by_conv(records: Mapping[str, Sequence[ck.LayerCall]]) -> Tensor:
    """The same by the layer's own derivative, for layers whose matrix is large."""
    total = torch.zeros(())
    for called in records.values():
        for taken, value, layer in called:
            x = taken.detach().requires_grad_()
            bias = 0 if layer.bias is None else layer.bias.view(-1, 1, 1)  # type: ignore[union-attr, operator]
            (back,) = torch.autograd.grad(layer(x), x, value - bias)
            total = total + (back - taken).square().mean().detach()
    return total


def test_weight_0_and_steps_outside_of_its_phase_change_nothing() -> None:
    without = quick(steps=2).fit([small()])
    for use in (ck.use("reverse_pass", weight=0), ck.use("reverse_pass", start=7)):
        assert same_parts(quick(steps=2).fit([small()], [use]), without)
    assert not same_parts(quick(steps=2).fit([small()], ["reverse_pass"]), without)


def test_pieces_of_a_batch_give_the_gradients_of_the_whole() -> None:
    settings = {"optimizer": "sgd", "steps": 2, "lr": 0.001}
    whole = quick(**settings).fit([grouped()], ["reverse_pass"])
    parts = quick(**settings, accumulate=4).fit([grouped()], ["reverse_pass"])
    for key, value in whole.weights("a").items():
        torch.testing.assert_close(parts.weights("a")[key], value, rtol=1e-4, atol=1e-6, msg=key)
    result, expected = (dict(fit.history[0]["losses"]) for fit in (parts, whole))
    for item in (result, expected):  # of each piece by itself
        assert item.pop("reverse_pass/gradient_ratio") > 0
    assert result == pytest.approx(expected, rel=1e-4)


def gradient_norms(fit: ck.Fit, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Norms of the gradients of the task's loss and of the local loss, each by itself, in double precision."""
    network = copy.deepcopy(fit.network("a")).double()
    network.train()
    records = {
        name: call for name, call in calls(network, images.double()).items() if not name.endswith("fc")
    }
    pulled = local_loss(records, dict.fromkeys(records, 1.0))
    assert pulled is not None
    norms = []
    for loss in (F.cross_entropy(network(images.double()), labels), pulled):
        result = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
        norms.append(float(sum((match**2).sum() for match in result if match is not None)) ** 0.5)
    return norms[0], norms[1]


class First:
    """Keeps the first batch."""

    batch: ck.Batch

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        if step.number == 0:
            self.batch = step.batch


@pytest.mark.parametrize("balance", ["weight", "gradient"])
def test_gradients_are_compared_with_the_tasks_and_balanced(balance: str) -> None:
    """Against gradients taken apart in double precision, of the network before its first step."""
    first = First()
    uses = [ck.use("reverse_pass", weight=0.25, balance=balance), "first"]
    fit = quick(steps=1).fit([grouped()], uses, factories={"first": lambda: first})
    of_task, of_pass = gradient_norms(
        quick(steps=0).fit([grouped()], uses[:1]), first.batch.images, first.batch.labels
    )
    losses = fit.history[0]["losses"]
    if balance == "weight":
        assert losses["reverse_pass/gradient_ratio"] == pytest.approx(0.25 * of_pass / of_task, rel=1e-4)
        assert "reverse_pass/factor" not in losses
    else:
        assert losses["reverse_pass/factor"] == pytest.approx(0.25 * of_task / of_pass, rel=1e-4)
        assert "reverse_pass/gradient_ratio" not in losses


def test_balanced_gradients_stay_at_their_share_in_every_step() -> None:
    shares: list[float] = []

    class Shares:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            setup.compare_gradients()

        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, torch.Tensor]:
            assert step.reports
            return {}

        @ck.hookimpl
        def compatkit_after_backward(self, step: ck.Step) -> None:
            network = [*step.task.extractor.parameters(), *step.task.head.parameters()]
            whole = [module.grad.clone() for module in network if module.grad is not None]
            logits = step.task.head(step.task.extractor(step.batch.images))
            alone = torch.autograd.grad(F.cross_entropy(logits, step.batch.labels), network)
            rest = sum(float(((a - b) ** 2).sum()) for a, b in zip(whole, alone, strict=True)) ** 0.5
            shares.append(rest / sum(float((b**2).sum()) for b in alone) ** 0.5)

    uses = [ck.use("reverse_pass", weight=0.3, balance="gradient"), "shares"]
    quick(steps=3).fit([grouped()], uses, factories={"shares": Shares})
    assert shares == pytest.approx([0.3] * 3, rel=1e-3)


class Elsewhere:
    """A loss that does not reach the task's network, or reaches nothing."""

    def __init__(self, balance: bool) -> None:
        self.balance = balance

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        setup.compare_gradients(balance=self.balance)
        self.head = setup.add_auxiliary_head("elsewhere", outputs=2)

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> dict[str, Tensor]:
        assert step.features is not None
        return {"loss": self.head(step.features.detach()).square().mean()}


@pytest.mark.parametrize(("balance", "name"), [(False, "gradient_ratio"), (True, "factor")])
def test_a_loss_that_the_network_does_not_feel_is_no_share(balance: bool, name: str) -> None:
    uses, factories = ["elsewhere"], {"elsewhere": lambda: Elsewhere(balance)}
    fit = quick(steps=1).fit([grouped()], uses, factories=factories)
    assert 0 <= fit.history[0]["losses"][f"elsewhere/{name}"] < 1e-9


def test_the_last_row_tells_the_ratio_where_steps_are_no_multiple_of_the_rows() -> None:
    fit = quick(steps=5, log_every=2).fit([small()], ["reverse_pass"])
    assert [row["step"] for row in fit.history] == [2, 4, 5]
    assert all(row["losses"]["reverse_pass/gradient_ratio"] > 0 for row in fit.history)


def test_weights_do_not_depend_on_what_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = []
    for _ in range(2):
        fits.append(quick(steps=3).fit([small()], ["reverse_pass"]))
        monkeypatch.setattr(ck.SetUp, "compare_gradients", lambda self, balance=False: None)
    assert "reverse_pass/gradient_ratio" not in fits[1].history[0]["losses"]
    assert same_parts(*fits)


@pytest.mark.parametrize("share", ["sample_images", "sample_layers"])
def test_a_sample_is_not_balanced(share: str) -> None:
    with pytest.raises(UsageError, match="would not estimate the whole"):
        reverse_pass(balance="gradient", **{share: 0.5})


def test_a_share_of_no_gradient_is_refused() -> None:
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16, own_head=False)
    with pytest.raises(PluginError) as result:
        quick(steps=1).fit([task], ["dcc", ck.use("reverse_pass", balance="gradient")])
    assert "so there is no loss to balance gradients against" in str(result.value)
    with pytest.raises(PluginError) as result:
        quick(steps=1).fit([small()], [ck.use("reverse_pass", balance="loss")])
    assert "weight, gradient" in str(result.value)


def test_residuals_are_float32_under_bf16() -> None:
    fits = [
        quick(steps=1, precision=precision).fit([small()], ["reverse_pass"])
        for precision in ("float32", "bf16")
    ]
    full, half = (fit.history[0]["losses"]["reverse_pass/loss"] for fit in fits)
    assert half == pytest.approx(full, rel=0.02)


def test_the_manifest_says_how_it_is_reduced() -> None:
    fit = quick(steps=1).fit([small()], [ck.use("reverse_pass", weight=0.1, layers=["layer1.*"])])
    settings = fit.run["plugins"][0]["settings"]
    assert settings["reduction"] == "mean"
    assert (settings["weight"], settings["variant"], settings["layers"]) == (0.1, "local", ["layer1.*"])
    chosen = fit.run["plugins"][0]["chosen"]["a"]
    assert chosen["layers"] == {"layer1.0.conv1": 1.0, "layer1.0.conv2": 1.0}
    assert (chosen["left_out"]["conv1"], chosen["left_out"]["fc"]) == ("not named in `layers`",) * 2


def test_a_plan_lists_the_layers_with_their_factors_and_those_left_out() -> None:
    use = ck.use("reverse_pass", layer_weights={"layer2.*": 0.5})
    explanation = quick(steps=1).explain([small()], [use])
    assert explanation.chosen["reverse_pass"]["a"]["layers"]["layer2.0.conv1"] == 0.5
    assert "fc: class layer" in str(explanation)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "global"}, "'variant' must be one of local, full, first; got 'global'"),
        ({"bn_reverse": "none"}, "'bn_reverse' must be one of batch, forward_batch, running"),
        ({"reduction": "sum"}, "'reduction' must be one of mean; got 'sum'"),
        ({"layer_weights": {"conv1": -1}}, "'conv1' must be a number from 0 up; got -1"),
        ({"layer_weights": ["conv1"]}, r"layer_weights must map patterns to factors, .*; got \['conv1'\]"),
        ({"layer_weights": {1: 1}}, "layer_weights: expected a pattern such as 'layer2.*', got 1"),
        ({"layers": []}, r"layers must be a list of path patterns, .* or None for all; got \[\]"),
        ({"layers": 3}, "layers must be a list of path patterns, .*; got 3"),
        (
            {"output_activation": "elu"},
            "'output_activation' must be one of relu, sigmoid, tanh, or None; got 'elu'",
        ),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CompatkitError, match=message):
        reverse_pass(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": ["layer9.*"]}, r"'layer9.\*' matches no layer of task 'a'; near it are"),
        ({"layers": ["bn1"]}, "what 'bn1' matches in task 'a' has no linear part"),
        ({"layers": ["!*"]}, "finds no layer to reverse in task 'a'.*left out: conv1"),
        (
            {"layer_weights": {"layr1": 2}},
            "layer_weights: 'layr1' matches none of the reversed layers; near it",
        ),
    ],
)
def test_layers_are_checked_before_the_first_step(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((UnknownName, PluginError), match=message):
        quick(steps=1).fit([small()], [ck.use("reverse_pass", **settings)])


class Doubles(nn.Linear):
    """Not affine, and says it is a dense layer."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias).square()


def test_a_layer_that_is_not_affine_is_refused_by_name() -> None:
    class Puts:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            setup.tasks["a"].head.get_submodule("fc").__class__ = Doubles

    with pytest.raises(
        UsageError, match=r"the layer 'fc' of task 'a': a Doubles is not affine.*layers=\[\"!fc\"\]"
    ):
        quick(steps=1).fit(
            [small()],
            [ck.use("reverse_pass", layers=["fc"], after="puts"), "puts"],
            factories={"puts": Puts},
        )


def test_settings_fields_are_those_of_the_factory() -> None:
    import inspect

    fields = [field.name for field in attrs.fields(ReversePass) if field.init]
    assert fields == list(inspect.signature(reverse_pass).parameters)
