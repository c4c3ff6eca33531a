"""Adapters between real small networks: put in when asked for, fitted, kept as components, measured, refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sample_components import FEATURES, extractor, head, loaded
from small import data_set
from torch import Tensor, nn

import compatkit as ck
from compatkit.adapters.fingerprint import probe
from compatkit.adapters.stitching.layers import build_adapter
from compatkit.components.drafts import Draft
from compatkit.components.projecting import adapter_at, fit_projection
from compatkit.components.splitting import publish_split, split
from compatkit.components.stitching import make_adapters, route
from compatkit.contracts.contract import Port
from compatkit.contracts.manifest import to_bytes
from compatkit.contracts.stitch import on_port
from compatkit.data.dataset import Split
from compatkit.errors import DataError, IncompatibleError, IntegrityError, InvalidName, UsageError
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.reports.contracts import summary

GRAY = {"in_chans": 1, "num_classes": 3}
VIT = {**GRAY, "img_size": 16, "patch_size": 4, "depth": 2, "embed_dim": 16, "num_heads": 2}
SWIN = {
    **GRAY,
    "img_size": 32,
    "patch_size": 4,
    "window_size": 4,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [1, 1],
}
SMALL = (16, 16)

NETWORKS: dict[str, tuple[str, str, dict[str, Any], tuple[int, int] | None]] = {
    "narrow": ("resnet8_cifar", "layer1", GRAY, SMALL),  # 16 channels, any size
    "wide": ("resnet8_cifar", "layer2", GRAY, SMALL),  # 32 channels, any size
    "last": ("resnet8_cifar", "layer3", GRAY, SMALL),  # 64 channels
    "pooled": ("resnet8_cifar", "global_pool", GRAY, SMALL),  # 64 channels, one position
    "fixed": ("lenet", "pool2", GRAY, (32, 32)),  # 16 channels of exactly 5x5
    "flat": ("lenet", "dense2", GRAY, (32, 32)),  # a vector of 84
    "classy": ("vit_tiny_patch16_224", "blocks.0", VIT, None),  # a class token and 16 patches
    "patches": (
        "vit_tiny_patch16_224",
        "blocks.0",
        {**VIT, "class_token": False, "global_pool": "avg"},
        None,
    ),
    "dynamic": (  # 32 channels, any count of patches
        "pvt_v2_b0",
        "stages.0.blocks.0",
        {**GRAY, "depths": [1, 1, 1, 1]},
        (32, 32),
    ),
    "plain": (
        "vit_tiny_patch16_224",
        "patch_embed",
        VIT,
        None,
    ),  # 16 patches of 16 channels, before any mixing
    "mixed": ("vit_tiny_patch16_224", "patch_embed", {**VIT, "embed_dim": 32}, None),
    "last-axis": ("swin_tiny_patch4_window7_224", "layers.0", SWIN, None),  # NHWC, 8x8x16
}


ONCE = [name for name in NETWORKS if name not in ("plain", "mixed", "dynamic")]


@pytest.fixture(scope="module")
def images() -> Split:
    return data_set("noise", size=SMALL, count=24).train


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    """Both sides of every network, with random weights; only read."""
    return cut(tmp_path_factory.mktemp("seams"), *ONCE)


@pytest.fixture
def mine(registry: ck.Registry, tmp_path: Path) -> ck.Registry:
    """A copy to publish in."""
    return ck.Registry.open(shutil.copytree(registry.store.root, tmp_path / "mine"))


def cut(folder: Path, *names: str, change: Callable[[nn.Module], None] | None = None) -> ck.Registry:
    made = ck.Registry.init(folder, exist_ok=True)
    for seed, name in enumerate(names):
        model, point, kwargs, size = NETWORKS[name]
        parts = dict(split(model, point, kwargs=kwargs, size=size, seed=seed, labels=("0", "1", "2")))
        if change is not None:
            change(parts["extractor"].module)
            parts["extractor"] = probed(parts["extractor"])
        publish_split(made.store, parts, f"zoo/{name}")
    return made


def probed(part: Draft) -> Draft:
    """Return a part with the probe of the weights that it has by now."""
    seen = part.contract.statistical
    assert seen.probe is not None
    again = attrs.evolve(seen, probe=probe(part.module, *seen.probe.shapes))
    return attrs.evolve(part, contract=attrs.evolve(part.contract, statistical=again))


def recombine(registry: ck.Registry, left: str, right: str, **kwargs: Any) -> ck.Recombination:
    return registry.recombine(f"zoo/{left}.extractor", f"zoo/{right}.head", insert_adapters=True, **kwargs)


def features(registry: ck.Registry, name: str, images: Split) -> Tensor:
    reference = f"zoo/{name}.extractor"
    data = registry.store.manifest(reference).contract.data
    with torch.no_grad():
        return registry.load(reference)(normalize(prepare(images, data).images, data))


def square(tokens: Tensor) -> Tensor:
    return tokens.transpose(1, 2).unflatten(2, (4, 4))


FREE: list[tuple[str, str, list[str], Callable[[Tensor], Tensor]]] = [
    ("last-axis", "narrow", ["permute"], lambda x: x.permute(0, 3, 1, 2)),
    ("narrow", "patches", ["permute"], lambda x: x.flatten(2).transpose(1, 2)),
    ("patches", "narrow", ["permute"], square),
    ("classy", "patches", ["drop-tokens"], lambda x: x[:, 1:]),
    ("classy", "narrow", ["drop-tokens", "permute"], lambda x: square(x[:, 1:])),
    ("last", "pooled", ["pool"], lambda x: x.mean((2, 3), keepdim=True)),
    (
        "narrow",
        "fixed",
        ["resize"],
        lambda x: F.interpolate(x, size=(5, 5), mode="bilinear", antialias=True),
    ),
    (
        "classy",
        "fixed",
        ["drop-tokens", "permute", "resize"],
        lambda x: F.interpolate(square(x[:, 1:]), size=(5, 5), mode="bilinear", antialias=True),
    ),
]


@pytest.mark.parametrize(("left", "right", "names", "between"), FREE)
def test_adapters_without_parameters_are_put_in(
    registry: ck.Registry,
    images: Split,
    left: str,
    right: str,
    names: list[str],
    between: Callable[[Tensor], Tensor],
) -> None:
    model = recombine(registry, left, right, bn_policy="running")
    assert [adapter.model for adapter in model.contract.adapters] == names
    with torch.no_grad():
        expected = registry.load(f"zoo/{right}.head")(between(features(registry, left, images)))
    pixels = normalize(prepare(images, model.data).images, model.data)
    torch.testing.assert_close(model(pixels).detach(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(model.predict(images).positions, expected.argmax(1))


def test_nothing_is_put_in_unasked_and_the_way_to_ask_is_told(registry: ck.Registry) -> None:
    pair = "zoo/last-axis.extractor", "zoo/narrow.head"
    with pytest.raises(
        IncompatibleError, match=r"permute NHWC to NCHW\. Pass insert_adapters=True"
    ) as caught:
        registry.recombine(*pair)
    assert caught.value.subject.wiring == "needs-adapter"
    with pytest.raises(
        IncompatibleError, match=r"^Missing before the head: .*insert_adapters=True and data= "
    ):
        registry.recombine("zoo/narrow.extractor", "zoo/wide.head")


def test_what_fits_gets_no_adapter(registry: ck.Registry) -> None:
    model = recombine(registry, "narrow", "narrow")
    assert model.inserted == () and model.contract.adapters == () and len(model.adapters) == 0


def test_a_recombination_names_its_adapters(registry: ck.Registry, images: Split) -> None:
    model = recombine(registry, "classy", "wide", data=images)
    for text in (
        "drop-tokens: leave out 1",
        "permute NLC to NCHW",
        "resize to 8x8",
        "project: 1x1 convolution from 16 to 32 channels",
    ):
        assert text in repr(model)
    assert "fitted on 24 images of noise/train" in repr(model)
    assert model.report.wiring == "needs-adapter"
    notes = [finding.actual for finding in model.report.findings if finding.code == "adapter-inserted"]
    assert notes == [str(adapter) for adapter in model.inserted] and len(notes) == 4


@pytest.mark.parametrize("policy", ["running", "batch", "reestimate"])
def test_every_normalization_policy_works_with_adapters(
    registry: ck.Registry, images: Split, policy: str
) -> None:
    saved = images if policy == "reestimate" else None
    model = recombine(registry, "last-axis", "narrow", bn_policy=policy, data=saved)
    head = registry.load("zoo/narrow.head")
    inputs = features(registry, "last-axis", images).permute(0, 3, 1, 2)
    stored = {name: value.clone() for name, value in model.head.named_buffers()}
    pixels = normalize(prepare(images, model.data).images, model.data)
    logits = model(pixels).detach()
    assert all(torch.equal(value, stored[name]) for name, value in model.head.named_buffers())
    if policy == "running":
        torch.testing.assert_close(logits, head(inputs).detach())
    elif policy == "batch":
        torch.testing.assert_close(logits, head.train()(inputs).detach(), atol=1e-5, rtol=1e-5)
    else:
        norm = model.head.get_submodule("layer2.0.bn1")
        assert int(norm.num_batches_tracked) == 1  # type: ignore[arg-type]


def least_squares(x: Tensor, y: Tensor, strength: float) -> tuple[Any, Any]:
    """Ridge on all samples at once: one more row of sqrt(m lambda) a channel, in float64."""
    inputs, wanted = x.double().numpy(), y.double().numpy()
    mx, my = inputs.mean(axis=0), wanted.mean(axis=0)
    penalty = strength * ((inputs - mx) ** 2).sum() / len(inputs) / inputs.shape[1]
    rows = np.vstack([inputs - mx, np.sqrt(len(inputs) * penalty) * np.eye(inputs.shape[1])])
    weight = np.linalg.lstsq(rows, np.vstack([wanted - my, np.zeros((len(mx), len(my)))]), rcond=None)[0]
    return weight, my - mx @ weight


def rows(maps: Tensor) -> Tensor:
    return maps.permute(0, 2, 3, 1).flatten(0, 2)


@pytest.mark.parametrize("count", [24, 120])
def test_a_projection_is_the_ridge_solution_over_all_positions(registry: ck.Registry, count: int) -> None:
    """From 16 channels of 16x16 to 32 of 8x8: the maps are brought to the size of those that the head knows."""
    images = data_set("noise", size=(12, 12), count=count).train
    model = recombine(registry, "narrow", "wide", data=images)
    assert [adapter.model for adapter in model.contract.adapters] == ["resize", "project"]
    project = model.inserted[1]
    x = rows(F.avg_pool2d(features(registry, "narrow", images), 2))
    y = rows(features(registry, "wide", images))
    strength = 0.1 if count == 24 else 0.01
    weight, bias = least_squares(x, y, strength)
    state = project.module.state_dict()
    np.testing.assert_allclose(state["weight"].T, weight, atol=1e-4)
    np.testing.assert_allclose(state["bias"], bias, atol=1e-4)
    error = y.double().numpy() - x.double().numpy() @ weight - bias
    left = (error**2).sum() / ((y - y.mean(0)).double().numpy() ** 2).sum()
    facts = dict(project.training)
    assert facts.pop("residual") == pytest.approx(left, abs=1e-5)
    data = {"name": "noise/train", "digest": images.digest, "images": count}
    assert facts == {"method": "ridge", "data": data, "samples": count * 64, "strength": strength}
    assert project.blueprint.kwargs["nonnegative"] is True


def mixed(folder: Path) -> ck.Registry:
    """Two patch embeddings: the second is the first, mixed into twice as many channels."""
    registry = cut(folder, "plain")
    first = registry.load("zoo/plain.extractor").state_dict()
    mixing = torch.randn(32, 16, generator=torch.Generator().manual_seed(3))

    def mix(extractor: nn.Module) -> None:
        own = extractor.state_dict()
        with torch.no_grad():
            own["patch_embed.proj.weight"].copy_(
                torch.einsum("oi,ichw->ochw", mixing, first["patch_embed.proj.weight"])
            )
            own["patch_embed.proj.bias"].copy_(mixing @ first["patch_embed.proj.bias"] + 1)

    return cut(folder, "mixed", change=mix)


def test_a_known_mixing_of_channels_is_undone(
    tmp_path: Path, images: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extractor that is another one behind a linear map reaches that one's logits, its bound."""
    registry = mixed(tmp_path)
    monkeypatch.setattr("compatkit.components.projecting.usual_strength", lambda count: 1e-9)
    model = recombine(registry, "mixed", "plain", data=images)
    bound = recombine(registry, "plain", "plain")
    pixels = normalize(prepare(images, model.data).images, model.data)
    torch.testing.assert_close(model(pixels), bound(pixels), atol=1e-4, rtol=0)
    assert model.inserted[0].training["residual"] < 1e-8
    assert "linear layer from 32 to 16" in str(model.inserted[0])


