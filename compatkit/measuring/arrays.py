"""Compute metrics of arrays: the role of each array, and the pass over them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compatkit.errors import DataError, UsageError, type_of
from compatkit.evaluation.metrics import (
    Measured,
    Metric,
    Observation,
    Subject,
    advance,
    conclude,
    finalized,
    make_metric,
    update_arguments,
)
from compatkit.foundation.addresses import local
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.limits import COUNT
from compatkit.measuring.activations import unreadable
from compatkit.measuring.measure import metrics_of
from compatkit.measuring.measurement import Measurement

ROLES = ("outputs", "other_outputs", "inputs", "weights", "other_weights", "logits", "labels", "images")
"""Roles of arrays for a metric, in the order of arguments."""
LAYERED = ROLES[:5]
BLOCK = 2**22
"""Values that are checked at once."""
Layers = Mapping[str, Any]


@checks_arguments
def measure_arrays(
    metric: str | Metric, /, *arrays: Any, batch_size: int | None = None, **settings: Any
) -> Measurement:
    """Compute a metric of arrays, with the engine of ``ck.measure``.

    Args:
        metric: Name of an installed metric that runs no network, or such a metric.
        arrays: Arguments of the metric, in its order: outputs of one and of the other network, inputs, weights, weights
            of the other network, logits, labels, images. numpy or torch, one row a sample (weights: ``(out, in)`` or
            ``(out, in, h, w)``); of the first five also a mapping from layers to arrays. float64 stays float64. If all
            are tensors on one GPU, the metric runs there.
        batch_size: Samples that the metric sees at once, for ``minibatch_cka``; None is all.
        **settings: Settings of the metric, where it is named.

    Returns:
        The results by name: ``ck.measure_arrays("svcca", a, b, share=.999)["svcca"]``.

    Raises:
        UnknownName: No metric of this name is installed.
        UsageError: The metric runs a network, takes other arrays, or settings are given with a metric object.
        DataError: An array is no array of numbers, has other samples, or values that are not finite.
    """
    by_name = isinstance(metric, str)
    name = metric if by_name else type(metric).__name__
    if settings and not by_name:
        raise UsageError(
            f"{name} is a metric object; give {', '.join(settings)} when it is created: make_metric(name, ...).",
            subject=next(iter(settings)),
        )
    if batch_size is not None:
        COUNT.check("measure_arrays", batch_size=batch_size)
    instance = make_metric(metric, **settings) if by_name else metrics_of([metric])[0]
    roles = roles_of(instance)
    if len(arrays) != len(roles):
        raise UsageError(
            f"{name} takes {len(roles)} arrays: {', '.join(roles)}; got {len(arrays)}.", subject=name
        )
    results = on_arrays([instance], dict(zip(roles, arrays, strict=True)), batch_size=batch_size)
    return Measurement({result.name: result for result in results}, {"metric": name, **settings})


def roles_of(metric: Metric) -> tuple[str, ...]:
    """Return which arrays a metric needs, in their order.

    Args:
        metric: Any; one of two networks' outputs gives ``("outputs", "other_outputs")``.

    Raises:
        UsageError: It needs a network, which arrays are not.
    """
    wanted, ending = set(update_arguments(metric)), set(finalized(metric))
    if not wanted:  # of weights alone
        return ("weights", "other_weights") if {"other", "other_layers"} & ending else ("weights",)
    if {"network", "other"} & (wanted | ending):
        raise UsageError(
            f"{type(metric).__name__} runs a network. Give the network to ck.measure, or its parts to `compatkit "
            "metric`.",
            subject=type(metric).__name__,
        )
    wanted = {"weights" if name == "layers" else name for name in wanted}
    return tuple(role for role in ROLES if role in wanted)


def on_arrays(
    metrics: Sequence[str | Metric],
    arrays: Mapping[str, Any],
    *,
    batch_size: int | None = None,
    positions: NDArray[np.int64] | None = None,
    refuse: bool = True,
) -> tuple[Measured, ...]:
    """Return the results of metrics on arrays.

    Args:
        metrics: Names of installed metrics, or metrics, that take the same arrays.
        arrays: By role (``ROLES``): of the first five an array, or arrays by layer; numpy or torch, one row a sample.
            ``weights``: ``(out, in)``, or a convolution's ``(out, in, h, w)`` with stride 1 and no padding.
        batch_size: Samples that a metric sees at once; None is all.
        positions: Indices of the samples; None counts them.
        refuse: Whether values that are not finite are refused; otherwise the metric decides.

    Raises:
        UsageError: An array is missing, or the metric does not take it.
        DataError: An array is no array of numbers, has other samples, or values that are not finite.
    """
    chosen = metrics_of(metrics)
    device = _device_of(arrays)
    tensors = {role: _tensors(role, array, refuse, device) for role, array in arrays.items()}
    for metric in chosen:
        needed = roles_of(metric)
        if set(needed) != set(tensors):
            name, passed = type(metric).__name__, ", ".join(tensors)
            message = f"{name} takes {len(needed)} arrays: {', '.join(needed)}; got {len(tensors)}: {passed}."
            raise UsageError(message, subject=name)
    sampled = {role: layers for role, layers in tensors.items() if not role.endswith("weights")}
    samples = [(role, name, tensor) for role, layers in sampled.items() for name, tensor in layers.items()]
    count = len(positions) if positions is not None else len(samples[0][2]) if samples else 0
    for role, name, tensor in samples:
        if len(tensor) != count and (positions is None or len(tensor) % max(1, count)):
            raise DataError(
                f"{name!r} of {role} has {len(tensor):,} rows, the first array {count:,}; each needs one row per "
                "sample.",
                subject=name,
            )
    layers = _modules(tensors, "weights", "outputs")
    others = _modules(tensors, "other_weights", "other_outputs")
    other = nn.Sequential(*others.values()) if others else None
    network = nn.Sequential(*layers.values())
    subject = Subject(network=network, layers=layers, other=other, other_layers=others)
    index = (torch.arange(count) if positions is None else torch.from_numpy(positions)).to(device)
    results: list[Measured] = []
    with torch.no_grad():
        for metric in chosen:
            state = metric.init()
            for at in (
                torch.arange(count).split(batch_size or max(1, count)) if update_arguments(metric) else ()
            ):
                state = advance(metric, state, _observation(tensors, index, at), subject)
            results += conclude(metric, state, subject)
    return tuple(results)


def read_array(path: str | os.PathLike[str]) -> Any:
    """Return the array of a ``.npy`` file, or the arrays of a ``.npz`` file by name, such as layers.

    Args:
        path: The file; no code in it is run.

    Raises:
        DataError: It cannot be read, or holds objects.
    """
    file = local(path, "a file of arrays")
    try:
        # Mapped, not read; copy-on-write, since torch needs writable arrays.
        arrays = np.load(file, mmap_mode="c", allow_pickle=False)
        return arrays if isinstance(arrays, np.ndarray) else dict(arrays)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(
            f"{os.fspath(path)} cannot be read as arrays of numbers: {unreadable(error)}. Use numpy.save or "
            "numpy.savez.",
            subject=os.fspath(path),
        ) from error


def _device_of(arrays: Mapping[str, Any]) -> torch.device:
    """Return the device of all arrays if they are tensors that share one; else the CPU."""
    listed = [
        values
        for array in arrays.values()
        for values in (array.values() if isinstance(array, Mapping) else (array,))
    ]
    devices = {values.device if isinstance(values, Tensor) else None for values in listed}
    device = devices.pop() if len(devices) == 1 else None
    return device or torch.device("cpu")


def _tensors(role: str, array: Any, refuse: bool, device: torch.device) -> dict[str, Tensor]:
    layers = array if role in LAYERED and isinstance(array, Mapping) else {"array": array}
    if not layers:
        raise DataError(f"There is no array for {role}; give at least one.", subject=role)
    there = device.type != "cpu"
    return {
        name: _tensor_there(name, values, role, refuse)
        if there and _has_values(values, role)
        else _tensor(name, values, role, refuse)
        for name, values in layers.items()
    }


def _has_values(tensor: Tensor, role: str) -> bool:
    """Return whether a tensor of another device is an array of numbers; the others are refused as arrays are."""
    kinds = tensor.dtype.is_complex or (role == "labels" and tensor.dtype.is_floating_point)
    return (
        tensor.layout is torch.strided
        and not tensor.is_meta
        and bool(tensor.ndim and tensor.numel())
        and not kinds
    )


def _tensor_there(name: str, tensor: Tensor, role: str, refuse: bool) -> Tensor:
    """Return a tensor in the type that is computed in, on its own device."""
    kind = (
        torch.int64 if role == "labels" else torch.float64 if tensor.dtype == torch.float64 else torch.float32
    )
    tensor = tensor.detach().to(kind)
    if refuse and role != "labels":
        rows = max(1, BLOCK * len(tensor) // tensor.numel())
        for first, block in zip(range(0, len(tensor), rows), tensor.split(rows), strict=True):
            wrong = ~block.isfinite().reshape(len(block), -1).all(1)
            if bool(wrong.any()):
                raise _not_finite(name, role, first + int(wrong.int().argmax()))
    return tensor


def _tensor(name: str, array: Any, role: str, refuse: bool) -> Tensor:
    """Return an array as a tensor, float32 or float64 (labels int64), without a copy where that is possible."""
    numbers = "integers" if role == "labels" else "real numbers"
    expected = f"{name!r} of {role} must be a dense array of {numbers}, one row per sample"
    try:
        if isinstance(array, Tensor):
            array = array.detach().cpu()
            array = (array.float() if array.dtype == torch.bfloat16 else array).numpy()
        values = np.asanyarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{expected}; got {type_of(array)}: {error}", subject=name) from error
    kinds = "iu" if role == "labels" else "fiub"
    masked = isinstance(values, np.ma.MaskedArray)
    if values.dtype.kind not in kinds or values.ndim < 1 or not values.size or masked:
        raise DataError(
            f"{expected}; got {type_of(array)} of {values.dtype} with shape {values.shape}."
            + (" Fill masked values, or leave these rows out." if masked else ""),
            subject=name,
        )
    wide = values.dtype.kind == "f" and values.dtype.itemsize >= np.dtype(np.float64).itemsize
    kind = np.int64 if role == "labels" else np.float64 if wide else np.float32
    values = values.astype(kind, copy=False)
    if refuse and role != "labels":
        _check_finite(name, role, values)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _check_finite(name: str, role: str, values: NDArray[Any]) -> None:
    rows = max(1, BLOCK * len(values) // values.size)
    for first in range(0, len(values), rows):
        some = values[first : first + rows]
        with np.errstate(all="ignore"):
            if np.isfinite(some.sum()):  # the sum of finite values may not be; one of others never is
                continue
        wrong = ~np.isfinite(some).reshape(len(some), -1).all(1)
        if wrong.any():
            raise _not_finite(name, role, first + int(wrong.argmax()))


def _not_finite(name: str, role: str, row: int) -> DataError:
    return DataError(
        f"{name!r} of {role} has values that are not finite, first in row {row:,}. "
        "Record in float32, check the weights, or leave the layer out.",
        subject=name,
    )


def _modules(tensors: Mapping[str, Mapping[str, Tensor]], weights: str, outputs: str) -> dict[str, nn.Module]:
    """Return layers with these weights, and layers without weights for other names of outputs."""
    modules: dict[str, nn.Module] = {name: nn.Identity() for name in tensors.get(outputs, {})}
    for name, weight in tensors.get(weights, {}).items():
        if weight.ndim == 2:
            layer: Any = nn.Linear(*reversed(weight.shape), bias=False)
        elif weight.ndim == 4:
            layer = nn.Conv2d(*reversed(weight.shape[:2]), weight.shape[2:], bias=False)  # type: ignore[arg-type]
        else:
            raise DataError(
                f"{name!r} of {weights} has shape {tuple(weight.shape)}; expected (out, in) or (out, in, h, w).",
                subject=name,
            )
        layer.weight = nn.Parameter(weight, requires_grad=False)
        modules[name] = layer
    return modules


def _observation(tensors: Mapping[str, Mapping[str, Tensor]], index: Tensor, at: Tensor) -> Observation:
    first, last = int(at[0]), int(at[-1]) + 1

    def part(tensor: Tensor) -> Tensor:
        each = len(tensor) // len(index)  # positions of an image are rows that follow each other
        return tensor[first * each : last * each]

    layered: dict[str, Any] = {
        role: {name: part(tensor) for name, tensor in tensors.get(role, {}).items()} for role in LAYERED[:3]
    }
    single: dict[str, Any] = {
        role: part(tensors[role]["array"]) if role in tensors else torch.empty(0) for role in ROLES[5:]
    }
    return Observation(**single, **layered, positions=index[at])
