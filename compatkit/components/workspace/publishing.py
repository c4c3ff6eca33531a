"""What comes in: the parts of a fit, foreign checkpoints, components that were made elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compatkit.components.loading import pinned, registered
from compatkit.contracts.manifest import About, Manifest
from compatkit.errors import UsageError
from compatkit.registry.names import Reference, check_name
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compatkit.components.outcomes import Outcome
    from compatkit.components.promises import Given, Progress
    from compatkit.components.releasing import Release
    from compatkit.data.dataset import Split
    from compatkit.training.fit import Fit


class Publishing:
    """How components come into a registry.

    Attributes:
        store: The files; it stores and finds, and knows no network.
    """

    store: Store

    def publish(
        self,
        fit: Fit,
        *,
        prefix: str,
        version: str | None = None,
        major: bool = False,
        about: About | None = None,
        data: Given = (),
        progress: Progress | None = None,
    ) -> dict[str, str]:
        """Store the parts of a fit: extractors, then shared auxiliary heads, then heads.

        Everything is derived and proved, and every policy answered, before the first version is linked. A group
        publish is retryable, not atomic: after a failure the same call completes it, and what is there already is
        left as it is.

        Args:
            fit: From ``Trainer.fit``.
            prefix: Names become ``<prefix>/<task>.extractor``, ``<prefix>/shared.<name>``, ``<prefix>/<task>.head``.
            version: For all parts; None takes the least step that the change demands, 1.0.0 for a new name.
            major: Each part takes its next MAJOR number, which policies do not bind: a deliberate break.
            about: Title, description, tags, licence and source for all parts.
            data: Images that policies are decided on, where they are neither the fit's own nor found by name.
            progress: Called with done, total and what is being done, while policies are measured.

        Returns:
            Pinned references ``name@version`` by ``"<task>.extractor"``, ``"shared.<name>"``, ``"<task>.head"``.

        Raises:
            PolicyBroken: A part does not work with a released partner; carries the outcome with its matrix.
            PolicyDataMissing: The images that decide a policy are not at hand.
            CutError: Rebuilt parts do not reproduce the trained network.
            VersionExists: The version is taken by other bytes.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            EnvironmentFailure: Disk full, no right to write.
        """
        published = self._release(fit, prefix, about, version, major, data, progress).publish()
        return {key: pinned(reference) for key, reference in published.items()}

    def rehearse(
        self,
        fit: Fit,
        *,
        prefix: str,
        version: str | None = None,
        major: bool = False,
        data: Given = (),
        progress: Progress | None = None,
    ) -> dict[str, Outcome]:
        """Return what policies say of the parts of a fit, without publishing them; the figures are kept.

        Arguments as for ``publish``; the parts' bytes are put, and ``gc`` collects them.

        Raises:
            PolicyDataMissing: The images that decide a policy are not at hand.
        """
        return self._release(fit, prefix, None, version, major, data, progress).rehearse()

    def _release(
        self,
        fit: Fit,
        prefix: str,
        about: About | None,
        version: str | None,
        major: bool,
        data: Given,
        progress: Progress | None,
    ) -> Release:
        from compatkit.components.releasing import Release
        from compatkit.training.fit import Fit

        if not isinstance(fit, Fit):
            raise UsageError(f"Only what Trainer.fit returned is published, got {fit!r:.80}.", subject=fit)
        return Release.of(
            self.store,
            fit,
            lambda key: f"{prefix}/{key}",
            about=about,
            version=version,
            major=major,
            data=data,
            progress=progress,
        )

    def adopt(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        model: str,
        point: str,
        builder: str = "timm",
        kwargs: Mapping[str, Any] | None = None,
        size: tuple[int, int] | None = None,
        key: str | None = None,
        labels: Sequence[str] | None = None,
        data: Split | None = None,
        images: Mapping[str, Any] | None = None,
        about: About | None = None,
    ) -> dict[str, str]:
        """Take in a checkpoint of timm, torchvision or a plugin's network as an extractor and a head.

        Safetensors are read here; what ``torch.save`` wrote is unpickled as tensors only, by a process of its own with
        limits of time and memory. The parts reproduce the network bitwise before anything is published.

        Args:
            path: Of the file; its name, sha256, format, and what was unwrapped are recorded in both manifests.
            name: Names become ``<name>.extractor`` and ``<name>.head``.
            model: Network that the weights were saved from.
            point: Where to cut it: a module path, or ``"forward_features"``.
            builder: Who builds it.
            kwargs: Further arguments of the network; the counts of classes and of image channels are read from the
                weights unless they are given.
            size: Height and width of the images; None takes the network's own.
            key: Entry of the file that holds the state dict, such as ``"model_ema"``; None takes the usual one.
            labels: Class names in the order of the outputs.
            data: Images that the features are measured on.
            images: What is known better than the network's own configuration; see ``splitting.split``.
            about: Title, description, tags, licence and source of both parts.

        Returns:
            Pinned references ``name@version`` by ``"extractor"`` and ``"head"``.

        Raises:
            UnsafeCheckpoint: The file asks for code, or for more time, memory or disk than its size explains.
            CheckpointMismatch: The weights are of another network; lists what is missing, unknown, of another shape.
            FormatError: Another format, truncated or damaged.
            IntegrityError: Weights are not finite.
            UnknownName: No such model, builder or split point.
            UsageError: No state dict is in the file; class names or facts about images that do not fit.
            CutError: The network cannot be cut there.
            EnvironmentFailure: The file cannot be read, disk full, no right to write.
        """
        from compatkit.components.adopting import adopt, check_target

        check_target(name)
        adopted = adopt(
            path,
            model=model,
            point=point,
            builder=builder,
            kwargs=kwargs,
            size=size,
            key=key,
            labels=labels,
            data=data,
            images=images,
        )
        return adopted.publish(self, name, about=about)

    def register(
        self,
        name: str,
        manifest: Manifest,
        state: Mapping[str, Tensor],
        *,
        version: str | None = None,
        major: bool = False,
        data: Given = (),
        progress: Progress | None = None,
    ) -> str:
        """Publish a component that was not trained here, once its contract is proved by its module.

        The module is built from the blueprint and the weights; ports are derived anew and compared with the stated
        ones. Nothing is written before.

        Args:
            name: One to three segments, ``"zoo/resnet.extractor"``.
            manifest: States blueprint and contract; its payload is replaced by that of ``state``, and a probe is
                added where it has none. Blobs and parents that it names must be in the registry.
            state: Tensors by name.
            version: None takes the least step that the change demands, 1.0.0 for a new name.
            major: Take the next MAJOR number, which policies do not bind: a deliberate break.
            data: Images that a policy is decided on, where they are not found by name.
            progress: Called with done, total and what is being done, while a policy is measured.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            PolicyBroken: It does not work with a released partner; carries the outcome with its matrix.
            PolicyDataMissing: The images that decide a policy are not at hand.
            IntegrityError: The contract does not tell the truth about its weights; lists every lie.
            FormatError: A value is none that a contract can hold.
            UnknownName: The blueprint's builder or model is not known here.
            VersionExists: The version is taken by other bytes.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.components import promises

        check_name(name)

        def publish(kept: Manifest, module: nn.Module) -> Reference:
            return promises.publish(
                self.store, name, kept, module, version=version, major=major, data=data, progress=progress
            )

        return pinned(registered(self.store, name, manifest, state, publish))
