"""The whole reverse pass against the paper's equations, written out slowly in float64 with every map as a matrix."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick
from torch import Tensor, nn

import compatkit as ck
from compatkit.adapters.builders import BUILDERS, Builder
from compatkit.errors import UsageError
from compatkit.training.prepare import FitRequest, prepare
from compatkit_plugins.networks.chains import fully_connected
from compatkit_plugins.networks.generators import Autoencoder, Generator, Upscaler, VAEDecoder, VAEEncoder
from compatkit_plugins.regularizers.reverse_pass.chain import chain_of
from compatkit_plugins.regularizers.reverse_pass.full import (
    Walk,
    full_loss,
    names_of,
    pairs,
    reconstruct,
    recorded,
)

ACTS: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    nn.Tanh: lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
    nn.Sigmoid: lambda x: 1 / (1 + (-x).exp()),
}


@attrs.define
class Slow:
    """One layer as the paper writes it: d_{m+1} = act(BN(M pool(d_m) + b))."""

    linear: Any
    norm: Any = None
    act: nn.Module | None = None
    pool: int = 0
    kind: str = "max"

    def matrix(self, shape: tuple[int, ...]) -> Tensor:
        """M, built column by column from the map of unit vectors; rows are outputs."""
        if isinstance(self.linear, nn.Linear):
            return self.linear.weight
        count = torch.Size(shape).numel()
        units = torch.eye(count, dtype=torch.float64).view(count, *shape)
        made = F.conv2d(units, self.linear.weight, None, self.linear.stride, self.linear.padding)
        return made.reshape(count, -1).T

    def bias(self, value: Tensor) -> Tensor:
        return self.linear.bias.view(-1, *(1,) * (value.dim() - 2))

    def pooled(self, value: Tensor) -> Tensor:
        if not self.pool:
            return value
        k = self.pool
        height, width = value.shape[2] // k, value.shape[3] // k
        blocks = value[:, :, : height * k, : width * k].reshape(*value.shape[:2], height, k, width, k)
        return blocks.amax((3, 5)) if self.kind == "max" else blocks.mean((3, 5))

    def made(self, value: Tensor, of: Tensor | None, running: bool) -> Tensor:
        """Normalization by the statistics of ``of`` (of ``value`` itself: None), and activation."""
        if self.norm is not None:
            places = [0, *range(2, value.dim())]
            basis = value if of is None else of
            mean = basis.mean(places, keepdim=True)
            variance = (basis - mean).square().mean(places, keepdim=True)
            side = (-1, *(1,) * (value.dim() - 2))
            if running:
                mean, variance = self.norm.running_mean.view(side), self.norm.running_var.view(side)
            value = (value - mean) / (variance + self.norm.eps).sqrt()
            value = value * self.norm.weight.view(side) + self.norm.bias.view(side)
        return value if self.act is None else ACTS[type(self.act)](value)


def grown(value: Tensor, size: torch.Size) -> Tensor:
    """Nearest-neighbor upsampling: pixel i takes that at floor(i * here / there)."""
    rows = [i * value.shape[2] // size[2] for i in range(size[2])]
    columns = [i * value.shape[3] // size[3] for i in range(size[3])]
    return value[:, :, rows][:, :, :, columns]


def slow(layers: list[Slow], images: Tensor, how: str = "batch") -> tuple[list[Tensor], list[Tensor]]:
    """d_1 to d_n and d'_1 to d'_n of equations 22 to 24."""
    states, before, shapes = [images], [], []
    for layer in layers:
        taken = layer.pooled(states[-1])
        if isinstance(layer.linear, nn.Linear):
            taken = taken.flatten(1)
            made = taken @ layer.linear.weight.T
        else:
            made = F.conv2d(taken, layer.linear.weight, None, layer.linear.stride, layer.linear.padding)
            flat = (layer.matrix(tuple(taken.shape[1:])) @ taken.flatten(1).T).T
            torch.testing.assert_close(flat, made.flatten(1))  # the matrix is the map
        shapes.append((layer.pooled(states[-1]).shape, taken.shape))
        made = made + layer.bias(made)
        before.append(made)
        states.append(layer.made(made, None, running=False))
    back, reversed_states = states[-1], []
    for m in range(len(layers) - 1, -1, -1):
        layer, (pooled, taken) = layers[m], shapes[m]
        back = (back - layer.bias(back)).flatten(1) @ layer.matrix(tuple(taken[1:]))
        back = back.view(pooled)
        if layer.pool:
            back = grown(back, states[m].shape)
        if m > 0:
            of = before[m - 1] if how == "forward_batch" else None
            back = layers[m - 1].made(back, of, how == "running")
        reversed_states.append(back)
    return states[:-1], reversed_states[::-1]


def paper() -> tuple[nn.Sequential, list[Slow], Tensor]:
    """Equation 23 at fewer maps and pixels: BN-ReLU, MP, BN-tanh, MP, BN-sigmoid."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        *(nn.Conv2d(1, 3, 5, padding=2), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 4, 4, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 5, 3, padding=1), nn.BatchNorm2d(5), nn.Sigmoid()),
    )
    network = layers.double().train()
    for module in network:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    result = [
        Slow(network[0], network[1], network[2]),
        Slow(network[4], network[5], network[6], pool=2),
        Slow(network[8], network[9], network[10], pool=2),
    ]
    return network, result, torch.rand(4, 1, 10, 10, dtype=torch.float64)


