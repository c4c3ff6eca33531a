"""From a reference to a module that is what its contract states, and to what reports say of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol, cast

from compatkit.contracts.evidence import Cell
from compatkit.contracts.manifest import Manifest, function_digest, trained_with
from compatkit.errors import CutError, DataError, EnvironmentFailure, IntegrityError, UsageError
from compatkit.evaluation.records import record
from compatkit.registry.blobs import Verify
from compatkit.registry.names import Reference
from compatkit.registry.signing.trust import Trust
from compatkit.registry.store import Store, named

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compatkit.contracts.contract import Blueprint
    from compatkit.contracts.evidence import Part
    from compatkit.data.dataset import Split
    from compatkit.evaluation.matrix import LoadedPart


def load(
    store: Store,
    reference: Reference,
    *,
    verify: Verify = "auto",
    require_signature: Trust = False,
    admitted: bool = False,
) -> LoadedPart:
    """Rebuild a component from its blueprint, load its weights strictly and check that its contract holds.

    A ``LibraryWarning`` says where another version of a library builds the network than the one that was recorded.

    Args:
        store: Where it is.
        reference: With name, version and digest.
        verify: ``"auto"`` hashes the weights and runs the probe once, and again when the file or a library changed;
            ``"always"`` each time; ``"never"`` trusts the disk and the libraries.
        require_signature: Whose signature it must have; False asks for one only if the store was opened so.
        admitted: No signature of its own is asked for: its digest stands in a manifest that has one.

    Raises:
        SignatureError: It has no signature that counts.
        VersionUntrue: Its number lies about what changed since the version below it.
        IntegrityError: The bytes, or the module that they make, are not what the manifest states.
        UnknownName: The blueprint's builder or model is not known here.
    """
    from compatkit.components.proofs import proof_of
    from compatkit.components.verification import verify as hold_against

    if not admitted:
        check_signature(store, reference, require_signature, verify)
    check_version(store, reference, verify)
    manifest = store.manifest(reference if reference.version else str(reference.digest))
    with named(pinned(reference)):
        state = store.load_state(manifest, verify=verify)
    module = rebuilt(manifest.blueprint, state, pinned(reference), share=True)
    fact = proof_of(manifest, str(reference.digest))
    known = fact is not None and store.memory.is_proved(fact)
    run = verify == "always" or (verify == "auto" and not known)
    hold_against(manifest, module, thorough=False, run=run, state=state, whose=pinned(reference))
    if run and fact is not None:
        store.memory.prove(fact)
    return part_of(store, pinned(reference), str(reference.digest), manifest, module)


def part_of(store: Store, reference: str, digest: str, manifest: Manifest, module: nn.Module) -> LoadedPart:
    """Return a component with its module, ready to be measured."""
    from compatkit.evaluation.matrix import LoadedPart

    trained = next(trained_with(manifest), None)
    return LoadedPart(
        reference=reference,
        digest=digest,
        function=function_digest(manifest),
        kind=manifest.kind,
        manifest=manifest,
        module=module,
        trained_with=trained,
        trained_function=store.function_of(trained) if trained else None,
    )


def unloaded(store: Store, reference: Reference) -> LoadedPart:
    """Return a component of which no weight is read: its ``module`` is None, whatever its type says.

    Raises:
        IntegrityError: Its manifest is missing or damaged.
    """
    manifest = store.manifest(str(reference.digest))
    return part_of(store, pinned(reference), str(reference.digest), manifest, cast("nn.Module", None))


def check_signature(store: Store, reference: Reference, require_signature: Trust, verify: Verify) -> None:
    """Refuse a component without a signature that counts, where the store or the caller asks for one.

    Raises:
        SignatureError: It has no signature that counts.
        UsageError: Its bytes would not be compared with the digest that is signed.
    """
    for trust in (store.trusted, require_signature):
        if trust is not None and trust is not False:
            from compatkit.registry.signing.verify import admit

            admit(store, reference, trust, verify)


def check_version(store: Store, reference: Reference, verify: Verify) -> None:
    """Refuse a version whose number lies about the change; what is asked for by its digest promises no number.

    Raises:
        VersionUntrue: It does.
    """
    if reference.version is not None and verify != "never":
        store.check_number(reference.name, reference.version, str(reference.digest))


def rebuilt(
    blueprint: Blueprint, state: Mapping[str, Tensor], whose: str, *, share: bool = False
) -> nn.Module:
    """Return the module that a blueprint and weights make, in eval mode.

    Args:
        blueprint: Of the module.
        state: The weights.
        whose: Named in messages.
        share: Whether the module may keep the tensors of ``state`` themselves.

    Raises:
        IntegrityError: The weights are not those of the blueprint.
        UnknownName: The blueprint's builder or model is not known here.
        UsageError: It is a recombination.
    """
    from compatkit.adapters.blueprints import build
    from compatkit.adapters.builders import LibraryWarning, library_note

    if blueprint.side == "recombination":
        raise UsageError(
            f"{whose} is a recombination, put together from components; use Registry.load for one, or "
            "recombine and publish to make one.",
            subject=whose,
        )
    note = library_note(blueprint) if blueprint.is_cut else None
    if note is not None:
        warnings.warn(f"{whose}: {note}", LibraryWarning, stacklevel=3)
    try:
        return build(blueprint, state=state, share=share).eval()
    except CutError as error:
        raise IntegrityError(
            f"{whose} cannot be rebuilt: {error} {note or ''}".rstrip(), subject=whose
        ) from error


class Trained(Protocol):
    """A component, loaded or not, that says what it was trained on."""

    @property
    def reference(self) -> str:
        """``name@version``."""
        ...

    @property
    def manifest(self) -> Manifest:
        """Of the component."""
        ...


def held_out(part: Trained, data: Sequence[Split] | Mapping[str, Split]) -> Split:
    """Return the test set that an extractor is measured on.

    Args:
        part: The extractor.
        data: Test sets, taken by the name before the slash (``mnist/train`` and ``mnist/test``), or a mapping
            from extractor pattern to test set.

    Raises:
        DataError: None fits, or more than one.
    """
    if isinstance(data, Mapping):
        name = part.reference.split("@")[0]
        hits = [split for pattern, split in data.items() if fnmatchcase(name, pattern)]
    else:
        hits = [split for split in data if family_of(split.name) == trained_on(part.manifest)]
    if len(hits) != 1:
        known = list(data) if isinstance(data, Mapping) else [split.name for split in data]
        raise DataError(
            f"{part.reference} needs exactly one test set, {len(hits)} fit. It was trained on "
            f"{part.manifest.training.get('data')}; given are {known}. Pass the test set of that data set, or "
            "a mapping from extractor pattern to test set."
        )
    return hits[0]


def trained_on(manifest: Manifest) -> str:
    """Return the name of the data set that a component was trained on, empty where its manifest does not tell."""
    trained: Any = manifest.training.get("data", {})
    return family_of(str(trained.get("name", ""))) if isinstance(trained, Mapping) else ""


def family_of(split: str) -> str:
    """Return ``mnist`` for ``mnist/test``."""
    return split.rsplit("/", 1)[0]


def keep(
    store: Store, extractors: Sequence[LoadedPart], heads: Sequence[LoadedPart], cells: Sequence[Cell]
) -> bool:
    """Record measured cells as evidence; warn where the registry cannot be written, for the figures are there.

    A cell that was measured with adapters is kept under a key that names them, and so never read as one of the bare
    pair. What was read as stale is kept already.

    Returns:
        Whether all could be kept.
    """
    functions = {part.reference: part.function for part in (*extractors, *heads)}
    for cell in cells:
        if cell.restricted is None or cell.grade == "stale":
            continue
        try:
            store.evidence.keep(
                functions[cell.extractor],
                functions[cell.head],
                **record(cell),
                measured_as={"extractor": cell.extractor, "head": cell.head},
            )
        except (EnvironmentFailure, IntegrityError) as error:
            warnings.warn(f"The figures are not kept as evidence: {error}", stacklevel=3)
            return False
    return True


def described(part: LoadedPart) -> Part:
    """Return a loaded component as a row or column of a report."""
    from compatkit.contracts.evidence import Part
    from compatkit.reports.contracts import summary

    return Part(part.reference, part.digest, part.function, part.kind, summary(part.manifest))


def pinned(reference: Reference) -> str:
    """Return ``name@version``; the digest of what has no version in this registry."""
    return f"{reference.name}@{reference.version}" if reference.version else str(reference.digest)
