"""A contract that lies about its weights is caught when it is registered, and again when it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

import compatkit as ck
from compatkit.adapters.builders import LibraryWarning
from compatkit.components.drafts import Draft
from compatkit.components.splitting import split
from compatkit.components.verification import _feature_differences
from compatkit.contracts.channels import channel_bytes
from compatkit.contracts.contract import FeatureStatistics, Label, Scaled
from compatkit.contracts.manifest import About, Manifest, Parent, Payload
from compatkit.errors import FormatError, IntegrityError, InvalidName, UnknownName

NAMES = ("cat", "dog", "ship")
Change = Callable[[Manifest], Manifest]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def parts() -> dict[str, Draft]:
    result = split("resnet8_cifar", "layer2", kwargs={"num_classes": 3}, size=(16, 16), labels=NAMES)
    tokens = {"num_classes": 3, "img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2}
    seen = split("vit_tiny_patch16_224", "blocks.0", kwargs=tokens, labels=NAMES)
    pooled = split("resnet8_cifar", "head_drop", kwargs={"num_classes": 3}, size=(16, 16))
    return {**result, "tokens": seen["extractor"], "vector": pooled["extractor"]}


@pytest.fixture
def registry(tmp_path: Path) -> ck.Registry:
    return ck.Registry.init(tmp_path / "parts")


def manifest_of(registry: ck.Registry, part: Draft, **changes: Any) -> Manifest:
    """Return the honest manifest of a part, its weights stored."""
    payload = registry.store.put_state(part.module.state_dict(), parameters=part.parameters)
    kind = "head" if part.blueprint.side == "head" else "extractor"
    return Manifest(kind=kind, blueprint=part.blueprint, payload=payload, contract=part.contract, **changes)


def changed(path: str, **fields: Any) -> Change:
    """Return what replaces fields at a path such as ``"structural.outputs.0"`` of the contract."""

    def at(value: Any, steps: list[str]) -> Any:
        if not steps:
            return attrs.evolve(value, **fields)
        step, *rest = steps
        if step.isdecimal():
            return tuple(
                at(entry, rest) if index == int(step) else entry for index, entry in enumerate(value)
            )
        return attrs.evolve(value, **{step: at(getattr(value, step), rest)})

    return lambda manifest: attrs.evolve(
        manifest, contract=at(manifest.contract, path.split(".") if path else [])
    )


def of_manifest(path: str, **fields: Any) -> Change:
    def change(manifest: Manifest) -> Manifest:
        return attrs.evolve(manifest, **{path: attrs.evolve(getattr(manifest, path), **fields)})

    return change


def other_probe(manifest: Manifest) -> Manifest:
    sketch = tuple(2 * entry for entry in manifest.contract.statistical.probe.sketch)  # type: ignore[union-attr]
    return changed("statistical.probe", sketch=sketch)(manifest)


OUT = "structural.outputs.0"
LIES: list[tuple[str, str, Change, str]] = [
    ("another function", "extractor", other_probe, "gives other outputs on the probe input"),
    (
        "a probe of other images",
        "extractor",
        changed("statistical.probe", shapes=((2, 1, 16, 16),)),
        "does not take input",
    ),
    (
        "a probe of other features",
        "head",
        changed("statistical.probe", shapes=((2, 9, 8, 8),)),
        "does not take input",
    ),
    (
        "no batch normalization",
        "extractor",
        changed("protocol", norm="none"),
        "holds batch normalization",
    ),
    (
        "batch normalization",
        "tokens",
        changed("protocol", norm="batch"),
        "holds no batch normalization",
    ),
    (
        "more channels",
        "extractor",
        changed(OUT, shape=("N", 64, Scaled("H", 1, 2), Scaled("W", 1, 2))),
        "states?d? as N x 64",
    ),
    (
        "another stride",
        "extractor",
        changed(OUT, shape=("N", 32, Scaled("H", 0, 4), Scaled("W", 0, 4))),
        r"gives \(2, 32, 8, 8\)",
    ),
    (
        "other measured sizes",
        "extractor",
        changed(OUT, shape=("N", 32, "L", "L"), measured={"16x16": (4, 4)}),
        r"gives \(2, 32, 8, 8\)",
    ),
    (
        "a vector",
        "extractor",
        changed(OUT, shape=("N", 32), layout="NC", measured={}),
        r"gives \(2, 32, 8, 8\)",
    ),
    (
        "two outputs",
        "extractor",
        lambda m: attrs.evolve(
            m,
            contract=attrs.evolve(
                m.contract,
                structural=attrs.evolve(
                    m.contract.structural,
                    outputs=(
                        *m.contract.structural.outputs,
                        attrs.evolve(m.contract.structural.outputs[0], name="more"),
                    ),
                ),
            ),
        ),
        "2 outputs are stated, 1 tensors are returned",
    ),
    (
        "half precision",
        "extractor",
        changed(OUT, dtype="float16"),
        "stated as float16, the module gives float32",
    ),
    (
        "features after ReLU",
        "tokens",
        changed(OUT, range="nonnegative"),
        "stated as nonnegative, values down to -",
    ),
    ("a pooled map", "extractor", changed(OUT, pooled=True), "stated as pooled, but has positions"),
    ("pooled tokens", "tokens", changed(OUT, pooled=True), "stated as pooled, but has positions"),
    ("logits with positions", "head", changed(OUT, pooled=False), "stated as not pooled"),
    (
        "no class token",
        "tokens",
        changed(OUT, prefix_tokens=0),
        "stated with 0 prefix tokens, the network puts 1",
    ),
    ("registers", "tokens", changed(OUT, prefix_tokens=5), "stated with 5 prefix tokens"),
    (
        "a prefix in a map",
        "extractor",
        changed(OUT, prefix_tokens=1),
        "stated with 1 prefix tokens, the network puts 0",
    ),
    (
        "another count of classes",
        "head",
        changed("data", labels=(Label("cat"), Label("dog"))),
        "2 classes are named, for 3 outputs",
    ),
    ("more outputs", "head", changed(OUT, shape=("N", 4)), r"stated as N x 4, the module gives \(2, 3\)"),
    (
        "vectors in",
        "extractor",
        changed("structural.inputs.0", shape=("N", 3), layout="NC"),
        "takes images, which are NCHW, but states NC",
    ),
    (
        "classes of an extractor",
        "extractor",
        changed("data", labels=(Label("cat"),)),
        "an extractor has none",
    ),
    (
        "gray images",
        "extractor",
        changed("data", channels="L", mean=(0.5,), std=(0.5,)),
        "Images are L, the port 'image' takes 3",
    ),
    (
        "other images",
        "tokens",
        changed("data", size=(64, 64)),
        "Images are 64x64, the port 'image' takes N x 3 x 32 x 32",
    ),
    (
        "other input",
        "extractor",
        changed("structural.inputs.0", shape=("N", 1, "H", "W")),
        "takes 1 channels",
    ),
    ("half inputs", "head", changed("structural.inputs.0", dtype="float16"), "does not take input"),
    (
        "another side",
        "head",
        lambda m: attrs.evolve(m, kind="extractor"),
        "of kind extractor, its blueprint builds the side 'head'",
    ),
    (
        "a kind that is not built",
        "head",
        lambda m: attrs.evolve(m, kind="decoder"),
        "of kind decoder, which no blueprint builds; built are extractor, head, auxiliary_head, adapter",
    ),
    (
        "adapters inside",
        "head",
        lambda m: attrs.evolve(m, contract=attrs.evolve(m.contract, adapters=(m.blueprint,))),
        "lists 1 adapters; one part alone has none",
    ),
    (
        "a tuple",
        "extractor",
        of_manifest("blueprint", cut_outputs=2),
        "lets 2 tensors cross, 1 feature ports are stated",
    ),
]


@pytest.mark.case("E2")
@pytest.mark.parametrize(("part", "lie", "message"), [ly[1:] for ly in LIES], ids=[ly[0] for ly in LIES])
def test_a_lie_is_caught_at_publish_and_at_load(
    registry: ck.Registry, parts: Mapping[str, Draft], part: str, lie: Change, message: str
) -> None:
    manifest = lie(manifest_of(registry, parts[part]))
    with pytest.raises(IntegrityError, match=rf"(?s)^lies does not match its contract.*{message}"):
        registry.publish(manifest, "lies", state=parts[part].module.state_dict())
    assert registry.store.names() == []
    registry.store.publish("lies", manifest)  # the bare store knows no network
    with pytest.raises(IntegrityError, match=rf"(?s)lies@1\.0\.0 does not match its contract.*{message}"):
        registry.load("lies")


@pytest.mark.parametrize(
    ("part", "lie", "message"),
    [
        ("extractor", changed(OUT, name="things"), "states name things, running the module shows features"),
        ("extractor", changed(OUT, layout="NHWC"), "states layout NHWC, running the module shows NCHW"),
        (
            "extractor",
            changed(OUT, range="signed"),
            "states range signed, running the module shows nonnegative",
        ),
        (
            "extractor",
            changed(OUT, shape=("N", 32, 8, 8)),
            r"states shape N x 32 x 8 x 8, running .* \(H \+ 1\) // 2",
        ),
        (
            "extractor",
            changed(OUT, measured={"16x16": (8, 8), "17x17": (8, 8)}),
            r"states \(8, 8\) for images of 17x17",
        ),
        ("extractor", changed("structural.inputs.0", shape=("N", 3, 16, 16)), "states shape N x 3 x 16 x 16"),
        ("extractor", changed("structural.inputs.0", multiple_of=4), "states multiple_of 4"),
        ("tokens", changed("structural.inputs.0", multiple_of=64), "states multiple_of 64"),
        ("vector", changed(OUT, pooled=False), "states pooled False, running the module shows True"),
        ("head", changed("structural.inputs.0", shape=("N", 32, 8, 8)), "states shape N x 32 x 8 x 8"),
        ("head", changed(OUT, name="scores"), "states name scores, running the module shows logits"),
    ],
)
def test_what_one_pass_does_not_show_is_caught_at_publish(
    registry: ck.Registry, parts: Mapping[str, Draft], part: str, lie: Change, message: str
) -> None:
    with pytest.raises(IntegrityError, match=message):
        registry.publish(
            lie(manifest_of(registry, parts[part])), "lies", state=parts[part].module.state_dict()
        )
    assert registry.store.names() == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "others", "states name others, the extractor that it was trained with gives features"),
        ("range", "signed", "states range signed, the extractor that it was trained with gives nonnegative"),
        ("prefix_tokens", 1, "states prefix_tokens 1, the extractor that it was trained with gives 0"),
        ("pooled", True, "states pooled True, the extractor that it was trained with gives False"),
    ],
)
def test_a_head_repeats_the_ports_of_the_extractor_that_it_was_trained_with(
    registry: ck.Registry, parts: Mapping[str, Draft], field: str, value: Any, message: str
) -> None:
    state = parts["extractor"].module.state_dict()
    extractor = registry.publish(manifest_of(registry, parts["extractor"]), "mine.extractor", state=state)
    parent = Parent("trained_with", str(registry.store.resolve(extractor).digest))
    honest = manifest_of(registry, parts["head"], parents=(parent,))
    with pytest.raises(IntegrityError, match=message):
        lie = changed("structural.inputs.0", **{field: value})
        registry.publish(lie(honest), "mine.head", state=parts["head"].module.state_dict())
    assert registry.publish(honest, "mine.head", state=parts["head"].module.state_dict()) == "mine.head@1.0.0"


def test_a_head_was_trained_with_one_extractor_of_its_own_network(
    registry: ck.Registry, parts: Mapping[str, Draft]
) -> None:
    others = split("resnet8_cifar", "layer2", kwargs={"num_classes": 3, "in_chans": 1}, size=(16, 16))
    classes = split("resnet8_cifar", "layer2", kwargs={"num_classes": 7}, size=(16, 16))
    digests = {}
    for name, part in {"own": parts["extractor"], "gray": others["extractor"]}.items():
        registry.publish(manifest_of(registry, part), name, state=part.module.state_dict())
        digests[name] = str(registry.store.resolve(name).digest)

    def register(part: Draft, *names: str) -> str:
        parents = tuple(Parent("trained_with", digests[name]) for name in names)
        return registry.publish(
            manifest_of(registry, part, parents=parents), "head", state=part.module.state_dict()
        )

    with pytest.raises(
        IntegrityError, match=r"trained with is the extractor of resnet8_cifar .*'in_chans': 1"
    ):
        register(parts["head"], "gray")
    with pytest.raises(IntegrityError, match="It was trained with 2 extractors; a head has one"):
        register(parts["head"], "own", "gray")
    # Other classes on the same features are honest: the extractor holds no class layer.
    assert register(classes["head"], "own") == "head@1.0.0"


def test_a_symbol_may_have_another_number_at_the_head(
    registry: ck.Registry, parts: Mapping[str, Draft]
) -> None:
    """An extractor counts its symbols over all of its ports, a head over those that it takes."""
    inputs, taken = (
        changed(port, shape=("N", 32, symbol), layout="other", measured={})(
            manifest_of(registry, parts[side])
        )
        for side, port, symbol in (("extractor", OUT, "L4"), ("head", "structural.inputs.0", "L"))
    )
    assert list(_feature_differences(taken, inputs)) == []


@pytest.mark.case("E2")
def test_every_lie_is_listed(registry: ck.Registry, parts: Mapping[str, Draft]) -> None:
    honest = manifest_of(registry, parts["extractor"])
    lie = changed("protocol", norm="none")(changed(OUT, dtype="float16", pooled=True)(honest))
    with pytest.raises(IntegrityError) as caught:
        registry.publish(lie, "lies", state=parts["extractor"].module.state_dict())
    text = str(caught.value)
    for name in (
        "- Normalization 'none'",
        "- The output 'features' is stated as float16",
        "is stated as pooled",
    ):
        assert name in text
    assert text.endswith("or use the weights that it was derived from.") and len(caught.value.subject) == 3


@pytest.mark.case("E2")
def test_counts_that_are_stated_are_counted_at_load(
    registry: ck.Registry, parts: Mapping[str, Draft]
) -> None:
    honest = manifest_of(registry, parts["head"])
    registry.store.publish("lies", of_manifest("payload", parameters=7)(honest))
    with pytest.raises(IntegrityError, match=r"7 parameters are stated, the module holds [0-9,]+\."):
        registry.load("lies")
    with pytest.raises(IntegrityError, match="the manifest states 99 tensors"):
        registry.store.publish("counts", of_manifest("payload", count=99)(honest))
    # What is registered is counted, not believed.
    wrong = of_manifest("payload", parameters=7, count=99)(honest)
    reference = registry.publish(wrong, "mine", state=parts["head"].module.state_dict())
    assert registry.store.manifest(reference).payload == honest.payload


def altered(state: Mapping[str, Tensor], how: str) -> dict[str, Tensor]:
    name = next(iter(state))
    saved = {key: value for key, value in state.items() if key != name}
    return {
        "renamed": {**saved, "other": state[name]},
        "missing": saved,
        "more": {**state, "other": state[name].clone()},
        "reshaped": {**state, name: state[name][:1].clone()},
        "half": {**state, name: state[name].half()},
    }[how]


@pytest.mark.case("E2", "G")
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("renamed", r"cannot be rebuilt: .* missing: .*; 1 is not known to it: other"),
        ("missing", r"cannot be rebuilt: .* missing: "),
        ("more", r"cannot be rebuilt: .* not known to it: other"),
        ("reshaped", r"cannot be rebuilt: .* another shape: "),
        ("half", r"The tensor '.*' is stored as float16, the module's is float32"),
    ],
)
def test_tensors_of_another_module_are_caught_at_publish_and_at_load(
    registry: ck.Registry, parts: Mapping[str, Draft], how: str, message: str
) -> None:
    honest, state = manifest_of(registry, parts["head"]), altered(parts["head"].module.state_dict(), how)
    with pytest.raises(IntegrityError, match=message):
        registry.publish(honest, "lies", state=state)
    assert registry.store.names() == []
    payload = registry.store.put_state(state, parameters=parts["head"].parameters)
    registry.store.publish("lies", attrs.evolve(honest, payload=payload))
    with pytest.raises(IntegrityError, match=message):
        registry.load("lies")


def test_labels_that_come_twice_are_refused_before_anything_is_built(
    registry: ck.Registry, parts: Mapping[str, Draft]
) -> None:
    twice = changed("data", labels=(Label("cat"), Label("dog"), Label("Cat")))
    with pytest.raises(FormatError, match="'Cat' duplicates number 0"):
        registry.publish(
            twice(manifest_of(registry, parts["head"])), "lies", state=parts["head"].module.state_dict()
        )
    assert registry.store.names() == []


def test_an_honest_component_is_registered_and_loaded(
    registry: ck.Registry, parts: Mapping[str, Draft]
) -> None:
    for name, part in parts.items():
        manifest = manifest_of(registry, part, about=About(title=name))
        reference = registry.publish(manifest, f"zoo/{name}", state=part.module.state_dict())
        assert reference == f"zoo/{name}@1.0.0"
        built, state = registry.load(reference), part.module.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in built.state_dict().items())
        assert registry.publish(manifest, f"zoo/{name}", state=state) == reference


def test_figures_of_channels_must_be_there_and_be_figures(
    registry: ck.Registry, parts: Mapping[str, Draft]
) -> None:
    part, state = parts["extractor"], parts["extractor"].module.state_dict()
    edge = registry.store.put_blob(channel_bytes([0.5] * 32, [1.0] * 31 + [float("nan")]))
    figures = FeatureStatistics(0.5, 1.0, 10, {"blob": edge.blob, "bytes": edge.bytes})
    bad = changed("statistical", features=(figures,))(manifest_of(registry, part))
    with pytest.raises(FormatError, match="finite means and finite, non-negative deviations"):
        registry.publish(bad, "lies", state=state)
    lost = attrs.evolve(figures, per_channel={"blob": "sha256:" + "0" * 64, "bytes": 256})
    with pytest.raises(IntegrityError, match="missing"):
        registry.publish(changed("statistical", features=(lost,))(bad), "lies", state=state)
    assert registry.store.names() == []


def test_payload_and_probe_are_filled_in(registry: ck.Registry, parts: Mapping[str, Draft]) -> None:
    part = parts["extractor"]
    nothing = Payload(
        attrs.evolve(manifest_of(registry, part).payload.file, bytes=0), "tensors:sha256:" + "0" * 64, 0, 0
    )
    bare = changed("statistical", probe=None)(attrs.evolve(manifest_of(registry, part), payload=nothing))
    manifest = registry.store.manifest(registry.publish(bare, "mine", state=part.module.state_dict()))
    assert manifest.contract == part.contract
    assert manifest.payload == manifest_of(registry, part).payload


def test_a_claim_that_says_less_is_no_lie(registry: ck.Registry, parts: Mapping[str, Draft]) -> None:
    part = parts["extractor"]
    modest = changed(OUT, range="any", measured={})(manifest_of(registry, part))
    registry.publish(modest, "mine", state=part.module.state_dict())
    registry.load("mine")


@pytest.mark.case("E2", "F", "G")
def test_names_builders_and_parents_are_checked(registry: ck.Registry, parts: Mapping[str, Draft]) -> None:
    part, state = parts["head"], parts["head"].module.state_dict()
    honest = manifest_of(registry, part)
    with pytest.raises(InvalidName):
        registry.publish(honest, "Not A Name", state=state)
    with pytest.raises(UnknownName, match="No builder is called 'keras'"):
        registry.publish(of_manifest("blueprint", builder="keras")(honest), "mine", state=state)
    with pytest.raises(IntegrityError, match="missing"):
        lost = attrs.evolve(honest, parents=(Parent("trained_with", "sha256:" + "0" * 64),))
        registry.publish(lost, "mine", state=state)
    assert registry.store.names() == []


@pytest.mark.case("G")
def test_another_version_of_the_library_is_said_and_named_where_the_function_changed(
    registry: ck.Registry, parts: Mapping[str, Draft]
) -> None:
    part = parts["head"]
    older = of_manifest("blueprint", library="compatkit 0.0.1")(manifest_of(registry, part))
    registry.store.publish("older", older)
    with pytest.warns(LibraryWarning, match=r"older@1\.0\.0: resnet8_cifar was built by compatkit 0\.0\.1"):
        registry.load("older")
    registry.store.publish("broken", other_probe(older))
    with (
        pytest.warns(LibraryWarning),
        pytest.raises(
            IntegrityError,
            match=r"other outputs .* built by compatkit 0\.0\.1 and is built by compatkit [0-9]",
        ),
    ):
        registry.load("broken")


def test_loading_runs_the_module_once_and_not_where_it_was_seen_to_pass(
    registry: ck.Registry, parts: Mapping[str, Draft], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    part, calls = parts["extractor"], []
    registry.publish(manifest_of(registry, part), "mine", state=part.module.state_dict())
    norm = type(next(module for module in part.module.modules() if isinstance(module, torch.nn.BatchNorm2d)))
    count = sum(isinstance(module, torch.nn.BatchNorm2d) for module in part.module.modules())
    forward = norm.forward
    monkeypatch.setattr(norm, "forward", lambda self, x: calls.append(1) or forward(self, x))
    registry.load("mine")
    assert not calls  # it was run when it was registered
    registry.load("mine", verify="always")
    assert len(calls) == count
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another user's"))
    elsewhere = ck.Registry.open(registry.store.root)
    elsewhere.load("mine", verify="never")
    assert len(calls) == count
    for _ in range(2):
        elsewhere.load("mine")
    assert len(calls) == 2 * count