def test_a_projection_of_vectors_counts_images(registry: ck.Registry, images: Split) -> None:
    model = recombine(registry, "last", "flat", data=images)
    assert [adapter.model for adapter in model.contract.adapters] == ["pool", "project"]
    x, y = features(registry, "last", images).mean((2, 3)), features(registry, "flat", images)
    weight, bias = least_squares(x, y, 0.1)
    state = model.inserted[1].module.state_dict()
    np.testing.assert_allclose(state["weight"].T, weight, atol=1e-4)
    np.testing.assert_allclose(state["bias"], bias, atol=1e-4)
    assert model.inserted[1].training["samples"] == 24


def test_fitting_moves_no_buffer_and_draws_no_number(registry: ck.Registry, images: Split) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    model = recombine(registry, "narrow", "wide", data=images)
    assert torch.equal(torch.rand(2), expected)
    own = registry.load("zoo/narrow.extractor").state_dict()
    assert all(torch.equal(value, own[name]) for name, value in model.extractor.state_dict().items())
    assert not any(module.training for module in model.modules())


def test_published_adapters_come_back_as_the_same_function(mine: ck.Registry, images: Split) -> None:
    model = recombine(mine, "classy", "wide", data=images)
    names = [mine.publish(adapter, f"zoo/{adapter.blueprint.model}") for adapter in model.inserted]
    models = ("drop-tokens", "permute", "resize", "project")
    assert names == [f"zoo/{entry}@1.0.0" for entry in models]
    again = mine.recombine("zoo/classy.extractor", "zoo/wide.head", adapters=names)
    pixels = normalize(prepare(images, model.data).images, model.data)
    assert torch.equal(model(pixels), again(pixels))
    assert again.contract == model.contract
    assert [adapter.reference for adapter in again.inserted] == names
    assert [mine.publish(adapter, f"zoo/{adapter.blueprint.model}") for adapter in again.inserted] == names
    plain, _, _, project = (mine.store.manifest(name) for name in names)
    assert (plain.kind, plain.payload.count, plain.payload.parameters) == ("adapter", 0, 0)
    assert (project.payload.count, project.payload.parameters) == (2, 16 * 32 + 32)
    digests = [mine.store.resolve(f"zoo/{name}.extractor").digest for name in ("classy", "wide")]
    assert [(parent.relation, parent.component) for parent in project.parents] == list(
        zip(("adapts", "targets"), digests, strict=True)
    )
    assert plain.parents == project.parents[:1]
    assert project.training["data"] == {"name": "noise/train", "digest": images.digest, "images": 24}
    assert project.contract.statistical.probe is not None and project.contract.data.labels is None
    words = summary(project)
    assert words["network"].startswith("project: 1x1 convolution from 16 to 32 channels")
    assert words["fitted by"].startswith("ridge, ") and words["trained on"] == "noise/train"


