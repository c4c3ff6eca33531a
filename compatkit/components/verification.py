"""Verify contracts against modules: quickly at every load, thoroughly before publication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Literal, TypeGuard

import attrs
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.adapters.blueprints import structural, with_classes
from compatkit.adapters.builders import library_note
from compatkit.adapters.fingerprint import observe, run_on_signals, same_probe
from compatkit.adapters.ports.structure import first_tokens, prefix_tokens
from compatkit.components.probes import probe_shapes, proof_of
from compatkit.contracts.contract import Blueprint, Dimension, Port, Scaled
from compatkit.contracts.manifest import Manifest
from compatkit.contracts.ports import dimension_at, may_be_equal, size_text
from compatkit.errors import IntegrityError, TooCostly
from compatkit.registry.blobs import Verify
from compatkit.registry.store import Store, add_component_note
from compatkit.reports.contracts import dimension_formula

SIDES = {
    "extractor": "extractor",
    "head": "head",
    "auxiliary_head": "head",
    "adapter": "adapter",
    "recombination": "recombination",
}
"""Side of the blueprint by kind of component."""

COMPARED = ("name", "shape", "dtype", "layout", "pooled", "prefix_tokens", "multiple_of", "range")


def verify_once(
    store: Store,
    manifest: Manifest,
    digest: str | None,
    module: nn.Module,
    *,
    verify: Verify,
    owner: str,
    state: Mapping[str, Tensor] | None = None,
    builders: Sequence[str] | None = None,
) -> None:
    """Check a loaded module against its contract; its probe runs once per machine, unless ``verify`` states otherwise.

    Args:
        store: Store that remembers passed probes.
        manifest: Manifest of the component.
        digest: Digest of the manifest.
        module: Module in eval mode, on the CPU, with its weights.
        verify: ``"always"`` runs the probe every time, ``"never"`` not at all.
        owner: Name for messages.
        state: As for ``verify_contract``.
        builders: As for ``proof_of``.

    Raises:
        IntegrityError: The contract is violated; lists all differences.
    """
    proof = proof_of(manifest, str(digest), builders)
    run = verify == "always" or (verify == "auto" and not (proof and store.local_cache.is_proved(proof)))
    verify_contract(manifest, module, thorough=False, run=run, state=state, owner=owner)
    if run and proof is not None:
        store.local_cache.remember_proved(proof)


def normalization_of(module: nn.Module) -> Literal["batch", "none"]:
    """Return ``"batch"`` if the module contains batch normalization, else ``"none"``."""
    return "batch" if any(isinstance(layer, _BatchNorm) for layer in module.modules()) else "none"


def verify_contract(
    manifest: Manifest,
    module: nn.Module,
    *,
    thorough: bool,
    run: bool = True,
    state: Mapping[str, Tensor] | None = None,
    owner: str = "The component",
    trained_with: Manifest | None = None,
) -> None:
    """Compare a contract with the module rebuilt from blueprint and weights.

    Args:
        manifest: Manifest with blueprint, payload and contract.
        module: Module in eval mode, on the CPU, with its weights.
        thorough: Derive the structural level and compare port by port, which costs about 16 forward passes; else only
            compare the outputs of one pass, that of the probe.
        run: Whether to run the probe; False if the module has passed it before.
        state: Stored tensors, whose dtypes are compared with those of the module.
        owner: Name for messages.
        trained_with: Manifest of a head's own extractor, whose feature ports the head's inputs must equal.

    Raises:
        IntegrityError: The contract is violated; lists all differences.
        TooCostly: The probe takes more memory or operations than ``adapters.bounds`` allows.
    """
    differences = list(_static_differences(manifest, module, state or {}))
    if run or thorough:
        with add_component_note(owner):
            differences += _probe_differences(manifest, module)
    if trained_with is not None:
        differences += _feature_differences(manifest, trained_with)
    if thorough and not differences:
        differences += _structure_differences(manifest, module)
    _refuse(differences, owner)


def _refuse(differences: Sequence[str], owner: str) -> None:
    """Raise if there are differences."""
    if differences:
        several = len(differences) > 1
        listed = (
            "".join(f"\n- {difference}" for difference in differences) + "\n"
            if several
            else f" {differences[0]} "
        )
        raise IntegrityError(
            f"{owner} does not match its contract:{listed}Derive the contract from the module again, or use the "
            "weights that it was derived from.",
            subject=differences,
        )


def verify_structure(
    manifest: Manifest, module: nn.Module, *, state: Mapping[str, Tensor], run: bool, owner: str
) -> None:
    """Compare a contract with a module whose weights are not those of the component, such as zeros.

    Args:
        manifest: Manifest with blueprint, payload and contract.
        module: Module in eval mode, on the CPU, with tensors of the names and shapes of ``state``.
        state: Tensors with the stored names, shapes and dtypes.
        run: Whether to run the module and compare its ports.
        owner: Name for messages.

    Raises:
        IntegrityError: The contract is violated; lists all differences.
        TooCostly: As for ``verify_contract``.
    """
    differences = list(_static_differences(manifest, module, state))
    if run:
        differences += _probe_differences(manifest, module, values=False)
    _refuse(differences, owner)


def _static_differences(manifest: Manifest, module: nn.Module, state: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield differences that show without running the module."""
    payload, own = manifest.payload, module.state_dict()
    parameters = sum(parameter.numel() for parameter in module.parameters())
    apart = manifest.blueprint.side == "recombination"  # its payload has only the tensors that its parts lack
    if payload.count != len(own) and not apart:
        yield f"{payload.count} tensors are stated, the module holds {len(own)}."
    if payload.parameters != parameters:
        yield f"{payload.parameters:,} parameters are stated, the module holds {parameters:,}."
    for name in sorted(own.keys() & state.keys()):
        if own[name].dtype != state[name].dtype:
            yield f"The tensor {name!r} is stored as {_kind(state[name])}, the module's is {_kind(own[name])}."
    norm = normalization_of(module)
    if manifest.contract.protocol.norm != norm:
        stated = manifest.contract.protocol.norm
        holds = "holds" if norm == "batch" else "holds no"
        yield f"Normalization {stated!r} is stated, the module {holds} batch normalization."
    yield from level_differences(manifest)


