"""Credentials for container registries: from the files of ``docker login`` and ``skopeo login``, to headers."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import parse_http_list, parse_keqv_list

import attrs

from compatkit.errors import EnvironmentFailure, UsageError

LONGEST_FILE = 2**20
HELPER_SECONDS = 60
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PATH = re.compile(r"(/v[12])?/?")
"""What follows a host in the files: docker writes ``https://HOST/v1/`` for some."""


@attrs.frozen
class Credentials:
    """What a user stored for a registry.

    Attributes:
        user: User name.
        password: Password; empty with an identity token.
        identity_token: Token that buys access tokens, in place of user and password.
    """

    user: str = attrs.field(repr=False)
    password: str = attrs.field(repr=False)
    identity_token: str = attrs.field(default="", repr=False)

    def basic(self) -> str:
        """Return the header of basic authentication."""
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


@attrs.frozen
class Challenge:
    """What a registry demands before it answers.

    Attributes:
        scheme: ``"basic"`` or ``"bearer"``.
        parameters: ``realm``, ``service`` and ``scope``.
    """

    scheme: str
    parameters: Mapping[str, str]


def read_challenge(headers: Sequence[str]) -> Challenge | None:
    """Return the first challenge that this module can meet; bearer tokens come before passwords.

    Args:
        headers: Values of ``WWW-Authenticate``.
    """
    challenges: list[Challenge] = []
    for header in headers:
        scheme, _, rest = header.strip().partition(" ")
        pairs = [item for item in parse_http_list(rest) if item.partition("=")[2]]
        challenges.append(Challenge(scheme.lower(), parse_keqv_list(pairs)))
    known = [challenge for challenge in challenges if challenge.scheme in ("bearer", "basic")]
    return min(known, key=lambda challenge: challenge.scheme != "bearer", default=None)


def stored_credentials(host: str) -> Credentials | None:
    """Return what the user stored for a registry; None without an entry.

    Args:
        host: Host, with its port if it has one.

    Raises:
        UsageError: A file is malformed.
        EnvironmentFailure: A credential helper fails.
    """
    for file in _files():
        settings = _settings(file)
        if settings and (credentials := _from_settings(settings, host, file)) is not None:
            return credentials
    return None


def _files() -> Iterator[Path]:
    if path := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(path)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers" / "auth.json"
    folder = os.environ.get("DOCKER_CONFIG")
    yield (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def _settings(file: Path) -> dict[str, Any]:
    try:
        with open(file, "rb") as opened:
            data = opened.read(LONGEST_FILE)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise EnvironmentFailure(
            f"could not read {file}: {error.strerror}; it holds the credentials of container registries.",
            subject=file,
        ) from None
    try:
        settings = json.loads(data)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise UsageError(f"{file}: expected a JSON object, as `docker login` writes it.", subject=file)
    return settings


def _from_settings(settings: dict[str, Any], host: str, file: Path) -> Credentials | None:
    """Return the credentials of a host from one file: from a program that it names, or from itself."""
    helpers = settings.get("credHelpers")
    helper = helpers.get(host) if isinstance(helpers, dict) else None
    if helper := helper or settings.get("credsStore"):
        credentials = _ask_helper(helper, host, file)
        if credentials is not None:
            return credentials
    entries = settings.get("auths")
    for key, entry in entries.items() if isinstance(entries, dict) else ():
        address = key.partition("://")[2] or key
        name, slash, path = address.partition("/")
        if name.lower() != host.lower() or not _PATH.fullmatch(slash + path) or not isinstance(entry, dict):
            continue
        if (credentials := _from_entry(entry)) is not None:
            return credentials
        if entry:
            raise UsageError(
                f"{file}: the entry for {host} holds no user and password; run `docker login {host}` again.",
                subject=file,
            )
    return None


def _from_entry(entry: dict[str, Any]) -> Credentials | None:
    token = entry.get("identitytoken")
    try:
        pair = base64.b64decode(str(entry.get("auth") or ""), validate=True).decode()
    except ValueError:
        return None
    user, mark, password = pair.partition(":")
    if not mark:
        user, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if isinstance(token, str) and token:
        return Credentials(user, "", token)
    return Credentials(user, password) if user else None


def _ask_helper(name: Any, host: str, file: Path) -> Credentials | None:
    """Return what a credential helper of docker's knows; None if it has no entry.

    Its output is never shown, as it may hold a password.

    Raises:
        EnvironmentFailure: It is missing or fails.
    """
    program = f"docker-credential-{name}"
    if not isinstance(name, str) or not _HELPER.fullmatch(name):
        raise UsageError(f"{file}: expected the name of a credential helper, got {name!r:.80}.", subject=file)
    try:
        finished = subprocess.run(
            [program, "get"], input=host.encode(), capture_output=True, timeout=HELPER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(
            f"{file} names the credential helper {program}, which could not be run ({type(error).__name__}). Install "
            f"it, or run `docker login {host}` again.",
            subject=program,
        ) from None
    if finished.returncode and b"not found" in finished.stdout:
        return None
    try:
        credentials = json.loads(finished.stdout if not finished.returncode else b"")
        user, secret = str(credentials["Username"]), str(credentials["Secret"])
    except (ValueError, TypeError, KeyError):
        raise EnvironmentFailure(
            f"{program} gave no credentials for {host} (exit code {finished.returncode}). Run `docker login {host}` "
            "again.",
            subject=program,
        ) from None
    return Credentials(user, "", secret) if user == "<token>" else Credentials(user, secret)
