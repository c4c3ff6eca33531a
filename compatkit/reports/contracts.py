"""Describe a component for tables and pages: inputs, outputs, training and provenance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compatkit.contracts.batchnorm import is_policy, prior_images
from compatkit.contracts.contract import Blueprint, Dimension, Port, Scaled
from compatkit.contracts.manifest import Manifest, function_digest
from compatkit.contracts.stitch import describe

if TYPE_CHECKING:
    from compatkit.registry.names import Reference
    from compatkit.registry.store import Store

SHORT_DIGEST = 12
MAX_CLASSES = 100
"""Maximal number of listed class names."""
POLICIES = {
    "batch": "statistics of each batch",
    "reestimate": "statistics re-estimated for these parts",
    "running": "stored statistics of the parts",
}
"""Descriptions of the batch-norm policies of a recombination."""


def dimension_formula(value: Dimension) -> str:
    """Return a dimension as text, such as ``(H + 1) // 2`` for a scaled one.

    Args:
        value: A number, a symbol, or a scaled dimension.
    """
    if not isinstance(value, Scaled):
        return str(value)
    text = f"({value.of} + {value.add})" if value.add else value.of
    text = f"{text} // {value.floordiv}" if value.floordiv != 1 else text
    text = f"{value.times} {text}" if value.times != 1 and value.floordiv == 1 else text
    text = f"({text}) * {value.times}" if value.times != 1 and value.floordiv != 1 else text
    return f"{text} + {value.plus}" if value.plus else text


def port_text(value: Port) -> str:
    """Return a port as one line: shape, layout, range.

    Args:
        value: Port of an extractor or a head.
    """
    shape = " x ".join(dimension_formula(size) for size in value.shape)
    measured = "; ".join(
        f"{'x'.join(map(str, sizes))} for {image}"
        for image, sizes in list(value.measured.items())[:2]
        if sizes
    )
    notes = [value.layout, value.dtype] + ([value.range] if value.range != "any" else [])
    notes += ["pooled"] if value.pooled else []
    notes += [f"{value.prefix_tokens} prefix tokens"] if value.prefix_tokens else []
    notes += [f"sides in steps of {value.multiple_of}"] if value.multiple_of != 1 else []
    return f"{shape} ({', '.join(notes)})" + (f"; seen {measured}" if measured else "")


def short_digest(digest: str) -> str:
    """Return a digest shortened to its prefix and first 12 characters."""
    head, _, hexadecimal = digest.rpartition(":")
    return f"{head}:{hexadecimal[:SHORT_DIGEST]}"


def summary(manifest: Manifest) -> dict[str, str]:
    """Return a summary of a component, text by label.

    Args:
        manifest: Manifest of the component.
    """
    blueprint, contract = manifest.blueprint, manifest.contract
    data, protocol = contract.data, contract.protocol
    rows = {
        "kind": manifest.kind.replace("_", " "),
        "network": _network(blueprint),
        "built by": blueprint.library,
        "parameters": f"{manifest.payload.parameters:,}",
        "takes": "; ".join(f"{entry.name}: {port_text(entry)}" for entry in contract.structural.inputs),
        "gives": "; ".join(f"{entry.name}: {port_text(entry)}" for entry in contract.structural.outputs),
        "images": f"{data.size[0]} x {data.size[1]} {data.channels}, mean {_numbers(data.mean)}, "
        f"std {_numbers(data.std)}",
        "bn_policy": _bn_policy(manifest),
    }
    rows.update(
        {f"adapter {number}": describe(adapter) for number, adapter in enumerate(contract.adapters, 1)}
    )
    for features in contract.statistical.features or ():
        text = f"mean {features.mean:.4g}, std {features.std:.4g} on {features.samples:,} training images"
        rows["features"] = "; ".join(filter(None, (rows.get("features"), text)))
    if data.labels:
        classes, rest = [label.name for label in data.labels[:MAX_CLASSES]], len(data.labels) - MAX_CLASSES
        rows["classes"] = ", ".join(classes) + (f", ... ({len(data.labels):,} in all)" if rest > 0 else "")
    for anchor in protocol.anchors:
        name = "initial weights" if anchor.kind == "initial_weights" else f"auxiliary head {anchor.task}"
        rows[f"trained against {name}"] = short_digest(anchor.digest)
    if protocol.frozen_stages:
        rows["frozen"] = (
            f"the first {protocol.frozen_stages} stages of the network kept their initial weights"
        )
    rows.update(_training(manifest.training))
    return rows


def details(store: Store, reference: Reference, manifest: Manifest) -> dict[str, str]:
    """Return the summary of a component with its metadata, relatives, versions and aliases in a registry.

    Args:
        store: Store of the registry.
        reference: Resolved reference of the component.
        manifest: Manifest of the component.
    """
    about = manifest.about
    rows = {
        name: text for name in ("title", "description", "license", "source") if (text := getattr(about, name))
    }
    if about.tags:
        rows["tags"] = ", ".join(f"{key} {value}" for key, value in about.tags.items())
    rows |= summary(manifest)
    relations = [parent.relation for parent in manifest.parents]
    for index, parent in enumerate(manifest.parents):
        label = parent.relation.replace("_", " ")
        if relations.count(parent.relation) > 1:
            label += f" {relations[:index].count(parent.relation) + 1}"
        versions = map(str, store.index.search(digest=parent.component, limit=1))
        rows[label] = " ".join([*versions, short_digest(parent.component)])
    rows["digest"] = str(reference.digest)
    if manifest.kind == "extractor" and (heads := len(store.evidence.partners(function_digest(manifest)))):
        rows["measured with"] = (
            f"{heads:,} head{'' if heads == 1 else 's'}; `compatkit matrix` shows the accuracies"
        )
    others = [str(version) for version in store.versions(reference.name) if version != reference.version]
    if others:
        rows["other versions"] = ", ".join(others)
    if aliases := store.aliases(reference.name):
        rows["aliases"] = ", ".join(f":{alias} is {version}" for alias, version in aliases.items())
    return rows


def _network(blueprint: Blueprint) -> str:
    if blueprint.side == "adapter":
        return describe(blueprint)
    if blueprint.side == "recombination":
        return f"{blueprint.model}, put together at {blueprint.cut}"
    return f"{blueprint.model} {'up to' if blueprint.side == 'extractor' else 'after'} {blueprint.cut}"


def _bn_policy(manifest: Manifest) -> str:
    if manifest.contract.protocol.norm != "batch":
        return "none needed"
    if manifest.blueprint.side != "recombination":
        return "batch statistics"
    policy = str(manifest.blueprint.kwargs.get("normalisation"))
    prior = prior_images(policy) if is_policy(policy) else None
    if prior:
        return (
            f"{policy}: {POLICIES['reestimate']}, mixed with the stored ones, which count as {prior:,} images"
        )
    return f"{policy}: {POLICIES[policy]}" if policy in POLICIES else policy


def _at(value: object, *keys: str) -> Any:
    """Return the value at a path of keys in nested mappings; None if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _training(training: Mapping[str, object]) -> dict[str, str]:
    rows: dict[str, str] = {}
    if isinstance(training.get("data"), Mapping):
        unlabeled = "" if _at(training, "data", "labelled") in (None, True) else ", without labels"
        count = _at(training, "data", "damaged")
        damaged = f", {count} damaged image{'s' * (count != 1)} left out" if count else ""
        rows["trained on"] = f"{_at(training, 'data', 'name') or ''}{unlabeled}{damaged}"
    if digest := _at(training, "adopted", "digest"):
        rows["adopted from"] = f"{_at(training, 'adopted', 'file')} ({short_digest(str(digest))})"
    if images := _at(training, "statistics", "data", "images"):
        rows["statistics of"] = f"{images} images of {_at(training, 'statistics', 'data', 'name')}"
    rows.update(_bridged(training))
    if isinstance(plugins := training.get("plugins"), list | tuple):
        rows["regularizers"] = ", ".join(str(_at(plugin, "as")) for plugin in plugins) or "none"
    if "steps" in training:
        rows["steps, seed"] = f"{training['steps']}, {training.get('seed')}"
        rows["weights"] = _weights(training)
    changes = training.get("augment_changes")
    if isinstance(changes, list | tuple) and changes:
        rows["augment changed"] = "; ".join(
            f"{_at(change, 'task')} after step {_at(change, 'after_step')}: {_at(change, 'before')} to "
            f"{_at(change, 'augment')}"
            for change in changes
        )
    return rows


