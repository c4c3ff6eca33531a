"""Components on disk: names, manifests, tensors, content-addressed objects, references."""

from __future__ import annotations
