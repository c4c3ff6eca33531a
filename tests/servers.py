"""Real servers on loopback, each started and ended by the test that needs it.

The programs come from Debian and PyPI, those of S3 (``s3_servers``) also from npm; CONTRIBUTING.md names the commands.
A test whose program is missing is skipped, with the command to install it.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest

PATIENCE = 30.0
"""Seconds until a server that does not listen has failed."""


def program(name: str, advice: str, *folders: str | Path) -> str:
    """Return the path of a program; skip the test if it is missing."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)]))
    if path is None:
        pytest.skip(f"{name} is not installed: {advice}")
    return path


def needs(module: str, package: str | None = None) -> None:
    """Skip the test if a Python module is missing."""
    if find_spec(module) is None:
        pytest.skip(f"{package or module} is not installed: pip install {package or module}")


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Return whether something listens on a port of 127.0.0.1."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def family(process: int) -> list[int]:
    """Return a process and all that descend from it; some servers start theirs in sessions of their own."""
    result = [process]
    for number in result:
        with suppress(OSError):
            children = Path(f"/proc/{number}/task/{number}/children").read_text()
            result.extend(map(int, children.split()))
    return result


@attrs.define(eq=False)
class Server:
    """A server process.

    Attributes:
        command: Command line.
        port: Port on 127.0.0.1.
        log: File with its output.
        environment: Variables that it gets in addition.
        process: The process, while it runs.
    """

    command: Sequence[str]
    port: int
    log: Path
    environment: Mapping[str, str] = attrs.field(factory=dict)
    process: subprocess.Popen[bytes] | None = attrs.field(init=False, default=None)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process, and wait until it listens."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        end = time.monotonic() + PATIENCE
        while not listens(self.port):
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                pytest.fail(
                    f"{self.command[0]} does not listen: {self.log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the process and those that it started, as a power cut would."""
        if self.process is not None:
            for number in family(self.process.pid):  # first the one that would start the others again
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            self.process.wait(10)
            self.process = None


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start a server, and end it with the block."""
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def docker_registry(folder: Path) -> Iterator[Server]:
    """Run Debian's container registry, without TLS; ``host`` is its address.

    Args:
        folder: Folder for its files and settings.
    """
    path = program("docker-registry", "apt-get install docker-registry", "/usr/sbin")
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    storage = {"filesystem": {"rootdirectory": str(folder / "storage")}, "delete": {"enabled": True}}
    settings = {"version": 0.1, "storage": storage, "http": {"addr": f"127.0.0.1:{port}"}}
    (folder / "settings.yml").write_text(json.dumps(settings))  # JSON is YAML
    with running(Server([path, "serve", str(folder / "settings.yml")], port, folder / "log")) as server:
        yield server


@attrs.frozen
class SshServer:
    """An SSH server for the current user.

    Attributes:
        server: The process.
        user: User who can log in.
        key: Private key that is accepted.
        known_hosts: File with the server's key.
    """

    server: Server
    user: str
    key: Path
    known_hosts: Path


@contextmanager
def sshd(folder: Path, *, readonly: bool = False) -> Iterator[SshServer]:
    """Run an SSH server with SFTP for the current user, who logs in by a key and never by a password.

    Args:
        folder: Folder for its keys and settings.
        readonly: Whether it refuses to write.
    """
    advice = "apt-get install openssh-server"
    path, keygen = program("sshd", advice, "/usr/sbin"), program("ssh-keygen", advice)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in ("host", "user"):
        command = [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, capture_output=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = free_port()
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized",
        "PidFile": folder / "pid",
        "PasswordAuthentication": "yes",
        "KbdInteractiveAuthentication": "no",
        "UsePAM": "no",
        "StrictModes": "no",
        "PermitRootLogin": "prohibit-password",
        "Subsystem": f"sftp internal-sftp{' -R' if readonly else ''}",
    }
    (folder / "settings").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    host_key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(
            mode=0o755, exist_ok=True
        )  # for separated privileges; Debian's service makes it too
    server = Server([path, "-D", "-e", "-f", str(folder / "settings")], port, folder / "log")
    with running(server):
        yield SshServer(server, getpass.getuser(), folder / "user", folder / "known_hosts")


@contextmanager
def nginx(
    folder: Path, root: Path, location: str = "autoindex on;", *, tls: bool = False
) -> Iterator[Server]:
    """Run nginx over a folder, which it only reads.

    Args:
        folder: Folder for its settings and temporary files.
        root: Folder that it serves.
        location: Settings of ``location /``.
        tls: Whether it speaks TLS, with ``certificate.pem`` in ``folder``, which nobody trusts.
    """
    path, port = program("nginx", "apt-get install nginx-light", "/usr/sbin"), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
    files = folder / "certificate.pem", folder / "key.pem"
    if tls:
        openssl = program("openssl", "apt-get install openssl")
        subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
        subprocess.run([*command, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    encrypted = f"ssl_certificate {files[0]}; ssl_certificate_key {files[1]};" if tls else ""
    listen = f"listen 127.0.0.1:{port}{' ssl' if tls else ''}; {encrypted}"
    (folder / "settings").write_text(
        f"{user} daemon off; pid {folder}/pid; error_log {folder}/log; worker_processes 1;\n"
        "events { worker_connections 256; }\n"
        f"http {{ access_log {folder}/requests; {temporary}\n"
        f"  server {{ {listen} root {root}; location / {{ {location} }} }} }}\n"
    )
    with running(Server([path, "-c", str(folder / "settings")], port, folder / "output")) as server:
        yield server


APACHE_MODULES = (
    "mpm_event alias authn_core authn_file authz_core authz_user auth_basic dir autoindex dav dav_fs mime"
)
APACHE = """
ServerRoot {folder}
ServerName 127.0.0.1
Listen 127.0.0.1:{port}
TypesConfig /dev/null
PidFile {folder}/pid
ErrorLog /dev/stderr
DAVLockDB {folder}/locks
Alias /files {folder}/root
Alias /dav {folder}/root
<Location /files>
  Options +Indexes
  IndexOptions FancyIndexing
  Require all granted
</Location>
<Location /dav>
  DAV On
  AuthType Basic
  AuthName parts
  AuthUserFile {folder}/users
  Require valid-user
</Location>
"""


@contextmanager
def apache() -> Iterator[tuple[Server, Path]]:
    """Run Apache over a new folder: it lists below ``/files``, and offers WebDAV for ``alice`` below ``/dav``.

    Apache never serves as root, so for root it gets a user of its own, and a folder that this one reaches.
    """
    path, port = program("apache2", "apt-get install apache2-bin", "/usr/sbin"), free_port()
    htpasswd = program("htpasswd", "apt-get install apache2-utils")
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "root").mkdir()
        subprocess.run(
            [htpasswd, "-cb", folder / "users", "alice", "secret"], check=True, capture_output=True
        )
        modules = (
            f"LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so"
            for module in APACHE_MODULES.split()
        )
        user = ""
        if os.geteuid() == 0:
            user = "User nobody\nGroup nogroup\n"
            for place in (folder, folder / "root"):
                shutil.chown(place, "nobody", "nogroup")
        settings = "\n".join(modules) + "\n" + user + APACHE.format(folder=folder, port=port)
        (folder / "settings").write_text(settings)
        command = [path, "-DFOREGROUND", "-f", str(folder / "settings")]
        with running(Server(command, port, folder / "log")) as server:
            yield server, folder / "root"


@contextmanager
def webdav(folder: Path, root: Path, *, readonly: bool = False) -> Iterator[Server]:
    """Run WsgiDAV over a folder, for the user ``alice`` with the password ``secret``.

    Args:
        folder: Folder for its settings.
        root: Folder that it serves.
        readonly: Whether it refuses to write.
    """
    needs("wsgidav")
    needs("cheroot")
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "host": "127.0.0.1",
        "port": port,
        "provider_mapping": {"/": {"root": str(root), "readonly": readonly}},
        "simple_dc": {"user_mapping": {"*": {"alice": {"password": "secret"}}}},
        "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
        "server": "cheroot",
        "server_args": {"numthreads": 40, "request_queue_size": 100},
        "verbose": 1,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "wsgidav.server.server_cli", "--config", str(folder / "settings.json")]
    with running(Server(command, port, folder / "log")) as server:
        yield server
