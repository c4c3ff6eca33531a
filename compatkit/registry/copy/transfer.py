"""Copy components between registries, for import, pull, push and clone: blobs first, versions last.

Withdrawals of new versions come before them, results and aliases after them, except results that policies of the target
need: those are copied first. Refused components are reported and the rest is copied; a strict copy raises instead,
before it creates any version. An interrupted copy leaves only unreferenced blobs; repeating the call copies the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import attrs

from compatkit.errors import CompatkitError, FormatError, SignatureError, VersionExists
from compatkit.registry.clashes import commands_to_free
from compatkit.registry.copy.admission import Admission
from compatkit.registry.copy.blobs import BlobCopier
from compatkit.registry.copy.changes import ChangeFollower
from compatkit.registry.copy.endpoints import Origin, SmallFile, Target
from compatkit.registry.copy.local import LocalRegistry
from compatkit.registry.copy.report import (
    MAX_LISTED,
    OfferedChange,
    Refusal,
    SignatureWarning,
    TransferReport,
    on_refusal,
)
from compatkit.registry.copy.settings import TransferSettings, select_versions
from compatkit.registry.copy.small_files import SignatureFiles, copy_results
from compatkit.registry.names import Reference
from compatkit.registry.publications import read_record, record_path
from compatkit.registry.refs import version_line
from compatkit.registry.store import Store


@attrs.define(eq=False)
class ComponentTransfer:
    """Copies components from an origin to a target.

    Attributes:
        origin: Source; it is only read, and not trusted.
        target: Destination; a local registry refuses what it does not trust or its policies forbid.
        settings: Settings of the transfer.
        pushes: Whether the origin is the caller's own registry; otherwise the target is.
        report: Versions and files copied and refused so far.
        copier: Copies blobs.
        signatures: Signatures in the origin.
        changes: Copies moves of aliases, withdrawals and restorations, or offers them.
    """

    origin: Origin
    target: Target
    settings: TransferSettings
    pushes: bool = False
    report: TransferReport = attrs.field(init=False, factory=TransferReport)
    copier: BlobCopier = attrs.field(init=False)
    signatures: SignatureFiles = attrs.field(init=False)
    changes: ChangeFollower = attrs.field(init=False)
    _store: Store | None = attrs.field(init=False, default=None)
    _admission: Admission | None = attrs.field(init=False, default=None)
    _requested: set[Reference] = attrs.field(init=False, factory=set)
    _dropped: set[Reference] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.target, LocalRegistry):
            self._store = self.target.store
            self.settings = self.settings.with_trust(self._store.trusted)
        rules = self.target.rules()
        self.settings = self.settings.with_trust(rules.required_keys())
        self.copier = BlobCopier(self.origin, self.target, self.settings, self.report.copied)
        self.signatures = SignatureFiles(self.origin)
        self.changes = ChangeFollower(
            self.origin, self.target, self.settings, self.report, self.signatures, rules, self._restore
        )

    def run(self, patterns: Iterable[str]) -> TransferReport:
        """Copy the versions that patterns select.

        Args:
            patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"`` for one version each.

        Returns:
            Report of what was copied and refused.

        Raises:
            NotFound: A pattern matches nothing.
            EnvironmentFailure: Disk full, no permission, no network; repeating the call continues.
            CompatkitError: The transfer is strict, and something was refused; no version was created.
        """
        versions = self._readable(self._accepted(self._select(list(patterns))))
        parents = self._accepted_parents(versions)
        names = sorted({reference.name for reference in versions})
        if self.settings.dry_run:
            return self._plan(parents, versions)
        self.target.begin()
        self._copy_blobs(versions)
        versions = self._remaining(versions)
        components = self.copier.components(self.copier.blobs_of_versions(versions))
        self._copy_signatures(components)
        self._admit(parents, versions)
        parents, versions = self._remaining(parents), self._remaining(versions)
        self._create_versions(parents)
        self._create_versions(versions)
        self.changes.follow_withdrawals(self.report.existing)
        if left_out := self._copy_results(self.copier.functions(components)):
            detail = "of pairs that were measured here under the same conditions"
            self.report.offered.append(
                OfferedChange("results", f"{left_out} results", detail, "--follow-results")
            )
        if self.settings.aliases:
            self.changes.follow_aliases(names)
        return self.report

    # --- selection

    def _select(self, patterns: list[str]) -> list[Reference]:
        """Return the versions that patterns select in the origin."""
        with self.origin.translate_errors():
            names = {name for pattern in patterns for name in self.origin.matching(pattern)}
            self.origin.load(names)
            wanted = select_versions(
                self.origin.references,
                patterns,
                self.settings.versions,
                lambda reference, error: self._refuse(str(reference), self.origin.translate_error(error)),
            )
        self.target.load(names)
        self._requested.update(wanted)
        if self.settings.strict:
            self._check_free(wanted)
        return wanted

    def _check_free(self, wanted: list[Reference]) -> None:
        """Raise for version numbers that the target uses for another component, naming all of them."""
        taken = [
            f"{reference} is {existing} in {self.target.address} and {reference.digest} in {self.origin.address}"
            for reference in wanted
            if (existing := self.target.digest(reference)) not in (None, reference.digest)
        ]
        if taken:
            more = f"; and {len(taken) - MAX_LISTED} more" if len(taken) > MAX_LISTED else ""
            raise VersionExists(
                f"{'; '.join(taken[:MAX_LISTED])}{more}. A version is never rewritten, and nothing was imported. "
                f"{self._advice(Reference.parse(taken[0].partition(' ')[0]))} Or import the other components only.",
                subject=taken[0].partition(" ")[0],
            )

    def _advice(self, reference: Reference) -> str:
        """Return what to do about a number that both sides use for different components."""
        own, other = (self.origin, self.target) if self.pushes else (self.target, self.origin)
        commands = commands_to_free(reference, own.references, other.references)
        return (
            f"To keep both, free the number in {own.address}: {commands}; then pull theirs, and push yours."
        )

    def _accepted(self, versions: list[Reference]) -> list[Reference]:
        """Return versions with accepted signatures whose number is unused in the target or has the same digest."""
        self.signatures.read({str(reference.digest) for reference in versions})
        for reference in versions:
            with on_refusal(partial(self._drop, reference)):
                try:
                    self._check_acceptable(reference)
                except SignatureError as error:
                    if self.target.digest(reference) is not None or not self.origin.is_withdrawn(reference):
                        raise
                    self._leave_out(reference, error)
        return self._remaining(versions)

    def _check_acceptable(self, reference: Reference) -> None:
        """Raise if the target has another component of this number, or the signatures are refused."""
        existing = self.target.digest(reference)
        if existing not in (None, reference.digest):
            raise VersionExists(
                f"{reference} is {existing} in {self.target.address} and {reference.digest} in {self.origin.address}. "
                f"A version is never rewritten. {self._advice(reference)}",
                subject=str(reference),
            )
        signatures = self.signatures.of(str(reference.digest))
        if self.settings.accept is not None:
            self.settings.accept(str(reference.digest), signatures, str(reference))
        if existing is None and self.origin.is_withdrawn(reference):
            self.changes.check_withdrawal(reference)
        else:
            self.origin.tombstone(reference)  # raises if it cannot be read

    def _readable(self, versions: list[Reference]) -> list[Reference]:
        """Return the versions whose documents can all be read."""
        self.settings.progress(0, len(versions), "reading manifests")
        self.copier.add_components(versions)
        for reference in versions:
            with on_refusal(partial(self._drop, reference)):
                self.copier.blobs_of(str(reference.digest))
        return self._remaining(versions)

    def _accepted_parents(self, versions: list[Reference]) -> list[Reference]:
        """Return the accepted parents that have a version name, because they are copied too."""
        digests = {*self.copier.blobs_of_versions(versions)}
        with self.origin.translate_errors():
            parents = [parent for parent in self.copier.parents() if parent.digest in digests]
        self.target.load({parent.name for parent in parents})
        return self._accepted(parents)

    def _plan(self, parents: list[Reference], versions: list[Reference]) -> TransferReport:
        """Return the report of a dry run."""
        self.report.planned = True
        for reference in (*parents, *versions):
            exists = self.target.digest(reference) is not None
            (self.report.existing if exists else self.report.created).append(reference)
        missing = self.copier.missing(self._wanted_blobs(versions))
        self.report.copied += [self.copier.copied_blob(digest) for digest in missing]
        self.changes.follow_withdrawals(self.report.existing)
        if self.settings.aliases:
            self.changes.follow_aliases(sorted({reference.name for reference in versions}))
        return self.report

    # --- blobs, signatures, results

    def _copy_blobs(self, versions: list[Reference]) -> None:
        """Copy missing blobs; verify existing ones if the copy is strict, and always the weights of new versions."""
        wanted = self._wanted_blobs(versions)
        selected = set(wanted if self.settings.strict else self.copier.missing(wanted))
        if self._store is not None:
            new = [reference for reference in versions if self.target.digest(reference) is None]
            blobs = self.copier.blobs
            selected |= {digest for digest in self.copier.blobs_of_versions(new) if blobs[digest].payload}
        failed = self.copier.copy_all([digest for digest in wanted if digest in selected])
        for reference in versions:
            digests = self.copier.blobs_of(str(reference.digest))
            error = next((failed[digest] for digest in digests if digest in failed), None)
            if error is not None:
                self._drop(reference, error)

    def _wanted_blobs(self, versions: list[Reference]) -> list[str]:
        """Return the blobs of versions; weights that only versions withdrawn in a local target need stay away.

        They may have been purged. What restores a version copies them.
        """
        wanted = self.copier.blobs_of_versions(versions)
        if self._store is None:
            return wanted
        standing = [
            reference
            for reference in versions
            if self.target.digest(reference) is None
            or reference.version not in self._store.references.withdrawn(reference.name)
        ]
        if len(standing) == len(versions):
            return wanted
        needed = set(self.copier.blobs_of_versions(standing))
        return [
            digest for digest in wanted if digest in needed or self.copier.blobs[digest].role != "payload"
        ]

    def _copy_signatures(self, components: list[str]) -> None:
        """Copy the signatures of components; a strict transfer only warns about damaged ones."""
        copied, refused = self.signatures.copy(self.target, components)
        self.report.signatures += copied
        if not self.settings.strict:
            self.report.refused += refused
            return
        for refusal in refused:
            warnings.warn(str(refusal), SignatureWarning, stacklevel=2)

    def _copy_results(self, functions: list[str]) -> int:
        """Copy the results of pairs of functions, with their signatures; return the number of those left out."""
        if functions and self.settings.evidence:
            self.settings.progress(0, 1, "looking for results")
            results = copy_results(
                self.copier,
                functions,
                self._refuse,
                every=self.settings.strict,
                follow=self.settings.follow_results,
            )
            self.report.results += results.copied
            new = [digest for digest in results.digests if digest not in self.signatures.by_digest]
            self.signatures.read(new)
            self._copy_signatures(new)
            return results.left_out
        return 0

    # --- versions, tombstones

    def _admit(self, parents: list[Reference], versions: list[Reference]) -> None:
        """Drop versions that a local target does not admit; a remote admits all, because pulling checks them."""
        if self._store is None:
            return
        incoming = [
            reference
            for reference in (*parents, *versions)
            if self.target.digest(reference) is None and not self.origin.is_withdrawn(reference)
        ]
        self._admission = Admission(
            self._store, incoming, self.copier.copy, self.settings.policy_checks, self.settings.unmeasured
        )
        self._copy_results(self._admission.functions())
        for reference, error in self._admission.check_all(self.settings.progress).items():
            if self.settings.strict and reference in self._requested:
                error.add_note(f"{reference} is refused, and nothing was imported.")
                raise error
            self._drop(reference, error)

    def _create_versions(self, versions: list[Reference]) -> None:
        """Create the version files; report which ones are new, existed, or belong to another component."""
        existing = {reference: self.target.digest(reference) for reference in versions}
        new = [reference for reference in versions if existing[reference] is None]
        self.settings.progress(0, len(new), "creating versions")
        withdrawn = self.changes.withdraw_new(new)
        if not self.pushes:  # before the versions, as an interrupted pull adds none to versions that are here
            self._copy_records(new)
        if self._admission is None:
            taken = self.target.create([self._version_file(reference) for reference in new])
        else:
            taken = {_path(reference) for reference in new if not self._link(reference, self._admission)}
        created = [reference for reference in self._remaining(new) if _path(reference) not in taken]
        self.report.created += created
        for reference in self._remaining(versions):
            if existing[reference] is None and _path(reference) not in taken:
                continue
            digest = existing[reference] or self.target.current_digest(reference)
            if digest == reference.digest:
                self.report.existing.append(reference)
                continue
            error = VersionExists(
                f"{reference} was published concurrently in {self.target.address}: it is {digest} there, and "
                f"{reference.digest} in {self.origin.address}. {self._advice(reference)}",
                subject=str(reference),
            )
            if digest is not None and reference in withdrawn and self._store is not None:
                self.changes.take_back(reference, self._store)
            self._drop(reference, error)
        if self.pushes:  # also what an interrupted push left out
            self._copy_records(self._remaining(versions))

    def _copy_records(self, references: Iterable[Reference]) -> None:
        """Copy the records of who published versions; they are for people, so missing or damaged ones are left out."""
        paths = {record_path(reference.name, reference.version): reference.digest for reference in references}
        existing = self.target.read_small_files(list(paths))
        digests = {path: paths[path] for path, content in existing if content is None}
        records: list[SmallFile] = []
        for path, data in self.origin.read_small_files(list(digests)):
            with suppress(FormatError):
                if data is not None and read_record(data, path).digest == digests[path]:
                    records.append(SmallFile(path, data))
        self.target.create(records)

    def _version_file(self, reference: Reference, check: Callable[[], object] | None = None) -> SmallFile:
        """Return the file of a version; before it is created, its blobs are ensured and ``check`` is called."""
        digests = self.copier.blobs_of(str(reference.digest))

        def ensure_blobs() -> None:
            for digest in digests:
                self.copier.copy(digest)

        # Unreferenced blobs may be garbage-collected during a long check, so they are ensured before and after it.
        prepare = ensure_blobs if check is None else lambda: (ensure_blobs(), check(), ensure_blobs())
        return SmallFile(_path(reference), version_line(str(reference), str(reference.digest)), prepare)

    def _link(self, reference: Reference, admission: Admission) -> bool:
        """Create a version in a local registry or drop it if refused; return False only if its number is taken."""
        if self.origin.is_withdrawn(reference) and self.target.is_withdrawn(reference):
            return not self.target.create([self._version_file(reference)])
        with on_refusal(partial(self._drop, reference)):
            return admission.link(
                reference, lambda check: not self.target.create([self._version_file(reference, check)])
            )
        return True

    def _restore(self, reference: Reference, create: Callable[[], None]) -> None:
        """Restore a version that a local target admits; a remote and a dry run admit all."""
        if self._store is None or self.settings.dry_run:
            create()
            return
        checks = self.settings.policy_checks, self.settings.unmeasured
        admission = Admission(self._store, [reference], self.copier.copy, *checks, restoring=True)
        for error in admission.check_all(self.settings.progress).values():
            raise error

        def link(check: Callable[[], None]) -> bool:
            for digest in self.copier.blobs_of(str(reference.digest)):
                if self.copier.copy(digest):
                    self.report.copied.append(self.copier.copied_blob(digest))
            check()
            create()
            return True

        admission.link(reference, link)

    # --- refusals

    def _leave_out(self, reference: Reference, error: SignatureError) -> None:
        """Exclude a withdrawn version without a required signature; nobody misses it, so it is not a refusal."""
        self._dropped.add(reference)
        detail = f"withdrawn there: {error}"
        self.report.offered.append(OfferedChange("version", str(reference), detail, "", error))

    def _drop(self, reference: Reference, error: CompatkitError) -> None:
        """Exclude a version: report it as refused if it was requested, else copy the parent without a name."""
        is_new = reference not in self._dropped
        self._dropped.add(reference)
        if is_new and reference in self._requested:
            self._refuse(str(reference), error)
        else:  # also a refused version that is copied as a parent
            self.report.unnamed.append(reference)

    def _refuse(self, what: str, error: CompatkitError) -> None:
        """Record a refusal; raise it if the copy is strict."""
        if self.settings.strict:
            raise error
        self.report.refused.append(Refusal(what, error))

    def _remaining(self, versions: Iterable[Reference]) -> list[Reference]:
        return [reference for reference in versions if reference not in self._dropped]


def _path(reference: Reference) -> str:
    return f"refs/{reference.name}/@versions/{reference.version}"
