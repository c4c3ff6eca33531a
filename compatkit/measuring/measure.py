"""Compute several metrics of a network in one pass over a set of images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.contracts.contract import Data as Preprocessing
from compatkit.data.dataset import DataSet, Split
from compatkit.errors import DataError, UsageError, type_of
from compatkit.evaluation.assembly import Assembly
from compatkit.evaluation.batchnorm import batches, evaluation_mode
from compatkit.evaluation.conditions import Conditions
from compatkit.evaluation.extractor_pass import moved_to, precision_context
from compatkit.evaluation.layers import LayerRecord, choose, layers_of, listed, recording
from compatkit.evaluation.metrics import (
    OBSERVED,
    Metric,
    Observation,
    Subject,
    advance,
    conclude,
    make_metric,
    update_arguments,
)
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.foundation.arguments import checks_arguments, texts_of
from compatkit.foundation.limits import COUNT, SEED
from compatkit.measuring.measurement import Measurement
from compatkit.training.task_state import TaskState

if TYPE_CHECKING:
    Images = Split | DataSet | tuple[Tensor, Tensor]
    Network = nn.Module | TaskState

Progress = Callable[[int, int], None]
"""Called with batches done and batches in all."""


@checks_arguments
def measure(
    network: Network,
    data: Images | None,
    metrics: Sequence[str | Metric],
    *,
    layers: Sequence[str] = (),
    other: Network | None = None,
    preprocessing: Preprocessing | None = None,
    batch_size: int = 256,
    seed: int | None = None,
    precision: str = "float32",
    device: str | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Compute several metrics of a network in one pass over a set of images.

    The network runs in eval mode and without gradients. Modes, weights, buffers and hooks are restored, also after an
    error.

    Args:
        network: A module; a task of a fit, ``fit.tasks["digits"]``; or what ``Registry.recombine`` returns.
        data: A data set (its test split is used), a split, or a pair of tensors: normalized images ``(n, channels,
            height, width)`` and class indices ``(n,)``. None if all metrics need only the weights.
        metrics: Names of installed metrics, or Metric objects such as ``ck.metrics.make_metric("accuracy", top=5)``.
        layers: Module paths or globs of the layers that the metrics record.
        other: Second network for comparison metrics. Runs on the same images, with its own preprocessing if it has one;
            must have the same layer names.
        preprocessing: Preprocessing of the images for both networks; None takes that of the task or contract.
        batch_size: Maximum number of images per batch.
        seed: Seed for shuffling; None keeps the given order.
        precision: ``"float32"`` (TF32 off) or ``"bfloat16"`` (autocast).
        device: Device to run on; None takes the network's.
        progress: Called after each batch.

    Raises:
        UnknownName: A metric or layer does not exist; the message suggests the closest name.
        UsageError: A metric needs layers, a second network, images or preprocessing that are missing; or an argument
            has the wrong type.
        DataError: The network fails on the images, or values of a layer are not finite; the message names layer and
            batch.
        PluginError: A metric is broken.
        EnvironmentFailure: The device does not exist.
    """
    metric_list = metrics_of(metrics)
    _check_images(data)
    COUNT.check("measure", batch_size=batch_size)
    if seed is not None:
        SEED.check("measure", seed=seed)
    layers = texts_of(layers, "layers", "the path or glob of a layer, such as 'layer1.*'")
    required_fields = {name for metric in metric_list for name in update_arguments(metric)}
    parts = parts_of(network)
    known_layers = layers_of(parts)
    classes = data.classes if isinstance(data, (Split, DataSet)) else ()
    subject = Subject(
        network=_as_module(network),
        layers=choose(known_layers, layers),
        classes=classes,
        other=None if other is None else _as_module(other),
        other_layers={} if other is None else choose(layers_of(parts_of(other)), layers),
    )
    _check_required(required_fields, subject, known_layers, data)
    tensors = (tensor for part in parts.values() for tensor in part.state_dict().values())
    own_device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    # Only device and precision are used: the network applies its own batch-norm policy.
    conditions = Conditions("running", batch_size, seed or 0, precision, str(device or own_device))
    states = [metric.init() for metric in metric_list]
    settings: dict[str, Any] = {
        "layers": list(subject.layers),
        "torch": str(torch.__version__),
        "bn_policy": getattr(network, "bn_policy", "running"),
    }
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(precision_context(conditions))
        for module in (subject.network, subject.other):
            if module is not None:
                stack.enter_context(moved_to(module, conditions.device))
                stack.enter_context(evaluation_mode(module))
        if data is not None and required_fields:
            own_preprocessing = preprocessing or getattr(network, "data", None)  # of a task or recombination
            source = _source(data, own_preprocessing, conditions.device)
            other_preprocessing = preprocessing or getattr(other, "data", None) or own_preprocessing
            same = other_preprocessing == own_preprocessing
            sources = source, source if same else _source(data, other_preprocessing, conditions.device)
            settings |= {**source.settings, "batch_size": batch_size, "precision": conditions.precision}
            settings |= {"device": conditions.device, "seed": seed}
            record = stack.enter_context(_recording(subject.layers, required_fields, ""))
            other_record = stack.enter_context(_recording(subject.other_layers, required_fields, "other_"))
            index_batches = batches(source.count, batch_size, seed)
            settings["order"] = hashlib.sha256(torch.cat(index_batches).numpy().tobytes()).hexdigest()
            for number, indices in enumerate(index_batches, 1):
                batch = _observe(subject, sources, indices, number, (record, other_record))
                states = [
                    advance(metric, state, batch, subject) if update_arguments(metric) else state
                    for metric, state in zip(metric_list, states, strict=True)
                ]
                if progress is not None:
                    progress(number, len(index_batches))
        results = [
            result
            for metric, state in zip(metric_list, states, strict=True)
            for result in conclude(metric, state, subject)
        ]
    by_name = {result.name: result for result in results}
    if len(by_name) < len(results):
        names = [result.name for result in results]
        repeated = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"Two metrics return a result named {repeated!r}; remove one.", subject=repeated)
    return Measurement(by_name, settings)


