"""Remove credentials from texts: users, passwords, tokens and signatures in addresses, options and headers.

Every error of compatkit passes its message through ``redacted``, and so does everything that the command line prints.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote

_LOGINS = frozenset("sftp ssh webdav webdavs ftp ftps".split())
"""Schemes in whose addresses a user without a password is a name and not a token."""
_HARMLESS = frozenset("accept accept-encoding accept-language content-type user-agent".split())
"""Headers without secrets."""
HIDDEN = "***"
"""Stands for a value that was removed."""
_PLAIN = frozenset({"true", "false", "none", "null"})
"""Values that are no secret, whatever their option is called: ``token=false``."""
SHORTEST = 4
"""Least length of a value that is removed wherever it occurs; shorter ones would garble messages."""
_REMOTES = frozenset(
    "s3 s3a gs gcs az abfs abfss adl wasb wasbs oss r2 hf http https webdav webdavs webhdfs hdfs ftp ftps sftp "
    "ssh".split()
)
"""Schemes whose addresses begin with a host or bucket; they are recognized also without slashes."""
_BUCKETS = frozenset("s3 s3a gs gcs r2 oss hf".split())
"""Schemes whose addresses have no port."""
_START = rf"(?:(?<![A-Za-z0-9+.-])(?:{'|'.join(_REMOTES)})\b(?::/*|/*:/+|//)|(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]{{2,}}://)"
_ADDRESS = rf"(?i)({_START})((?:(?!{_START})\S)*)"
_WHOLE = rf"(?is)({_START})(.*)"
_CUT_OFF = r"(?i)([^\[:]*:)(?!port\b|\d*\W*\Z)[^\s/]+"
"""User and start of a password, of an address that was cut off before ``@``."""
_HOST = r"(?:\[[^\]\s]*\]|[^\s:\[\]]*)(?::\d*)?"
_NAME = (
    r"(?:[\w-]*(?:secret|passw(?:or)?d|passwd|passphrase|token|signature|credentials?|api_?-?key|account_?-?key"
    r"|access_?-?key(?:_?-?id)?|private_?-?key|encryption_?-?key|assertion|authorization)|pwd|pass|sig|auth|jwt|sas"
    r"|GoogleAccessId|AWSAccessKeyId)"
)
"""Names of options and parameters whose values are secret."""
_OPTION_NAME = rf"(?i){_NAME}|key|password.*|.*cookies?|connection_string"
_VALUE = r"(?!(?:\w+ )?(?:\*\*\*|\.\.\.)|value\b|None\b|<)"
_HINT = re.compile(
    r"[=#]|%40|pass|key|token|secret|cookie|auth|bearer|basic|a[ks]ia|hf_|api_org|gh[pousr]_|github_pat|glpat|xox|sk-"
    r"|ya29|eyj|aiza|cred|sig|assert|jwt|sas|pwd|accessid",
    re.IGNORECASE,
)
"""A part of every credential but those before ``@``; most texts have none and are not searched further."""
_known: dict[str, None] = {}
_SECRETS = (
    (r"(?i)(%3A(?:%2F|/){2})[^\s&]{0,500}?%40(?=[^\s&%]*)", r"\1"),
    # parameters of addresses, and fragments that are no word but a token
    (
        rf"(?i)([?&#;](?:{_NAME}|[\w-]*key|code|hmac|session|ticket)=)(?!\*\*\*)[^\s&#;\"'<>)\]}}]+",
        rf"\1{HIDDEN}",
    ),
    (
        r"(?<=\S)#(?=[^\s=]{0,200}\d)(?=[^\s=]{0,200}[a-z])(?=[^\s=]{0,200}[A-Z])[\w+/.~-]{20,}(?!=)",
        f"#{HIDDEN}",
    ),
    (
        rf"(?i)(authorization['\"]?\s*[:=]\s*b?['\"]?(?:\w+\s+(?=[^\s,;'\"]))?){_VALUE}[^\s,;'\"<>)\]}}]+",
        rf"\1{HIDDEN}",
    ),
    # name=value, also within quotes; "name": "value" of JSON and of dictionaries; Password: value
    (rf"(?i)(?<![\w-])({_NAME}\s?=\s?)(['\"])(?!\*\*\*).*?\2", rf"\1\2{HIDDEN}\2"),
    (rf"(?i)(?<![\w-])({_NAME}=){_VALUE}[^\s,;&\"'<>)\]}}]+", rf"\1{HIDDEN}"),
    (r"(?i)(?<![\w-])(key=)(?=[^\s,;&)]{0,200}\d)[\w/+=.~%-]{8,}", rf"\1{HIDDEN}"),
    (
        rf"(?i)((['\"]){_NAME}\2\s*:\s*b?)(['\"])(?!\*\*\*|(?:\w+ )?\.\.\.).*?\3",
        rf"\1\3{HIDDEN}\3",
    ),
    (
        r"(?i)(?<![\w-])((?:pass(?:word|wd|phrase)|secret_?(?:access_?)?key|api_?key|access_token|client_secret"
        r"|x-[a-z-]*(?:token|key)|(?:set-)?cookie):\s?)(?![a-z]+(?![^\s.,;]))(?!\*\*\*|\.\.\.|<)[^\s,;\"'<>)\]}]+",
        rf"\1{HIDDEN}",
    ),
    # headers
    (r"(?i)\b(Bearer\s+)(?=[^\s'\"]*\d)[\w.~+/=-]{6,}", rf"\1{HIDDEN}"),
    (r"\b(Basic\s+)(?=[A-Za-z0-9+/]*[0-9=])[A-Za-z0-9+/]{6,}={0,2}", rf"\1{HIDDEN}"),
    # tokens that tell what they are
    (
        r"(?<![A-Za-z0-9])A[KS]IA[A-Z0-9]{12,}(?:[\s:,/]+[A-Za-z0-9/+=]{40}(?![A-Za-z0-9/+=]))?",
        HIDDEN,
    ),
    (
        r"(?<![A-Za-z0-9])(?:(?:hf|api_org)_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
        r"|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|sk-[\w-]{20,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}"
        r"|eyJ[\w-]{6,4000}\.[\w-]{4,}\.[\w-]*)",
        HIDDEN,
    ),
    (r"(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:(?=-----END)|\Z)", rf"\1{HIDDEN}"),
)
"""Patterns and replacements; ``re`` compiles and keeps those that are used, as most commands print nothing secret."""


def redacted(text: str, *, known: bool = True) -> str:
    """Return a text without credentials; one without any is returned as it is.

    Of an address, user and password are left out, with everything between its scheme and the ``@`` before its host.
    Values of secret parameters, options and headers, and tokens that can be told by their form, become ``***``.

    Args:
        text: An address, or any text that may contain some.
        known: Whether to remove also the values that ``remember`` was told.
    """
    if known:
        for value in sorted(_known, key=len, reverse=True):
            if value in text:
                text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", HIDDEN, text)
    hinted = _HINT.search(text)
    if hinted or "//" in text or ("@" in text and ":" in text):
        text = re.sub(_ADDRESS, _without_user, text)
    if hinted:
        for pattern, replacement in _SECRETS:
            text = re.sub(pattern, replacement, text)
    return text


def redacted_address(address: str) -> str:
    """Return an address without credentials, whatever characters, such as blanks, they consist of."""
    match = re.match(_WHOLE, address)
    return redacted(address if match is None else _without_user(match))


def has_secret(address: str) -> bool:
    """Return whether an address contains a password, token or signature, so that it must not be stored.

    A user alone counts as a token, except where users log in by name, as on SFTP servers.
    """
    match = re.match(_WHOLE, address)
    if match is not None and match[1].partition(":")[0].lower() in _LOGINS:
        user, at, rest = match[2].partition("@")
        if at and not re.search(r"[:/]|%3A", user, re.IGNORECASE) and "@" not in rest.partition("/")[0]:
            address = f"{match[1]}{rest}"
            match = re.match(_WHOLE, address)
    return (match is not None and _without_user(match) != address) or redacted(
        address, known=False
    ) != address


def remember(address: str, options: Mapping[str, Any] | None = None) -> None:
    """Have ``redacted`` remove the secrets of an address and of options from all texts of this process.

    Args:
        address: Address that a remote is opened with.
        options: Options for its plugin; values of those that are named like a secret, at any depth.
    """
    for secret in {*_secrets_of_address(address), *_secrets_of_options(options or {})}:
        for form in (secret, unquote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]):
            if len(form) >= SHORTEST and form.strip("*") and form.lower() not in _PLAIN:
                _known[form] = None


def safe_cause(error: BaseException) -> BaseException | None:
    """Return an error to be the cause of another one, or None if a traceback would show a credential with it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        text = str(cause)
        if redacted(text) != text:
            return None
        cause = cause.__cause__ or cause.__context__
    return error


