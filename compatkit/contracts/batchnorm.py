"""Batch-norm policies: which statistics batch normalization uses in recombined parts."""

from __future__ import annotations

import re

from compatkit.errors import UsageError, suggest

POLICIES = ("batch", "mix:N", "reestimate", "running")
"""Statistics of each batch; stored ones, counted as N images, mixed with an estimate; the estimate; the stored ones."""
DEFAULT = "batch"
"""Recombined parts lose much accuracy with stored statistics, and none with those of each batch."""
FIXED_POLICIES = tuple(policy for policy in POLICIES if policy != "mix:N")
MAX_PRIOR = 2**31 - 1
"""Largest N of ``mix:N``."""
_MIX = re.compile(r"mix:(0|[1-9][0-9]{0,9})")


def check_policy(name: str) -> str:
    """Return a policy in canonical form; ``mix:0`` gives stored statistics no weight and becomes ``reestimate``.

    Args:
        name: A batch-norm policy, such as ``"mix:16"``.

    Raises:
        UsageError: The name is not a policy.
    """
    if name in FIXED_POLICIES:
        return name
    match = _MIX.fullmatch(name) if isinstance(name, str) else None
    if match is not None and int(match[1]) <= MAX_PRIOR:
        return name if int(match[1]) else "reestimate"
    if isinstance(name, str) and name.partition(":")[0] == "mix":
        raise UsageError(
            f"Unknown bn_policy {name!r:.60}; mix: takes the number of images that the stored statistics count "
            f"as, a whole number from 0 to {MAX_PRIOR}, for example mix:16.",
            subject=name,
        )
    hint = suggest(name, FIXED_POLICIES)
    raise UsageError(
        f"Unknown bn_policy {name!r:.60}; expected one of {', '.join(POLICIES)}.{hint}", subject=name
    )


def is_policy(name: object) -> bool:
    """Return whether ``name`` is a policy in canonical form."""
    try:
        return isinstance(name, str) and check_policy(name) == name
    except UsageError:
        return False


def prior_images(policy: str) -> int | None:
    """Return N of ``mix:N``, 0 for ``reestimate``, and None for policies without an estimate."""
    if policy == "reestimate":
        return 0
    return int(policy.removeprefix("mix:")) if policy.startswith("mix:") else None


def estimates(policy: str) -> bool:
    """Return whether a policy estimates statistics on unlabeled images."""
    return prior_images(policy) is not None


def stored_share(policy: str, images: int) -> float:
    """Return the weight of the stored statistics, N / (N + n), in an estimate on n images.

    Source: Schneider et al. (2020), "Improving robustness against common corruptions by covariate shift adaptation".

    Args:
        policy: A batch-norm policy, such as ``"mix:16"``.
        images: Number of images of the estimate, n.
    """
    prior = prior_images(policy) or 0
    return prior / (prior + images) if prior else 0.0