def metrics_of(metrics: Any) -> list[Metric]:
    """Return the metrics; those given by name are created.

    Raises:
        UsageError: An item is neither a name nor a metric, or it is not a list. The error's ``subject`` is the
            offending value.
    """
    is_list = isinstance(metrics, Iterable) and not isinstance(metrics, str | bytes | Mapping)
    instances: list[Metric] = []
    for metric in metrics if is_list else [metrics]:
        if is_list and isinstance(metric, str):
            instances.append(make_metric(metric))
        elif is_list and isinstance(metric, Metric) and not isinstance(metric, type):
            instances.append(metric)
        else:
            hint = f" Put it in a list: [{metrics!r:.40}]." if isinstance(metrics, str) else ""
            raise UsageError(
                f"metrics= expects a list of names, such as ['accuracy'], or of metrics; got {metric!r:.60}.{hint}",
                subject=metric,
            )
    return instances


def _check_images(data: Any) -> None:
    """Check that data are images with labels.

    Raises:
        UsageError: They are not; the error's ``subject`` is the offending value.
    """
    pair = isinstance(data, tuple) and len(data) == 2 and all(isinstance(tensor, Tensor) for tensor in data)
    if not pair and not isinstance(data, Split | DataSet | None):
        raise UsageError(
            f"data= expects a data set, a split, or two tensors (images, class indices); got {type_of(data)}.",
            subject=data,
        )


@attrs.frozen(eq=False)
class _Source:
    """Images and labels, read by index.

    Attributes:
        images_at: Function that returns the preprocessed images at indices.
        settings: Entries of ``Measurement.settings`` about the images.
    """

    count: int
    labels: Tensor
    images_at: Callable[[Tensor], Tensor]
    settings: Mapping[str, Any]


