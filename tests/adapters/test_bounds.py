"""What a blueprint and a probe may cost: a hostile file meets the bounds at once, no network of timm does."""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

import compatkit as ck
from compatkit.adapters import bounds
from compatkit.adapters.blueprints import build
from compatkit.adapters.bounds import bounded_building, bounded_run
from compatkit.adapters.builders import create
from compatkit.adapters.fingerprint import observe, probe
from compatkit.adapters.initialization import seeded, without_draws
from compatkit.components.drafts import Draft
from compatkit.components.splitting import split
from compatkit.contracts.contract import Probe
from compatkit.contracts.manifest import Manifest
from compatkit.errors import CompatkitError, TooCostly

SECONDS, MEGABYTES = 4.0, 300
"""Processor time and memory of a refusal. Without bounds 20 s and 6.8 GB; other work on a core doubles the time."""
PART = split("resnet8_cifar", "layer1", kwargs={"num_classes": 3}, size=(16, 16), labels=("a", "b", "c"))


def spent(work: Callable[[], Any]) -> tuple[CompatkitError, float, float]:
    """Return the error, the seconds of processor time and the megabytes that the peak of memory rose by."""
    peak, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(CompatkitError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
    taken = time.process_time() - begun
    return caught.value, taken, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024


def put(registry: ck.Registry, name: str, part: Draft, shapes: Any = None, **blueprint: Any) -> None:
    """Publish what a stranger may: nothing is built here."""
    contract = part.contract
    if shapes is not None:
        statistical = contract.statistical
        assert statistical.probe is not None
        stated: Probe = attrs.evolve(statistical.probe, shapes=shapes)
        contract = attrs.evolve(contract, statistical=attrs.evolve(statistical, probe=stated))
    payload = registry.store.put_state(part.module.state_dict(), parameters=part.parameters)
    builder = {"builder": "timm"} if "model" in blueprint else {}
    changed = attrs.evolve(part.blueprint, **builder, **blueprint)
    registry.store.publish(
        name, Manifest(kind=part.kind, blueprint=changed, payload=payload, contract=contract)
    )


HOSTILE: dict[str, tuple[type[CompatkitError], dict[str, Any]]] = {
    "a large probe": (TooCostly, {"shapes": ((2, 3, 6000, 6000),)}),
    "a hundred thousand blocks": (TooCostly, {"model": "resnet50", "kwargs": {"layers": [100_000, 1, 1, 1]}}),
    "a deep transformer": (TooCostly, {"model": "vit_tiny_patch16_224", "kwargs": {"depth": 100_000}}),
    "a number to loop over": (TooCostly, {"model": "vit_tiny_patch16_224", "kwargs": {"depth": 10**12}}),
    "a table of positions": (
        CompatkitError,
        {
            "model": "vit_tiny_patch16_224",
            "cut": "blocks.0",
            "kwargs": {"img_size": 16_384, "patch_size": 4},
        },
    ),
    "windows": (
        CompatkitError,
        {"model": "swin_tiny_patch4_window7_224", "kwargs": {"img_size": 8192, "window_size": 256}},
    ),
    "a giant of the library": (CompatkitError, {"model": "vit_giant_patch14_224", "kwargs": {}}),
}


@pytest.mark.case("G")
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest_costs_little_wherever_it_is_built(tmp_path: Path, what: str) -> None:
    expected, change = HOSTILE[what]
    registry = ck.Registry.init(tmp_path / "parts")
    put(registry, "theirs", PART["extractor"], **change)
    put(registry, "ours", PART["head"])
    doors: list[Callable[[], Any]] = [
        lambda: registry.recombine("theirs", "ours"),
        lambda: registry.load("theirs"),
        lambda: registry.load("theirs", verify="always"),
    ]
    for door in doors if what == "a large probe" else doors[:1]:
        error, seconds, megabytes = spent(door)
        assert isinstance(error, expected), error
        assert seconds < SECONDS and megabytes < MEGABYTES


@pytest.mark.case("G")
def test_an_exported_file_is_bounded_as_a_component_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    put(registry, "ours", PART["head"])
    registry.export("ours", tmp_path / "head.safetensors")
    monkeypatch.setattr(bounds, "MAX_MODULES", 3)
    with pytest.raises(TooCostly, match="more than 3 modules"):
        ck.load_exported(tmp_path / "head.safetensors")


def test_what_was_built_within_the_bounds_is_not_bounded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever process; but another blueprint of the same network is, and all with ``verify="always"``."""
    registry = ck.Registry.init(tmp_path / "parts")
    put(registry, "ours", PART["head"])
    registry.load("ours")
    put(registry, "other", PART["head"], cut="layer2")
    monkeypatch.setattr(bounds, "MAX_MODULES", 3)
    ck.Registry.open(tmp_path / "parts").load("ours")
    for load in (lambda: registry.load("ours", verify="always"), lambda: registry.load("other")):
        with pytest.raises(TooCostly, match="more than 3 modules"):
            load()


def test_an_adapter_is_bounded_too() -> None:
    from compatkit.adapters.stitching.layers import build_adapter
    from compatkit.contracts.contract import Blueprint

    blueprint = attrs.evolve(
        PART["head"].blueprint,
        builder="adapter",
        side="adapter",
        approach="whole",
        cut="",
        model="project",
        kwargs={"layout": "NC", "channels": [2**30, 2**30], "nonnegative": False},
    )
    assert isinstance(blueprint, Blueprint)
    error, seconds, _ = spent(lambda: build_adapter(blueprint, {}))
    assert isinstance(error, TooCostly) and seconds < SECONDS


# What is counted


def built(make: Callable[[], Any], **most: int) -> str:
    """Return the error that building meets; empty where it meets none."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in most.items():
            patch.setattr(bounds, name, value)
        try:
            with bounded_building("it"):
                make()
        except TooCostly as error:
            return str(error)
    return ""


def chain(length: int) -> nn.Module:
    return nn.Sequential(*(nn.Identity() for _ in range(length)))


def test_modules_are_counted_to_the_last_one() -> None:
    assert not built(lambda: chain(10), MAX_MODULES=10)
    assert "more than 10 modules" in built(lambda: chain(11), MAX_MODULES=10)


def test_modules_made_in_another_thread_are_not_counted_here() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert not built(lambda: pool.submit(chain, 100).result(), MAX_MODULES=10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(2_000_000),
        lambda: torch.ones(1000, 2000),
        lambda: torch.zeros(2_000_000).fill_(1),
        lambda: torch.zeros(2, 2_000_000)[0].mul_(2),
        lambda: torch.arange(2000)[:, None] * torch.arange(2000),
        lambda: torch.ones(1).repeat(2_000_000),
        lambda: nn.functional.pad(torch.ones(1, 1, 1, 1), (1000, 1000, 1000, 1000)),
        lambda: nn.functional.interpolate(torch.ones(1, 1, 2, 2), size=(2000, 2000)),
        lambda: [torch.ones(500_000) for _ in range(4)],
    ],
)
def test_values_are_counted_before_they_are_made(make: Callable[[], Any]) -> None:
    assert "live bytes" in built(make, MAX_BUILD_LIVE_BYTES=2**22)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(2000, 2000),
        lambda: nn.Linear(2000, 2000).weight.data.mul_(2),
        lambda: nn.init.trunc_normal_(nn.Linear(2000, 2000).weight),
        lambda: torch.zeros(2_000_000).view(2, -1)[0],
        lambda: [torch.ones(500_000).sum() for _ in range(100)],
    ],
)
def test_what_takes_no_memory_does_not_count(make: Callable[[], Any]) -> None:
    assert not built(make, MAX_BUILD_LIVE_BYTES=2**22)