def odd() -> tuple[nn.Sequential, list[Slow], Tensor]:
    """Sizes that pooling does not divide, a stride, a dense layer on pooled maps, no normalization."""
    torch.manual_seed(1)
    network = nn.Sequential(
        *(nn.Conv2d(2, 3, 3, stride=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(3, 4, 3, padding=1), nn.Sigmoid(), nn.MaxPool2d(2), nn.Dropout(0.5), nn.Flatten()),
        *(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 2)),
    ).double()
    network.eval()
    result = [
        Slow(network[0], None, network[1]),
        Slow(network[3], None, network[4], pool=2, kind="average"),
        Slow(network[8], None, network[9], pool=2),
        Slow(network[10]),
    ]
    return network, result, torch.randn(3, 2, 24, 20, dtype=torch.float64)


def dense() -> tuple[nn.Module, list[Slow], Tensor]:
    torch.manual_seed(2)
    network = fully_connected(
        in_chans=1, img_size=(3, 4), widths=(6, 5), num_classes=3, norm="batch", last_norm=True, activation="tanh"
    ).double()  # fmt: skip
    blocks = [Slow(block.linear, block.norm, block.act) for block in network.blocks]  # type: ignore[union-attr]
    return network.train(), [*blocks, Slow(network.fc, network.last_norm)], torch.rand(5, 1, 3, 4).double()


def walked(network: nn.Module, images: Tensor, walk: Walk = Walk()) -> tuple[list[Tensor], list[Tensor]]:  # noqa: B008
    stages = chain_of(network, images)
    result = list(pairs(stages, recorded(network, names_of(stages), images), images, walk))[::-1]
    return [state for _, state, _ in result], [back for _, _, back in result]