@pytest.mark.filterwarnings("ignore:Batch normalization takes the statistics of the batch")
def test_an_adapter_for_any_count_of_tokens_is_kept_too(tmp_path: Path, images: Split) -> None:
    """A network that takes any image size states its tokens as ``L``, and a map of them as ``H`` and ``W``."""
    registry = cut(tmp_path, "wide", "dynamic")
    model = recombine(registry, "dynamic", "wide")
    assert model.inserted[0].takes[0].shape == ("N", "L", 32)
    assert model.inserted[0].gives[0].shape == ("N", 32, "H", "W")
    name = registry.publish(model.inserted[0], "zoo/permute")
    again = registry.recombine("zoo/dynamic.extractor", "zoo/wide.head", adapters=[name])
    assert torch.equal(model.predict(images).probabilities, again.predict(images).probabilities)


def test_a_refit_is_a_new_version_of_the_same_name(mine: ck.Registry, images: Split) -> None:
    fits = [recombine(mine, "narrow", "wide", data=images.subset(count)).inserted[-1] for count in (12, 24)]
    assert [mine.publish(fit, "zoo/bridge") for fit in fits] == [
        "zoo/bridge@1.0.0",
        "zoo/bridge@2.0.0",
    ]
    with pytest.raises(InvalidName):
        mine.publish(fits[0], "../bridge")


