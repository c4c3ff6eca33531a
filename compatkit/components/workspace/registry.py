"""The public registry: opened here, copied, looked after; what one does with components is in the files beside it."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.workspace.bridges import Bridges
from compatkit.components.workspace.policies import Policies
from compatkit.components.workspace.training import Training
from compatkit.contracts.arguments import named
from compatkit.errors import UsageError
from compatkit.registry.aliases import ANY, Anything
from compatkit.registry.names import Reference
from compatkit.registry.signing.trust import Trust, Trusted
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.promises import Given
    from compatkit.registry.care import Care
    from compatkit.registry.copy.report import Moved


@attrs.frozen
class Former:
    """What a method that was renamed is called now.

    Attributes:
        path: Attribute of a registry.
        takes: The parameters that had other names or another order, in their former order, with their names now.
        settings: Given besides.
    """

    path: str
    takes: Mapping[str, str] = {}
    settings: Mapping[str, Any] = {}

    def of(self, registry: Registry) -> Any:
        """Return what answers under the former name."""
        method = attrgetter(self.path)(registry)
        if not self.takes:
            return method

        @functools.wraps(method)
        def answer(*places: Any, **named: Any) -> Any:
            by_name = dict(zip(self.takes, places, strict=False)) | named
            return method(
                **{self.takes.get(name, name): one for name, one in by_name.items()}, **self.settings
            )

        return answer


FORMER = {
    "aliases": Former("store.aliases"),
    "auxiliary_heads": Former("frozen", {"pattern": "heads"}),
    "bridges_between": Former("bridges.between"),
    "bridges_of": Former("bridges.of"),
    "build": Former("load"),
    "clear_policy": Former("policies.clear"),
    "load_recombination": Former("load"),
    "manifest": Former("store.manifest"),
    "policy": Former("policies.of"),
    "policy_history": Former("policies.history"),
    "publish_adapted": Former("publish", {"name": "name", "adapted": "what"}),
    "publish_adapter": Former("publish", {"name": "name", "adapter": "what"}),
    "publish_bridge": Former("publish", {"name": "name", "bridge": "what"}),
    "publish_recombination": Former("publish", {"name": "name", "recombination": "what"}),
    "register": Former("publish", {"name": "name", "manifest": "what", "state": "state"}),
    "rehearse": Former("publish", {"fit": "what"}, {"dry_run": True}),
    "released": Former("frozen", {"head": "head", "extractor": "extractor"}),
    "select": Former("store.select"),
    "set_policy": Former("policies.set"),
    "sign": Former("care.sign"),
    "signatures": Former("care.signatures"),
    "test_policy": Former("policies.test"),
    "verify_signatures": Former("care.verify_signatures"),
}
"""Methods that were renamed; they answer with a DeprecationWarning."""


def _open(instance: object, field: object, value: object) -> None:
    if not isinstance(value, Store):
        raise UsageError(
            f"Registry(...) takes an open store, got {value!r:.80}. Use Registry.open(FOLDER), or "
            "Registry.init(FOLDER) to make one.",
            subject=value,
        )


@named
@attrs.frozen(eq=False, repr=False)
class Registry(Training):
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
            from compatkit.registry.signing.keys import check_installed

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

    def alias(
        self, name: str, alias: str, version: str | None, *, expected: str | Anything | None = ANY
    ) -> None:
        """Point an alias at a version, or remove it with None; the move is kept in the component's log.

        After ``registry.alias("digits/mnist.head", "prod", "1.2.0")`` that version is ``"digits/mnist.head:prod"``.

        Args:
            name: Of the component.
            alias: One segment, ``"prod"``.
            version: A version that is not withdrawn.
            expected: Version that it must point at now, None if it must not exist; by default it is moved in any case,
                which may undo somebody else's move.

        Raises:
            AliasMoved: It points elsewhere than expected.
            NotFound: No such name or version.
        """
        self.store.versions(name)
        self.store.set_alias(name, alias, version, expected=expected)

    def withdraw(self, reference: str, *, reason: str) -> None:
        """Withdraw a version: only its digest finds it any more, and its number is never used again.

        Args:
            reference: With its version: ``"digits/mnist.head@1.1.0"``.
            reason: Shown to everybody who asks for this version.

        Raises:
            NotFound: No such version.
            UsageError: No version is named, or no reason given.
        """
        wanted = Reference.parse(reference)
        if wanted.version is None:
            raise UsageError(
                f"Name the version to withdraw, such as {wanted.name}@1.2.0; got {reference!r}.",
                subject=reference,
            )
        self.store.withdraw(wanted.name, wanted.version, reason)

    @property
    def care(self) -> Care:
        """Examining, mending, collecting unused blobs, disk usage, history, import."""
        from compatkit.components.admitting import deciding
        from compatkit.registry.care import Care

        return Care(self.store, deciding())

    @property
    def policies(self) -> Policies:
        """What new versions have to keep working with, by scope: set, cleared, tested."""
        return Policies(self.store)

    @property
    def bridges(self) -> Bridges:
        """Published bridges, and bridges of many pairs for ``matrix``."""
        return Bridges(self.store)

    def push(
        self,
        remote: str,
        patterns: str | Sequence[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        create: bool = False,
        measure: bool = False,
        data: Given = (),
        **choice: Any,
    ) -> Moved:
        """Copy components to a remote; only what is missing moves.

        Args:
            remote: A folder, ``s3://bucket/prefix``, ``hf://datasets/USER/NAME``, or what else fsspec reaches.
            patterns: Such as ``"digits/*"``; None takes all there is.
            options: Of the fsspec file system, such as ``{"endpoint_url": ...}``.
            create: Make the remote a registry if it is none; else an address without one is an error.
            measure: Where the remote is a folder with policies: measure what they ask and no evidence tells.
            data: Images at hand for that.
            choice: ``versions`` (``"all"``, ``"latest"``), ``aliases``, ``evidence``, ``unmeasured``, ``jobs``,
                ``dry_run``, ``progress``: see ``compatkit.registry.copy.choice.Choice``.

        Raises:
            Incomplete: Something was refused, such as a number that belongs to other bytes there; the rest moved.
            NotFound: A pattern matches nothing.
            LayoutError: There is no registry at the remote, and ``create`` is False.
            EnvironmentFailure: No right, no network; the same call goes on where it stopped.
        """
        from compatkit.components.admitting import deciding
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import push

        chosen = Choice.of({"deciding": deciding(measure=measure, data=data), "create": create, **choice})
        return push(self.store, remote, patterns, options=options, choice=chosen).check()

    def pull(
        self,
        remote: str,
        patterns: str | Sequence[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        require_signature: Trust = False,
        measure: bool = False,
        data: Given = (),
        **choice: Any,
    ) -> Moved:
        """Copy components of a remote to this registry, verified while they arrive; nothing here is overwritten.

        Args:
            remote: As for ``push``; only read.
            patterns: Such as ``"digits/*"``; None takes all there is.
            options: Of the fsspec file system.
            require_signature: Whose signature every component must have that comes, besides whose ``open`` asks for;
                what has none is refused before anything of it comes.
            measure: Measure what policies here ask and no evidence tells.
            data: Images at hand for that.
            choice: As for ``push``.

        Raises:
            Incomplete: Something was refused: other bytes than promised, a number that belongs to other bytes here or
                lies, a policy here that is broken or undecided, no signature that counts; the rest came.
            KeyFileError: It cannot be found out whom to trust.
            MissingDependency: Signatures are required, and ``cryptography`` is not installed.
            NotFound: A pattern matches nothing.
            LayoutError: The remote is no registry.
            EnvironmentFailure: No right, no network, disk full; the same call goes on where it stopped.
        """
        from compatkit.components.admitting import deciding
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import pull

        chosen = Choice.of({"deciding": deciding(measure=measure, data=data), **choice}).requiring(
            require_signature
        )
        return pull(self.store, remote, patterns, options=options, choice=chosen).check()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what was renamed, with a warning that says its name now."""
            former = FORMER.get(name)
            if former is None:
                raise AttributeError(f"'Registry' object has no attribute {name!r}", name=name, obj=self)
            warnings.warn(f"Registry.{name} is now Registry.{former.path}", DeprecationWarning, stacklevel=2)
            return former.of(self)
