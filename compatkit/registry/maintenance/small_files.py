"""Check the content of small files: versions, tombstones, aliases, policies, result pointers, signatures."""

from __future__ import annotations

import os
import re
from typing import Any

from compatkit.errors import FormatError, SignatureError
from compatkit.foundation.codec import loads
from compatkit.registry.aliases import read_move, read_pointer
from compatkit.registry.drop_records import read_drop
from compatkit.registry.layout_scan import (
    AliasMove,
    AliasPointer,
    DropFile,
    PolicyFile,
    PublicationFile,
    RegistryEntry,
    ResultPointer,
    SignatureFile,
    TombstoneFile,
    VersionFile,
    WithdrawalFile,
)
from compatkit.registry.maintenance.faults import shown
from compatkit.registry.publications import read_record
from compatkit.registry.refs import digest_in, read_line
from compatkit.registry.signing.envelope import LIMIT as SIGNATURE_LIMIT
from compatkit.registry.signing.signatures import file_name as signature_name
from compatkit.registry.withdrawals import read_entry

_CUT_OFF = re.compile(
    rb"|s|sh|sha|sha2|sha25|sha256|sha256:[0-9a-f]{0,64}|sha256:[0-9a-f]{64} [a-z0-9._/@-]*"
)
"""Matches the beginning of the line of a version whose writing was interrupted."""


def fault_of(entry: RegistryEntry, content: bytes) -> tuple[str, str] | None:
    """Return fault code and description of the content of a small file; None if it is sound."""
    match entry:
        case VersionFile(_, name, version) if digest_in(content, f"{name}@{version}") is None:
            expected = f"expected 'sha256:', 64 hex digits and {name}@{version}, got"
            if (line := read_line(content)) is not None:
                return "version-exchanged", f"it is the file of {line[1]}"
            if _CUT_OFF.fullmatch(content):
                return (
                    "version-torn",
                    f"{expected} only the first {len(content)} bytes: a publish was interrupted",
                )
            return "version-content", f"{expected} {shown(content)}"
        case TombstoneFile() | WithdrawalFile() if why := _entry_fault(content, entry.number):
            return "tombstone-damaged", why
        case AliasPointer() if read_pointer(content) is None:
            expected = "expected a version and the number of its move, such as '1.2.0 3'"
            return "alias-damaged", f"{expected}, got {shown(content)}"
        case AliasMove() if read_move(content, entry.number) is None:
            return "alias-log-damaged", f"expected an object with from, to and time, got {shown(content)}"
        case DropFile() if read_drop(content, entry.number) is None:
            return (
                "dropped-damaged",
                f"expected an object with digest, kept, reason and time, got {shown(content)}",
            )
        case PolicyFile():
            from compatkit.registry.policylog import parse_revision

            try:
                parse_revision(content, entry.scope, entry.number)
            except FormatError as error:
                return "policy-damaged", f"expected a policy of {entry.scope}, got {shown(content)}: {error}"
        case PublicationFile() if not _is_publication(content):
            return "publication-damaged", f"expected an object with by, digest and time, got {shown(content)}"
        case ResultPointer() if content.strip() != f"sha256:{entry.result}".encode():
            return "evidence-damaged", f"expected the digest in its name, got {shown(content)}"
        case SignatureFile() if why := _signature_fault(content, entry):
            return "signature-damaged", why
    return None


def read_json(content: bytes) -> Any:
    """Return the JSON value in a small file, or None if it is not JSON."""
    try:
        return loads(content, what="file")
    except FormatError:
        return None


def _entry_fault(content: bytes, number: int) -> str:
    try:
        read_entry(content, number, "tombstone")
    except FormatError:
        kind = "withdrawal" if number % 2 else "restoration"
        return f"expected the reason and time of a {kind}, got {shown(content)}"
    return ""


def _is_publication(content: bytes) -> bool:
    try:
        return bool(read_record(content, "record"))
    except FormatError:
        return False


def _signature_fault(content: bytes, entry: SignatureFile) -> str | None:
    if len(content) > SIGNATURE_LIMIT:
        return f"expected at most {SIGNATURE_LIMIT} bytes, got {len(content)}"
    try:
        expected = signature_name(content, f"sha256:{entry.signed}")
    except SignatureError as error:
        return str(error)
    if expected != entry.file:
        return f"expected the file name {os.path.basename(expected)} for {shown(content)}"
    return None