@pytest.mark.parametrize("make", [paper, odd, dense])
@pytest.mark.parametrize("how", ["batch", "forward_batch", "running"])
def test_states_and_reversed_states_are_those_of_the_equations(make, how):
    network, layers, images = make()
    network.train(make is not odd)
    forward = copy.deepcopy(network)
    forward(images)
    got = walked(network, images, Walk(how))
    expected = slow(layers, images, how)
    for item, other in zip((*got[0], *got[1]), (*expected[0], *expected[1]), strict=True):
        torch.testing.assert_close(item, other, rtol=1e-10, atol=1e-10)
    # Stored statistics are moved by the way forward, and by nothing else.
    assert all(torch.equal(value, forward.state_dict()[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("make", [paper, odd, dense])
@pytest.mark.parametrize("how", ["batch", "forward_batch"])
def test_loss_and_gradients_are_those_of_the_equations(make, how):
    network, layers, images = make()
    stages = chain_of(network, images)
    weights = {stage.linear: 0.5 + place for place, stage in enumerate(stages)}
    records = recorded(network, names_of(stages), images)
    loss = full_loss(stages, records, images, walk=Walk(how), factors=weights)
    states, backs = slow(layers, images, how)
    wanted = sum(
        factor * ((state - other) ** 2).sum() / state.numel()
        for factor, state, other in zip(weights.values(), states, backs, strict=True)
    )
    torch.testing.assert_close(loss, wanted)
    parameters = list(network.parameters())
    got = torch.autograd.grad(loss, parameters, allow_unused=True)
    expected = torch.autograd.grad(wanted, parameters, allow_unused=True)
    for entry, other in zip(got, expected, strict=True):
        assert (entry is None) == (other is None)
        if entry is not None:
            torch.testing.assert_close(entry, other, rtol=1e-8, atol=1e-10)


def test_gradients_agree_with_finite_differences():
    torch.manual_seed(3)
    first, last = (nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh()), (nn.Linear(8, 3), nn.Sigmoid())
    network = nn.Sequential(*first, nn.AvgPool2d(2), nn.Flatten(), *last)
    network.double().train()
    images = torch.rand(3, 1, 6, 6, dtype=torch.float64)
    stages, names = chain_of(network, images), [name for name, _ in network.named_parameters()]

    def loss(*values: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(network, dict(zip(names, values, strict=True))):
            inputs = full_loss(stages, recorded(network, names_of(stages), images), images)
        assert inputs is not None
        return inputs

    assert torch.autograd.gradcheck(loss, tuple(network.parameters()), atol=1e-6)


def test_a_chain_of_one_number_by_hand():
    # 2 -> (* 3 + 1) ReLU 7 -> (* -2 + 5) -9; back: (-9 - 5) * -2 = 28, ReLU; (28 - 1) * 3 = 81
    first, last = nn.Linear(1, 1), nn.Linear(1, 1)
    network = nn.Sequential(first, nn.ReLU(), last)
    for layer, weight, bias in ((first, 3.0, 1.0), (last, -2.0, 5.0)):
        nn.init.constant_(layer.weight, weight)
        nn.init.constant_(layer.bias, bias)
    images = torch.tensor([[2.0]])
    assert walked(network, images)[1] == [torch.tensor([[81.0]]), torch.tensor([[28.0]])]
    stages = chain_of(network, images)
    records = recorded(network, names_of(stages), images)
    assert full_loss(stages, records, images) == (81 - 2) ** 2 + (28 - 7) ** 2
    assert full_loss(stages, records, images, factors={stages[0].linear: 1.0}) == (81 - 2) ** 2
    assert full_loss(stages, records, images, factors={"2": 2.0}) == 2 * (28 - 7) ** 2
    assert full_loss(stages, records, images, factors={"0": 0.0}) is None


def test_a_loss_on_the_images_alone_moves_every_layer():
    network, _, images = dense()
    stages = chain_of(network, images)
    loss = full_loss(
        stages, recorded(network, names_of(stages), images), images, factors={stages[0].linear: 1.0}
    )
    assert loss is not None
    loss.backward()
    assert all(
        float(module.weight.grad.norm()) > 0 for module in network.modules() if isinstance(module, nn.Linear)
    )


def test_a_target_that_is_detached_changes_gradients_and_not_the_loss():
    network, _, images = dense()
    stages = chain_of(network, images)
    losses, gradients = [], []
    for detach in (False, True):
        records = recorded(network, names_of(stages), images)
        losses.append(full_loss(stages, records, images, detach_target=detach))
        gradients.append(torch.autograd.grad(losses[-1], network.blocks[0].linear.weight)[0])
    torch.testing.assert_close(losses[0], losses[1])
    assert not torch.allclose(gradients[0], gradients[1])


def test_an_activation_of_the_images_is_applied_to_them_alone():
    network, _, images = dense()
    plain, through = walked(network, images)[1], walked(network, images, Walk(output_activation="relu"))[1]
    torch.testing.assert_close(through[0], plain[0].relu())
    for entry, other in zip(plain[1:], through[1:], strict=True):
        torch.testing.assert_close(entry, other)


def test_an_in_place_activation_changes_nothing():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.ReLU()]
    images = torch.rand(2, 1, 8, 8)
    expected = walked(nn.Sequential(*layers), images)
    got = walked(nn.Sequential(layers[0], nn.ReLU(True), layers[2], nn.ReLU(True)), images)
    for item, other in zip((*got[0], *got[1]), (*expected[0], *expected[1]), strict=True):
        assert torch.equal(item, other)


@pytest.mark.parametrize("enlarge", ["transpose", "nearest"])
@pytest.mark.parametrize("output", ["none", "sigmoid"])
def test_generators_see_their_input_again(enlarge, output):
    torch.manual_seed(0)
    network = Upscaler(channels=(8, 6), doublings=1, enlarge=enlarge, output=output, norm="batch")
    images = torch.rand(3, 1, 5, 6)
    saved = {key: value.clone() for key, value in network.state_dict().items()}
    again = reconstruct(network.train(), images)
    assert again.shape == images.shape
    assert network.training
    assert all(torch.equal(value, saved[key]) for key, value in network.state_dict().items())
    latent = Generator(latent=7, channels=(6, 5), enlarge=enlarge)
    assert reconstruct(latent, torch.randn(3, 7)).shape == (3, 7)


def test_repeated_pixels_are_undone_by_their_mean():
    # Every pixel four times, then an identity: the reverse pass gives the image itself.
    keep = nn.Conv2d(1, 1, 1)
    nn.init.ones_(keep.weight)
    network = nn.Sequential(nn.Upsample(scale_factor=2), keep)
    images = torch.rand(2, 1, 3, 4)
    torch.testing.assert_close(reconstruct(network, images), images)


def test_orthogonal_maps_give_the_images_back_through_a_whole_autoencoder():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 9).double(), nn.Linear(9, 12).double(), nn.Linear(12, 14).double()]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)
    network = nn.Sequential(*layers)
    images = torch.rand(4, 6, dtype=torch.float64)
    torch.testing.assert_close(reconstruct(network, images), images)


