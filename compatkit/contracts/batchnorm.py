"""Batch-norm policies: which statistics batch normalization uses in recombined parts."""

from __future__ import annotations

import re

from compatkit.errors import UsageError, suggest

POLICIES = ("batch", "mix:N", "reestimate", "running")
"""Per batch; running statistics counted as N images and mixed with an estimate; estimate alone; running alone."""
DEFAULT = "batch"
"""Recombined parts lose much accuracy with stored statistics, and none with those of each batch."""
WORDS = tuple(policy for policy in POLICIES if policy != "mix:N")
LARGEST = 2**31 - 1
"""Largest N of ``mix:N``."""
_MIX = re.compile(r"mix:(0|[1-9][0-9]{0,9})")


def check_policy(name: str) -> str:
    """Return a policy in canonical form; ``mix:0`` gives stored statistics no weight and becomes ``reestimate``.

    Raises:
        UsageError: The name is not a policy.
    """
    if name in WORDS:
        return name
    match = _MIX.fullmatch(name) if isinstance(name, str) else None
    if match is not None and int(match[1]) <= LARGEST:
        return name if int(match[1]) else "reestimate"
    if isinstance(name, str) and name.partition(":")[0] == "mix":
        raise UsageError(
            f"Unknown bn_policy {name!r:.60}; mix: takes the number of images that the stored statistics count "
            f"as, a whole number from 0 to {LARGEST}, for example mix:16.",
            subject=name,
        )
    hint = suggest(name, WORDS)
    raise UsageError(
        f"Unknown bn_policy {name!r:.60}; expected one of {', '.join(POLICIES)}.{hint}", subject=name
    )


def is_policy(name: object) -> bool:
    """Return whether this is a policy in canonical form."""
    try:
        return isinstance(name, str) and check_policy(name) == name
    except UsageError:
        return False


def prior_of(policy: str) -> int | None:
    """Return the number of images that stored statistics count as in an estimate; None if nothing is estimated."""
    if policy == "reestimate":
        return 0
    return int(policy.removeprefix("mix:")) if policy.startswith("mix:") else None


def estimates(policy: str) -> bool:
    """Return whether a policy estimates statistics on unlabeled images."""
    return prior_of(policy) is not None


def stored_share(policy: str, images: int) -> float:
    """Return the weight of the stored statistics, N / (N + n), in an estimate on n images.

    Source: Schneider et al. (2020), "Improving robustness against common corruptions by covariate shift adaptation".

    Args:
        policy: A batch-norm policy, such as ``"mix:16"``.
        images: n, images of the estimate.
    """
    prior = prior_of(policy) or 0
    return prior / (prior + images) if prior else 0.0
