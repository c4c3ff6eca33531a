"""What a remote holds, as far as a card shows it: components, verdicts and measurements, all read from the remote."""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from compatkit.contracts.batchnorm import DEFAULT
from compatkit.contracts.check import check
from compatkit.contracts.evidence import Cell
from compatkit.contracts.kinds import EXTRACTORS, HEADS
from compatkit.contracts.manifest import Manifest, from_bytes, function_digest
from compatkit.contracts.report import Report
from compatkit.errors import CompatkitError, EnvironmentFailure, FormatError, NotFound
from compatkit.evaluation.records import Cells, is_accuracy
from compatkit.registry import evidence, resolving
from compatkit.registry.evidence import StoredResult
from compatkit.registry.names import Reference
from compatkit.registry.remotes.remote import Remote

MAX_COMPONENTS = 50
"""Maximum number of names whose components are read."""
MAX_PAIRS, MAX_RESULTS = 100, 100
_RESULT = re.compile(
    f"{evidence.FOLDER}/(?P<extractor>[0-9a-f]{{64}})/(?P<head>[0-9a-f]{{64}})/(?P<key>[0-9a-f]{{64}})/(?P<digest>[0-9a-f]{{64}})"
)


@attrs.frozen
class ListedComponent:
    """The latest version of a name that was not withdrawn.

    Attributes:
        reference: Name, version and manifest digest.
        manifest: Its manifest.
    """

    reference: Reference
    manifest: Manifest

    @property
    def function(self) -> str:
        """Function digest."""
        return function_digest(self.manifest)


@attrs.frozen
class Pair:
    """An extractor with a head.

    Attributes:
        report: Verdict of contracts and measurements.
        measured: Measured cells.
        bn_policy: Batch-norm policy that the verdict is about.
    """

    report: Report
    measured: tuple[Cell, ...]
    bn_policy: str


@attrs.frozen
class Contents:
    """What a remote holds.

    Attributes:
        components: The components, sorted by name.
        pairs: Extractors with heads, at most ``MAX_PAIRS``.
        more: Number of names that were not read.
        more_pairs: Number of pairs that were not looked at.
    """

    components: Sequence[ListedComponent]
    pairs: Sequence[Pair]
    more: int = 0
    more_pairs: int = 0

    @property
    def recombinations(self) -> list[ListedComponent]:
        """The components that are recombinations."""
        return [item for item in self.components if item.manifest.kind == "recombination"]

    def named(self, digest: str) -> str:
        """Return the reference of a component by its digest; empty if the remote has it without a name."""
        return next((str(item.reference) for item in self.components if item.reference.digest == digest), "")


def read_contents(remote: Remote, notes: list[str]) -> Contents:
    """Read what a remote holds.

    Args:
        remote: The remote; it is not trusted, and what cannot be read is left out.
        notes: List to which is added what was left out.

    Raises:
        EnvironmentFailure: The remote cannot be read.
    """
    names = remote.names()
    read = names[:MAX_COMPONENTS]
    remote.load(read)
    components = [item for name in read if (item := _listed(remote, name, notes)) is not None]
    heads = [item for item in components if item.manifest.kind in HEADS]
    both = [(left, right) for left in components if left.manifest.kind in EXTRACTORS for right in heads]
    cells = _cells(remote, both[:MAX_PAIRS], notes)
    pairs = []
    for left, right in both[:MAX_PAIRS]:
        measured = cells.get((left.reference, right.reference), ())
        policy = _policy(measured)
        report = check(left.manifest, right.manifest, evidence=measured, bn_policy=policy)
        report = attrs.evolve(report, extractor=str(left.reference), head=str(right.reference))
        pairs.append(Pair(report, tuple(measured), policy))
    return Contents(components, pairs, len(names) - len(read), max(0, len(both) - MAX_PAIRS))


def _policy(measured: Sequence[Cell]) -> str:
    """Return the batch-norm policy of all measurements; the usual one if they differ or there are none."""
    policies = {str(cell.settings.get("policy", DEFAULT)) for cell in measured}
    return policies.pop() if len(policies) == 1 else DEFAULT


def _listed(remote: Remote, name: str, notes: list[str]) -> ListedComponent | None:
    try:
        with remote.translate_errors():
            reference = resolving.resolve(remote.references, Reference.parse(name))
            digest = str(reference.digest)
            return ListedComponent(reference, from_bytes(remote.document(digest, name), what=name))
    except NotFound:
        return None  # all versions were withdrawn
    except EnvironmentFailure:
        raise
    except CompatkitError as error:
        notes.append(f"The card leaves out {name}: {error}")
        return None


def _cells(
    remote: Remote, pairs: Sequence[tuple[ListedComponent, ListedComponent]], notes: list[str]
) -> dict[tuple[Reference, Reference], list[Cell]]:
    """Return the measured cells of pairs, in the order of their digests."""
    by_functions: dict[tuple[str, str], list[tuple[ListedComponent, ListedComponent]]] = {}
    for left, right in pairs:
        by_functions.setdefault((_hexadecimal(left.function), _hexadecimal(right.function)), []).append(
            (left, right)
        )
    folders = sorted({f"{evidence.FOLDER}/{extractor}" for extractor, _ in by_functions})
    results = [
        found
        for path in (remote.list_small_files(folders) if folders else [])
        if (found := _RESULT.fullmatch(path)) and (found["extractor"], found["head"]) in by_functions
    ]
    if len(results) > MAX_RESULTS:
        notes.append(f"The card shows {MAX_RESULTS} of {len(results):,} measurements.")
    read, cells = Cells(), dict[tuple[Reference, Reference], list[Cell]]()
    remote.prefetch(f"sha256:{found['digest']}" for found in results[:MAX_RESULTS])
    for found in results[:MAX_RESULTS]:
        for left, right in by_functions[found["extractor"], found["head"]]:
            try:
                result = _stored(remote, found)
                if not is_accuracy(result):
                    continue
                cell = read.of(result, str(left.reference), str(right.reference))
            except EnvironmentFailure:
                raise
            except CompatkitError as error:
                notes.append(f"The card leaves out a measurement: {error}")
                continue
            cells.setdefault((left.reference, right.reference), []).append(cell)
    return cells


def _stored(remote: Remote, path: re.Match[str]) -> StoredResult:
    extractor, head = f"{evidence.FUNCTION}{path['extractor']}", f"{evidence.FUNCTION}{path['head']}"
    digest = f"sha256:{path['digest']}"
    data = remote.document(digest, f"the result {digest}")
    if len(data) > evidence.MAX_BYTES:
        raise FormatError(f"the result {digest} has more than {evidence.MAX_BYTES} bytes.")
    values = evidence.from_bytes(data, extractor, head, path["key"], f"the result {digest}")
    return StoredResult(extractor, head, digest, 0, *values)


def _hexadecimal(function: str) -> str:
    return function.rpartition(":")[2]
