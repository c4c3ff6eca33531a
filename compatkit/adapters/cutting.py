"""Cut a network in two at a split point; how it is done is named by the blueprint's ``approach``.

``"canonical"`` is timm's own seam, ``forward_features`` | ``forward_head``, without tracing. ``"fx"`` cuts after a
module: only the modules above it are traced, all others stay whole. Further approaches go into ``APPROACHES``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from torch import nn

from compatkit.adapters.canonical import cut_canonical
from compatkit.adapters.tracing import cut_traced
from compatkit.errors import CutError, UnknownName

CANONICAL = "forward_features"

Cut = Callable[[nn.Module, str, tuple[int, ...]], tuple[nn.Module, nn.Module]]

APPROACHES: dict[str, Cut] = {"fx": cut_traced, "canonical": cut_canonical}
"""By name: (whole network, split point, image shape (channels, height, width)) to (extractor, head)."""


def approach_for(split: str) -> str:
    """Return the approach that a split point is cut with unless a blueprint says otherwise."""
    return "canonical" if split == CANONICAL else "fx"


def cut(whole: nn.Module, split: str, approach: str, image: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    """Return extractor and head, which hold the whole network's own modules, parameters and keys.

    Every parameter and buffer belongs to exactly one part; what no part uses goes to the side it is
    registered on. Cutting changes nothing in ``whole``.

    Args:
        whole: The network; later training of a part trains it too.
        split: A module path, or ``"forward_features"``.
        approach: A key of ``APPROACHES``.
        image: (channels, height, width) of an image that the network takes.

    Raises:
        UnknownName: No such approach, or no such module.
        CutError: More than one tensor crosses, or the module is not called exactly once.
    """
    if approach not in APPROACHES:
        raise UnknownName(
            f"No way to cut is called {approach!r}; known are {', '.join(APPROACHES)}. The component was made "
            "by another version of compatkit or needs a plugin.",
            subject=approach,
        )
    if approach == "canonical":
        if not (hasattr(whole, "forward_features") and hasattr(whole, "forward_head")):
            raise CutError(
                f"{type(whole).__name__} has no forward_features and forward_head; name a module path as split point.",
                subject=split,
            )
    elif split not in dict(whole.named_modules()) or not split:
        raise UnknownName(unknown_split(whole, split), subject=split)
    return APPROACHES[approach](whole, split, image)


def unknown_split(whole: nn.Module, split: str) -> str:
    """Return the message for a split point that is no module of the network."""
    paths = [CANONICAL, *(name for name, _ in whole.named_modules() if name)]
    near = difflib.get_close_matches(split, paths, n=3, cutoff=0.5)
    short = [path for path in paths if path.count(".") == 0]
    hint = f"did you mean {' or '.join(near)}?" if near else f"modules at the top are {', '.join(short)}."
    return f"{type(whole).__name__} has no module {split!r} to split at; {hint}"
