"""Registries read from real web servers: those that list folders, and those that do not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import servers
from far import content

from compatkit.errors import EnvironmentFailure
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes.pushpull import clone, push
from compatkit.registry.store import Store

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]
Publish = Callable[..., Any]

LISTINGS = {
    "html": "autoindex on;",
    "inexact": "autoindex on; autoindex_exact_size off;",
    "json": "autoindex on; autoindex_format json;",
}


@pytest.mark.parametrize("location", LISTINGS.values(), ids=LISTINGS)
def test_a_web_server_that_lists_folders_is_read_and_never_written(
    tmp_path: Path, source: Store, publish: Publish, location: str
):
    publish(source, "odd_name.v2-x", 7)
    served = shutil.copytree(source.root, tmp_path / "served")
    with servers.nginx(tmp_path / "server", served, location) as server:
        address = f"http://{server.host}"
        copy, report = clone(address, tmp_path / "copy")
        assert len(report.check().created) == 4
        assert content(copy.root) == content(source.root) and examine(copy).sound
        assert push(source, address).check().created == []
        publish(source, "news", 9)
        with pytest.raises(EnvironmentFailure, match="can only be read"):
            push(source, address)


def test_apache_lists_folders_too(tmp_path: Path, source: Store, publish: Publish):
    publish(source, "a_name/that-is/longer.than.a-column_of_its_listing", 7)
    with servers.apache() as (server, root):
        shutil.copytree(source.root, root / "parts")
        copy, report = clone(f"http://{server.host}/files/parts", tmp_path / "copy")
        assert len(report.check().created) == 4 and content(copy.root) == content(source.root)


def test_a_certificate_that_nobody_trusts_is_refused(tmp_path: Path, source: Store):
    with servers.nginx(tmp_path / "server", source.root, tls=True) as server:
        with pytest.raises(EnvironmentFailure, match="certificate is not trusted"):
            clone(f"https://{server.host}", tmp_path / "copy")
        authority = {"verify": str(tmp_path / "server" / "certificate.pem")}
        copy, _ = clone(f"https://{server.host}", tmp_path / "copy", options=authority)
        assert content(copy.root) == content(source.root)


REFUSING = {
    "no listing": "autoindex off;",
    "a page for every address": "try_files $uri /page.html;",
    "nothing": "if ($uri ~ /$) { return 404; }",
    "a redirection": "if ($uri ~ /$) { return 302 /page.html; }",
    "an empty list": "if ($uri ~ /$) { add_header Content-Type application/json; return 200 '[]'; }",
}


@pytest.mark.parametrize("location", REFUSING.values(), ids=REFUSING)
def test_a_web_server_that_lists_nothing_is_no_empty_registry(
    tmp_path: Path, store: Store, source: Store, location: str
):
    (source.root / "page.html").write_text("<title>Our parts</title><a href='refs'>refs</a>")
    with servers.nginx(tmp_path / "server", source.root, location) as server:
        with pytest.raises(EnvironmentFailure):
            clone(f"http://{server.host}", tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
