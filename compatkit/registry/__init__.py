"""Components on disk: names, manifests, tensors, content-addressed objects, references."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called with what is done, how much there is in all, and what is being done."""
