"""copy: a version gets another name or number, and the command says what it is called and what does not come along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import compatkit as ck
from compatkit.registry.store import Store

HEAD, PROD = "digits/left.head", "prod/left.head"
EXTRACTOR = "digits/left.extractor"


def test_a_promotion_says_what_the_version_is_called(run: Any, parts: Path) -> None:
    digest = Store.open(parts).resolve(HEAD).digest
    copied = run("copy", f"{HEAD}@1.0.0", "--as", PROD)
    assert copied.code == 0 and f"copied {HEAD}@1.0.0 to {PROD}@1.0.0" in copied.out
    again = run("copy", HEAD, "--as", PROD, "--json").json
    assert again == {
        "registry": again["registry"],
        "source": f"{HEAD}@1.0.0",
        "reference": f"{PROD}@1.0.0",
        "name": PROD,
        "version": "1.0.0",
        "digest": digest,
        "new": False,
        "signed_as": [],
    }
    assert run("copy", HEAD, "--as", f"{PROD}@3.0.0", "--json").json["new"] is True
    registry = ck.Registry(parts)
    assert registry.copy(HEAD, "other/left.head") == "other/left.head@1.0.0"
    assert registry.load(f"{PROD}@3.0.0") is not None
    assert registry.recombine(EXTRACTOR, PROD) is not None  # still the extractor's own head


def test_a_signature_does_not_come_along_and_the_next_step_says_so(run: Any, parts: Path) -> None:
    key = parts.with_name("alice.pem")
    assert run("keys", "new", "alice", "--out", key).code == 0
    assert run("sign", HEAD, "--key", key).code == 0
    copied = run("copy", HEAD, "--as", PROD)
    assert f"{HEAD}@1.0.0" in copied.out and f"sign {PROD}@1.0.0 --key KEY" in copied.out
    assert run("copy", HEAD, "--as", PROD, "--json").json["signed_as"] == [f"{HEAD}@1.0.0"]
    signed = run("copy", HEAD, "--as", "other/left.head", "--sign-with", key, "--json").json
    assert signed["signed_as"] == [] and len(signed["signed"]) == 1
    refused = run("copy", EXTRACTOR, "--as", "other/left.extractor", "--require-signature", "--json")
    assert refused.code == 1 and refused.json["error"]["code"] == "unsigned"


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("nobody@1.0.0", "--as", PROD), "not-found"),
        ((HEAD, "--as", EXTRACTOR), "usage"),
        ((HEAD, "--as", f"{PROD}:best"), "usage"),
        ((HEAD, "--as", f"{PROD}@1.0.0", "--major"), "usage"),
        ((HEAD, "--as", PROD, "--data", "left"), "usage"),
        ((HEAD, "--as", "Prod/Head"), "invalid-name"),
        ((HEAD,), "usage"),
    ],
)
def test_what_cannot_be_copied(run: Any, words: tuple[str, ...], code: str) -> None:
    refused = run("copy", *words, "--json")
    assert refused.code == 2 and refused.json["error"]["code"] == code


def test_a_policy_of_the_other_name_measures_or_refuses(run: Any, parts: Path) -> None:
    """The staged extractor is another one, which the released head was not trained with."""
    for kind in ("extractor", "head"):
        run("copy", f"digits/left.{kind}", "--as", f"prod/eye.{kind}")
    run("copy", "digits/right.extractor", "--as", "staging/eye.extractor")
    settings = ("--mode", "backward", "--data", "left", "--tolerance", "0.99")
    assert run("policy", "set", "prod/eye.extractor", *settings).code == 0
    words = ("copy", "staging/eye.extractor", "--as", "prod/eye.extractor")
    refused = run(*words, "--json")
    assert refused.code == 2 and refused.json["error"]["code"] == "policy-undecided"
    measured = run(*words, "--measure", "--data", "left", "--json")
    assert measured.code == 0 and measured.json["reference"] == "prod/eye.extractor@1.1.0"
    unmeasured = run("copy", "digits/left.extractor", "--as", "prod/eye.extractor", "--unmeasured", "--json")
    assert unmeasured.json["reference"] == "prod/eye.extractor@1.2.0"
    store = Store.open(parts)
    assert store.policies.admitted("prod/eye.extractor") == {"prod/eye.extractor@1.2.0"}
    assert run("verify").code == 0