def test_an_adapter_with_the_weights_of_another_is_found_by_its_probe(
    mine: ck.Registry, images: Split
) -> None:
    for number, count in enumerate((12, 24)):
        model = recombine(mine, "narrow", "wide", data=images.subset(count))
        mine.publish(model.inserted[-1], f"zoo/{number}")
    first, second = mine.store.manifest("zoo/0"), mine.store.manifest("zoo/1")
    mine.store.publish("zoo/wrong", attrs.evolve(first, payload=second.payload))
    with pytest.raises(IntegrityError, match="gives other outputs on the probe input"):
        mine.recombine("zoo/narrow.extractor", "zoo/wide.head", adapters=["zoo/wrong"])


def test_a_published_projection_goes_on_with_adapters_around_it(mine: ck.Registry, images: Split) -> None:
    model = recombine(mine, "classy", "wide", data=images)
    bridge = mine.publish(model.inserted[-1], "zoo/bridge")
    pair = "zoo/classy.extractor", "zoo/wide.head"
    again = mine.recombine(*pair, insert_adapters=True, adapters=[bridge])
    assert again.contract.adapters == model.contract.adapters
    with pytest.raises(
        IncompatibleError, match=r"Missing before the adapter project.*drop-tokens.*permute.*resize"
    ):
        mine.recombine(*pair, adapters=[bridge])


