"""``compatkit settings``: which signatures a registry requires, and which keys may do what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Options, command, group, option
from compatkit.cli.output import clean, columns, emit
from compatkit.cli.private_keys import author_label
from compatkit.cli.releases import SigningOptions
from compatkit.cli.roots import open_store, requested_root, signing_key
from compatkit.errors import UsageError
from compatkit.foundation.addresses import is_remote, shown
from compatkit.registry.settings import ROLES

if TYPE_CHECKING:
    from compatkit.registry.settings import RegistrySettings

settings_command = group(
    "settings",
    """Show or change which signatures are required, and which keys may do what.

    Examples:
        # show what is in force
        compatkit settings show
    """,
)
LISTS = (*ROLES, "protected_aliases", "revoked")


class SettingsRemoteOptions(Options):
    """The registry whose settings are meant."""

    remote: str | None = option(
        "Settings of this remote: an address, or a name of `compatkit remote`.", metavar="REMOTE"
    )
    settings: tuple[str, ...] = option(
        "Option of the remote's file system, such as endpoint_url=http://127.0.0.1:9000; may be repeated.",
        "--option",
        metavar="KEY=VALUE",
    )


class SettingsShowOptions(SettingsRemoteOptions):
    """Options of ``settings show``."""


@command("show", SettingsShowOptions, group=settings_command)
def show(options: SettingsShowOptions) -> int | None:
    """Show the settings in force, and all changes, oldest first; those that do not count are marked.

    Examples:
        # what is in force, and every change
        compatkit settings show
        # of a saved remote
        compatkit settings show --remote team:
    """
    if options.remote is None:
        rules = open_store().rules
    else:
        from compatkit.registry.remotes.address import parse_options
        from compatkit.registry.remotes.remote_settings import remote_rules

        rules = remote_rules(options.remote, options=parse_options(options.settings))
    if options.json:
        history = [change.to_json() for change in rules.history]
        return emit({**rules.change.to_json(), "history": history})
    _print(rules.settings)
    for change in rules.history:
        text = f"change {change.number} by {clean(author_label(change.by))} at {clean(change.time)}"
        click.echo(f"{text}: does not count: {clean(change.error)}" if change.error else text)
    return None


class SettingsSetOptions(SettingsRemoteOptions, SigningOptions):
    """Options of ``settings set``; lists replace those in force."""

    require_signature: bool = option("Require a publisher's signature of every version.")
    no_require_signature: bool = option("Require no signatures.")
    owners: tuple[str, ...] = option(
        "Key that may change these settings: its file, text or trusted name; may be repeated.",
        "--owner",
        metavar="KEY",
    )
    maintainers: tuple[str, ...] = option(
        "Key that may move protected aliases, withdraw, restore and drop versions, and change policies.",
        "--maintainer",
        metavar="KEY",
    )
    publishers: tuple[str, ...] = option(
        "Key that may publish where signatures are required.", "--publisher", metavar="KEY"
    )
    protected_aliases: tuple[str, ...] = option(
        "Alias, or glob such as 'release-*', that only maintainers may move.", "--protect", metavar="ALIAS"
    )
    revoked: tuple[str, ...] = option("Key whose signatures count no more.", "--revoke", metavar="KEY")
    clear: tuple[str, ...] = option(f"Empty a list: {', '.join(LISTS)}; may be repeated.", metavar="LIST")


@command("set", SettingsSetOptions, group=settings_command)
def set_command(options: SettingsSetOptions) -> int | None:
    """Change settings; what is not named stays. Once there are owners, one of them must sign the change.

    Examples:
        # from now on only alice changes settings
        compatkit settings set --owner alice --sign-with alice
        # signatures of two publishers, and a protected alias
        compatkit settings set --require-signature --publisher alice --publisher bob --protect prod
            --sign-with alice
    """
    from compatkit.registry.authorship import Author
    from compatkit.registry.remotes.address import parse_options
    from compatkit.registry.remotes.remote_settings import change_remote_settings
    from compatkit.registry.settings import change_settings

    changes: dict[str, Any] = {}
    for name in LISTS:
        if values := getattr(options, name):
            changes[name] = values if name == "protected_aliases" else _keys(values)
    for name in options.clear:
        if name not in LISTS or name in changes:
            raise UsageError(
                f"--clear takes one of {', '.join(LISTS)}, which is not given too; got {name!r}."
            )
        changes[name] = ()
    if options.require_signature and options.no_require_signature:
        raise UsageError("--require-signature and --no-require-signature exclude each other.")
    if options.require_signature or options.no_require_signature:
        changes["require_signature"] = options.require_signature
    if not changes:
        raise UsageError("Name at least one setting to change; see `compatkit settings set --help`.")
    if options.remote is not None:
        author = Author.of(signing_key())
        filesystem = parse_options(options.settings)
        change = change_remote_settings(options.remote, author, options=filesystem, **changes)
    elif is_remote(requested_root()):
        address = shown(str(requested_root()))
        raise UsageError(
            f"The settings of a remote are changed in place: `compatkit settings set --remote {address} ...`, without "
            "--registry.",
            subject=address,
        )
    else:
        store = open_store()
        store.layout.check_writer(store.root)
        change = change_settings(store.root, store.author, **changes)
    if options.json:
        return emit(change.to_json())
    _print(change.settings)
    return None


def _keys(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the identities of keys given as text, file, or name of a trusted key."""
    from compatkit.registry.signing.trust import Folder, Trusted

    ids_by_name = {key.name: key.id for key in Folder.of_user().read().keys.values() if key.name}
    return tuple(ids_by_name.get(text) or next(iter(Trusted.of(text).keys)) for text in texts)


def _print(settings: RegistrySettings) -> None:
    rows = [("require_signature", "yes" if settings.require_signature else "no")]
    for name in LISTS:
        values = getattr(settings, name)
        texts = values if name == "protected_aliases" else [clean(author_label(key)) for key in values]
        rows.append((name, ", ".join(texts) or "-"))
    columns(rows)
