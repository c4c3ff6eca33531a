"""Moving components between registries, for import, pull, push and clone: bytes first, versions last.

After the versions come tombstones, results and aliases; results that policies there ask for come before. What cannot
come is refused and the rest comes; a strict move raises instead, before anything is named. Whatever stops a move (an
error, a crash, the network) leaves bytes that nothing refers to, and the same call goes on where it was: only what is
missing moves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, VersionExists
from compatkit.foundation.codec import dumps
from compatkit.registry.copy.admission import Admission
from compatkit.registry.copy.choice import Choice, chosen, matching
from compatkit.registry.copy.places import Note, Origin, Target
from compatkit.registry.copy.report import SHOWN, Moved, Refusal, SignatureWarning, Withdrawal
from compatkit.registry.copy.smallfiles import SignatureFiles, copy_results, follow_aliases, set_aliases
from compatkit.registry.copy.stores import StoreTarget
from compatkit.registry.copy.transfer import Transfer
from compatkit.registry.names import Reference
from compatkit.registry.refs import Tombstone, version_line, withdrawal_path
from compatkit.registry.store import Store


@attrs.define(eq=False)
class Move:
    """One move of components from an origin to a target.

    Attributes:
        origin: Where they are; only read, and not believed.
        target: Where they are copied to; a registry in a folder refuses what it does not trust or its policies forbid.
        choice: What is moved, and how.
        done: What came of it so far.
    """

    origin: Origin
    target: Target
    choice: Choice
    done: Moved = attrs.field(init=False, factory=Moved)
    transfer: Transfer = attrs.field(init=False)
    signatures: SignatureFiles = attrs.field(init=False)
    _store: Store | None = attrs.field(init=False, default=None)
    _admission: Admission | None = attrs.field(init=False, default=None)
    _asked: set[Reference] = attrs.field(init=False, factory=set)
    _out: set[Reference] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        """Join both sides."""
        if isinstance(self.target, StoreTarget):
            self._store = self.target.store
            self.choice = self.choice.requiring(self._store.trusted)
        self.transfer = Transfer(self.origin, self.target, self.choice, self.done.items)
        self.signatures = SignatureFiles(self.origin)

    def run(self, patterns: Iterable[str]) -> Moved:
        """Move what patterns mean.

        Args:
            patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"`` for one version each.

        Returns:
            What came, and what was refused.

        Raises:
            NotFound: A pattern matches nothing.
            EnvironmentFailure: Disk full, no right, no network; the same call goes on where it stopped.
            CompatkitError: The choice is strict, and something was refused; nothing was named.
        """
        good = self._readable(self._accepted(self._wanted(list(patterns))))
        parents = self._parents(good)
        if self.choice.dry_run:
            return self._plan(parents, good)
        self.target.begin()
        self._bring(good)
        good = self._left(good)
        components = self.transfer.components(self.transfer.all_of(good))
        self._copy_signatures(components)
        self._admit(parents, good)
        parents, good = self._left(parents), self._left(good)
        self._name(parents)
        self._name(good)
        self._withdraw([*parents, *good])
        self._copy_results(self.transfer.functions(components))
        self._move_aliases(sorted({one.name for one in good}))
        return self.done

    # --- what comes

    def _wanted(self, patterns: list[str]) -> list[Reference]:
        with self.origin.translating():
            known = self.origin.names()
            names = {name for pattern in patterns for name in matching(pattern, known)}
            self.origin.look(names)
            wanted = chosen(
                self.origin.references,
                patterns,
                self.choice.versions,
                lambda one, error: self._refuse(str(one), self.origin.translated(error)),
            )
        self.target.look(names)
        self._asked.update(wanted)
        if self.choice.strict:
            self._check_free(wanted)
        return wanted

    def _check_free(self, wanted: list[Reference]) -> None:
        """Refuse numbers that belong to other bytes, all at once."""
        taken = [(one, there) for one in wanted if (there := self._there(one)) not in (None, one.digest)]
        if taken:
            shown = [f"{one} is {there} here and {one.digest} there" for one, there in taken[:SHOWN]]
            more = f"; and {len(taken) - SHOWN} more" if len(taken) > SHOWN else ""
            raise VersionExists(
                f"{'; '.join(shown)}{more}. A version is never rewritten, and nothing was imported. Name what to "
                "import without these, or import into a registry of its own.",
                subject=str(taken[0][0]),
            )

    def _accepted(self, versions: list[Reference]) -> list[Reference]:
        """Return the versions whose number is free or theirs, and whose signatures are accepted."""
        self.signatures.read({str(one.digest) for one in versions})
        for one in versions:
            self._or_drop(one, self._accept)
        return self._left(versions)

    def _accept(self, one: Reference) -> None:
        there = self._there(one)
        if there not in (None, one.digest):
            raise VersionExists(
                f"{one} is {there} in {self.target.where} and {one.digest} in {self.origin.where}. A version is never "
                "rewritten: publish one of them under another number.",
                subject=str(one),
            )
        _tombstone(self.origin, one)  # one that cannot be read is not passed over
        signatures = self.signatures.of(str(one.digest))
        if self.choice.accept is not None:
            self.choice.accept(str(one.digest), signatures, str(one))

    def _there(self, one: Reference) -> str | None:
        with self.target.translating():
            return None if one.version is None else self.target.references.digest(one.name, one.version)

    def _readable(self, good: list[Reference]) -> list[Reference]:
        """Return the versions all of whose documents can be read."""
        self.choice.progress(0, len(good), "reading manifests")
        self.transfer.enter(good)
        for one in good:
            self._or_drop(one, lambda one: self.transfer.of(str(one.digest)))
        return self._left(good)

    def _parents(self, good: list[Reference]) -> list[Reference]:
        """Return the parents' names that come along."""
        held = {*self.transfer.all_of(good)}
        with self.origin.translating():
            found = [one for one in self.transfer.parents() if one.digest in held]
        self.target.look({one.name for one in found})
        return self._accepted(found)

    def _plan(self, parents: list[Reference], good: list[Reference]) -> Moved:
        self.done.planned = True
        for one in (*parents, *good):
            (self.done.there if self._there(one) is not None else self.done.made).append(one)
        lacking = self.transfer.lacking(self.transfer.all_of(good))
        self.done.items += [self.transfer.item(one) for one in lacking]
        return self.done

    def _bring(self, good: list[Reference]) -> None:
        """Bring what is missing; a strict move and new manifests also examine what is there."""
        wanted = self.transfer.all_of(good)
        if not self.choice.strict:
            new = [one for one in good if self._there(one) is None] if self.target.examines else []
            examined = {one for one in self.transfer.all_of(new) if self.transfer.blobs[one].payload}
            examined.update(self.transfer.lacking(wanted))
            wanted = [one for one in wanted if one in examined]
        failed = self.transfer.bring_all(wanted)
        for one in good:
            error = next((failed[part] for part in self.transfer.of(str(one.digest)) if part in failed), None)
            if error is not None:
                self._drop(one, error)

    def _copy_signatures(self, components: list[str]) -> None:
        made, refused = self.signatures.copy(self.target, components)
        self.done.signatures += made
        if not self.choice.strict:
            self.done.refused += refused
            return
        for one in refused:
            warnings.warn(str(one), SignatureWarning, stacklevel=2)

    def _copy_results(self, functions: list[str]) -> None:
        if functions and self.choice.evidence:
            self.choice.progress(0, 1, "looking for results")
            made, digests = copy_results(self.transfer, functions, self._refuse, anew=self.choice.strict)
            self.done.results += made
            new = [one for one in digests if one not in self.signatures.by_digest]
            self.signatures.read(new)
            self._copy_signatures(new)

    # --- what may have its name there

    def _admit(self, parents: list[Reference], good: list[Reference]) -> None:
        """Drop what a registry in a folder does not admit; for other targets, the registry that pulls decides."""
        if self._store is None:
            return
        coming = [
            one for one in (*parents, *good) if self._there(one) is None and not self._is_withdrawn(one)
        ]
        self._admission = Admission(
            self._store, coming, self.transfer.bring, self.choice.deciding, self.choice.unmeasured
        )
        self._copy_results(self._admission.functions())
        for one, error in self._admission.check_all(self.choice.progress).items():
            if self.choice.strict and one in self._asked:
                error.add_note(f"{one} is refused, and nothing was imported.")
                raise error
            self._drop(one, error)

    def _is_withdrawn(self, one: Reference) -> bool:
        with self.origin.translating():
            return self.origin.is_withdrawn(one)

    # --- names, and what points at them

    def _name(self, versions: list[Reference]) -> None:
        """Give components their names and numbers."""
        there = {one: self._there(one) for one in versions}
        new = [one for one in versions if there[one] is None]
        self.choice.progress(0, len(new), "naming")
        if self._admission is None:
            taken = self.target.create([self._note(one) for one in new])
        else:
            taken = {_path(one) for one in new if not self._link(one, self._admission)}
        for one in self._left(versions):
            if there[one] is None and _path(one) not in taken:
                self.done.made.append(one)
            elif there[one] == one.digest or self.target.digest_now(one) == one.digest:
                self.done.there.append(one)
            else:
                error = VersionExists(
                    f"{one} was published by somebody else in {self.target.where} at this moment: it is "
                    f"{self.target.digest_now(one)} there, and {one.digest} in {self.origin.where}.",
                    subject=str(one),
                )
                self._drop(one, error)

    def _note(self, one: Reference, further: Callable[[], object] | None = None) -> Note:
        held = self.transfer.of(str(one.digest))

        def ready() -> None:
            for part in held:
                self.transfer.bring(part)

        # what is asked may take longer than unused bytes are safe for: make sure that all is there before and after
        both = ready if further is None else lambda: (ready(), further(), ready())
        return Note(_path(one), version_line(str(one), str(one.digest)), both)

    def _link(self, one: Reference, admission: Admission) -> bool:
        """Name a version in a folder, or drop it if it may not come in after all; False where its number is taken."""
        if self._is_withdrawn(one):
            return not self.target.create([self._note(one)])
        try:
            return admission.link(one, lambda ready: not self.target.create([self._note(one, ready)]))
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            self._drop(one, error)
            return True

    def _withdraw(self, versions: Iterable[Reference]) -> None:
        """Take over tombstones, and report those that the target has alone."""
        named = {*self.done.made, *self.done.there}
        for one in versions:
            if one not in named:
                continue
            here, there = _tombstone(self.origin, one), _tombstone(self.target, one)
            if here is not None and there is None:
                path = f"refs/{one.name}/@tombstones/{one.version}"
                note = dumps(attrs.asdict(here))
                self.target.create([Note(withdrawal_path(str(one)), note), Note(path, note)])
            if (here is None) != (there is None):
                self.done.withdrawn.append(Withdrawal(one, (here or there).reason))  # type: ignore[union-attr]

    def _move_aliases(self, names: list[str]) -> None:
        if not self.choice.aliases:
            return
        if self.choice.strict and self._store is not None:
            self.done.aliases += set_aliases(self.origin, self._store, names)
        else:
            follow_aliases(self.origin, self.target, names, self.done)

    # --- what does not come

    def _or_drop(self, one: Reference, work: Callable[[Reference], object]) -> None:
        """Do something for a version; drop the version if that is refused."""
        try:
            work(one)
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            self._drop(one, error)

    def _drop(self, one: Reference, error: CompatkitError) -> None:
        """Leave a version out: one that was asked for is refused, a parent comes without its name."""
        fresh = one not in self._out
        self._out.add(one)
        if fresh and one in self._asked:
            self._refuse(str(one), error)
        else:  # also what was refused, and comes as the parent of something else
            self.done.unnamed.append(one)

    def _refuse(self, what: str, error: CompatkitError) -> None:
        """Keep what was refused, and why; a strict move ends here."""
        if self.choice.strict:
            raise error
        self.done.refused.append(Refusal(what, error))

    def _left(self, versions: Iterable[Reference]) -> list[Reference]:
        return [one for one in versions if one not in self._out]


def _tombstone(place: Origin, one: Reference) -> Tombstone | None:
    with place.translating():
        return None if one.version is None else place.references.tombstone(one.name, one.version)


def _path(one: Reference) -> str:
    return f"refs/{one.name}/@versions/{one.version}"
