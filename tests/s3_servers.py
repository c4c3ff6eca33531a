"""Servers on loopback that speak S3's protocol: Ceph, and s3rver, which ignores the conditions of writes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
from servers import Server, free_port, program, running

NODE_PROGRAMS = Path.home() / ".cache" / "compatkit-tests" / "node_modules" / ".bin"
"""Where ``npm install --prefix ~/.cache/compatkit-tests`` puts programs."""


@attrs.frozen
class S3Server:
    """A server that speaks S3's protocol.

    Attributes:
        server: The process that answers requests.
        key: Access key of the owner of the buckets.
        secret: Its secret.
        others: Further users, each with an access key and a secret.
    """

    server: Server
    key: str
    secret: str
    others: Mapping[str, tuple[str, str]] = attrs.field(factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """Options of an ``s3://`` address, for the owner."""
        return self.options_of(self.key, self.secret)

    def options_of(self, key: str, secret: str) -> dict[str, Any]:
        """Return the options of an ``s3://`` address for a user."""
        # One attempt: a server that was killed must not keep the tests waiting.
        retries = {"retries": {"max_attempts": 1}, "connect_timeout": 5, "read_timeout": 20}
        return {
            "endpoint_url": f"http://{self.server.host}",
            "key": key,
            "secret": secret,
            "config_kwargs": {"s3": {"addressing_style": "path"}, **retries},
        }


@contextmanager
def s3rver(folder: Path, bucket: str) -> Iterator[S3Server]:
    """Run s3rver, which ignores the condition of a conditional write.

    Args:
        folder: Folder for its files.
        bucket: Bucket that it has from the start.
    """
    node = program("node", "apt-get install nodejs npm")
    script = program("s3rver", "npm install --prefix ~/.cache/compatkit-tests s3rver", NODE_PROGRAMS)
    port = free_port()
    (folder / "files").mkdir(parents=True, exist_ok=True)
    command = [node, script, "-d", str(folder / "files"), "-a", "127.0.0.1", "-p", str(port)]
    command += ["--no-vhost-buckets", "--configure-bucket", bucket]
    with running(Server(command, port, folder / "log")) as server:
        yield S3Server(server, "S3RVER", "S3RVER")


def ceph_settings(folder: Path, monitor: int, gateway: int) -> dict[str, dict[str, Any]]:
    """Return the settings of a Ceph cluster of one process of each kind, in one folder, without authentication.

    Args:
        folder: Folder for everything.
        monitor: Port of the monitor.
        gateway: Port of the gateway.
    """
    common: dict[str, Any] = {
        "fsid": "7a1f3c52-7d5e-4c3e-9d6e-0c5a3b1f2e4d",
        "mon_host": f"v2:127.0.0.1:{monitor}",
        "run_dir": folder,
        "log_file": f"{folder}/$name.log",
        "admin_socket": f"{folder}/$name.asok",
        "pid_file": f"{folder}/$name.pid",
        "crash_dir": folder,
        "auth_cluster_required": "none",
        "auth_service_required": "none",
        "auth_client_required": "none",
        "public_addr": "127.0.0.1",
        "cluster_addr": "127.0.0.1",
        "ms_bind_msgr1": "false",
        "ms_mon_client_mode": "crc",  # the gateway asks for encryption, which needs keys
        "osd_pool_default_size": 1,
        "osd_pool_default_min_size": 1,
        "osd_pool_default_pg_num": 1,
        "osd_pool_default_pgp_num": 1,
        "osd_pool_default_pg_autoscale_mode": "off",
        "osd_crush_chooseleaf_type": 0,
        "mon_allow_pool_size_one": "true",
        "mon_max_pg_per_osd": 1000,
        "paxos_propose_interval": 0.05,
        "mon_data_avail_crit": 1,
        "mon_data_avail_warn": 2,
    }
    return {
        "global": common,
        "mon.a": {"mon_data": folder / "monitor"},
        "osd.0": {
            "osd_data": folder / "storage",
            "osd_objectstore": "memstore",
            "memstore_device_bytes": 4 * 2**30,
            "osd_class_load_list": "*",
            "osd_class_default_list": "*",
        },
        "client.rgw": {
            "rgw_frontends": f"beast endpoint=127.0.0.1:{gateway}",
            "rgw_thread_pool_size": 32,
            "rgw_enable_usage_log": "false",
            "rgw_enable_gc_threads": "false",
            "rgw_enable_lc_threads": "false",
        },
    }


@contextmanager
def ceph(folder: Path, *users: str) -> Iterator[S3Server]:
    """Run Ceph's S3 gateway with a monitor and a store in memory.

    Args:
        folder: Folder for everything.
        users: Names of users besides ``alice``.
    """
    packages = "apt-get install radosgw ceph-mon ceph-osd ceph-common"
    programs = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "monmaptool", "ceph")
    monitor, storage, gateway, admin, monmap, client = (program(name, packages) for name in programs)
    (folder / "storage").mkdir(parents=True, exist_ok=True)
    ports = free_port(), free_port()
    settings = ceph_settings(folder, *ports)
    file = folder / "ceph.conf"
    file.write_text(
        "".join(
            f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
            for section, values in settings.items()
        )
    )

    def run(path: str, *words: str) -> None:
        done = subprocess.run([path, *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{path} {words}: {done.stderr[-2000:]}"

    options, fsid = ["-c", str(file)], settings["global"]["fsid"]
    map_file = str(folder / "monmap")
    run(monmap, "--create", "--addv", "a", f"[v2:127.0.0.1:{ports[0]}]", "--fsid", fsid, map_file)
    run(monitor, *options, "-i", "a", "--mkfs", "--monmap", map_file)
    gateway_server = Server([gateway, *options, "-n", "client.rgw", "-f"], ports[1], folder / "log")
    with ExitStack() as stack:
        stack.enter_context(running(Server([monitor, *options, "-i", "a", "-f"], ports[0], folder / "log")))
        run(client, *options, "--connect-timeout", "20", "osd", "new", fsid, "0")
        run(storage, *options, "-i", "0", "--mkfs", "--osd-uuid", fsid)
        process = subprocess.Popen(
            [storage, *options, "-i", "0", "-f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        stack.callback(process.wait, 10)
        stack.callback(process.kill)
        names = ("alice", *users)
        for name in names:
            keys = ["--access-key", name.upper(), "--secret", f"secret-of-{name}"]
            command = ["-n", "client.rgw", "user", "create", "--uid", name, "--display-name", name, *keys]
            run(admin, *options, *command)
        stack.enter_context(running(gateway_server))
        secrets = {name: (name.upper(), f"secret-of-{name}") for name in names}
        yield S3Server(gateway_server, *secrets["alice"], secrets)
