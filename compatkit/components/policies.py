"""Policies of a registry: what new versions must keep working with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.loading import PartLoader
from compatkit.contracts.batchnorm import DEFAULT
from compatkit.contracts.evidence import METRIC, METRIC_VERSION
from compatkit.errors import UnknownName, UsageError, type_of
from compatkit.foundation.arguments import checks_arguments
from compatkit.registry.aliases import ANY, Anything
from compatkit.registry.names import check_name
from compatkit.registry.policies import Images, Policy
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.images import PolicyData
    from compatkit.components.outcomes import PolicyOutcome
    from compatkit.data.dataset import Split
    from compatkit.evaluation.conditions import Progress
    from compatkit.registry.policylog import Revision


@checks_arguments
@attrs.frozen(eq=False)
class Policies(Mapping[str, Policy]):
    """All policies by scope, the most specific first.

    Attributes:
        store: Store of the registry.
    """

    store: Store

    def __getitem__(self, scope: str) -> Policy:
        """Return the policy set for exactly this scope; ``of`` returns the one that binds a name.

        Raises:
            UnknownName: None is set for this scope.
        """
        policies = self._set()
        if scope not in policies:
            raise UnknownName(
                f"No policy is set for exactly {scope!r:.80}; scopes with a policy: {', '.join(policies) or 'none'}. "
                "of(NAME) returns the policy that binds a name.",
                subject=scope,
            )
        return policies[scope]

    def __contains__(self, scope: object) -> bool:
        """Return whether a policy is set for exactly this scope."""
        return scope in self._set()

    def get(self, scope: str, default: Any = None) -> Any:
        """Return the policy set for exactly this scope, or ``default``."""
        return self._set().get(scope, default)

    def __iter__(self) -> Iterator[str]:
        """Yield the scopes."""
        return iter(self._set())

    def __len__(self) -> int:
        """Return the number of scopes with a policy."""
        return len(self._set())

    def set(
        self,
        scope: str,
        mode: str,
        *,
        data: Split | tuple[str, str] | None = None,
        tolerance: float = 0.0,
        metric: str = METRIC,
        bn_policy: str = DEFAULT,
        cap: int | None = None,
        seed: int = 0,
        batch_size: int = 256,
        across_major: bool = False,
        expected: int | Policy | Anything | None = ANY,
    ) -> Policy:
        """Set what new versions must keep working with; see ``docs/explanation/policies.md``.

        Args:
            scope: A name, a prefix such as ``"digits/"``, or a glob over whole names; only the most specific match of
                a name counts.
            mode: ``"backward"``, ``"forward"``, ``"full"``, each also with ``"_transitive"``; or ``"none"``.
            data: Images to decide on, or their name and digest.
            tolerance: Largest accepted loss of accuracy against the upper bound, in [0, 1).
            metric: Metric to decide by.
            bn_policy: As in ``matrix``; ``"running"`` if pairs are deployed with stored statistics.
            cap: Maximum number of images, drawn class-balanced with ``seed``; at least one of each class.
            seed: Seed of that draw and of the order of the images.
            batch_size: Images per batch.
            across_major: Whether new MAJOR versions are bound, too.
            expected: Present policy for compare-and-swap: a revision number, a policy, or None for no policy.

        Raises:
            UsageError: A value is invalid.
            InvalidName: The scope is invalid.
            PolicyMoved: The present policy is not ``expected``.
            EnvironmentFailure: Disk full, or no write permission.
        """
        if metric != METRIC:
            raise UsageError(f"Policies support only the metric {METRIC}; got {metric!r}.")
        images = None if data is None else _images(data, cap)
        policy = Policy(
            scope=scope,
            mode=mode,  # type: ignore[arg-type]
            data=images,
            metric=metric,
            metric_version=METRIC_VERSION,
            bn_policy=bn_policy,
            tolerance=tolerance,
            cap=cap,
            seed=seed,
            batch_size=batch_size,
            across_major=across_major,
        )
        self.store.set_policy(policy.scope, policy, expected=expected)
        return policy

    def clear(self, scope: str, *, expected: int | Policy | Anything | None = ANY) -> None:
        """Clear the policy of a scope, so that a wider one applies.

        Args:
            scope: Exactly the scope that was set.
            expected: As for ``set``.

        Raises:
            PolicyMoved: The present policy is not ``expected``.
        """
        self.store.set_policy(scope, None, expected=expected)

    def of(self, name: str) -> Policy | None:
        """Return the policy that binds a name, or None."""
        entry = self.store.policies.of(check_name(name))
        return None if entry is None else entry.policy

    def history(self, scope: str) -> list[Revision]:
        """Return all changes of a scope's policy with their dates, oldest first."""
        return self.store.policies.history(scope)

    def test(
        self,
        reference: str,
        *,
        name: str | None = None,
        against: str | Sequence[str] | None = None,
        data: PolicyData = (),
        progress: Progress | None = None,
    ) -> PolicyOutcome:
        """Measure a released part as its policy requires; publishes nothing but records the figures.

        Args:
            reference: Reference of the part.
            name: Test it as the next version of this name; None tests it as the version that it is.
            against: References or patterns of partners, instead of those that the policy finds.
            data: Images of the policy, if they are not found by name.
            progress: Called with done, total and what is being done.

        Raises:
            NotFound: A reference does not resolve.
            PolicyDataMissing: The policy's images are not available.
            UsageError: ``against`` names something that cannot be a partner, or no policy applies.
        """
        from compatkit.components.policy_checks import PolicyChecker, narrowed

        store, resolved = self.store, self.store.resolve(reference)
        own = name is None or name == resolved.name
        candidate, version = PartLoader(store).component(resolved), str(resolved.version) if own else None
        requirement = store.policy_requirement(
            resolved.name if name is None else check_name(name), candidate.manifest, version=version
        )
        if against is not None:
            requirement = narrowed(store, requirement, candidate, store.select(against))
        return PolicyChecker(store, candidate, data, version=version, progress=progress).answer(requirement)

    def _set(self) -> dict[str, Policy]:
        return {entry.scope: entry.policy for entry in self.store.policies.all() if entry.policy is not None}


def _images(data: Any, cap: Any) -> Images:
    """Return name and digest of the images to decide on."""
    from compatkit.data.split import Split

    if isinstance(data, tuple) and len(data) == 2:
        return Images(*data)
    if not isinstance(data, Split):
        raise UsageError(
            f"data= expects a Split of images, such as mnist.test, or a pair of name and digest; got {type_of(data)}.",
            subject=data,
        )
    classes = sum(count > 0 for count in data.counts)
    if type(cap) is int and 0 < cap < classes:
        raise UsageError(
            f"cap={cap} is too small: {data.name} has {classes} classes; use at least one image of each.",
            subject=cap,
        )
    return Images(data.name, data.digest)
