"""Documents of the commands that copy components between registries, and of those about signatures."""

from __future__ import annotations

from typing import Any

from compatkit.cli.documents.registry import SIGNATURE, SIGNED_VERSION
from compatkit.foundation.json_schemas import Object, Sometimes
from compatkit.registry.copy.report import OfferedChange, TransferReport, Withdrawal
from compatkit.registry.remotes.named import SavedRemote
from compatkit.registry.settings import SettingsChange, SettingsInForce

COPIED = Object(
    "A version, or a component without one.",
    reference=(str, "Name and version, or digest."),
    digest=(str | None, "Its digest."),
)
REFUSED = Object(
    "What was not copied.",
    what=(str, "What it is."),
    code=(str, "Code of the error."),
    message=(str, "Why."),
)
OFFERED = Object(
    OfferedChange,
    code=(str | None, "Code of the error that stands against it, or null."),
    without=("error",),
)
TRANSFER = Object(
    "What was copied between two registries.",
    TransferReport,
    made=[COPIED],
    existing=[COPIED],
    unnamed=[COPIED],
    refused=[REFUSED],
    withdrawn=[Object(Withdrawal, reference=str)],
    offered=[OFFERED],
    blobs=(int, "Number of files copied."),
    bytes=(int, "Their bytes."),
)
REMOTE = Object(SavedRemote, name=(str, "Its name."))
KEY = Object(
    "A public key.",
    name=(str, "Its name."),
    key=(str, "The key, as `ed25519:...`."),
    state=(str, "`trusted`, `expired` or `distrusted`."),
    expires=(str | None, "When it ends, UTC, ISO 8601, or null."),
    note=(str | None, "When and why it was distrusted, or null."),
)
KEY_IN_FOLDER = Object("A key in a folder of trusted keys.", KEY, folder=(str, "The folder."))
REVISION = Object(
    "A revision of a policy.",
    scope=(str, "Names that it binds."),
    revision=(int, "Its number, from 1."),
    time=(str, "When, UTC, ISO 8601."),
    policy=(dict | None, "The policy, as it is stored; null if it was cleared."),
    admitted=(Sometimes(str), "Version that was accepted unmeasured; absent otherwise."),
    by=(Sometimes(str), "Author; absent if not recorded."),
    commit=(Sometimes(str), "Git commit of the author's folder; absent if not recorded."),
)
DOCUMENTS: dict[str, Any] = {
    **dict.fromkeys(("import", "push", "pull", "clone"), TRANSFER),
    **dict.fromkeys(("remote add", "remote show"), REMOTE),
    "remote list": [REMOTE],
    "remote remove": Object("A remote that was forgotten.", name=(str, "Its name.")),
    "keys new": Object(
        "A key that was made.",
        KEY,
        private=(str, "File of the private key."),
        public=(str, "File of the public key."),
        encrypted=(bool, "Whether the private key needs a passphrase."),
    ),
    **dict.fromkeys(("keys trust", "keys distrust"), KEY_IN_FOLDER),
    "keys list": Object("A folder of trusted keys.", folder=(str, "The folder."), keys=([KEY], "Its keys.")),
    "sign": [(SIGNED_VERSION, str)],
    "signatures": [
        Object(
            "Who signed a component.",
            reference=(str, "The version."),
            digest=(str, "Its digest."),
            good=(bool, "Whether a signature counts."),
            code=(str | None, "Code of the error, or null."),
            signatures=([SIGNATURE], "All signatures."),
        )
    ],
    "settings show": Object(SettingsChange, SettingsInForce, without=("change",)),
    "settings set": SettingsChange,
    "policy set": Object(
        "A policy that was set.",
        revision=(int, "Its number."),
        policy=(dict, "The policy, as it is stored."),
        binds=([str], "Names that it binds now."),
        asks_nothing_of=([str], "Names in its scope of which it asks nothing."),
    ),
    "policy show": (REVISION, [REVISION]),
    "policy clear": Object(
        "A policy that was removed.",
        scope=(str, "Its scope."),
        before=(dict | None, "The policy that it was, or null."),
    ),
}