def _source(data: Images, preprocessing: Preprocessing | None, device: str) -> _Source:
    if isinstance(data, tuple):
        images, labels = data
        if len(images) != len(labels):
            raise DataError(f"{len(images)} images come with {len(labels)} labels; each needs one.")
        count = len(labels)
        return _Source(count, labels.long(), lambda indices: images[indices].to(device), {"images": count})
    split = data.test if isinstance(data, DataSet) else data
    if preprocessing is None:
        raise UsageError(
            "A plain module has no preprocessing. Pass preprocessing=, for example fit.tasks[...].data or "
            "registry.get(...).contract.data, or give normalized images as tensors."
        )

    def images_at(indices: Tensor) -> Tensor:
        prepared = prepare(split.take(indices.numpy()), preprocessing)
        images = normalize(prepared.images, preprocessing, device=device)
        return images[indices.argsort().argsort().to(images.device)]  # taken in ascending order

    settings = {"data": split.name, "data_digest": split.digest, "images": len(split), "sample": split.sample}
    return _Source(len(split), torch.from_numpy(split.labels), images_at, settings)


def _observe(
    subject: Subject,
    sources: tuple[_Source, _Source],
    indices: Tensor,
    number: int,
    recordings: tuple[LayerRecord, LayerRecord],
) -> Observation:
    (source, other_source), (record, other_record) = sources, recordings
    images = source.images_at(indices)
    labels, positions = source.labels[indices].to(images.device), indices.to(images.device)
    record.clear()  # the networks may share layers
    logits = _forward(subject.network, images, "network").float()
    inputs, outputs = record.take(number)
    fields: dict[str, Any] = {"inputs": inputs, "outputs": outputs}
    if subject.other is not None:
        other_images = images if other_source is source else other_source.images_at(indices)
        other_record.clear()
        fields["other_logits"] = _forward(subject.other, other_images, "other network").float()
        fields["other_inputs"], fields["other_outputs"] = other_record.take(number)
    return Observation(images=images, labels=labels, positions=positions, logits=logits, **fields)


def _forward(network: nn.Module, images: Tensor, name: str) -> Tensor:
    """Return the logits of a network, which gets a copy of the images, as it may write into them.

    Raises:
        DataError: The network fails on these images.
    """
    try:
        return network(images.clone())
    except torch.OutOfMemoryError:  # a subclass of RuntimeError
        raise
    except RuntimeError as error:
        raise DataError(
            f"The {name} does not take images {tuple(images.shape[1:])} of {images.dtype}: {error}. Check their shape "
            "and type, or convert the network (network.float())."
        ) from error


def _recording(layers: Mapping[str, nn.Module], required_fields: set[str], prefix: str) -> Any:
    inputs, outputs = f"{prefix}inputs" in required_fields, f"{prefix}outputs" in required_fields
    return recording(layers if inputs or outputs else {}, inputs=inputs, outputs=outputs)


def parts_of(network: Network) -> dict[str, nn.Module]:
    """Return the parts of a network by name; submodules keep the paths that they have in the uncut network.

    Raises:
        UsageError: It is not a network.
    """
    if isinstance(network, Assembly):
        adapters = {f"adapters.{index}": adapter for index, adapter in enumerate(network.adapters)}
        parts = {"extractor": network.extractor, **adapters, "head": network.head}
        return {name: part for name, part in parts.items() if part is not None}
    if isinstance(network, TaskState):
        return {"extractor": network.extractor, "head": network.head}
    if isinstance(network, nn.Module):
        return {"": network}
    raise UsageError(
        f"Expected a torch module, a task of a fit (fit.tasks[...]), or a recombination; got {type_of(network)}."
    )


def _as_module(network: Network) -> nn.Module:
    return network if isinstance(network, nn.Module) else nn.Sequential(network.extractor, network.head)


def _check_required(
    required_fields: set[str], subject: Subject, known: Mapping[str, nn.Module], data: Images | None
) -> None:
    """Raise if a metric would lack an input."""
    layer_fields = {"inputs", "outputs", "other_inputs", "other_outputs", "layers"}
    if required_fields & layer_fields and not subject.layers:
        raise UsageError(
            "These metrics need layers; name some, by path or glob: layers=['layer1.*', 'fc'] (--layer). The network's "
            f"layers are {listed(known)}."
        )
    if any(name.startswith("other") for name in required_fields) and subject.other is None:
        raise UsageError("These metrics compare two networks; pass the second as other= (--against).")
    if data is None and required_fields & set(OBSERVED):
        observed = sorted(required_fields & set(OBSERVED))
        raise UsageError(f"These metrics need data=: they use {', '.join(observed)}.")