def test_autoencoders_are_reversed_from_their_logits_to_their_images():
    network = Autoencoder(VAEEncoder(), VAEDecoder())
    images = torch.rand(2, 1, 64, 64)
    assert reconstruct(network, images, output_activation="sigmoid").shape == images.shape
    assert reconstruct(network.encoder, images).shape == images.shape


def test_a_chain_that_is_known_is_not_looked_for(monkeypatch):
    network, _, images = dense()
    expected = reconstruct(network, images)
    stages = chain_of(network, images)
    monkeypatch.setattr("compatkit_plugins.regularizers.reverse_pass.full.chain_of", None)
    assert torch.equal(reconstruct(network, images, stages=stages), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"bn_reverse": "forward"},
            "'bn_reverse' must be one of batch, forward_batch, running; got 'forward'",
        ),
        (
            {"output_activation": "elu"},
            "'output_activation' must be one of relu, sigmoid, tanh, or None; got 'elu'",
        ),
    ],
)
def test_settings_that_are_not_known_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Walk(**settings)


def test_stored_statistics_that_are_not_there_are_refused():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    with pytest.raises(UsageError, match=r'A BatchNorm1d has no running statistics.*bn_reverse="running"'):
        reconstruct(network, torch.rand(4, 3), bn_reverse="running")


def test_records_of_another_pass_are_refused():
    network, _, images = dense()
    stages = chain_of(network, images)
    with pytest.raises(UsageError, match=r"last_norm was called 0 times in this pass"):
        full_loss(stages, {}, images)


class InPlace(nn.Module):
    """Activations write into what the layer before gave; pooling is a function."""

    def __init__(self, in_chans: int = 3, num_classes: int = 3) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(in_chans, 4, 3), nn.ReLU(inplace=True)
        self.conv2, self.norm, self.act2 = (
            nn.Conv2d(4, 5, 3),
            nn.BatchNorm2d(5),
            nn.LeakyReLU(0.2, inplace=True),
        )
        self.fc = nn.Linear(5 * 16, num_classes)
        self.pretrained_cfg = {"input_size": (in_chans, 32, 32), "classifier": "fc"}

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.act1(self.conv1(x)), 2)
        x = F.avg_pool2d(self.act2(self.norm(self.conv2(x))), 3)
        return self.fc(x.flatten(1))


@pytest.mark.parametrize(
    ("model", "cut", "kwargs"),
    [
        pytest.param("vgg11_bn", "features.4", {"mlp_ratio": 0.01}, marks=pytest.mark.slow),
        ("in_place", "act1", {}),
        ("conv_chain", "layer2", {"norm": "batch", "reduce": "max", "channels": [4, 5], "img_size": 32}),
        (
            "fully_connected",
            "blocks.0",
            {"norm": "batch", "last_norm": True, "img_size": 32, "widths": [6, 5]},
        ),
        ("lenet", "conv2", {}),
    ],
)
def test_a_run_adds_what_the_walk_gives_across_its_cut(model, cut, kwargs, monkeypatch):
    monkeypatch.setitem(
        BUILDERS, "in_place", Builder(lambda model, **inputs: InPlace(**inputs), lambda: "tests 1")
    )
    builder = "in_place" if model == "in_place" else "timm"
    task = ck.Task("a", data_set("a"), model, cut, size=32, kwargs=kwargs, builder=builder)
    trainer = quick(steps=1)
    with prepare(FitRequest(trainer, [task])) as start:
        state = start.loop.setup.tasks["a"]
        parts, images = (state.extractor, state.head), start.loop.task_loops["a"].source.batch(0).images
        stages = chain_of(parts, images)
        expected = full_loss(stages, recorded(parts, names_of(stages), images), images)
    assert expected is not None
    row = trainer.fit([task], [ck.use("reverse_pass", variant="full")]).history[0]
    assert row["losses"]["reverse_pass/loss"] == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.parametrize(
    ("variant", "layers"),
    [("full", {"layer1.linear", "layer2.linear", "fc"}), ("local", {"layer1.linear", "layer2.linear"})],
)
def test_the_way_from_the_output_compares_the_input_of_the_class_layer_too(
    variant: str, layers: set[str]
) -> None:
    kwargs = {"channels": [4, 4], "img_size": 12}
    task = ck.Task("a", data_set("a"), "conv_chain", "layer1", size=12, kwargs=kwargs)
    fit = quick(steps=0).fit([task], [ck.use("reverse_pass", variant=variant)])
    assert set(fit.run["plugins"][0]["chosen"]["a"]["layers"]) == layers
