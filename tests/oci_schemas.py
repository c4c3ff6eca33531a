"""What the OCI Image Format Specification 1.1 asks of a layout, as JSON schemas.

Written for these tests after the text of the specification (opencontainers/image-spec, v1.1: image-layout.md,
image-index.md, manifest.md, descriptor.md, annotations.md), and stricter than its own schemas in what it says in words:
an artifact has an ``artifactType``, its empty config is the one of two bytes, reference names keep to their grammar.
"""

from __future__ import annotations

from typing import Any

MEDIA_TYPE = {
    "type": "string",
    "pattern": "^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}$",
}
DIGEST = {"type": "string", "pattern": "^sha256:[a-f0-9]{64}$"}
ANNOTATIONS = {"type": "object", "additionalProperties": {"type": "string"}}
_WORD = "[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*"
REF_NAME = {"type": "string", "pattern": f"^{_WORD}(?:/{_WORD})*$"}
DESCRIPTOR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mediaType": MEDIA_TYPE,
        "digest": DIGEST,
        "size": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
        "urls": {"type": "array", "items": {"type": "string", "format": "uri"}},
        "annotations": ANNOTATIONS,
        "data": {"type": "string", "contentEncoding": "base64"},
        "artifactType": MEDIA_TYPE,
        "platform": {"type": "object", "required": ["architecture", "os"]},
    },
    "required": ["mediaType", "digest", "size"],
    "additionalProperties": False,
}
LAYOUT = {
    "type": "object",
    "properties": {"imageLayoutVersion": {"const": "1.0.0"}},
    "required": ["imageLayoutVersion"],
}
INDEX = {
    "type": "object",
    "properties": {
        "schemaVersion": {"const": 2},
        "mediaType": {"const": "application/vnd.oci.image.index.v1+json"},
        "artifactType": MEDIA_TYPE,
        "manifests": {
            "type": "array",
            "items": {
                **DESCRIPTOR,
                "properties": {
                    **DESCRIPTOR["properties"],
                    "annotations": {
                        **ANNOTATIONS,
                        "properties": {"org.opencontainers.image.ref.name": REF_NAME},
                    },
                },
            },
        },
        "subject": DESCRIPTOR,
        "annotations": ANNOTATIONS,
    },
    "required": ["schemaVersion", "manifests"],
    "additionalProperties": False,
}
EMPTY = {
    "mediaType": {"const": "application/vnd.oci.empty.v1+json"},
    "digest": {"const": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
    "size": {"const": 2},
    "data": {"const": "e30="},
}
MANIFEST = {
    "type": "object",
    "properties": {
        "schemaVersion": {"const": 2},
        "mediaType": {"const": "application/vnd.oci.image.manifest.v1+json"},
        "artifactType": MEDIA_TYPE,
        "config": DESCRIPTOR,
        "layers": {"type": "array", "minItems": 1, "items": DESCRIPTOR},
        "subject": DESCRIPTOR,
        "annotations": ANNOTATIONS,
    },
    "required": ["schemaVersion", "mediaType", "config", "layers"],
    "additionalProperties": False,
    "if": {"properties": {"config": {"properties": {"mediaType": EMPTY["mediaType"]}}}},
    "then": {"required": ["artifactType"], "properties": {"config": {"properties": EMPTY}}},
}
