"""Documents of the commands that keep a registry."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from compatkit.components.catalogue.site import Site
from compatkit.contracts.manifest import Manifest, Parent
from compatkit.foundation.json_schemas import Merged
from compatkit.registry.history import HistoryEntry
from compatkit.registry.index.lookup import ListedName, Status
from compatkit.registry.index.search import SearchResult
from compatkit.registry.maintenance.ages import UnneededFile
from compatkit.registry.maintenance.faults import Fault
from compatkit.registry.maintenance.gc import CollectionResult
from compatkit.registry.maintenance.purge import PurgedWeights
from compatkit.registry.maintenance.retention import KeptVersion
from compatkit.registry.usage import Usage
from compatkit.registry.versions.tensors import TensorChange


class Init(TypedDict):
    """A registry that was made, or that was there.

    Attributes:
        root: Its folder.
        id: Its identity, the same in its copies.
        created: Whether it is new.
    """

    root: str
    id: str
    created: bool


class DamagedName(TypedDict):
    """A name whose latest version cannot be read.

    Attributes:
        name: Name of the component.
        version: Latest version.
        versions: Versions that are not withdrawn, in ascending order.
        error: What is damaged.
    """

    name: str
    version: str
    versions: list[str]
    error: str


class FoundParents(TypedDict):
    """Parents of a version that was found.

    Attributes:
        parents: Relation and digest of each parent.
    """

    parents: list[Parent]


class Search(TypedDict):
    """Versions that were found.

    Attributes:
        total: Number of versions that match, also beyond ``--limit``.
        components: The versions, sorted by name and version.
    """

    total: int
    components: Annotated[Any, [Merged(SearchResult, FoundParents)]]


class SignatureVerdict(TypedDict):
    """A signature of a component.

    Attributes:
        good: Whether it counts.
        code: Code of the error, or null.
        message: Why it does not count, or null.
        signer: Key that signed; null if the signature cannot be read.
        signer_name: Name of a trusted key, or null.
        signed_as: Name and version that it is for; null or empty for any.
        signed: When it was made, UTC, ISO 8601.
        expires: When it ends, or null.
    """

    good: bool
    code: str | None
    message: str | None
    signer: str | None
    signer_name: str | None
    signed_as: str | None
    signed: str | None
    expires: str | None


class Show(TypedDict):
    """A component.

    Attributes:
        name: Its name.
        version: Its version; null for a digest without one.
        digest: SHA-256 of its manifest.
        versions: All versions of the name.
        aliases: Version by alias.
        signatures: Its signatures; empty if they cannot be verified.
        signatures_verified: Whether they were verified, or why not.
        manifest: Its manifest, as it is stored.
    """

    name: str
    version: str | None
    digest: str
    versions: list[str]
    aliases: dict[str, str]
    signatures: list[SignatureVerdict]
    signatures_verified: Any
    manifest: Manifest


class Log(TypedDict):
    """What happened to a name.

    Attributes:
        name: The name.
        entries: Events, oldest first.
    """

    name: str
    entries: list[HistoryEntry]


class Alias(TypedDict):
    """An alias.

    Attributes:
        name: Name of the component.
        alias: The alias.
        version: Version that it points at now; null if it was removed.
        before: Version that it pointed at before, or null; only after a change.
    """

    name: str
    alias: str
    version: str | None
    before: NotRequired[str | None]


class SignedVersion(TypedDict):
    """A signature that was made, or was there.

    Attributes:
        reference: What was signed.
        digest: Its digest.
        signed_as: Name and version that it is for; null for any.
        signer: The key.
        signed: When it was made, UTC, ISO 8601.
        expires: When it ends, or null.
        made: Whether it is new.
    """

    reference: str
    digest: str | None
    signed_as: str | None
    signer: str
    signed: str
    expires: str | None
    made: bool


class Signed(TypedDict):
    """Signatures that came with what was published.

    Attributes:
        signed: The signatures; only with a key.
    """

    signed: NotRequired[list[SignedVersion]]


class Copied(TypedDict):
    """A version that got another name or number.

    Attributes:
        registry: Folder of the registry.
        source: Version that it is a copy of.
        reference: The new reference.
        name: The new name.
        version: The new version.
        digest: Digest, the same as before.
        new: False if it was there already.
        signed_as: Other names for which the component is signed.
    """

    registry: str
    source: str
    reference: str
    name: str
    version: str
    digest: str
    new: bool
    signed_as: list[str]


class Numbered(TypedDict):
    """A version.

    Attributes:
        name: Its name.
        version: Its version.
        digest: Digest, by which it can still be found.
        reason: Reason that was given.
    """

    name: str
    version: str
    digest: str | None
    reason: str


class Withdrawn(TypedDict):
    """A version that was withdrawn.

    Attributes:
        aliases: Aliases that still point at it.
    """

    aliases: list[str]


class Retained(TypedDict):
    """What a rule withdraws.

    Attributes:
        keep: Newest versions of each name that stay.
        reason: Reason that was given.
        withdrawn: Versions to withdraw, or that were withdrawn.
        kept: Versions that stay, each with the reason.
        dry_run: Whether nothing was changed.
    """

    keep: int
    reason: str
    withdrawn: list[str]
    kept: list[KeptVersion]
    dry_run: bool


class Dropped(TypedDict):
    """A number that was freed.

    Attributes:
        kept: Name under which the component is kept.
        time: When, UTC, ISO 8601.
    """

    kept: str
    time: str


class IndexStatus(TypedDict):
    """What was done.

    Attributes:
        rebuilt: Whether all files were read again.
    """

    rebuilt: bool


class Difference(TypedDict):
    """A change between two manifests.

    Attributes:
        level: Level of the contract.
        path: Where, for people.
        pointer: Where, as a JSON pointer.
        before: Value before; absent if there was none.
        after: Value after; absent if there is none.
        bump: Smallest version step that it requires.
        reason: Why.
    """

    level: str
    path: str
    pointer: str
    before: NotRequired[Any]
    after: NotRequired[Any]
    bump: str
    reason: str


class DiffSide(TypedDict):
    """One of two versions.

    Attributes:
        name: Its name.
        version: Its version.
        digest: Its digest.
    """

    name: str
    version: str | None
    digest: str


class Diff(TypedDict):
    """Changes between two components.

    Attributes:
        old: The first.
        new: The second.
        equal: Whether there is no change.
        bump: Smallest version step that all changes require.
        equal_shapes: Whether all tensors have the same shapes.
        changes: Changes of the manifest.
        tensors: Changes of the weights; null if they were not compared.
    """

    old: DiffSide
    new: DiffSide
    equal: bool
    bump: str
    equal_shapes: bool | None
    changes: list[Difference]
    tensors: list[TensorChange] | None


class Collection(TypedDict):
    """Files that nothing refers to.

    Attributes:
        grace_seconds: Grace time; younger files stay.
        kept: Number of blobs that are referred to.
        totals: Number and bytes of the files of each list below.
        blobs: Blobs to move to the trash.
        withdrawn: Weights of withdrawn versions, to be moved too.
        drafts: Files of aborted processes, to be deleted.
        trash: Blobs to delete from the trash.
        back: Blobs to bring back, because something refers to them.
        quarantine: Damaged files that were set aside.
        young: Files that stay because of the grace time.
        waiting: Blobs in the trash that stay because of it.
    """

    grace_seconds: float
    kept: int
    totals: dict[str, dict[str, int]]
    blobs: list[UnneededFile]
    withdrawn: list[UnneededFile]
    drafts: list[UnneededFile]
    trash: list[UnneededFile]
    back: list[UnneededFile]
    quarantine: list[UnneededFile]
    young: list[UnneededFile]
    waiting: list[UnneededFile]


class Collected(TypedDict):
    """A garbage collection.

    Attributes:
        plan: What it does.
        collected: What it did; null without ``--delete``.
    """

    plan: Collection
    collected: CollectionResult | None


class Purged(TypedDict):
    """A purge.

    Attributes:
        applied: Whether the files are deleted.
        bytes: Bytes of all files to delete.
        weights: Weights to delete, with all their copies.
        needed: Weights that stay, because something else refers to them.
        unreadable: Withdrawn versions whose manifest cannot be read.
    """

    applied: bool
    bytes: int
    weights: list[PurgedWeights]
    needed: list[PurgedWeights]
    unreadable: list[str]


class RepairAction(TypedDict):
    """A repair.

    Attributes:
        code: Code of the fault.
        path: File, relative to the registry.
        words: What is done.
        affected: Versions that use it.
    """

    code: str
    path: str
    words: str
    affected: list[str]


class RepairResult(TypedDict):
    """A repair that was tried.

    Attributes:
        done: False if it was no longer needed, or failed.
        error: Error, or empty.
    """

    done: bool
    error: str


FaultRow = Merged(Fault, without=("entry",))


class Soundness(TypedDict):
    """A verification.

    Attributes:
        schema: Version of this format.
        kind: Kind of document.
        root: Folder or address of the registry.
        patterns: Names that were verified; empty for all.
        deep: Whether all bytes were compared with their digests.
        sound: Whether there are no errors.
        read: Number of versions, manifests, results, blobs and bytes that were read.
        counts: Number of errors, warnings and infos.
        faults: What was found.
    """

    schema: int
    kind: Literal["soundness"]
    root: str
    patterns: list[str]
    deep: bool
    sound: bool
    read: dict[str, int]
    counts: dict[str, int]
    faults: Annotated[Any, [FaultRow]]


class RepairPlan(TypedDict):
    """What can be repaired.

    Attributes:
        schema: Version of this format.
        kind: Kind of document.
        root: Folder of the registry.
        actions: Repairs in order.
        left: Faults that cannot be repaired.
    """

    schema: int
    kind: Literal["repair-plan"]
    root: str
    actions: list[RepairAction]
    left: Annotated[Any, [FaultRow]]


class Verified(TypedDict):
    """A verification; after ``--repair``, of what is left.

    Attributes:
        repair: What can be repaired; not of a remote.
        before: The verification before the repair; only with ``--repair``.
        outcomes: What was repaired; only with ``--repair``.
    """

    repair: NotRequired[RepairPlan]
    before: NotRequired[Soundness]
    outcomes: NotRequired[Annotated[Any, [Merged(RepairResult, RepairAction)]]]


class TypeSum(TypedDict):
    """Tensors of one type.

    Attributes:
        tensors: Their number.
        elements: Their elements.
        bytes: Their bytes.
    """

    tensors: int
    elements: int
    bytes: int


class InspectedTensor(TypedDict):
    """A tensor of a file.

    Attributes:
        name: Its name.
        dtype: Its type, as safetensors writes it.
        shape: Its shape.
        bytes: Its bytes.
        offset: Where they begin in the file.
    """

    name: str
    dtype: str
    shape: list[int]
    bytes: int
    offset: int


class Inspected(TypedDict):
    """A safetensors file.

    Attributes:
        file: Path of the file.
        bytes: Its size.
        header_bytes: Bytes before the tensors.
        count: Number of tensors.
        elements: Their elements.
        dtypes: Sums by type.
        metadata: Its metadata.
        tensors: Its tensors.
        exported: Description of an exported network; null if it cannot be read; absent for other files.
        problem: Why it cannot be read.
    """

    file: str
    bytes: int
    header_bytes: int
    count: int
    elements: int
    dtypes: dict[str, TypeSum]
    metadata: dict[str, str]
    tensors: list[InspectedTensor]
    exported: NotRequired[dict[str, Any] | None]
    problem: NotRequired[str]


class Served(TypedDict):
    """A catalogue that is served; printed when the first page can be asked for.

    Attributes:
        url: Address of the front page.
    """

    url: str


DOCUMENTS: dict[str, Any] = {
    "init": Init,
    "ls": [(Merged(ListedName, without=("error",)), DamagedName)],
    "search": Search,
    "show": Show,
    "log": [Log],
    "alias": Alias,
    "copy": Merged(Copied, Signed),
    "withdraw": (Merged(Withdrawn, Numbered), Retained),
    "restore": Numbered,
    "drop": Merged(Dropped, Numbered),
    "index": Merged(Status, IndexStatus),
    "du": Usage,
    "gc": (Collected, Purged),
    "diff": Diff,
    "verify": Merged(Verified, Soundness),
    "inspect": Inspected,
    "site": Site,
    "serve": Served,
}