def _weights(training: Mapping[str, object]) -> str:
    """Return the step of the weights, and whether they are the best, averaged or last ones."""
    planned = training["steps"]
    last, step = (
        (_at(training, "stopped", "steps"), _at(training, "stopped", "weights_of_step"))
        if "stopped" in training
        else (planned, planned)
    )
    choice = "the last" if step == last else "the best evaluation"
    averages = "moving averages at " if training.get("weights") == "averages" else ""
    reason = _at(training, "stopped", "reason") if "stopped" in training else None
    why = f"a plugin ended the run ({reason})" if reason else "early stopping ended the run"
    ended = f"; {why} after {last} of {planned} steps" if last != planned else ""
    return f"{averages}step {step}, {choice}{ended}"


def _bridged(training: Mapping[str, object]) -> dict[str, str]:
    """Return rung, images and agreement of an adapter, a refitted head or a recombination, text by label."""
    bridge = training.get("bridge")
    record = bridge if isinstance(bridge, Mapping) else training
    rung, residual, agreement = (
        record.get("rung", record.get("method")),
        record.get("residual"),
        record.get("agreement"),
    )
    rows: dict[str, str] = {}
    if isinstance(rung, str) and (isinstance(residual, float) or isinstance(agreement, float)):
        images = _at(record.get("paired_on", record.get("data")), "images")
        labels, seconds = record.get("labels"), record.get("seconds")
        parts = [
            rung,
            f"on {images:,} images" if isinstance(images, int) else "",
            f"with {labels:,} labels" if isinstance(labels, int) else "",
            f"in {seconds:.2f} s" if isinstance(seconds, int | float) else "",
            f"{residual:.1%} of the variance left" if isinstance(residual, float) else "",
        ]
        rows["bridged by" if record is bridge else "fitted by"] = ", ".join(filter(None, parts))
    if isinstance(agreement, float):
        text = f"{agreement:.3f} with the head's own network"
        if isinstance(held_out := record.get("held_out"), int):
            text += f" on {held_out:,} held-out images"
        rows["agreement"] = f"{text}: {verdict}" if isinstance(verdict := record.get("says"), str) else text
    if isinstance(checked := record.get("checked"), Mapping):
        rows["checked by labels"] = f"{checked['share']:.3f} of {checked['images']:,} images right"
    return rows


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
