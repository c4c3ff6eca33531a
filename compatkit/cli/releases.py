"""Options of commands that publish: description, version, signature."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from compatkit.cli.options import Options, option, tags
from compatkit.cli.private_keys import open_key
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.components.registry import Registry
    from compatkit.contracts.manifest import About
    from compatkit.registry.signing.private_keys import SigningKey

version_option = option(
    "Version number; default: the smallest step that the change requires.", metavar="X.Y.Z"
)


class SigningOptions(Options):
    """Key that signs publications and changes."""

    sign_with: str | None = option(
        "Sign with this private key: a file, or a name of `compatkit keys`; default: COMPATKIT_KEY.",
        metavar="KEY",
    )

    def key(self) -> SigningKey | None:
        """Return the key of ``--sign-with``, opened before any work is done; or None."""
        return None if self.sign_with is None else open_key(self.sign_with)


class AboutOptions(Options):
    """Description of a publication, by field of ``About``."""

    tags: dict[str, str] = option(
        "Tag for `compatkit search --tag`; may be repeated.",
        "--tag",
        multiple=True,
        metavar="KEY=VALUE",
        convert=tags,
    )
    title: str | None = option("Title; default: network, cut and data.", metavar="TEXT")
    description: str | None = option("Description.", metavar="TEXT")
    license: str | None = option("License, such as Apache-2.0.")
    source: str | None = option("Origin: a link, a paper.", metavar="TEXT")

    def described(self) -> dict[str, Any]:
        """Return the given options, by field of ``About``."""
        return {name: value for name, value in self.values_of(AboutOptions).items() if value}

    def about(self, known: About | None = None) -> About:
        """Return the description of a publication, merged over ``known``, such as a recipe's."""
        from compatkit.contracts.manifest import About

        return (known or About()).updated(self.described())

    def check_publishes(self) -> None:
        """Raise if options describe a publication but ``--publish`` is missing.

        Raises:
            UsageError: There is such an option.
        """
        names = [*self.described(), *(name for name in ("version", "sign_with") if getattr(self, name, None))]
        words = ["--tag" if name == "tags" else f"--{name.replace('_', '-')}" for name in names]
        if getattr(self, "publish", None) is None and words:
            raise UsageError(
                f"{', '.join(words)}: nothing is published. Add --publish NAME.", subject=words[0]
            )


def sign_published(
    registry: Registry, references: Iterable[str], key: SigningKey | None
) -> dict[str, list[dict[str, Any]]]:
    """Sign published references; return ``signed`` for ``--json``, empty without a key."""
    if key is None:
        return {}
    return {"signed": [signature.to_json() for signature in registry.maintenance.sign(list(references), key)]}