def test_what_is_given_back_still_takes_time() -> None:
    assert "in total" in built(lambda: [torch.ones(500_000).sum() for _ in range(100)], MAX_BUILD_BYTES=2**22)


# Runs


def ran(module: nn.Module, *shape: int, **most: int) -> str:
    """Return the error that a probe meets; empty where it meets none."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in most.items():
            patch.setattr(bounds, name, value)
        try:
            observe(module, shape, bounded=True)
        except TooCostly as error:
            return str(error)
    return ""


class RequiredBlobs(nn.Module):
    """Gives the sum of so many copies of its input, all of them held until the end."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.copies = copies

    def forward(self, x: Tensor) -> Tensor:
        content = [x + k for k in range(self.copies)]
        return torch.stack([entry.sum() for entry in content]).sum()[None]


class Passing(RequiredBlobs):
    """Gives the same, and holds one copy at a time."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum()[None]
        for k in range(self.copies):
            total = total + (x + k).sum()
        return total


def test_memory_in_use_counts_and_what_is_given_back_does_not() -> None:
    size, room = 2**18, 28 * 2**18 + 2**22
    assert "live tensors" in ran(RequiredBlobs(40), size, MAX_LIVE_BYTES=room)
    assert not ran(Passing(40), size, MAX_LIVE_BYTES=room)
    assert ran(Passing(40), size, MAX_RUN_BYTES=28 * size + 20 * 4 * size)


OPERATIONS: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    # module, input, multiplications and additions worked out by hand
    "linear": (nn.Linear(8, 16, bias=False), (32, 8), 2 * 32 * 8 * 16),
    "convolution": (nn.Conv2d(4, 6, 3, bias=False), (2, 4, 10, 10), 2 * (2 * 8 * 8) * (6 * 4 * 9)),
    "strided": (nn.Conv2d(4, 6, 3, 2, 1, bias=False), (2, 4, 10, 10), 2 * (2 * 5 * 5) * (6 * 4 * 9)),
    "groups": (nn.Conv2d(4, 8, 3, groups=4, bias=False), (1, 4, 6, 6), 2 * (4 * 4) * (8 * 1 * 9)),
    "transposed": (nn.ConvTranspose2d(4, 6, 2, 2, bias=False), (1, 4, 5, 5), 2 * (5 * 5) * (4 * 6 * 4)),
}


@pytest.mark.parametrize("what", OPERATIONS)
def test_operations_are_those_worked_out_by_hand(what: str) -> None:
    module, shape, operations = OPERATIONS[what]
    assert not ran(module, *shape, MAX_OPERATIONS=operations, OPERATIONS_RATIO=0)
    assert "operations" in ran(module, *shape, MAX_OPERATIONS=operations - 1, OPERATIONS_RATIO=0)


def test_weights_that_came_along_make_room_in_proportion() -> None:
    class Weighty(RequiredBlobs):
        def __init__(self, copies: int, numbers: int) -> None:
            super().__init__(copies)
            self.weight = nn.Parameter(torch.zeros(numbers))

    size, room = 2**18, 28 * 2**18
    assert ran(Weighty(40, 1), size, MAX_LIVE_BYTES=room)
    assert not ran(Weighty(40, 2**18), size, MAX_LIVE_BYTES=room)


def test_bounds_leave_the_outputs_as_they_are() -> None:
    module = create("timm", "resnet8_cifar", {"num_classes": 3}).eval()
    images = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    with torch.no_grad():
        expected = module(images)
        with bounded_run(module, "it", 0):
            output = module(images)
    assert torch.equal(expected, output)


# No network that people use meets a bound

NETWORKS: Mapping[str, str] = {
    "vit_tiny_patch16_224": "blocks.0",
    "mobilenetv3_small_100": "blocks.2",
}
SLOW: Mapping[str, str] = {
    "beit_base_patch16_224": "blocks.5",
    "hiera_tiny_224": "blocks.5",
    "resnet50": "layer3",
    "swin_tiny_patch4_window7_224": "layers.1",
}
ALL = [*NETWORKS.items(), *(pytest.param(*item, marks=pytest.mark.slow) for item in SLOW.items())]


@pytest.mark.parametrize(("model", "at"), ALL)
def test_a_network_of_a_library_is_rebuilt_as_it_was(model: str, at: str) -> None:
    with seeded(0), without_draws():
        whole = create("timm", model, {})
    part = split(model, at, seed=0)["extractor"]
    again = build(part.blueprint, state=part.module.state_dict())
    assert part.parameters < sum(parameter.numel() for parameter in whole.parameters())
    for (name, value), (_, other) in zip(
        part.module.named_buffers(), again.named_buffers(), strict=True
    ):  # also those outside the state dict
        assert torch.equal(value, other), name
    shape = (1, 3, *part.blueprint.traced_size)
    assert probe(again, shape).digest == probe(part.module, shape).digest


@pytest.mark.slow
def test_every_network_of_timm_and_torchvision_is_within_the_bounds() -> None:
    import timm
    import torchvision

    met = []
    for builder, names in (("timm", timm.list_models()), ("torchvision", torchvision.models.list_models())):
        for model in names:
            try:
                with seeded(0), bounded_building(model):
                    create(builder, model, {})
            except TooCostly as error:
                met.append(str(error))
            except CompatkitError:  # some need a library that is not here
                continue
    assert not met


EXPANDED = torch.zeros(1, 1, 1).expand(20_000, 1, 20_000)
"""One number in memory; a normalized copy would have 400 million."""


@pytest.mark.case("E1")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(20_000),
        lambda: torch.diag_embed(torch.zeros(20_000)),
        lambda: torch.tril_indices(30_000, 30_000),
        lambda: torch.arange(0, 1, 1e-9),
        lambda: nn.functional.pad(torch.zeros((1,) * 8), (6,) * 16),
        lambda: nn.functional.batch_norm(EXPANDED, torch.zeros(1), torch.ones(1)),
        lambda: nn.functional.group_norm(EXPANDED, 1),
        lambda: nn.functional.layer_norm(EXPANDED, [20_000]),
    ],
    ids=["eye", "diag_embed", "tril_indices", "arange", "pad", "batch_norm", "group_norm", "layer_norm"],
)
def test_results_much_larger_than_what_arguments_state_are_refused_before_they_are_made(
    make: Callable[[], Tensor],
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooCostly) as caught, bounded_run(nn.Linear(1, 1), "made", 4):
        make()
    assert caught.value.subject == "made"
    with pytest.raises(TooCostly), bounded_building("made"):
        make()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB
