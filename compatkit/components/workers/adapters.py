"""Hand the adapters of a row to other processes: a file in the registry's ``tmp``, weights and descriptions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.adapters.stitching.layers import build_adapter
from compatkit.contracts.contract import Blueprint, Data, Port
from compatkit.contracts.manifest import Parent
from compatkit.evaluation.adapter import Adapter
from compatkit.foundation.codec import structure, unstructure
from compatkit.registry import disk
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.tensorfile import deserialize, metadata, pieces

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.evaluation.matrix import Adapters


@attrs.frozen
class Description:
    """An adapter without its weights; see ``Adapter``."""

    blueprint: Blueprint
    takes: tuple[Port, ...]
    gives: tuple[Port, ...]
    data: Data
    parents: tuple[Parent, ...]
    training: Mapping[str, Any]
    reference: str | None
    digest: str | None


@contextmanager
def handed_adapters(root: Path, adapters: Adapters) -> Iterator[dict[str, str]]:
    """Write the adapters of each extractor to a file in the registry's ``tmp``; remove the files at the end.

    Args:
        root: Root of the registry.
        adapters: Adapters by references of extractor and head.

    Yields:
        Path of the file by reference of the extractor.

    Raises:
        EnvironmentFailure: The registry cannot be written.
    """
    rows: dict[str, dict[str, Sequence[Adapter]]] = {}
    for (extractor, head), chain in adapters.items():
        rows.setdefault(extractor, {})[head] = chain
    files: dict[str, str] = {}
    try:
        for extractor, row in rows.items():
            draft = disk.temporary(root / "tmp")
            with environment("write", draft):
                disk.make_folder(draft.parent, root)
                disk.write(draft, _pieces(row), root=root)
            files[extractor] = str(draft)
        yield files
    finally:
        for file in files.values():
            disk.discard(Path(file))


def received_adapters(file: str) -> dict[str, list[Adapter]]:
    """Return the adapters of a file by reference of the head.

    Raises:
        FormatError: The file is not whole.
        EnvironmentFailure: It cannot be read.
    """
    with environment("read", Path(file)):
        data = Path(file).read_bytes()
    state: dict[str, dict[str, Tensor]] = {}
    for name, tensor in deserialize(data).items():
        adapter, _, own = name.partition("/")
        state.setdefault(adapter, {})[own] = tensor
    return {
        head: [
            _adapter(structure(Description, value, "adapter"), state.get(f"{row}.{place}"))
            for place, value in enumerate(chain)
        ]
        for row, (head, chain) in enumerate(json.loads(metadata(data) or "{}").items())
    }


def _pieces(row: Mapping[str, Sequence[Adapter]]) -> list[bytes | memoryview]:
    state = {
        f"{number}.{place}/{name}": tensor
        for number, chain in enumerate(row.values())
        for place, adapter in enumerate(chain)
        for name, tensor in adapter.module.state_dict().items()
    }
    fields = [field.name for field in attrs.fields(Description)]
    described = {
        head: [
            unstructure(Description(**{name: getattr(adapter, name) for name in fields})) for adapter in chain
        ]
        for head, chain in row.items()
    }
    return pieces(state, json.dumps(described))


def _adapter(about: Description, state: Mapping[str, Tensor] | None) -> Adapter:
    values = {field.name: getattr(about, field.name) for field in attrs.fields(Description)}
    return Adapter(module=build_adapter(about.blueprint, state).eval(), **values)