def test_a_projection_of_other_parts_is_put_in_with_a_warning(mine: ck.Registry, images: Split) -> None:
    bridge = mine.publish(recombine(mine, "narrow", "wide", data=images).inserted[-1], "zoo/bridge")
    model = recombine(mine, "patches", "wide", adapters=[bridge])
    (note,) = [finding for finding in model.report.findings if "fitted for other parts" in finding.actual]
    assert note.severity == "warns" and "insert_adapters=True with data=" in note.remedy


def test_adapters_that_lead_elsewhere_are_refused(mine: ck.Registry, images: Split) -> None:
    resize, project = recombine(mine, "narrow", "wide", data=images).inserted
    smaller, bridge = mine.publish(resize, "zoo/smaller"), mine.publish(project, "zoo/bridge")
    with pytest.raises(IncompatibleError, match="Missing before the head: resize to 4x4; project"):
        mine.recombine("zoo/narrow.extractor", "zoo/last.head", adapters=[smaller, bridge])
    with pytest.raises(IncompatibleError, match="can only be fitted directly before a head"):
        recombine(mine, "last", "wide", adapters=[bridge], data=images)
    with pytest.raises(UsageError, match=r"zoo/wide.head@1.0.0 is of kind head; expected adapter"):
        mine.recombine("zoo/narrow.extractor", "zoo/wide.head", adapters=["zoo/wide.head"])


def test_a_fitted_adapter_needs_images_and_images_need_to_be_asked_for(
    registry: ck.Registry, images: Split
) -> None:
    with pytest.raises(DataError) as caught:
        recombine(registry, "narrow", "wide")  # not trained here, so no images are found again
    assert caught.value.subject == "zoo/narrow.extractor@1.0.0"
    with pytest.raises(IncompatibleError, match="insert_adapters=True and data="):
        registry.recombine("zoo/narrow.extractor", "zoo/wide.head", data=images)
    assert recombine(registry, "classy", "patches", data=images).inserted[0].training == {}


def test_what_no_adapter_mends_stays_refused(registry: ck.Registry, images: Split) -> None:
    for left, right in (("flat", "wide"), ("patches", "classy"), ("pooled", "last")):
        with pytest.raises(IncompatibleError) as caught:
            recombine(registry, left, right, data=images)
        assert caught.value.subject.wiring == "refused"


