"""Payloads and manifests for the scripts, which run alone and import no torch."""

from __future__ import annotations

import json

from compatkit.contract import Blueprint, Contract, Data, Port, Protocol, Structural
from compatkit.registry.manifest import Manifest, Payload
from compatkit.registry.store import Store
from compatkit.registry.tensorfile import tensor_digest


def put(store: Store, value: int) -> Payload:
    """Put a tensor file whose content is ``value``."""
    header = json.dumps({"weight": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    data = len(header).to_bytes(8, "little") + header + value.to_bytes(4, "little")
    return Payload(store.put_blob(data), tensor_digest(data), 1, 1)


def manifest_for(payload: Payload) -> Manifest:
    """Return a small manifest."""
    ports = Structural((Port("image", ("N", 1, "H", "W")),), (Port("features", ("N", 8), layout="NC"),))
    return Manifest(
        kind="extractor",
        blueprint=Blueprint("timm", "timm 1", "net", {}, "layer1", "extractor", "fx", (32, 32)),
        payload=payload,
        contract=Contract(ports, Data((32, 32), "L", (0.5,), (0.5,)), Protocol("none")),
    )
