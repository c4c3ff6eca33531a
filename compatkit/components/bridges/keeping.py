"""Keep bridges in a registry: judgments as evidence of the pair, fitted weights and statistics as a blob.

A pair is found again by the functions of its parts and everything that its bridge depends on. The blob belongs to no
component, so ``gc`` may remove it; the pair is then fitted again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.adapters.stitching.layers import build_adapter
from compatkit.components.bridges.building import recorded_step
from compatkit.components.bridges.candidates import Candidate
from compatkit.components.bridges.inputs import BridgeInputs, BridgeRequest, bridge_inputs
from compatkit.components.bridges.judging import Judgment
from compatkit.components.bridges.ladder import Bridge, RungResult
from compatkit.components.bridges.publishing import assemble
from compatkit.contracts.evidence import Figure
from compatkit.contracts.manifest import Edge
from compatkit.contracts.report import Report
from compatkit.contracts.stitch import with_kernel
from compatkit.errors import CompatkitError, FormatError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, ImageFacts, Settings, key_of
from compatkit.evaluation.records import CLASSES, WIRING
from compatkit.foundation.codec import structure, unstructure
from compatkit.plugins.discovery import find
from compatkit.registry.layout import check_own
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import deserialize, metadata, pieces

if TYPE_CHECKING:
    from torch import Tensor

METRIC, METRIC_VERSION = "bridge", "1"
"""Name in the evidence; the version is raised when the same request would give another bridge."""
BLOB, BYTES = "blob", "bytes"


@attrs.frozen
class _Step:
    """A rung's result without its network; ``method`` is the record of its fit, None if it was left out."""

    rung: str
    agreed: Judgment | None
    explained: float | None
    images: int
    estimated: int
    seconds: float
    accuracy: Figure | None
    taught: bool
    note: str
    method: Mapping[str, Any] | None


@attrs.frozen
class _Document:
    steps: tuple[_Step, ...]
    chosen: str
    details: Mapping[str, Any]
    notes: tuple[str, ...]


def settings_of(request: BridgeRequest, head: Component) -> Settings:
    """Return everything that a bridge depends on beside its parts, as the settings of evidence.

    Args:
        request: Images, rungs and settings.
        head: Head of the pair.
    """
    rungs = [find("rungs", rung) for rung in request.rungs or ()]
    asked: dict[str, Any] = {
        "rungs": [rung.name for rung in rungs],
        "max_images": request.max_images,
        "seed": request.seed,
        "test": None if request.test is None else request.test.digest,
    }
    plugins = sorted({f"{rung.distribution or 'unknown'} {rung.version or ''}".strip() for rung in rungs})
    images = ImageFacts(request.data.name, request.data.digest, len(request.data))
    settings = Conditions().settings(images, batch_norm=False, bound=head.trained_function or "")
    return settings | {
        "metric": f"{METRIC} {json.dumps(asked, sort_keys=True)}",
        "metric_version": "; ".join([METRIC_VERSION, *plugins]),
    }


def keep(
    store: Store, bridge: Bridge, parts: tuple[Component, Component], settings: Settings, *, record: bool
) -> Edge:
    """Store a bridge whose rungs change no weight of the head.

    Args:
        store: Registry.
        bridge: The bridge.
        parts: Extractor and head.
        settings: Result of ``settings_of``.
        record: Whether to record it as evidence, so that it is found again.

    Returns:
        The blob.

    Raises:
        UsageError: The registry is a remote.
        FormatError: The record of a fit has values that are not JSON.
        EnvironmentFailure: The registry cannot be written.
    """
    check_own(store.root)
    steps = tuple(
        _Step(
            **{field.name: getattr(step, field.name) for field in attrs.fields(_Step)[:-1]},
            method=None if step.candidate is None else step.candidate.method,
        )
        for step in bridge.steps
    )
    document = unstructure(_Document(steps, bridge.chosen, bridge.details, bridge.notes))
    edge = store.objects.put(*pieces(_tensors(bridge), json.dumps(document)))
    if record:
        store.evidence.add(
            *(part.function for part in parts),
            conditions=key_of(settings),
            settings={**settings, CLASSES: [], WIRING: bridge.recombination.report.wiring},
            figures={
                **{BLOB: edge.blob, BYTES: edge.bytes, "rung": bridge.chosen, "says": bridge.says},
                "agreement": bridge.agreement.accuracy,
            },
            measured_as={"extractor": parts[0].reference, "head": parts[1].reference},
        )
    return edge