def level_differences(manifest: Manifest) -> Iterator[str]:
    """Yield contradictions between the levels of a contract, its blueprint and its kind."""
    contract, blueprint = manifest.contract, manifest.blueprint
    side = SIDES.get(manifest.kind)
    if side is None:
        yield f"It is of kind {manifest.kind}, which no blueprint builds; built are {', '.join(SIDES)}."
    elif side != blueprint.side:
        yield f"It is of kind {manifest.kind}, its blueprint builds the side {blueprint.side!r}."
    ports = contract.structural.outputs if blueprint.side == "extractor" else contract.structural.inputs
    if blueprint.is_cut and len(ports) != blueprint.cut_outputs:
        yield f"Its blueprint lets {blueprint.cut_outputs} tensors cross, {len(ports)} feature ports are stated."
    if contract.adapters and blueprint.side != "recombination":
        yield f"It lists {len(contract.adapters)} adapters; one part alone has none."
    own = sum(parent.relation == "trained_with" for parent in manifest.parents)
    if own > 1:
        yield f"It was trained with {own} extractors; a head has one, and others it can be recombined with."
    labels, outputs = contract.data.labels, contract.structural.outputs
    if blueprint.side == "extractor":
        if labels is not None:
            yield f"It names {len(labels)} classes; an extractor has none."
    if blueprint.takes_images:
        yield from _image_differences(manifest)
    if (
        blueprint.side in ("head", "recombination")
        and labels is not None
        and isinstance(outputs[0].channels, int)
        and outputs[0].channels != len(labels)
    ):
        yield f"{len(labels)} classes are named, for {outputs[0].channels} outputs."


def _image_differences(manifest: Manifest) -> Iterator[str]:
    data, image = manifest.contract.data, manifest.contract.structural.inputs[0]
    channels = 1 if data.channels == "L" else 3
    if image.layout != "NCHW":
        yield f"The port {image.name!r} takes images, which are NCHW, but states {image.layout}."
        return
    if image.channels != channels:
        yield f"Images are {data.channels}, the port {image.name!r} takes {image.channels} channels."
    step = image.multiple_of
    fits = [
        pixels == size if isinstance(size, int) else pixels % step == 0
        for pixels, size in zip(data.size, image.spatial, strict=True)
    ]
    if not all(fits):
        taken = f"{_shown(image)}, in steps of {step}" if step > 1 else _shown(image)
        yield f"Images are {size_text(data.size)}, the port {image.name!r} takes {taken}."


