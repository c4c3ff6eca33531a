"""Versions of the hooks: which plugins run, when each hook came, and how one goes."""

from __future__ import annotations

import pytest
from packaging.version import Version

from compatkit import hookimpl
from compatkit.errors import PluginError
from compatkit.hooks import HOOK_VERSION, Registration, Training
from compatkit.hooks.versions import DEPRECATED, SINCE, Deprecation
from compatkit.plugins import PluginWarning
from compatkit.plugins.implementations import arguments_of, implementations
from compatkit.plugins.isolation import Owner
from compatkit.plugins.loading import check_api

OWNER = Owner("regularizers.mine", "lab-methods", "1.0")


def test_every_hook_says_since_when_it_exists() -> None:
    hooks = {*arguments_of(Registration), *arguments_of(Training)}
    assert {f"compatkit_{name}" for name in SINCE} == hooks
    assert all(Version("1.0") <= Version(since) <= Version(HOOK_VERSION) for since in SINCE.values())
    assert set(DEPRECATED) <= set(SINCE)


@pytest.mark.parametrize("stated", [1, ">=1,<2", ">=1.1,<2", f"=={HOOK_VERSION}", "~=1.0"])
def test_plugins_for_this_version_run(stated: object) -> None:
    check_api(stated, OWNER)


@pytest.mark.parametrize("stated", [2, 0, ">=1.99,<2", "<1.1", "one", None, 1.5])
def test_plugins_for_others_are_refused(stated: object) -> None:
    with pytest.raises(PluginError) as caught:
        check_api(stated, OWNER)
    assert caught.value.subject == "regularizers.mine"


class Finishes:
    @hookimpl
    def compatkit_finish(self, setup: object) -> None: ...


def test_a_deprecated_hook_works_and_names_its_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEPRECATED, "finish", Deprecation("1.3", "compatkit_teardown", "2"))
    with pytest.warns(
        PluginWarning, match=r"deprecated since version 1\.3 .* version 2; use compatkit_teardown"
    ):
        found = implementations(Finishes(), Training, OWNER)
    assert [item.hook for item in found] == ["compatkit_finish"]