def _without_user(match: re.Match[str]) -> str:
    start, rest = match[1], match[2]
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if at:
        if user == "git" or user == HIDDEN:
            return match[0]
        if (
            ":" in user and "@" in path
        ):  # perhaps a password with @ and /: what follows the first @ may be part of it
            return f"{start}{HIDDEN}@{path.rpartition('@')[2]}"
        return f"{start}{host}{slash}{path}"
    has_port = start.partition(":")[0].lower() not in _BUCKETS or ":" not in authority
    if "@" not in path and "//" in start and start.partition(":")[0].lower() in _REMOTES:
        cut_off = re.fullmatch(_CUT_OFF, authority)
        return match[0] if cut_off is None else f"{start}{cut_off[1]}{HIDDEN}"
    if "@" not in path or (has_port and re.fullmatch(_HOST, authority)):
        return match[0]
    return f"{start}{path.rpartition('@')[2]}"


def _secrets_of_address(address: str) -> Iterator[str]:
    match = re.match(_WHOLE, address) if ":" in address or "//" in address else None
    if match is None:
        return
    rest, shown = match[2], _without_user(match)
    if shown != address:
        shown_rest = shown[len(match[1]) :].removeprefix(f"{HIDDEN}@")
        user, colon, password = rest.removesuffix(shown_rest).removesuffix("@").partition(":")
        if password:
            yield password
            for piece in re.split("[/@:?#]", password):  # what a parser takes for a port, host or path
                if len(piece) >= 2 * SHORTEST:
                    yield piece
            yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
        elif not colon and len(user) >= 2 * SHORTEST:
            yield user
    for part in re.split(r"[?#]", rest)[1:]:
        for name, value in parse_qsl(part):
            if re.fullmatch(_OPTION_NAME, name):
                yield value


def _secrets_of_options(options: Mapping[Any, Any], *, secret: bool = False) -> Iterator[str]:
    """Yield the texts in options whose name, or that of a mapping around them, is that of a secret."""
    for name, value in options.items():
        is_secret = bool(re.fullmatch(_OPTION_NAME, str(name))) or (
            secret and str(name).lower() not in _HARMLESS
        )
        values = value if isinstance(value, list | tuple) else (value,)
        for item in values:
            if isinstance(item, Mapping):
                yield from _secrets_of_options(item, secret=is_secret or "header" in str(name).lower())
            elif is_secret and isinstance(item, str | bytes | int) and not isinstance(item, bool):
                text = item.decode(errors="replace") if isinstance(item, bytes) else str(item)
                yield text
                yield text.partition(" ")[2]  # Bearer TOKEN