def kept(store: Store, pairs: Iterable[tuple[Component, Component, Settings]]) -> dict[tuple[str, str], Edge]:
    """Return the blobs of the pairs that are kept, by references of extractor and head; the newest counts.

    Args:
        store: Registry.
        pairs: Extractor, head and result of ``settings_of`` of each pair.
    """
    wanted = list(pairs)
    results = store.evidence.results(
        [left.function for left, _, _ in wanted], [right.function for _, right, _ in wanted]
    )
    found = {
        (result.extractor, result.head, json.dumps(result.conditions, sort_keys=True)): result.figures
        for result in results
        if not result.error and str(result.settings.get("metric")).startswith(METRIC)
    }
    edges: dict[tuple[str, str], Edge] = {}
    for left, right, settings in wanted:
        figures = found.get((left.function, right.function, json.dumps(key_of(settings), sort_keys=True)), {})
        if isinstance(figures.get(BLOB), str) and isinstance(figures.get(BYTES), int):
            edges[left.reference, right.reference] = Edge(figures[BLOB], figures[BYTES])
    return edges


def restored(
    store: Store,
    edge: Edge,
    extractor: Component,
    head: Component,
    own: Component,
    report: Report,
    request: BridgeRequest,
) -> Bridge:
    """Return the bridge of a blob, bit by bit the one that was kept.

    Args:
        store: Registry.
        edge: Result of ``keep``.
        extractor: Extractor of the pair.
        head: Head of the pair.
        own: The extractor that the head was trained with.
        report: Check of the two contracts.
        request: Images, rungs and settings.

    Raises:
        IntegrityError: The blob is missing or damaged.
        FormatError: It does not hold a bridge of these parts.
    """
    data = store.objects.view(edge.blob, max_bytes=edge.bytes)
    base = bridge_inputs(extractor, head, own, request)
    try:
        document: _Document = structure(_Document, json.loads(metadata(memoryview(data)) or ""), "bridge")
        state: dict[str, dict[str, Tensor]] = {}
        for name, tensor in deserialize(data).items():
            owner, _, rest = name.partition("/")
            state.setdefault(owner, {})[rest] = tensor
        steps = [
            _result(step, base, state.get(f"{number}.head", {}), state.get(f"{number}.adapter"))
            for number, step in enumerate(document.steps)
        ]
        chosen = next(step for step in steps if step.rung == document.chosen)
        network = assemble(chosen, report)
    except (CompatkitError, StopIteration, KeyError, ValueError, RuntimeError) as error:
        raise FormatError(
            f"{edge.blob} holds no bridge of these parts: {error}", subject=edge.blob
        ) from error
    pair = extractor.reference, head.reference
    return Bridge(*pair, tuple(steps), chosen.rung, network, document.details, document.notes)


def _tensors(bridge: Bridge) -> dict[str, Tensor]:
    """Return the weights of adapters, and the tensors of the head that differ from those of the component."""
    import torch

    tensors: dict[str, Tensor] = {}
    for number, step in enumerate(bridge.steps):
        if (candidate := step.candidate) is None:
            continue
        if candidate.fitted is not None:
            weights = candidate.fitted.module.state_dict()
            tensors |= {f"{number}.adapter/{name}": value for name, value in weights.items()}
        before = candidate.inputs.head.module.state_dict()
        for name, value in candidate.head.state_dict().items():
            if not torch.equal(value, before[name]):
                tensors[f"{number}.head/{name}"] = value
    return tensors


def _result(
    step: _Step, inputs: BridgeInputs, head: Mapping[str, Tensor], adapter: Mapping[str, Tensor] | None
) -> RungResult:
    values = {field.name: getattr(step, field.name) for field in attrs.fields(_Step)[:-1]}
    if step.method is None:
        return RungResult(**values)
    module = copy.deepcopy(inputs.head.module)
    module.load_state_dict({**module.state_dict(), **head})
    fitted = None
    if adapter is not None:
        blueprint, weight = inputs.slot.blueprint, adapter["weight"]
        if weight.ndim > 2:
            blueprint = with_kernel(blueprint, weight.shape[-1])
        fitted = build_adapter(blueprint, adapter)
    candidate = Candidate.restored(inputs, module.eval(), fitted, step.method)
    return recorded_step(RungResult(**values, candidate=candidate), inputs)