def _probe_differences(manifest: Manifest, module: nn.Module, *, values: bool = True) -> Iterator[str]:
    """Yield differences that the forward pass of the probe shows; without ``values`` those of shapes and dtypes."""
    contract, promised = manifest.contract, manifest.contract.statistical.probe
    inputs, outputs = contract.structural.inputs, contract.structural.outputs
    try:
        shapes = (
            promised.shapes if promised is not None else probe_shapes(contract.structural, manifest.blueprint)
        )
        dtypes = [port.dtype for port in inputs]
        observed = observe(module, *shapes, dtypes=dtypes) if values else None
        tensors = run_on_signals(module, *shapes, dtypes=dtypes)[0] if observed is None else observed.outputs
    except TooCostly:
        raise
    except Exception as error:  # third-party code may raise anything
        yield f"Its module does not take input as stated at its ports and in its probe: {error}"
        return
    batch, size = _batch(inputs, shapes), _size(manifest, shapes[0])
    for port, shape in zip(inputs, shapes, strict=True):
        if not _fits(shape, _stated(port, size, batch)):
            yield f"The probe's input {tuple(shape)} does not fit the port {port.name!r}, {_shown(port)}."
    if promised is not None and observed is not None and not same_probe(observed.probe, promised):
        note = library_note(manifest.blueprint) if manifest.blueprint.is_cut else None
        why = (
            note
            or f"It was built with {manifest.blueprint.library}, as here: the manifest belongs to other weights."
        )
        yield f"It gives other outputs on the probe input than its contract promises. {why}"
    if len(tensors) != len(outputs):
        yield f"{len(outputs)} outputs are stated, {len(tensors)} tensors are returned."
        return
    for port, out in zip(outputs, tensors, strict=True):
        yield from _output_differences(manifest, port, out, size, batch)
        if values:
            yield from _value_differences(manifest, module, port, out, size)


def _output_differences(
    manifest: Manifest, port: Port, out: Tensor, size: tuple[int, int], batch: int
) -> Iterator[str]:
    """Yield differences between an output tensor and its port."""
    owner, side = f"The output {port.name!r}", manifest.blueprint.side
    if not _fits(out.shape, _stated(port, size, batch)):
        yield f"{owner} is stated as {_shown(port)}, the module gives {tuple(out.shape)}."
        return
    if _kind(out) != port.dtype:
        yield f"{owner} is stated as {port.dtype}, the module gives {_kind(out)}."
    if side == "extractor" and port.range == "nonnegative" and not out.is_complex() and bool((out < 0).any()):
        yield f"{owner} is stated as nonnegative, values down to {float(out.min()):.4g} are returned."
    positions = [out.shape[axis] for axis in port.spatial_axes]
    if port.pooled and (port.layout in ("NLC", "other") or any(item != 1 for item in positions)):
        yield f"{owner} is stated as pooled, but has positions: {tuple(out.shape)}."
    if side == "head" and not port.pooled and port.layout == "NC":
        yield f"{owner} is one vector an image, but stated as not pooled."


def _value_differences(
    manifest: Manifest, module: nn.Module, port: Port, out: Tensor, size: tuple[int, int]
) -> Iterator[str]:
    """Yield differences between an output tensor and its port that depend on the weights."""
    if manifest.blueprint.side != "extractor":
        return
    owner = f"The output {port.name!r}"
    if port.range == "nonnegative" and not out.is_complex() and bool((out < 0).any()):
        yield f"{owner} is stated as nonnegative, values down to {float(out.min()):.4g} are returned."
    if size == manifest.blueprint.traced_size:
        earlier = takewhile(lambda item: item is not port, manifest.contract.structural.outputs)
        first = first_tokens(list(earlier), size)
        tokens = prefix_tokens(module, out.shape[1], size, first) if port.layout == "NLC" else 0
        if port.prefix_tokens != tokens:
            yield f"{owner} is stated with {port.prefix_tokens} prefix tokens, the network puts {tokens} there."


def _feature_differences(manifest: Manifest, extractor: Manifest) -> Iterator[str]:
    """Yield differences between a head's inputs and the features of its own extractor."""
    taken, own_ports = manifest.contract.structural.inputs, extractor.contract.structural.outputs
    if extractor.blueprint.side != "extractor" or _network(manifest.blueprint) != _network(
        extractor.blueprint
    ):
        yield (
            f"It is the {manifest.blueprint.side} of {_cut(manifest.blueprint)}; the extractor that it was trained "
            f"with is the {extractor.blueprint.side} of {_cut(extractor.blueprint)}."
        )
    if len(taken) != len(own_ports):
        yield f"It takes {len(taken)} tensors, the extractor that it was trained with gives {len(own_ports)}."
        return
    fields = ("name", "channels", "dtype", "layout", "range", "pooled", "prefix_tokens")
    for port, own in zip(taken, own_ports, strict=True):
        yield from _field_differences(
            "input", port, own, fields, "the extractor that it was trained with gives"
        )