@pytest.mark.case("F")
def test_a_head_without_its_extractor_has_no_features_to_fit_to(mine: ck.Registry, images: Split) -> None:
    head = mine.store.manifest("zoo/wide.head")
    mine.store.publish("zoo/orphan.head", attrs.evolve(head, parents=()))
    with pytest.raises(IncompatibleError, match=r"its manifest names none\. Publish that extractor"):
        recombine(mine, "narrow", "orphan", data=images)
    nameless = attrs.evolve(mine.store.manifest("zoo/wide.extractor"), extensions={"x": 1})
    edge = mine.store.put_blob(to_bytes(nameless))
    parent = attrs.evolve(head.parents[0], component=edge.blob)
    mine.store.publish("zoo/stray.head", attrs.evolve(head, parents=(parent,)))
    with pytest.raises(IncompatibleError, match=r"is not in this registry\. Publish that extractor"):
        recombine(mine, "narrow", "stray", data=images)


def test_a_head_whose_extractor_was_withdrawn_can_still_be_fitted_to(
    mine: ck.Registry, images: Split
) -> None:
    mine.store.withdraw("zoo/wide.extractor", "1.0.0", "superseded")
    assert recombine(mine, "narrow", "wide", data=images).inserted


@pytest.mark.case("F")
def test_a_head_with_a_wrong_parent_is_not_fitted_to(mine: ck.Registry, images: Split) -> None:
    wrong = mine.store.manifest("zoo/patches.head").parents
    mine.store.publish("zoo/mixed.head", attrs.evolve(mine.store.manifest("zoo/wide.head"), parents=wrong))
    with pytest.raises(IncompatibleError, match=r"needs NCHW features, but .* gives NLC"):
        recombine(mine, "narrow", "mixed", data=images)


