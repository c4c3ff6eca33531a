"""Heads for more classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from compatkit.components.loading import load
from compatkit.components.workspace.publishing import Publishing
from compatkit.contracts.manifest import About
from compatkit.registry.names import check_name

if TYPE_CHECKING:
    from compatkit.components.promises import Given, Progress


class Extending(Publishing):
    """How a head learns of classes that it did not know."""

    def extend(
        self,
        head: str,
        classes: Sequence[str],
        name: str,
        *,
        seed: int = 0,
        version: str | None = None,
        major: bool = False,
        about: About | None = None,
        data: Given = (),
        progress: Progress | None = None,
    ) -> str:
        """Publish a head with further classes behind its own; what it knows of the old ones stays, bit for bit.

        It is of kind ``head``, also where it came from a shared head, and names that as ``extended_from``. What it was
        trained against stays in its contract. Train it on all classes next: ``registry.task(..., head=name)``.

        Args:
            head: Reference of a head, or of a shared head that tells classes apart.
            classes: Names of the new classes, in the order of the new outputs.
            name: What it is published as, such as ``"fleet/ten.head"``.
            seed: Draws the rows of the new classes.
            version: None takes the least step that the change demands, 1.0.0 for a new name.
            major: Take the next MAJOR number, which policies do not bind: a deliberate break.
            about: Title, description, tags, licence and source.
            data: Images that a policy is decided on, where they are not found by name.
            progress: Called with done, total and what is being done, while a policy is measured.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            NotFound: Nothing has that name or version.
            UsageError: It is no head with named classes, a class is there already under this or another name, or its
                class layer is not one linear layer or 1x1 convolution.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.components.extension import extend

        check_name(name)
        part = load(self.store, self.store.resolve(head))
        made = extend(part, classes, seed=seed, about=about)
        return self.register(
            name, made.manifest, made.state, version=version, major=major, data=data, progress=progress
        )
