"""From a reference to a module that keeps its promise, and to what reports say of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import DataError, EnvironmentFailure, IntegrityError
from compatkit.evaluation.cells import CONDITIONS, METRIC_VERSION, Cell
from compatkit.registry.canonical import dumps
from compatkit.registry.manifest import Manifest, function_digest
from compatkit.registry.names import Reference
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.data.dataset import Split
    from compatkit.evaluation.cells import Part
    from compatkit.evaluation.matrix import LoadedPart


def load(store: Store, reference: Reference) -> LoadedPart:
    """Rebuild a component from its blueprint, load its weights strictly and check its probe.

    Raises:
        IntegrityError: The bytes, or the function they make, are not what the manifest promises.
        UnknownName: The blueprint's builder or model is not known here.
    """
    from compatkit.adapters.blueprints import build, probe, same_probe
    from compatkit.evaluation.matrix import LoadedPart

    manifest = store.manifest(reference)
    module = build(manifest.blueprint, state=store.load_state(manifest)).eval()
    promised = manifest.contract.statistical.probe
    if promised is not None and not same_probe(probe(module, *promised.shapes), promised):
        raise IntegrityError(
            f"{pinned(reference)} was rebuilt, but gives other outputs on the probe input than its contract promises. "
            f"It was built with {manifest.blueprint.library}; the library changed since, or the manifest belongs to "
            "other weights.",
            subject=reference,
        )
    trained = [parent.component for parent in manifest.parents if parent.relation == "trained_with"]
    return LoadedPart(
        reference=pinned(reference),
        digest=str(reference.digest),
        function=function_digest(manifest),
        kind=manifest.kind,
        manifest=manifest,
        module=module,
        trained_with=trained[0] if trained else None,
    )


def held_out(part: LoadedPart, data: Sequence[Split] | Mapping[str, Split]) -> Split:
    """Return the test set that an extractor is measured on.

    Args:
        part: The extractor.
        data: Test sets, taken by the name before the slash (``mnist/train`` and ``mnist/test``), or a mapping
            from extractor pattern to test set.

    Raises:
        DataError: None fits, or more than one.
    """
    if isinstance(data, Mapping):
        name = part.reference.split("@")[0]
        hits = [split for pattern, split in data.items() if fnmatchcase(name, pattern)]
    else:
        trained: Any = part.manifest.training.get("data", {})
        family = str(trained.get("name", "")).rsplit("/", 1)[0] if isinstance(trained, Mapping) else ""
        hits = [split for split in data if split.name.rsplit("/", 1)[0] == family]
    if len(hits) != 1:
        known = list(data) if isinstance(data, Mapping) else [split.name for split in data]
        raise DataError(
            f"{part.reference} needs exactly one test set, {len(hits)} fit. It was trained on "
            f"{part.manifest.training.get('data')}; given are {known}. Pass the test set of that data set, or "
            "a mapping from extractor pattern to test set."
        )
    return hits[0]


def keep(
    store: Store, extractors: Sequence[LoadedPart], heads: Sequence[LoadedPart], cells: Sequence[Cell]
) -> None:
    """Record measured cells as evidence; warn where the registry cannot be written, for the figures are there."""
    functions = {part.reference: part.function for part in (*extractors, *heads)}
    for cell in cells:
        if cell.restricted is None:
            continue
        conditions = {name: cell.settings[name] for name in CONDITIONS}
        result = dumps(attrs.asdict(cell))
        try:
            store.evidence.record(functions[cell.extractor], functions[cell.head], conditions, result)
        except EnvironmentFailure as error:
            warnings.warn(f"The figures are not kept as evidence: {error}", stacklevel=3)
            return


def measured(store: Store, extractor: Manifest, head: Manifest) -> list[Cell]:
    """Return what was measured of a pair, oldest first; stale where the metric has changed since."""
    from compatkit.reports.document import parse_cell

    found = store.evidence.results(function_digest(extractor), function_digest(head))
    return [
        cell if cell.settings.get("metric_version") == METRIC_VERSION else attrs.evolve(cell, grade="stale")
        for cell in map(parse_cell, found)
    ]


def described(part: LoadedPart) -> Part:
    """Return a loaded component as a row or column of a report."""
    from compatkit.evaluation.cells import Part
    from compatkit.reports.contracts import summary

    return Part(part.reference, part.digest, part.function, part.kind, summary(part.manifest))


def pinned(reference: Reference) -> str:
    """Return ``name@version``."""
    return f"{reference.name}@{reference.version}"
