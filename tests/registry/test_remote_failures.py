"""What is said about the errors of the libraries behind remotes: the cause, what to do, and that it is no defect."""

from __future__ import annotations

import errno
import ftplib
import socket
import ssl
from collections.abc import Callable

import pytest

from compatkit.errors import EnvironmentFailure
from compatkit.registry.remotes import failures
from compatkit.registry.remotes.files import convert_errors

DENIED, UNKNOWN_HOST, NETWORK = "no permission", "the host is unknown", "check the network"
MISSING, FULL, BUSY = "does not exist", "no space left", "too busy"


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def botocore(code: str, status: int) -> Exception:
    exceptions = pytest.importorskip("botocore.exceptions")
    answer = {"Error": {"Code": code, "Message": None}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return exceptions.ClientError(answer, "PutObject")


def requests(name: str, status: int = 0) -> Exception:
    library = pytest.importorskip("requests")
    if not status:
        return getattr(library.exceptions, name)("failed")
    response = library.Response()
    response.status_code = status
    return getattr(library.exceptions, name)(f"{status}", response=response)


def aiohttp(name: str) -> Exception:
    library = pytest.importorskip("aiohttp")
    key = type("Key", (), {"host": "h", "port": 1, "ssl": True, "is_ssl": True})()
    return getattr(library, name)(key, OSError(errno.ECONNREFUSED, "refused"))


def paramiko(name: str) -> Exception:
    library = pytest.importorskip("paramiko")
    if name == "NoValidConnectionsError":
        return library.ssh_exception.NoValidConnectionsError(
            {("h", 1): OSError(errno.ECONNREFUSED, "refused")}
        )
    if name == "BadHostKeyException":
        return type(name, (library.SSHException,), {})("other key")
    return getattr(library.ssh_exception, name)("failed")


CASES: dict[str, tuple[Callable[[], Exception], str]] = {
    "a right that is missing": (lambda: PermissionError(errno.EACCES, "denied"), DENIED),
    "a disk that is only read": (lambda: OSError(errno.EROFS, "read-only"), DENIED),
    "S3 403": (lambda: caused(PermissionError(None), botocore("AccessDenied", 403)), DENIED),
    "S3 401": (lambda: botocore("Unauthorized", 401), DENIED),
    "S3 503": (lambda: caused(OSError(errno.EBUSY, "None"), botocore("SlowDown", 503)), BUSY),
    "S3 404": (lambda: caused(FileNotFoundError(None), botocore("NoSuchBucket", 404)), MISSING),
    "S3 500": (lambda: botocore("InternalError", 500), NETWORK),
    "HTTP 401": (lambda: requests("HTTPError", 401), DENIED),
    "HTTP 403": (lambda: requests("HTTPError", 403), DENIED),
    "HTTP 429": (lambda: requests("HTTPError", 429), BUSY),
    "HTTP 507": (lambda: requests("HTTPError", 507), FULL),
    "HTTP 502": (lambda: requests("HTTPError", 502), NETWORK),
    "an answer that is too late": (lambda: requests("ReadTimeout"), NETWORK),
    "an answer that is cut off": (lambda: requests("ChunkedEncodingError"), NETWORK),
    "a connection that is refused": (lambda: requests("ConnectionError"), NETWORK),
    "a certificate": (lambda: requests("SSLError"), "certificate is not trusted"),
    "a certificate of aiohttp": (
        lambda: caused(RuntimeError("failed"), ssl.SSLCertVerificationError("self-signed")),
        "certificate is not trusted",
    ),
    "a connection of aiohttp": (lambda: aiohttp("ClientConnectorError"), NETWORK),
    "a name of aiohttp": (lambda: aiohttp("ClientConnectorDNSError"), UNKNOWN_HOST),
    "a name": (lambda: socket.gaierror(-2, "Name or service not known"), UNKNOWN_HOST),
    "a name below": (lambda: caused(RuntimeError("failed"), socket.gaierror(-2, "not known")), UNKNOWN_HOST),
    "an SSH password": (lambda: paramiko("AuthenticationException"), DENIED),
    "an SSH key with a passphrase": (lambda: paramiko("PasswordRequiredException"), DENIED),
    "an SSH server that is gone": (lambda: paramiko("NoValidConnectionsError"), NETWORK),
    "an SSH server with another key": (lambda: paramiko("BadHostKeyException"), "known_hosts"),
    "an SSH connection that ends": (lambda: EOFError(), NETWORK),
    "an FTP password": (lambda: ftplib.error_perm("530 Login incorrect."), DENIED),
    "an FTP server without room": (lambda: ftplib.error_perm("552 Exceeded storage"), FULL),
    "a disk that is full": (lambda: OSError(errno.ENOSPC, "No space left on device"), FULL),
    "a quota": (lambda: OSError(errno.EDQUOT, "Quota exceeded"), FULL),
    "a wait that is too long": (lambda: TimeoutError("timed out"), NETWORK),
    "a connection that is reset": (lambda: ConnectionResetError(errno.ECONNRESET, "reset"), NETWORK),
}


@pytest.mark.parametrize(("make", "remedy"), CASES.values(), ids=CASES)
def test_an_error_is_one_of_the_environment_with_its_remedy(make: Callable[[], Exception], remedy: str):
    error = make()
    assert remedy in failures.remedy(error) and failures.is_environmental(error)
    with pytest.raises(EnvironmentFailure) as raised, convert_errors("s3://bucket", "put", "a/b"):
        raise error
    assert raised.value.exit_code == 4 and raised.value.subject == "s3://bucket/a/b"
    assert remedy in str(raised.value) and "None" not in str(raised.value)


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), ZeroDivisionError(), AttributeError("x")])
def test_a_defect_of_a_plugin_is_not_taken_for_the_network(error: Exception):
    assert not failures.is_environmental(error) and failures.remedy(error) == failures.UNKNOWN


def test_an_error_that_hides_its_context_has_no_cause():
    try:
        try:
            raise PermissionError("hidden")
        except PermissionError:
            raise ValueError("shown") from None
    except ValueError as error:
        assert list(failures.chain(error)) == [error] and not failures.is_environmental(error)


def test_errors_that_cause_each_other_end():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert list(failures.chain(first)) == [first, second]


def test_the_status_of_a_server_is_found_below_other_errors():
    assert failures.http_status(caused(OSError(22, "None"), botocore("PreconditionFailed", 412))) == 412
    assert failures.http_status(requests("HTTPError", 409)) == 409
    assert failures.http_status(ValueError("x")) is None
