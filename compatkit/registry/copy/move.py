"""Moving components between registries, for import, pull, push and clone: bytes first, versions last.

After the versions come tombstones, results and aliases; results that policies there ask for come before. What cannot
come is refused and the rest comes; a strict move raises instead, before anything is named. Whatever stops a move (an
error, a crash, the network) leaves bytes that nothing refers to, and the same call goes on where it was: only what is
missing moves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

import attrs

from compatkit.contracts.codec import dumps
from compatkit.errors import CompatkitError, EnvironmentFailure, VersionExists
from compatkit.registry.copy import logs, pairs, selection
from compatkit.registry.copy.admission import Admission
from compatkit.registry.copy.bringing import Bringing
from compatkit.registry.copy.choice import Choice
from compatkit.registry.copy.closure import Closure
from compatkit.registry.copy.folders import IntoFolder
from compatkit.registry.copy.places import Note, Source, Target
from compatkit.registry.copy.report import SHOWN, Moved, Refusal, SignatureWarning, Withdrawal
from compatkit.registry.copy.vouchers import Vouchers
from compatkit.registry.names import Reference
from compatkit.registry.refs import Tombstone, version_line, withdrawal_path
from compatkit.registry.store import Store


@attrs.define(eq=False)
class Move:
    """One move of components from a source to a target.

    Attributes:
        source: Where they are; only read, and not believed.
        target: Where they shall be too; a registry in a folder refuses what it does not trust or its policies forbid.
        choice: What is moved, and how.
        done: What came of it so far.
    """

    source: Source
    target: Target
    choice: Choice
    done: Moved = attrs.field(init=False, factory=Moved)
    closure: Closure = attrs.field(init=False)
    bringing: Bringing = attrs.field(init=False)
    vouchers: Vouchers = attrs.field(init=False, factory=Vouchers)
    _store: Store | None = attrs.field(init=False, default=None)
    _admission: Admission | None = attrs.field(init=False, default=None)
    _refused: set[str] = attrs.field(init=False, factory=set)
    _barred: set[Reference] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        """Join both sides."""
        if isinstance(self.target, IntoFolder):
            self._store = self.target.store
            self.choice = self.choice.requiring(self._store.trusted)
        self.bringing = Bringing(self.source, self.target, self.choice, self.done.items)
        self.closure = self.bringing.closure

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
        wanted = self._wanted(list(patterns))
        good = self._whole(self._accepted(wanted))
        parents = self._parents(good)
        if self.choice.dry_run:
            return self._plan(good, parents)
        self.target.begin()
        self._bring_all(good)
        good = self._not_refused(good)
        components = [one for one in self._held(good) if self.closure.parts[one].how == "component"]
        self._sign(components)
        admission = self._admission = self._admitting([*parents, *good])
        if admission is not None:
            self._results(admission.functions())
            self._ask(admission, parents)
        parents, good = ([one for one in side if one not in self._barred] for side in (parents, good))
        self._name(parents, asked=False)
        self._name(good, asked=True)
        self._bury([*parents, *good])
        self._results(self.closure.functions(components))
        if self.choice.aliases:
            self._alias(sorted({one.name for one in good}))
        return self.done

    # --- what comes

    def _wanted(self, patterns: Sequence[str]) -> list[Reference]:
        with self.source.speaking():
            known = self.source.names()
            names = {name for pattern in patterns for name in selection.names(pattern, known)}
            self.source.look(names)
            wanted = selection.chosen(
                self.source.references, patterns, self.choice.versions, self._refuse_version
            )
        self.target.look(names)
        self.vouchers.read(self.source, {str(one.digest) for one in wanted})
        return wanted

    def _accepted(self, wanted: list[Reference]) -> list[Reference]:
        """Return the versions whose number is free or theirs, and that are accepted."""
        if self.choice.strict:
            self._check_free(wanted)
        for one in wanted:
            try:
                self._accept(one)
            except EnvironmentFailure:
                raise
            except CompatkitError as error:
                self._refuse(str(one), error)
        return self._not_refused(wanted)

    def _check_free(self, wanted: list[Reference]) -> None:
        """Refuse numbers that belong to other bytes, all at once."""
        taken = [(one, there) for one in wanted if (there := self._there(one)) not in (None, one.digest)]
        if taken:
            told = [f"{one} is {there} here and {one.digest} there" for one, there in taken[:SHOWN]]
            more = f"; and {len(taken) - SHOWN} more" if len(taken) > SHOWN else ""
            raise VersionExists(
                f"{'; '.join(told)}{more}. A version is never rewritten, and nothing was imported. Name what to import "
                "without these, or import into a registry of its own.",
                subject=str(taken[0][0]),
            )

    def _accept(self, one: Reference) -> None:
        """Refuse a version whose number belongs to other bytes, or that is not accepted."""
        there = self._there(one)
        if there not in (None, one.digest):
            raise VersionExists(
                f"{one} is {there} in {self.target.where} and {one.digest} in {self.source.where}. A version is never "
                "rewritten: publish one of them under another number.",
                subject=str(one),
            )
        self._tombstone(one)  # one that cannot be read is not passed over
        signatures = self.vouchers.of(str(one.digest))
        if self.choice.accept is not None:
            self.choice.accept(str(one.digest), signatures, str(one))

    def _tombstone(self, one: Reference) -> Tombstone | None:
        with self.source.speaking():
            return None if one.version is None else self.source.references.tombstone(one.name, one.version)

    def _there(self, one: Reference) -> str | None:
        with self.target.speaking():
            return None if one.version is None else self.target.references.digest(one.name, one.version)

    def _whole(self, good: list[Reference]) -> list[Reference]:
        """Return the versions all of whose documents can be read."""
        self.choice.progress(0, len(good), "reading manifests")
        self.closure.enter(good)
        for one in good:
            try:
                self.closure.of(str(one.digest))
            except CompatkitError as error:
                self._refuse(str(one), error)
        return self._not_refused(good)

    def _parents(self, good: list[Reference]) -> list[Reference]:
        """Return the parents' names that come along; those that may not are told."""
        held, free = set(self._held(good)), list[Reference]()
        with self.source.speaking():
            found = [one for one in self.closure.parents() if one.digest in held]
        self.target.look({one.name for one in found})
        self.vouchers.read(self.source, {str(one.digest) for one in found})
        for one in found:
            try:
                self._accept(one)
            except EnvironmentFailure:
                raise
            except CompatkitError:
                self.done.unnamed.append(one)
                continue
            free.append(one)
        return free

    def _held(self, good: Iterable[Reference]) -> list[str]:
        return list(dict.fromkeys(part for one in good for part in self.closure.of(str(one.digest))))

    # --- bytes

    def _todo(self, good: list[Reference]) -> list[str]:
        """Return the blobs to bring: what is missing, and what a new manifest makes a promise of."""
        held, parts = self._held(good), self.closure.parts
        if self.choice.strict:
            return self.closure.leaves_first(held)
        lacking = set(self.bringing.lacking(held))
        fresh = [one for one in good if self._there(one) is None] if self.target.examines else []
        examined = {part for part in self._held(fresh) if parts[part].payload is not None}
        return [one for one in self.closure.leaves_first(held) if one in lacking or one in examined]

    def _plan(self, good: list[Reference], parents: list[Reference]) -> Moved:
        self.done.planned = True
        for one in (*parents, *good):
            (self.done.there if self._there(one) is not None else self.done.made).append(one)
        lacking = self.bringing.lacking(self._held(good))
        self.done.items += [self.bringing.item(one) for one in self.closure.leaves_first(lacking)]
        return self.done

    def _bring_all(self, good: list[Reference]) -> None:
        failed = self.bringing.bring(self._todo(good))
        for one in good:
            for part in self.closure.of(str(one.digest)):
                if part in failed:
                    self._refuse(str(one), failed[part])
                    break

    def _results(self, functions: Sequence[str]) -> None:
        if functions and self.choice.evidence:
            self.choice.progress(0, 1, "looking for results")
            self.done.results += pairs.move_results(
                self.bringing, functions, self._refuse, anew=self.choice.strict
            )

    def _sign(self, components: list[str]) -> None:
        """Copy the signatures of components, and tell of files that have the name of one and are none."""
        self.done.signatures = self.vouchers.copy(self.target, components)
        for one in self.vouchers.unsound(self.source.where, components):
            if self.choice.strict:
                warnings.warn(str(one), SignatureWarning, stacklevel=2)
            else:
                self.done.refused.append(one)

    # --- what may have its name there

    def _admitting(self, versions: Sequence[Reference]) -> Admission | None:
        """Return what decides on versions that come into a folder; of any other place whoever pulls asks his own."""
        if self._store is None:
            return None
        coming = [one for one in versions if self._there(one) is None and not self._is_withdrawn(one)]
        return Admission(
            self._store, coming, self.closure.bring, self.choice.deciding, self.choice.unmeasured
        )

    def _ask(self, admission: Admission, parents: list[Reference]) -> None:
        """Bar what may not come in."""
        for one, error in admission.check_all(self.choice.progress).items():
            asked = one not in parents
            if asked and self.choice.strict:
                raise type(error)(
                    f"{one} does not come in, and nothing was imported. {error}", subject=error.subject
                ) from error
            self._bar(one, error, asked=asked)

    def _is_withdrawn(self, one: Reference) -> bool:
        with self.source.speaking():
            return one.version is not None and self.source.withdrawn(one.name, one.version)

    def _bar(self, one: Reference, error: CompatkitError, *, asked: bool) -> None:
        self._barred.add(one)
        if asked:
            self._refuse(str(one), error)
        else:
            self.done.unnamed.append(one)

    # --- names, and what points at them

    def _name(self, versions: list[Reference], *, asked: bool) -> None:
        """Give components their names and numbers."""
        there = {one: self._there(one) for one in versions}
        new = [one for one in versions if there[one] is None]
        self.choice.progress(0, len(new), "naming")
        if self._admission is None:
            taken = self.target.create([self._note(one) for one in new])
        else:
            taken = {_path(one) for one in new if not self._link(one, self._admission, asked=asked)}
        for one in versions:
            if there[one] == one.digest:
                self.done.there.append(one)
            elif there[one] is not None or _path(one) in taken:
                self._lost(one, asked=asked)
            elif one not in self._barred:
                self.done.made.append(one)

    def _note(self, one: Reference, further: Callable[[], object] | None = None) -> Note:
        held = self.closure.of(str(one.digest))

        def ready() -> None:
            for part in held:
                self.closure.bring(part)

        # what is asked takes longer than what is unused is safe for: it is seen to that all is there before and after
        both = ready if further is None else lambda: (ready(), further(), ready())
        return Note(_path(one), version_line(str(one), str(one.digest)), both)

    def _link(self, one: Reference, admission: Admission, *, asked: bool) -> bool:
        """Name a version in a folder; False where its number is taken. One that may not come in after all is told."""
        if self._is_withdrawn(one):
            return not self.target.create([self._note(one)])
        try:
            return admission.link(one, lambda ready: not self.target.create([self._note(one, ready)]))
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            self._bar(one, error, asked=asked)
            return True

    def _lost(self, one: Reference, *, asked: bool) -> None:
        """Tell of a number that somebody else took at this moment."""
        there = None if one.version is None else self.target.digest_now(one.name, one.version)
        if there == one.digest:
            self.done.there.append(one)
            return
        error = VersionExists(
            f"{one} was published by somebody else in {self.target.where} at this moment: it is {there} there, and "
            f"{one.digest} in {self.source.where}.",
            subject=str(one),
        )
        self._bar(one, error, asked=asked)

    def _bury(self, versions: Iterable[Reference]) -> None:
        """Take over tombstones, and tell of those that the target has alone."""
        named = {*self.done.made, *self.done.there}
        for one in versions:
            if one not in named or one.version is None:
                continue
            here = self._tombstone(one)
            with self.target.speaking():
                there = self.target.references.tombstone(one.name, one.version)
            if here is not None and there is None:
                path = f"refs/{one.name}/@tombstones/{one.version}"
                note = dumps(attrs.asdict(here))
                self.target.create([Note(withdrawal_path(str(one)), note), Note(path, note)])
            if (here is None) != (there is None):
                self.done.withdrawn.append(Withdrawal(one, (here or there).reason))  # type: ignore[union-attr]

    def _alias(self, names: list[str]) -> None:
        if self.choice.strict and self._store is not None:
            self.done.aliases += logs.set_all(self.source, self._store, names)
        else:
            logs.follow_all(self.source, self.target, names, self.done)

    # --- what does not come

    def _refuse_version(self, one: Reference, error: CompatkitError) -> None:
        self._refuse(str(one), self.source.retold(error))

    def _refuse(self, what: str, error: CompatkitError) -> None:
        """Keep what was refused, and why; a strict move ends here."""
        if self.choice.strict:
            raise error
        self._refused.add(what)
        self.done.refused.append(Refusal(what, error))

    def _not_refused(self, versions: Iterable[Reference]) -> list[Reference]:
        return [one for one in versions if str(one) not in self._refused]


def _path(one: Reference) -> str:
    return f"refs/{one.name}/@versions/{one.version}"
