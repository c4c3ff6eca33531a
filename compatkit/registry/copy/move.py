"""Copy components between registries, for import, pull, push and clone: bytes first, versions last.

Tombstones, results and aliases follow the versions; results that policies of the target need precede them. Refused
components are reported and the rest is copied; a strict move raises instead, before any version is created. A move that
is interrupted leaves unreferenced bytes only, and the same call continues: it copies what is missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, VersionExists
from compatkit.foundation.codec import dumps
from compatkit.registry.copy.admission import Admission
from compatkit.registry.copy.choice import Choice, chosen, matching
from compatkit.registry.copy.endpoints import Origin, SmallFile, Target
from compatkit.registry.copy.report import SHOWN, Moved, Refusal, SignatureWarning, Withdrawal
from compatkit.registry.copy.smallfiles import SignatureFiles, copy_results, follow_aliases
from compatkit.registry.copy.stores import StoreTarget
from compatkit.registry.copy.transfer import Transfer
from compatkit.registry.names import Reference
from compatkit.registry.refs import Tombstone, version_line, withdrawal_path
from compatkit.registry.store import Store


@attrs.define(eq=False)
class Move:
    """One transfer of components from an origin to a target.

    Attributes:
        origin: Source; only read, and not trusted.
        target: Destination; a folder refuses what it does not trust or its policies forbid.
        choice: What is copied, and how.
        done: The report so far.
    """

    origin: Origin
    target: Target
    choice: Choice
    done: Moved = attrs.field(init=False, factory=Moved)
    transfer: Transfer = attrs.field(init=False)
    signatures: SignatureFiles = attrs.field(init=False)
    _store: Store | None = attrs.field(init=False, default=None)
    _admission: Admission | None = attrs.field(init=False, default=None)
    _requested: set[Reference] = attrs.field(init=False, factory=set)
    _out: set[Reference] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        """Connect both ends."""
        if isinstance(self.target, StoreTarget):
            self._store = self.target.store
            self.choice = self.choice.requiring(self._store.trusted)
        self.transfer = Transfer(self.origin, self.target, self.choice, self.done.items)
        self.signatures = SignatureFiles(self.origin)

    def run(self, patterns: Iterable[str]) -> Moved:
        """Copy the versions that patterns select.

        Args:
            patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"`` for one version each.

        Returns:
            What was copied and refused.

        Raises:
            NotFound: A pattern matches nothing.
            EnvironmentFailure: Disk full, no permission, no network; the same call continues.
            CompatkitError: The choice is strict, and something was refused; no version was created.
        """
        good = self._readable(self._accepted(self._wanted(list(patterns))))
        parents = self._parents(good)
        if self.choice.dry_run:
            return self._plan(parents, good)
        self.target.begin()
        self._bring(good)
        good = self._remaining(good)
        components = self.transfer.components(self.transfer.all_of(good))
        self._copy_signatures(components)
        self._admit(parents, good)
        parents, good = self._remaining(parents), self._remaining(good)
        self._name(parents)
        self._name(good)
        self._withdraw([*parents, *good])
        self._copy_results(self.transfer.functions(components))
        self._move_aliases(sorted({reference.name for reference in good}))
        return self.done

    # --- selection

    def _wanted(self, patterns: list[str]) -> list[Reference]:
        with self.origin.translating():
            known = self.origin.names()
            names = {name for pattern in patterns for name in matching(pattern, known)}
            self.origin.look(names)
            wanted = chosen(
                self.origin.references,
                patterns,
                self.choice.versions,
                lambda reference, error: self._refuse(str(reference), self.origin.translated(error)),
            )
        self.target.look(names)
        self._requested.update(wanted)
        if self.choice.strict:
            self._check_free(wanted)
        return wanted

    def _check_free(self, wanted: list[Reference]) -> None:
        """Raise for version numbers that the target uses for other bytes, naming all of them."""
        taken = [
            f"{reference} is {existing} here and {reference.digest} there"
            for reference in wanted
            if (existing := self._target_digest(reference)) not in (None, reference.digest)
        ]
        if taken:
            more = f"; and {len(taken) - SHOWN} more" if len(taken) > SHOWN else ""
            raise VersionExists(
                f"{'; '.join(taken[:SHOWN])}{more}. A version is never rewritten, and nothing was imported. Name what "
                "to import without these, or import into a registry of its own.",
                subject=taken[0].partition(" ")[0],
            )

    def _accepted(self, versions: list[Reference]) -> list[Reference]:
        """Return the versions whose number is free or equal, and whose signatures are accepted."""
        self.signatures.read({str(reference.digest) for reference in versions})
        for reference in versions:
            self._attempt(reference, self._accept)
        return self._remaining(versions)

    def _accept(self, reference: Reference) -> None:
        existing = self._target_digest(reference)
        if existing not in (None, reference.digest):
            raise VersionExists(
                f"{reference} is {existing} in {self.target.where} and {reference.digest} in {self.origin.where}. A "
                "version is never rewritten: publish one of them under another number.",
                subject=str(reference),
            )
        _tombstone(self.origin, reference)  # raises if it cannot be read
        signatures = self.signatures.of(str(reference.digest))
        if self.choice.accept is not None:
            self.choice.accept(str(reference.digest), signatures, str(reference))

    def _target_digest(self, reference: Reference) -> str | None:
        with self.target.translating():
            return (
                None
                if reference.version is None
                else self.target.references.digest(reference.name, reference.version)
            )

    def _readable(self, good: list[Reference]) -> list[Reference]:
        """Return the versions whose documents can all be read."""
        self.choice.progress(0, len(good), "reading manifests")
        self.transfer.enter(good)
        for reference in good:
            self._attempt(reference, lambda reference: self.transfer.of(str(reference.digest)))
        return self._remaining(good)

    def _parents(self, good: list[Reference]) -> list[Reference]:
        """Return the named versions of the parents, which are copied too."""
        digests = {*self.transfer.all_of(good)}
        with self.origin.translating():
            parents = [parent for parent in self.transfer.parents() if parent.digest in digests]
        self.target.look({parent.name for parent in parents})
        return self._accepted(parents)

    def _plan(self, parents: list[Reference], good: list[Reference]) -> Moved:
        self.done.planned = True
        for reference in (*parents, *good):
            (self.done.existing if self._target_digest(reference) is not None else self.done.made).append(
                reference
            )
        lacking = self.transfer.lacking(self.transfer.all_of(good))
        self.done.items += [self.transfer.item(digest) for digest in lacking]
        return self.done

    def _bring(self, good: list[Reference]) -> None:
        """Copy missing blobs; a strict move, and weights of new manifests, also verify existing ones."""
        wanted, examined = self.transfer.all_of(good), set[str]()
        if self.choice.strict:
            examined.update(wanted)
        elif self.target.examines:
            new = [reference for reference in good if self._target_digest(reference) is None]
            examined = {digest for digest in self.transfer.all_of(new) if self.transfer.blobs[digest].payload}
        examined.update(self.transfer.lacking(wanted))
        failed = self.transfer.bring_all([digest for digest in wanted if digest in examined])
        for reference in good:
            digests = self.transfer.of(str(reference.digest))
            error = next((failed[digest] for digest in digests if digest in failed), None)
            if error is not None:
                self._drop(reference, error)

    def _copy_signatures(self, components: list[str]) -> None:
        made, refused = self.signatures.copy(self.target, components)
        self.done.signatures += made
        if not self.choice.strict:
            self.done.refused += refused
            return
        for refusal in refused:
            warnings.warn(str(refusal), SignatureWarning, stacklevel=2)

    def _copy_results(self, functions: list[str]) -> None:
        if functions and self.choice.evidence:
            self.choice.progress(0, 1, "looking for results")
            made, digests = copy_results(self.transfer, functions, self._refuse, anew=self.choice.strict)
            self.done.results += made
            new = [digest for digest in digests if digest not in self.signatures.by_digest]
            self.signatures.read(new)
            self._copy_signatures(new)

    # --- admission

    def _admit(self, parents: list[Reference], good: list[Reference]) -> None:
        """Drop what a registry in a folder does not admit; of a remote, the registry that pulls decides."""
        if self._store is None:
            return
        coming = [
            reference
            for reference in (*parents, *good)
            if self._target_digest(reference) is None and not self._is_withdrawn(reference)
        ]
        self._admission = Admission(
            self._store, coming, self.transfer.bring, self.choice.deciding, self.choice.unmeasured
        )
        self._copy_results(self._admission.functions())
        for reference, error in self._admission.check_all(self.choice.progress).items():
            if self.choice.strict and reference in self._requested:
                error.add_note(f"{reference} is refused, and nothing was imported.")
                raise error
            self._drop(reference, error)

    def _is_withdrawn(self, reference: Reference) -> bool:
        with self.origin.translating():
            return self.origin.is_withdrawn(reference)

    # --- versions, tombstones, aliases

    def _name(self, versions: list[Reference]) -> None:
        """Create the versions."""
        existing = {reference: self._target_digest(reference) for reference in versions}
        new = [reference for reference in versions if existing[reference] is None]
        self.choice.progress(0, len(new), "naming")
        if self._admission is None:
            taken = self.target.create([self._note(reference) for reference in new])
        else:
            taken = {_path(reference) for reference in new if not self._link(reference, self._admission)}
        for reference in self._remaining(versions):
            if existing[reference] is None and _path(reference) not in taken:
                self.done.made.append(reference)
            elif (
                existing[reference] == reference.digest
                or self.target.digest_now(reference) == reference.digest
            ):
                self.done.existing.append(reference)
            else:
                error = VersionExists(
                    f"{reference} was published concurrently by somebody else in {self.target.where}: it is "
                    f"{self.target.digest_now(reference)} there, and {reference.digest} in {self.origin.where}.",
                    subject=str(reference),
                )
                self._drop(reference, error)

    def _note(self, reference: Reference, further: Callable[[], object] | None = None) -> SmallFile:
        digests = self.transfer.of(str(reference.digest))

        def ready() -> None:
            for digest in digests:
                self.transfer.bring(digest)

        # deciding may take longer than unused bytes are kept: make sure before and after that all are there
        both = ready if further is None else lambda: (ready(), further(), ready())
        return SmallFile(_path(reference), version_line(str(reference), str(reference.digest)), both)

    def _link(self, reference: Reference, admission: Admission) -> bool:
        """Create a version in a folder, or drop it if it is refused after all; False if its number is taken."""
        if self._is_withdrawn(reference):
            return not self.target.create([self._note(reference)])
        try:
            return admission.link(
                reference, lambda ready: not self.target.create([self._note(reference, ready)])
            )
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            self._drop(reference, error)
            return True

    def _withdraw(self, versions: Iterable[Reference]) -> None:
        """Copy tombstones, and report versions withdrawn on one side only."""
        moved = {*self.done.made, *self.done.existing}
        for reference in versions:
            if reference not in moved:
                continue
            ours, theirs = _tombstone(self.origin, reference), _tombstone(self.target, reference)
            if ours is not None and theirs is None:
                path = f"refs/{reference.name}/@tombstones/{reference.version}"
                document = dumps(attrs.asdict(ours))
                self.target.create(
                    [SmallFile(withdrawal_path(str(reference)), document), SmallFile(path, document)]
                )
            if (ours is None) != (theirs is None):
                self.done.withdrawn.append(Withdrawal(reference, (ours or theirs).reason))  # type: ignore[union-attr]

    def _move_aliases(self, names: list[str]) -> None:
        if self.choice.aliases:
            follow_aliases(self.origin, self.target, names, self.done)

    # --- refusals

    def _attempt(self, reference: Reference, work: Callable[[Reference], object]) -> None:
        """Call ``work`` with a version; drop the version if it raises."""
        try:
            work(reference)
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            self._drop(reference, error)

    def _drop(self, reference: Reference, error: CompatkitError) -> None:
        """Leave a version out: a requested one is refused, a parent is copied without its name."""
        fresh = reference not in self._out
        self._out.add(reference)
        if fresh and reference in self._requested:
            self._refuse(str(reference), error)
        else:  # also a refused version that is copied as a parent
            self.done.unnamed.append(reference)

    def _refuse(self, what: str, error: CompatkitError) -> None:
        """Record a refusal; raise it if the move is strict."""
        if self.choice.strict:
            raise error
        self.done.refused.append(Refusal(what, error))

    def _remaining(self, versions: Iterable[Reference]) -> list[Reference]:
        return [reference for reference in versions if reference not in self._out]


def _tombstone(registry: Origin, reference: Reference) -> Tombstone | None:
    with registry.translating():
        return (
            None
            if reference.version is None
            else registry.references.tombstone(reference.name, reference.version)
        )


def _path(reference: Reference) -> str:
    return f"refs/{reference.name}/@versions/{reference.version}"
