"""Whose statistics batch normalisation uses once parts are recombined: the policies as words."""

from __future__ import annotations

import re
import warnings
from typing import Any

from compatkit.errors import UsageError, suggest

POLICIES = ("batch", "mix:N", "reestimate", "running")
"""Of each batch; estimated on images and mixed with the stored ones, which count as N images; estimated; as stored."""
DEFAULT = "batch"
"""Of recombined parts: stored statistics lose much of the accuracy, statistics estimated anew lose none."""
WORDS = tuple(one for one in POLICIES if one != "mix:N")
LARGEST = 2**31 - 1
"""Of the images that stored statistics may count as."""
_MIX = re.compile(r"mix:(0|[1-9][0-9]{0,9})")


def check_policy(name: str) -> str:
    """Return a policy as it is kept; ``mix:0`` gives stored statistics no weight and becomes ``reestimate``.

    Raises:
        UsageError: It is none.
    """
    if name in WORDS:
        return name
    found = _MIX.fullmatch(name) if isinstance(name, str) else None
    if found is not None and int(found[1]) <= LARGEST:
        return name if int(found[1]) else "reestimate"
    if isinstance(name, str) and name.partition(":")[0] == "mix":
        raise UsageError(
            f"Unknown normalisation {name!r:.60}; mix: is followed by how many images the stored statistics count "
            f"as, a whole number from 0 to {LARGEST} such as mix:16.",
            subject=name,
        )
    hint = suggest(name, WORDS)
    raise UsageError(
        f"Unknown normalisation {name!r:.60}; expected one of {', '.join(POLICIES)}.{hint}", subject=name
    )


def under_old_name(bn_policy: Any, normalisation: Any) -> Any:
    """Return a policy, also where it was given by its old name ``normalisation``."""
    if normalisation is None:
        return bn_policy
    warnings.warn("normalisation= is called bn_policy= now.", DeprecationWarning, stacklevel=3)
    return normalisation


def is_policy(name: object) -> bool:
    """Tell whether this is a policy as it is kept."""
    try:
        return isinstance(name, str) and check_policy(name) == name
    except UsageError:
        return False


def prior_of(policy: str) -> int | None:
    """Return how many images the stored statistics count as beside those of an estimate; None without an estimate."""
    if policy == "reestimate":
        return 0
    return int(policy.removeprefix("mix:")) if policy.startswith("mix:") else None


def estimates(policy: str) -> bool:
    """Tell whether a policy estimates statistics on unlabelled images."""
    return prior_of(policy) is not None


def stored_share(policy: str, images: int) -> float:
    """Return the weight of the stored statistics, N / (N + n), after an estimate on n images.

    Schneider et al. (2020), "Improving robustness against common corruptions by covariate shift adaptation".
    """
    prior = prior_of(policy) or 0
    return prior / (prior + images) if prior else 0.0
