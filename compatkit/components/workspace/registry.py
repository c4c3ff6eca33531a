"""The public registry: opened here, and in a file for each thing that one does with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from compatkit.arguments import named
from compatkit.components.workspace.adapting import Adapting
from compatkit.components.workspace.bridging import Bridging
from compatkit.components.workspace.containing import Containing
from compatkit.components.workspace.copying import Copying
from compatkit.components.workspace.extending import Extending
from compatkit.components.workspace.policing import Policing
from compatkit.components.workspace.signing import Signing
from compatkit.errors import UsageError
from compatkit.registry.signing.trust import Trust, Trusted
from compatkit.registry.store import Store


def _open(instance: object, field: object, value: object) -> None:
    if not isinstance(value, Store):
        raise UsageError(
            f"Registry(...) takes an open store, got {value!r:.80}. Use Registry.open(FOLDER), or "
            "Registry.init(FOLDER) to make one.",
            subject=value,
        )


@named
@attrs.frozen(eq=False, repr=False)
class Registry(Containing, Extending, Bridging, Adapting, Copying, Signing, Policing):
    """Components under versioned names in one folder.

    It is a container: ``for name in registry`` gives names, ``len`` counts them, ``registry["digits/mnist.head@^1"]``
    is a ``Component``, and ``"digits/mnist.head" in registry`` tells whether there is one.

    Attributes:
        store: The files; it stores and finds, and knows no network.
    """

    store: Store = attrs.field(validator=_open)

    @classmethod
    def init(cls, root: str | os.PathLike[str], *, exist_ok: bool = False) -> Registry:
        """Make a registry in the folder ``root``.

        Raises:
            LayoutError: The folder holds a registry already and ``exist_ok`` is False, or one that is too new.
            EnvironmentFailure: The folder cannot be written.
        """
        return cls(Store.init(root, exist_ok=exist_ok))

    @classmethod
    def open(
        cls, root: str | os.PathLike[str] | None = None, *, require_signature: Trust = False
    ) -> Registry:
        """Open the registry in ``root``; None takes COMPATKIT_REGISTRY, then the nearest folder above.

        Args:
            root: The folder.
            require_signature: Whose signature every component must have that is built, recombined or measured here:
                True for the keys that you trust (``compatkit keys``), a folder of public keys, a file or a key; see
                ``compatkit.registry.signing.public``. False or None asks for none.

        Raises:
            LayoutError: There is no registry, or one that this version cannot read.
            KeyFileError: It cannot be found out whom to trust.
            MissingDependency: Signatures are required, and ``cryptography`` is not installed.
        """
        trusted = None
        if require_signature is not False and require_signature is not None:
            from compatkit.registry.signing.ed25519 import check_installed

            trusted = Trusted.of(require_signature)
            check_installed()
        return cls(Store.find(trusted=trusted) if root is None else Store.open(root, trusted))

    @classmethod
    def clone(
        cls,
        remote: str,
        root: str | os.PathLike[str],
        *,
        options: Mapping[str, Any] | None = None,
        require_signature: Trust = False,
        **choice: Any,
    ) -> Registry:
        """Make a new registry in the folder ``root`` with all that a remote holds: see ``pull``.

        Raises:
            Incomplete: Something was refused; the registry holds the rest.
            LayoutError: The folder is a registry or holds other files; the remote is no registry.
            EnvironmentFailure: No right, no network, disk full; ``pull`` goes on where it stopped.
        """
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import clone

        chosen = Choice.of(choice).requiring(require_signature)
        store, moved = clone(remote, Path(root), options=options, choice=chosen)
        moved.check()
        return cls(store)
