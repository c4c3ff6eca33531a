"""Copying components from another registry: what they refer to first, their versions last, numbers and digests kept.

A crash at any step leaves bytes that nothing refers to, and the same call goes on where it was. The other registry is
only read, and nothing in it is believed: each blob is verified while it is copied, each manifest read strictly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.contracts.codec import dumps
from compatkit.errors import (
    NotFound,
    SignatureError,
    UsageError,
    VersionExists,
)
from compatkit.registry import disk as durable
from compatkit.registry.copy import selection
from compatkit.registry.copy.admission import Admission, Deciding
from compatkit.registry.copy.closure import Closure
from compatkit.registry.copy.pairs import copy_results
from compatkit.registry.copy.signatures import copy_signatures
from compatkit.registry.copy.sources import Folder
from compatkit.registry.copy.transfer import Transfer
from compatkit.registry.names import Reference, Version
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.signing.verification import Accept
    from compatkit.registry.store import Store

Progress = Callable[[int, int, str], None]
SHOWN = 8
"""Clashes that a message lists."""


@attrs.define
class Imported:
    """What an import did.

    Attributes:
        made: Versions that are new here, parents included.
        there: Versions that were here already.
        unnamed: Parents whose numbers belong to other bytes here, or that have no signature of their own where one is
            required; they are kept, and found by digest.
        blobs: Number of blobs that were copied.
        bytes: Their bytes.
        results: Number of measured results that are new here.
        signatures: Number of signatures that are new here.
        aliases: Aliases that were set, ``name:alias``.
    """

    made: list[Reference] = attrs.field(factory=list)
    there: list[Reference] = attrs.field(factory=list)
    unnamed: list[Reference] = attrs.field(factory=list)
    blobs: int = 0
    bytes: int = 0
    results: int = 0
    signatures: int = 0
    aliases: list[str] = attrs.field(factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        lists = {
            name: [{"reference": str(one), "digest": one.digest} for one in getattr(self, name)]
            for name in ("made", "there", "unnamed")
        }
        counts = {one: getattr(self, one) for one in ("blobs", "bytes", "results", "signatures")}
        return {**lists, **counts, "aliases": self.aliases}


def import_components(
    source: Store,
    target: Store,
    patterns: Iterable[str] = ("*",),
    *,
    versions: Literal["all", "latest"] = "all",
    aliases: bool = False,
    evidence: bool = True,
    accept: Accept | None = None,
    deciding: Deciding | None = None,
    unmeasured: bool = False,
    progress: Progress | None = None,
) -> Imported:
    """Copy components from one registry to another, with their signatures.

    Args:
        source: Where they are; only read.
        target: Where they shall be too.
        patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"`` for one version of each.
        versions: ``"all"`` copies all versions of the names, withdrawn ones with tombstones; ``"latest"`` one each.
        aliases: Whether aliases of the names are set here as they are there.
        evidence: Whether measured results of pairs come along, where both parts do.
        accept: Refuses what has no signature that counts, as ``signing.require(trusted)`` does; a parent needs none,
            for its digest stands in what is signed, but gets its name here only if it has one.
        deciding: Makes what answers the questions of policies here, as ``admitting.deciding()`` does; None: nobody.
        unmeasured: Let in what nobody measured as a policy here asks; the log of the policy tells.
        progress: Called with done, total and what is being done.

    Returns:
        What was copied.

    Raises:
        NotFound: A pattern matches nothing.
        SignatureError: What was asked for has no signature that counts; nothing was copied.
        VersionExists: A number belongs to other bytes here; nothing was linked.
        VersionUntrue: A number is too small a step among the versions here; nothing was linked.
        PolicyBroken: A version does not work with a part that a policy here protects; nothing was linked.
        PolicyUndecided: Nobody measured a version as a policy here asks; nothing was linked.
        IntegrityError: Something in the source is missing, damaged or refused.
        FormatError: A manifest is not strict, or weights are no strict safetensors file.
        EnvironmentFailure: Disk full, no right to write; the same call goes on where it stopped.
    """
    target.layout.check_writer(target.root)
    if source.root.resolve() == target.root.resolve():
        raise UsageError(
            f"{source.root} would be imported into itself; name another registry.", subject=source.root
        )
    wanted = chosen(source, patterns, versions)
    run = _Import(source, target, wanted, progress or _silent, accept, deciding, unmeasured)
    return run.run(aliases=aliases, evidence=evidence)


def chosen(source: Store, patterns: Iterable[str], versions: Literal["all", "latest"]) -> list[Reference]:
    """Return what ``import_components`` would be asked to copy, by name and version; parents come besides.

    Raises:
        NotFound: A pattern matches nothing.
    """
    return selection.chosen(source.references, patterns, versions)


def _silent(done: int, total: int, what: str) -> None:
    """Report to nobody."""


def _nothing() -> None:
    """Nothing is left to look at: what is withdrawn binds nobody, and nothing binds it."""


@attrs.define(eq=False)
class _Import:
    """One import; see ``import_components``."""

    source: Store
    target: Store
    wanted: list[Reference]
    progress: Progress
    accept: Accept | None = None
    deciding: Deciding | None = None
    unmeasured: bool = False
    done: Imported = attrs.field(factory=Imported)

    def run(self, *, aliases: bool, evidence: bool) -> Imported:
        """Copy bytes, what policies ask for, names, then results and aliases."""
        self._check_free()
        for one in self.wanted:
            self._check_signed(one)
        source = Folder(self.source)
        transfer = Transfer(source, self.target.objects)
        closure = Closure(source, transfer)
        for place, one in enumerate(self.wanted):
            self.progress(place, len(self.wanted), f"reading {one}")
            closure.add(one)
        versions = [*filter(self._may_be_named, closure.parents()), *self.wanted]
        self._copy(closure)
        admission = self._admission(versions, closure)
        asked_for = admission.functions() if evidence else ()
        if asked_for:
            self.done.results = copy_results(source, self.target, closure, asked_for, self.progress)
        self._check_free()
        versions = self._admitted(versions, admission)
        for place, one in enumerate(versions):
            self.progress(place, len(versions), f"naming {one}")
            asked = place >= len(versions) - len(self.wanted)
            self._link(one, closure, None if self._is_withdrawn(one) else admission, asked=asked)
        self.done.signatures = copy_signatures(self.source, self.target, closure)
        if evidence:
            functions = closure.functions()
            self.done.results += copy_results(source, self.target, closure, functions, self.progress)
        if aliases:
            self._set_aliases()
        self.done.blobs, self.done.bytes = transfer.copied, transfer.bytes
        return self.done

    def _check_signed(self, one: Reference) -> None:
        if self.accept is not None and one.digest is not None:
            self.accept(one.digest, self.source.signatures.of(one.digest), str(one))

    def _may_be_named(self, one: Reference) -> bool:
        """Tell whether a parent gets its name here: its bytes are vouched for by what was asked for, its name not."""
        try:
            self._check_signed(one)
        except SignatureError:
            self.done.unnamed.append(one)
            return False
        return True

    def _admission(self, versions: list[Reference], closure: Closure) -> Admission:
        coming = [one for one in versions if self._there(one) is None and not self._is_withdrawn(one)]
        return Admission(self.target, coming, closure.bring, self.deciding, self.unmeasured)

    def _admitted(self, versions: list[Reference], admission: Admission) -> list[Reference]:
        """Return the versions that may come in; of what was asked for all must.

        Raises:
            CompatkitError: One may not; its message begins with the version.
        """
        refused = admission.check_all(self.progress)
        for one, error in refused.items():
            if one in self.wanted:
                raise type(error)(
                    f"{one} does not come in, and nothing was imported. {error}", subject=error.subject
                ) from error
        self.done.unnamed += refused
        return [one for one in versions if one not in refused]

    def _is_withdrawn(self, one: Reference) -> bool:
        return one.version is not None and one.version in self.source.references.withdrawn(one.name)

    def _check_free(self) -> None:
        """Refuse numbers that belong to other bytes, all at once."""
        taken = [(one, there) for one in self.wanted if (there := self._there(one)) not in (None, one.digest)]
        if taken:
            told = [f"{one} is {there} here and {one.digest} there" for one, there in taken[:SHOWN]]
            more = f"; and {len(taken) - SHOWN} more" if len(taken) > SHOWN else ""
            raise VersionExists(
                f"{'; '.join(told)}{more}. A version is never rewritten, and nothing was imported. Name what to import "
                "without these, or import into a registry of its own.",
                subject=str(taken[0][0]),
            )

    def _there(self, one: Reference) -> str | None:
        return None if one.version is None else self.target.references.digest(one.name, one.version)

    def _copy(self, closure: Closure) -> None:
        """Copy weights and other bytes, then manifests."""
        total = len(closure.parts)
        for place, digest in enumerate(closure.leaves_first()):
            self.progress(place, total, f"copying for {closure.parts[digest].whose}")
            closure.bring(digest)

    def _link(self, one: Reference, closure: Closure, admission: Admission | None, *, asked: bool) -> None:
        """Give a component its name and number, and its tombstone if it was withdrawn."""
        if one.version is None or one.digest is None:
            raise NotFound(f"{one} is not resolved to a version.", subject=str(one))
        held = closure.of(one.digest)
        there = self._there(one)
        if there is None:
            name, version, digest = one.name, one.version, one.digest

            def bring() -> None:
                for part in held:
                    closure.bring(part)

            def create(ready: Callable[[], object]) -> bool:
                # what is asked takes longer than what is unused is safe for: all is there before and after
                return self.target.references.create(
                    name, version, digest, lambda: (bring(), ready(), bring())
                )

            made = admission.link(one, create) if admission is not None else create(_nothing)
            there = one.digest if made else self._there(one)
            if made:
                self.done.made.append(one)
        else:
            self.done.there.append(one)
        if there != one.digest:
            if not asked:
                self.done.there = [other for other in self.done.there if other != one]
                self.done.unnamed.append(one)
                return
            raise VersionExists(
                f"{one} was published by somebody else at this moment: {there}.", subject=str(one)
            )
        self._bury(one.name, one.version)

    def _bury(self, name: str, version: Version) -> None:
        tombstone = self.source.references.tombstone(name, version)
        if tombstone is not None and self.target.references.tombstone(name, version) is None:
            path = self.target.references.folder(name) / "@tombstones" / str(version)
            with environment("create", path):
                durable.create_once(path, dumps(attrs.asdict(tombstone)), self.target.root)

    def _set_aliases(self) -> None:
        for name in sorted({one.name for one in self.wanted}):
            alive = {str(version) for version in self.target.versions(name)}
            for alias, version in self.source.aliases(name).items():
                if version in alive and self.target.aliases(name).get(alias) != version:
                    self.target.set_alias(name, alias, version)
                    self.done.aliases.append(f"{name}:{alias}")
