"""Documents of the commands that keep a registry."""

from __future__ import annotations

from typing import Any, Literal

from compatkit.components.catalogue.site import Site
from compatkit.contracts.manifest import Manifest, Parent
from compatkit.foundation.json_schemas import Object, Sometimes
from compatkit.registry.history import HistoryEntry
from compatkit.registry.index.lookup import ListedName, Status
from compatkit.registry.index.search import SearchResult
from compatkit.registry.maintenance.faults import Fault
from compatkit.registry.maintenance.gc import CollectionPlan, CollectionResult
from compatkit.registry.maintenance.purge import PurgePlan
from compatkit.registry.maintenance.repair_plan import Action, ActionResult
from compatkit.registry.maintenance.retention import RetentionPlan
from compatkit.registry.usage import Usage
from compatkit.registry.versions.diff import Change
from compatkit.registry.versions.tensors import TensorChange

SIGNATURE = Object(
    "A signature of a component.",
    good=(bool, "Whether it counts."),
    code=(str | None, "Code of the error, or null."),
    message=(str | None, "Why it does not count, or null."),
    signer=(str | None, "Key that signed; null if the signature cannot be read."),
    signer_name=(str | None, "Name of a trusted key, or null."),
    signed_as=(str | None, "Name and version that it is for; null or empty for any."),
    signed=(str | None, "When it was made, UTC, ISO 8601."),
    expires=(str | None, "When it ends, or null."),
)
SIGNED_VERSION = Object(
    "A signature that was made, or was there.",
    reference=(str, "What was signed."),
    digest=(str | None, "Its digest."),
    signed_as=(str | None, "Name and version that it is for; null for any."),
    signer=(str, "The key."),
    signed=(str, "When it was made, UTC, ISO 8601."),
    expires=(str | None, "When it ends, or null."),
    made=(bool, "Whether it is new."),
)
SIGNED = Object(
    "Signatures that came with what was published.",
    signed=(Sometimes([SIGNED_VERSION]), "The signatures; only with a key."),
)
VERSION = Object(
    "A version.",
    name=(str, "Its name."),
    version=(str, "Its version."),
    digest=(str | None, "Digest, by which it can still be found."),
    reason=(str, "Reason that was given."),
)
SIDE = Object(
    "One of two versions.",
    name=(str, "Its name."),
    version=(str | None, "Its version."),
    digest=(str, "Its digest."),
)
CHANGE = Object(
    Change,
    path=(str, "Where, for people."),
    pointer=(str, "Where, as a JSON pointer."),
    before=(Sometimes(Any), "Value before; absent if there was none."),
    after=(Sometimes(Any), "Value after; absent if there is none."),
    without=("location", "name"),
)
COLLECTION = Object(
    "Files that nothing refers to.",
    CollectionPlan,
    grace_seconds=(float, "Grace time; younger files stay."),
    kept=(int, "Number of blobs that are referred to."),
    totals=({str: {str: int}}, "Number and bytes of the files of each list."),
    without=("grace", "referenced", "store", "collect_withdrawn", "lost"),
)
ACTION = Object("A repair.", Action, without=("stage", "work"))
FAULT = Object(Fault, without=("entry",))
VERIFICATION = Object(
    "A verification; after `--repair`, of what is left.",
    schema=(int, "Version of this format."),
    kind=(Literal["soundness"], "Kind of document."),
    root=(str, "Folder or address of the registry."),
    patterns=([str], "Names that were verified; empty for all."),
    deep=(bool, "Whether all bytes were compared with their digests."),
    sound=(bool, "Whether there are no errors."),
    read=({str: int}, "Number of versions, manifests, results, blobs and bytes that were read."),
    counts=({str: int}, "Number of errors, warnings and infos."),
    faults=([FAULT], "What was found."),
)
REPAIR = Object(
    "What can be repaired.",
    schema=(int, "Version of this format."),
    kind=(Literal["repair-plan"], "Kind of document."),
    root=(str, "Folder of the registry."),
    actions=([ACTION], "Repairs in order."),
    left=([FAULT], "Faults that cannot be repaired."),
)
TENSOR_TYPE = Object(
    "Tensors of one type.",
    tensors=(int, "Their number."),
    elements=(int, "Their elements."),
    bytes=(int, "Their bytes."),
)
TENSOR = Object(
    "A tensor of a file.",
    name=(str, "Its name."),
    dtype=(str, "Its type, as safetensors writes it."),
    shape=([int], "Its shape."),
    bytes=(int, "Its bytes."),
    offset=(int, "Where they begin in the file."),
)
DAMAGED = Object(
    "A name whose latest version cannot be read.",
    name=(str, "Name of the component."),
    version=(str, "Latest version."),
    versions=([str], "Versions that are not withdrawn, in ascending order."),
    error=(str, "What is damaged."),
)
DOCUMENTS: dict[str, Any] = {
    "init": Object(
        "A registry that was made, or that was there.",
        root=(str, "Its folder."),
        id=(str, "Its identity, the same in its copies."),
        created=(bool, "Whether it is new."),
    ),
    "ls": [(Object(ListedName, without=("error",)), DAMAGED)],
    "search": Object(
        "Versions that were found.",
        total=(int, "Number of versions that match, also beyond `--limit`."),
        components=(
            [Object(SearchResult, parents=([Parent], "Relation and digest of each parent."))],
            "The versions, sorted by name and version.",
        ),
    ),
    "show": Object(
        "A component.",
        name=(str, "Its name."),
        version=(str | None, "Its version; null for a digest without one."),
        digest=(str, "SHA-256 of its manifest."),
        versions=([str], "All versions of the name."),
        aliases=({str: str}, "Version by alias."),
        signatures=([SIGNATURE], "Its signatures; empty if they cannot be verified."),
        signatures_verified=(Any, "Whether they were verified, or why not."),
        manifest=(Manifest, "Its manifest, as it is stored."),
    ),
    "log": [
        Object(
            "What happened to a name.",
            name=(str, "The name."),
            entries=([HistoryEntry], "Events, oldest first."),
        )
    ],
    "alias": Object(
        "An alias.",
        name=(str, "Name of the component."),
        alias=(str, "The alias."),
        version=(str | None, "Version that it points at now; null if it was removed."),
        before=(Sometimes(str | None), "Version that it pointed at before, or null; only after a change."),
    ),
    "copy": Object(
        "A version that got another name or number.",
        SIGNED,
        registry=(str, "Folder of the registry."),
        source=(str, "Version that it is a copy of."),
        reference=(str, "The new reference."),
        name=(str, "The new name."),
        version=(str, "The new version."),
        digest=(str, "Digest, the same as before."),
        new=(bool, "False if it was there already."),
        signed_as=([str], "Other names for which the component is signed."),
    ),
    "withdraw": (
        Object("A version that was withdrawn.", VERSION, aliases=([str], "Aliases that still point at it.")),
        Object(
            "What a rule withdraws.",
            RetentionPlan,
            dry_run=(bool, "Whether nothing was changed."),
            without=("store",),
        ),
    ),
    "restore": VERSION,
    "drop": Object(
        "A number that was freed.",
        VERSION,
        kept=(str, "Name under which the component is kept."),
        time=(str, "When, UTC, ISO 8601."),
    ),
    "index": Object(Status, rebuilt=(bool, "Whether all files were read again.")),
    "du": Usage,
    "gc": (
        Object(
            "A garbage collection.",
            plan=(COLLECTION, "What it does."),
            collected=(CollectionResult | None, "What it did; null without `--delete`."),
        ),
        Object(
            "A purge.", PurgePlan, bytes=(int, "Bytes of all files to delete."), without=("store", "lost")
        ),
    ),
    "diff": Object(
        "Changes between two components.",
        old=(SIDE, "The first."),
        new=(SIDE, "The second."),
        equal=(bool, "Whether there is no change."),
        bump=(str, "Smallest version step that all changes require."),
        equal_shapes=(bool | None, "Whether all tensors have the same shapes."),
        changes=([CHANGE], "Changes of the manifest."),
        tensors=(([TensorChange], None), "Changes of the weights; null if they were not compared."),
    ),
    "verify": Object(
        VERIFICATION,
        repair=(Sometimes(REPAIR), "What can be repaired; not of a remote."),
        before=(Sometimes(VERIFICATION), "The verification before the repair; only with `--repair`."),
        outcomes=(
            Sometimes([Object("A repair that was tried.", ActionResult, ACTION, without=("action",))]),
            "What was repaired; only with `--repair`.",
        ),
    ),
    "inspect": Object(
        "A safetensors file.",
        file=(str, "Path of the file."),
        bytes=(int, "Its size."),
        header_bytes=(int, "Bytes before the tensors."),
        count=(int, "Number of tensors."),
        elements=(int, "Their elements."),
        dtypes=({str: TENSOR_TYPE}, "Sums by type."),
        metadata=({str: str}, "Its metadata."),
        tensors=([TENSOR], "Its tensors."),
        exported=(
            Sometimes(dict | None),
            "Description of an exported network; null if it cannot be read; absent for other files.",
        ),
        problem=(Sometimes(str), "Why it cannot be read."),
    ),
    "site": Site,
    "serve": Object(
        "A catalogue that is served; printed when the first page can be asked for.",
        url=(str, "Address of the front page."),
    ),
}
