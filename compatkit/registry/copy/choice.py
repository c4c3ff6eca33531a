"""What is moved, and how: chosen once, for import, pull, push and clone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import UsageError
from compatkit.registry.copy.admission import Deciding
from compatkit.registry.copy.report import Progress
from compatkit.registry.copy.selection import Versions

if TYPE_CHECKING:
    from compatkit.registry.signing.trust import Trust

Accept = Callable[[str, Sequence[bytes], str], None]
"""Takes a manifest's digest, its signatures as they were found, and ``name@version``; raises to refuse it."""


def _silent(done: int, total: int, what: str) -> None:
    """Report to nobody."""


@attrs.frozen(kw_only=True)
class Choice:
    """What is moved, and how.

    Attributes:
        versions: ``"all"`` takes all versions of the names, withdrawn ones with tombstones; ``"latest"`` one each.
        aliases: Whether aliases of the names come along: they follow where the log of the source goes on from that
            of the target; a strict move sets them as they are in the source.
        evidence: Whether measured results of pairs come along, where both parts do.
        accept: Refuses a component before anything of it comes; a parent that it refuses comes without its name.
        deciding: Makes what answers the questions of policies, where components come into a folder; None: nobody.
        unmeasured: Let in what nobody measured as a policy asks; the log of the policy tells.
        jobs: Blobs that move at once.
        dry_run: Only say what would move.
        create: Whether a push makes the remote a registry if it is none.
        strict: Raise at the first refusal, so that all is named or nothing, and verify what is there already; else
            refusals are listed and the rest comes.
        progress: Called with done, total and what is being done.
    """

    versions: Versions = "all"
    aliases: bool = True
    evidence: bool = True
    accept: Accept | None = None
    deciding: Deciding | None = None
    unmeasured: bool = False
    jobs: int = 8
    dry_run: bool = False
    create: bool = True
    strict: bool = False
    progress: Progress = attrs.field(default=_silent, converter=attrs.converters.default_if_none(_silent))

    def __attrs_post_init__(self) -> None:
        """Check what people write.

        Raises:
            UsageError: No number of jobs.
        """
        if self.jobs < 1:
            raise UsageError(f"jobs is the number of blobs that move at once, from 1; got {self.jobs}.")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Choice:
        """Return a choice as keywords give it.

        Raises:
            UsageError: A keyword is unknown.
        """
        unknown = sorted(given.keys() - attrs.fields_dict(cls).keys())
        if unknown:
            known = ", ".join(attrs.fields_dict(cls))
            raise UsageError(f"there is no choice {', '.join(unknown)}; there are {known}.")
        return cls(**given)

    def requiring(self, trust: Trust) -> Choice:
        """Return this choice, which also refuses what none of some keys signed.

        Args:
            trust: Whose signatures count, as ``Registry.open`` takes it; False or None asks for none.

        Raises:
            KeyFileError: It cannot be found out whom to trust.
            MissingDependency: ``cryptography`` is not installed.
        """
        if trust is None or trust is False:
            return self
        from compatkit.registry.signing.verify import require

        signed, other = require(trust), self.accept

        def accept(digest: str, signatures: Sequence[bytes], name: str) -> None:
            signed(digest, signatures, name)
            if other is not None:
                other(digest, signatures, name)

        return attrs.evolve(self, accept=accept)
