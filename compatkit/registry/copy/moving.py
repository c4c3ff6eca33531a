"""Moving components between registries: bytes first, versions last; what cannot come is refused, and the rest comes.

After the versions come tombstones, results and aliases; results that policies there ask for come before. Whatever
stops a move (an error, a crash, the network) leaves bytes that nothing refers to, and the same call goes on where it
was: only what is missing moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from compatkit.contracts.codec import dumps
from compatkit.errors import CompatkitError, EnvironmentFailure, VersionExists
from compatkit.registry.copy import logs, pairs, selection
from compatkit.registry.copy.admission import Admission, Deciding
from compatkit.registry.copy.bringing import JOBS, Bringing
from compatkit.registry.copy.closure import Closure
from compatkit.registry.copy.moved import Moved, Progress, Refusal, Withdrawal
from compatkit.registry.copy.selection import Versions
from compatkit.registry.copy.sources import Source
from compatkit.registry.copy.targets import IntoFolder, Note, Target
from compatkit.registry.copy.vouchers import Accept, Vouchers
from compatkit.registry.names import Reference


@attrs.define(eq=False)
class Move:
    """One move of components from a source to a target.

    Attributes:
        source: Where they are; only read, and not believed.
        target: Where they shall be too.
        versions: ``"all"`` takes all versions of the names, withdrawn ones with tombstones; ``"latest"`` one each.
        aliases: Whether aliases of the names follow those of the source.
        evidence: Whether measured results of pairs come along, where both parts do.
        accept: Refuses a component before anything of it comes; a parent that it refuses comes without its name.
        deciding: Makes what answers the questions of policies there, where the target is a folder; None: nobody.
        unmeasured: Let in what nobody measured as a policy there asks; the log of the policy tells.
        jobs: Blobs that move at once.
        progress: Told what is being done.
        done: What came of it so far.
    """

    source: Source
    target: Target
    versions: Versions = "all"
    aliases: bool = True
    evidence: bool = True
    accept: Accept | None = None
    deciding: Deciding | None = None
    unmeasured: bool = False
    jobs: int = JOBS
    progress: Progress = attrs.field(default=lambda done, total, what: None)
    done: Moved = attrs.field(factory=Moved)
    closure: Closure = attrs.field(init=False)
    bringing: Bringing = attrs.field(init=False)
    vouchers: Vouchers = attrs.field(init=False, factory=Vouchers)
    _admission: Admission | None = attrs.field(init=False, default=None)
    _refused: set[str] = attrs.field(init=False, factory=set)
    _barred: set[Reference] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        """Join both sides."""
        self.bringing = Bringing(self.source, self.target, self.jobs, self.progress, self.done.items)
        self.closure = self.bringing.closure

    def run(self, patterns: Iterable[str], *, dry_run: bool = False) -> Moved:
        """Move what patterns mean.

        Returns:
            What came, and what was refused.

        Raises:
            NotFound: A pattern matches nothing.
            EnvironmentFailure: Disk full, no right, no network; the same call goes on where it stopped.
        """
        wanted = self._wanted(list(patterns))
        good = self._whole(self._accepted(wanted))
        parents = self._parents(good)
        if dry_run:
            return self._plan(good, parents)
        self.target.begin()
        self._bring_all(good)
        good = [one for one in good if str(one) not in self._refused]
        held = self._held(good)
        components = [one for one in held if self.closure.parts[one].how == "component"]
        self.done.signatures = self.vouchers.copy(self.target, components)
        self.done.refused += self.vouchers.unsound(self.source.where, components)
        admission = self._admission = self._admitting([*parents, *good])
        if self.evidence and admission is not None:
            self._results(admission.functions())
        if admission is not None:
            for one, error in admission.check_all(self.progress).items():
                self._bar(one, error, asked=one not in parents)
        parents, good = ([one for one in side if one not in self._barred] for side in (parents, good))
        self._name(parents, asked=False)
        self._name(good, asked=True)
        self._bury(one for one in (*parents, *good) if str(one) not in self._refused)
        if self.evidence:
            self._results(self.closure.functions(components))
        if self.aliases:
            logs.follow_all(self.source, self.target, sorted({one.name for one in good}), self.done)
        return self.done

    # --- what comes

    def _wanted(self, patterns: Sequence[str]) -> list[Reference]:
        with self.source.speaking():
            known = self.source.names()
            names = {name for pattern in patterns for name in selection.names(pattern, known)}
            self.source.look(names)
            wanted = selection.chosen(self.source.references, patterns, self.versions, self._refuse_version)
        self.target.look(names)
        self.vouchers.read(self.source, {str(one.digest) for one in wanted})
        return wanted

    def _accepted(self, wanted: list[Reference]) -> list[Reference]:
        """Return the versions whose number is free or theirs, and that are accepted."""
        for one in wanted:
            try:
                self._admit(one)
            except EnvironmentFailure:
                raise
            except CompatkitError as error:
                self._refuse(str(one), error)
        return [one for one in wanted if str(one) not in self._refused]

    def _admit(self, one: Reference) -> None:
        """Refuse a version whose number belongs to other bytes, or that is not accepted."""
        there = self._there(one)
        if there not in (None, one.digest):
            raise VersionExists(
                f"{one} is {there} in {self.target.where} and {one.digest} in {self.source.where}. A version is never "
                "rewritten: publish one of them under another number.",
                subject=str(one),
            )
        if one.version is not None:
            with self.source.speaking():
                self.source.references.tombstone(
                    one.name, one.version
                )  # one that cannot be read is not passed over
        signatures = self.vouchers.of(str(one.digest))
        if self.accept is not None:
            self.accept(str(one.digest), signatures, str(one))

    def _there(self, one: Reference) -> str | None:
        with self.target.speaking():
            return None if one.version is None else self.target.references.digest(one.name, one.version)

    def _whole(self, good: list[Reference]) -> list[Reference]:
        """Return the versions all of whose documents can be read."""
        self.progress(0, len(good), "reading manifests")
        self.closure.enter(good)
        for one in good:
            try:
                self.closure.of(str(one.digest))
            except CompatkitError as error:
                self._refuse(str(one), error)
        return [one for one in good if str(one) not in self._refused]

    def _parents(self, good: list[Reference]) -> list[Reference]:
        """Return the parents' names that come along; those that may not are told."""
        held, free = set(self._held(good)), list[Reference]()
        with self.source.speaking():
            found = [one for one in self.closure.parents() if one.digest in held]
        self.target.look({one.name for one in found})
        self.vouchers.read(self.source, {str(one.digest) for one in found})
        for one in found:
            try:
                self._admit(one)
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
        lacking = set(self.target.lacking({one: parts[one].size for one in held}))
        fresh = [one for one in good if self._there(one) is None] if self.target.examines else []
        examined = {part for part in self._held(fresh) if parts[part].payload is not None}
        return [one for one in self._leaves_first(held) if one in lacking or one in examined]

    def _leaves_first(self, digests: Iterable[str]) -> list[str]:
        return sorted(digests, key=lambda one: self.closure.parts[one].how == "component")

    def _plan(self, good: list[Reference], parents: list[Reference]) -> Moved:
        self.done.planned = True
        for one in (*parents, *good):
            (self.done.there if self._there(one) is not None else self.done.made).append(one)
        held = self._held(good)
        lacking = self.target.lacking({one: self.closure.parts[one].size for one in held})
        self.done.items += [self.bringing.item(one) for one in self._leaves_first(lacking)]
        return self.done

    def _bring_all(self, good: list[Reference]) -> None:
        failed = self.bringing.bring(self._todo(good))
        for one in good:
            for part in self.closure.of(str(one.digest)):
                if part in failed:
                    self._refuse(str(one), failed[part])
                    break

    def _results(self, functions: Sequence[str]) -> None:
        if functions:
            self.progress(0, 1, "looking for results")
            self.done.results += pairs.move_results(self.bringing, functions, self._refuse)

    # --- what may have its name there

    def _admitting(self, versions: Sequence[Reference]) -> Admission | None:
        """Return what decides on versions that come into a folder; of any other place whoever pulls asks his own."""
        if not isinstance(self.target, IntoFolder):
            return None
        coming = [one for one in versions if self._there(one) is None and not self._is_withdrawn(one)]
        return Admission(self.target.store, coming, self.closure.bring, self.deciding, self.unmeasured)

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
        new = [one for one in versions if self._there(one) is None]
        self.done.there += [one for one in versions if one not in new]
        self.progress(0, len(new), "naming")
        notes = {f"refs/{one.name}/@versions/{one.version}": one for one in new}
        if self._admission is None:
            taken = self.target.create([self._note(one) for one in new])
        else:
            taken = {path for path, one in notes.items() if not self._link(one, self._admission, asked=asked)}
        for path, one in notes.items():
            if path in taken:
                self._lost(one, asked=asked)
            elif one not in self._barred:
                self.done.made.append(one)

    def _note(self, one: Reference, further: Callable[[], object] | None = None) -> Note:
        ready = self._ready(one)
        # what is asked takes longer than what is unused is safe for: it is seen to that all is there before and after
        both = ready if further is None else lambda: (ready(), further(), ready())
        return Note(f"refs/{one.name}/@versions/{one.version}", f"{one.digest}\n".encode(), both)

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

    def _ready(self, one: Reference) -> Callable[[], object]:
        held = self.closure.of(str(one.digest))
        return lambda: [self.closure.bring(part) for part in held]

    def _lost(self, one: Reference, *, asked: bool) -> None:
        """Tell of a number that somebody else took at this moment."""
        there = None if one.version is None else self.target.digest_now(one.name, one.version)
        if there == one.digest:
            self.done.there.append(one)
        elif not asked:
            self.done.unnamed.append(one)
        else:
            error = VersionExists(
                f"{one} was published in {self.target.where} by somebody else at this moment: it is {there} there, and "
                f"{one.digest} in {self.source.where}.",
                subject=str(one),
            )
            self._refuse(str(one), error)

    def _bury(self, versions: Iterable[Reference]) -> None:
        """Take over tombstones, and tell of those that the target has alone."""
        for one in versions:
            if one.version is None:
                continue
            path = f"refs/{one.name}/@tombstones/{one.version}"
            with self.source.speaking():
                here = self.source.references.tombstone(one.name, one.version)
            with self.target.speaking():
                there = self.target.references.tombstone(one.name, one.version)
            if here is not None and there is None:
                self.target.create([Note(path, dumps(attrs.asdict(here)))])
            if (here is None) != (there is None):
                self.done.withdrawn.append(Withdrawal(one, (here or there).reason))  # type: ignore[union-attr]

    # --- what does not come

    def _refuse_version(self, one: Reference, error: CompatkitError) -> None:
        self._refuse(str(one), self.source.retold(error))

    def _refuse(self, what: str, error: CompatkitError) -> None:
        self._refused.add(what)
        self.done.refused.append(Refusal(what, error))