def _network(blueprint: Blueprint) -> Blueprint:
    """Return a blueprint without the fields in which two sides of a cut may differ."""
    return attrs.evolve(with_classes(blueprint, 0), side="head", library="")


def _cut(blueprint: Blueprint) -> str:
    size = size_text(blueprint.traced_size)
    return f"{blueprint.model} {dict(blueprint.kwargs)} at {blueprint.cut!r}, traced at {size}"


def _structure_differences(manifest: Manifest, module: nn.Module) -> Iterator[str]:
    """Yield differences between derived and stated ports."""
    stated, blueprint = manifest.contract.structural, manifest.blueprint
    if not blueprint.is_cut:
        return
    try:
        ports = stated.inputs if blueprint.side == "head" else None
        derived = structural(module, blueprint, feature_ports=ports)
    except TooCostly:
        raise
    except Exception as error:  # third-party code may raise anything
        yield f"Its ports cannot be derived: {error}"
        return
    for what in ("inputs", "outputs"):
        pairs: Sequence[tuple[Port, Port]] = list(
            zip(getattr(stated, what), getattr(derived, what), strict=True)
        )
        for port, derived_port in pairs:
            yield from _port_differences(what[:-1], port, derived_port)


def _field_differences(
    what: str, stated: Port, other: Port, fields: Sequence[str], shows: str
) -> Iterator[str]:
    """Yield the fields in which a stated port differs from another; a range that states nothing differs from none."""
    for field in fields:
        actual, expected = getattr(stated, field), getattr(other, field)
        if field == "shape":
            actual, expected = _shown(stated), _shown(other)
        same = may_be_equal(actual, expected) if field == "channels" else actual == expected
        if not same and not (field == "range" and actual == "any"):
            yield f"The {what} {stated.name!r} states {field} {actual}, {shows} {expected}."


def _port_differences(what: str, stated: Port, derived: Port) -> Iterator[str]:
    yield from _field_differences(what, stated, derived, COMPARED, "running the module shows")
    for key, sizes in stated.measured.items():
        size = tuple(map(int, key.split("x")))
        known = _stated(derived, (size[0], size[1]), 1)
        seen = tuple(known[axis] for axis in derived.spatial_axes)
        if not _fits(sizes, seen):
            yield f"The {what} {stated.name!r} states {sizes} for images of {key}, running the module shows {seen}."


def _stated(port: Port, size: tuple[int, int], batch: int) -> tuple[int | None, ...]:
    """Return the stated shape for ``batch`` images of this size; None for open dimensions."""
    seen = port.measured.get(f"{size[0]}x{size[1]}", ())
    known = dict(zip(port.spatial_axes, seen, strict=False))
    shape: list[int | None] = []
    for axis, dim in enumerate(port.shape):
        length = batch if dim == "N" else dimension_at(dim, size, batch)
        shape.append(length if isinstance(length, int) else known.get(axis))
    return tuple(shape)


def _fits(shape: Sequence[int], stated: Sequence[int | None]) -> bool:
    return len(shape) == len(stated) and all(b is None or a == b for a, b in zip(shape, stated, strict=True))


def _batch(ports: Sequence[Port], shapes: Sequence[Sequence[int]]) -> int:
    """Return the number of images in inputs of these shapes, if needed from an axis into which several are folded."""
    sizes = [
        pair
        for port, shape in zip(ports, shapes, strict=True)
        for pair in zip(port.shape, shape, strict=False)
    ]
    plain = (size for dim, size in sizes if dim == "N")
    folded = ((size - dim.plus) // dim.times for dim, size in sizes if _is_folded(dim))
    return next(plain, next(folded, 1))


def _is_folded(dim: Dimension) -> TypeGuard[Scaled]:
    return isinstance(dim, Scaled) and dim.of == "N" and dim.add == 0 and dim.floordiv == 1


def _size(manifest: Manifest, shape: Sequence[int]) -> tuple[int, int]:
    """Return the image size of the probe, or the traced one."""
    image = manifest.blueprint.takes_images and len(shape) == 4
    return (shape[2], shape[3]) if image else manifest.blueprint.traced_size


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shown(port: Port) -> str:
    return " x ".join(map(dimension_formula, port.shape))