class Patches(nn.Module):
    """Tokens: as many rows of pixels as asked for, with as many channels."""

    def __init__(self, count: int, channels: int) -> None:
        super().__init__()
        self.size = count, channels

    def forward(self, images: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(images, self.size)[:, 0]


def test_tokens_of_unknown_grids_are_not_paired(registry: ck.Registry, images: Split) -> None:
    """The head takes any count, so that only the fit finds out that 7 positions are not 5."""
    sides = []
    for name, count, channels in (("left", 7, 3), ("own", 5, 4)):
        port = Port("features", ("N", "L", channels), layout="NLC", measured={"8x8": (count,)})
        sides.append(loaded(f"{name}.extractor", extractor(port), Patches(count, channels).eval()))
    left, own = sides
    taken = own.manifest.contract.structural.outputs[0]
    right = loaded("own.head", head(taken), nn.Flatten(), trained_with=own)
    (place,) = route(left, right, ck.check(left.manifest, right.manifest), insert_adapters=True, data=images)
    with pytest.raises(
        IncompatibleError, match=r"\(7 positions\) cannot be paired with those of .* \(5 positions\)"
    ):
        fit_projection(place, left, own, images)
    second = attrs.evolve(place, blueprint=on_port(place.blueprint, 1, 2), takes=place.takes * 2)
    with pytest.raises(IncompatibleError, match="gives no such features"):
        fit_projection(second, left, own, images)


def test_images_that_are_all_the_same_are_nothing_to_fit_on(registry: ck.Registry, images: Split) -> None:
    gray = attrs.evolve(images, images=np.full_like(images.images, 127))
    with pytest.raises(DataError, match="do not change from image to image"):
        recombine(registry, "last", "flat", data=gray)


class Half(nn.Module):
    """An extractor in bfloat16: 4 channels of gray images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1).to(torch.bfloat16)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images.to(torch.bfloat16)).relu()


@pytest.mark.case("F")
def test_features_in_bfloat16_are_cast_for_a_head_in_float32(registry: ck.Registry, images: Split) -> None:
    port = attrs.evolve(FEATURES, shape=("N", 4, "H", "W"), dtype="bfloat16")
    left = loaded("half.extractor", extractor(port), Half().eval())
    right = loaded("plain.head", head(FEATURES), nn.Sequential(nn.Flatten(), nn.Linear(4 * 64, 3)).eval())
    report = ck.check(left.manifest, right.manifest)
    places = route(left, right, report, insert_adapters=True)
    model = ck.Recombination.of(
        left, right, report, adapters=make_adapters(registry.store, places, left, right, None)
    )
    assert [str(adapter) for adapter in model.inserted] == ["cast to float32"]
    pixels = normalize(prepare(images, model.data).images, model.data)
    assert torch.equal(model(pixels), right.module(left.module(pixels).float()))


class Two(nn.Module):
    """Features and a skip connection, both of gray images; ``mixing`` maps the channels of the second."""

    def __init__(self, mixing: Tensor) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 1), nn.Conv2d(1, 3, 3, padding=1)
        for seed, item in enumerate((self.first, self.second)):
            draw = torch.Generator().manual_seed(seed)
            for parameter in item.parameters():
                parameter.data = torch.randn(parameter.shape, generator=draw)
        self.mixing = mixing

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(images), torch.einsum("oi,nihw->nohw", self.mixing, self.second(images))


class Ends(nn.Module):
    def forward(self, features: tuple[Tensor, Tensor]) -> Tensor:
        return torch.cat([feature.flatten(1) for feature in features], dim=1)


def two_ports(channels: int, layout: Any) -> tuple[Port, Port]:
    first = ("N", 4, 8, 8) if layout == "NCHW" else ("N", 64, 4)
    return Port("features", first, layout=layout), Port("skip", ("N", channels, 8, 8))


def test_each_of_several_tensors_is_adapted_and_fitted_by_itself(images: Split) -> None:
    """The first becomes tokens; the second is brought back from five channels to three."""
    mixing = torch.randn(5, 3, generator=torch.Generator().manual_seed(7))
    sides = [(two_ports(5, "NCHW"), Two(mixing)), (two_ports(3, "NCHW"), Two(torch.eye(3)))]
    left, own = (
        loaded(f"{at}.extractor", with_ports(extractor(), outputs=ports), module)
        for at, (ports, module) in enumerate(sides)
    )
    right = loaded("own.head", with_ports(head(), inputs=two_ports(3, "NLC")), Ends(), trained_with=own)
    report = ck.check(left.manifest, right.manifest)
    permute, project = route(left, right, report, insert_adapters=True, data=images)
    first = adapter_at(permute, build_adapter(permute.blueprint), left)
    second = fit_projection(project, left, own, images, before=[first], strength=1e-9)
    model = ck.Recombination.of(left, right, report, adapters=[first, second])
    pixels = normalize(prepare(images, model.data).images, model.data)
    tokens, skip = own.module(pixels)
    expected = Ends()((tokens.flatten(2).transpose(1, 2), skip))
    torch.testing.assert_close(model(pixels), expected, atol=1e-4, rtol=1e-4)


def with_ports(made: Any, **ports: Any) -> Any:
    return attrs.evolve(
        made,
        contract=attrs.evolve(made.contract, structural=attrs.evolve(made.contract.structural, **ports)),
    )


def test_a_pair_with_adapters_is_measured_like_any_other_and_not_kept_as_evidence(
    registry: ck.Registry, images: Split
) -> None:
    pair = "zoo/classy.extractor@1.0.0", "zoo/patches.head@1.0.0"
    model = recombine(registry, "classy", "patches")
    heads = [pair[1], "zoo/classy.head"]
    settings = {"bn_policy": "running", "adapters": {pair: model.inserted}}
    matrix = registry.matrix(pair[0], heads, {"*": images}, **settings)  # type: ignore[arg-type]
    cell = matrix.cell(*pair)
    assert cell.restricted is not None and cell.wiring == "needs-adapter"
    assert cell.restricted.correct == int((model.predict(images).positions.numpy() == images.labels).sum())
    assert cell.bound == matrix.cell(pair[0], "zoo/classy.head@1.0.0").restricted
    assert cell.settings["adapters"] == "drop-tokens: leave out 1"
    assert registry.check(*pair).evidence == "none"
    without = registry.matrix(pair[0], pair[1], {"*": images}).cell(*pair)
    assert without.restricted is None and "adapters" not in without.settings
