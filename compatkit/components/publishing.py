"""Registry methods that publish components or export them: fits, adopted networks, extended heads, exported files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from compatkit.components.combining import Combining
from compatkit.components.loading import load
from compatkit.contracts.manifest import About
from compatkit.errors import UsageError
from compatkit.evaluation.component import pinned
from compatkit.registry.blobs import Verify
from compatkit.registry.names import check_name

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.components.bridges.ladder import Bridge
    from compatkit.components.domains import Adapted
    from compatkit.components.exports.writing import ExportedFile
    from compatkit.components.images import PolicyData
    from compatkit.components.outcomes import PolicyOutcome
    from compatkit.components.splitting import Parts
    from compatkit.contracts.manifest import Manifest
    from compatkit.data.dataset import Split
    from compatkit.evaluation.adapter import Adapter
    from compatkit.evaluation.conditions import Progress
    from compatkit.evaluation.recombination import Recombination
    from compatkit.training.fit import Fit


class PublishSettings(TypedDict, total=False):
    """Settings of ``publish``; which of them apply depends on what is published."""

    state: Mapping[str, Tensor]
    rung: str | None
    accept_doubtful: bool
    version: str | None
    about: About | None
    major: bool
    data: PolicyData
    progress: Progress | None


class Publishing(Combining):
    """Methods of a registry that publish components, or write them to files."""

    @overload
    def publish(
        self, what: Fit, *, prefix: str, dry_run: Literal[True], **settings: Unpack[PublishSettings]
    ) -> dict[str, PolicyOutcome]: ...
    @overload
    def publish(self, what: Fit, *, prefix: str, **settings: Unpack[PublishSettings]) -> dict[str, str]: ...
    @overload
    def publish(
        self, what: Bridge | Parts, name: str, **settings: Unpack[PublishSettings]
    ) -> dict[str, str]: ...
    @overload
    def publish(
        self,
        what: Adapted | Adapter | Recombination | Manifest,
        name: str,
        **settings: Unpack[PublishSettings],
    ) -> str: ...
    def publish(
        self,
        what: object,
        name: str | None = None,
        *,
        prefix: str | None = None,
        state: Mapping[str, Tensor] | None = None,
        rung: str | None = None,
        accept_doubtful: bool = False,
        version: str | None = None,
        about: About | None = None,
        major: bool = False,
        data: PolicyData = (),
        progress: Progress | None = None,
        dry_run: bool = False,
    ) -> Any:
        """Publish a result of training, a recombination, an adapter, a bridge or a manifest with weights.

        - A ``Fit`` of ``Trainer.fit``: extractors, then auxiliary heads, then heads, as ``<prefix>/<task>.extractor``,
          ``<prefix>/shared.<name>``, ``<prefix>/<task>.head``. Everything is derived and verified, and all policies
          are decided, before the first version is linked. Publishing a group is retryable, not atomic: after a
          failure the same call completes it and leaves existing versions unchanged. A variational autoencoder gives
          ``<prefix>/<task>.encoder``, ``.latent`` (an adapter, its mean and log-variance layers) and ``.decoder``.
        - An ``Adapted``: the adapted extractor; its head is unchanged and already published.
        - A ``Recombination``: pins its parts by digest. It is composed again from the parts in this registry and
          compared tensor by tensor before anything is written. Its payload holds estimated statistics, and weights of
          adapters that are not components.
        - An adapter from ``Recombination.inserted``, for later use as ``recombine(..., adapters=[...])``.
        - A ``Bridge``: the fitted adapter as ``<name>.adapter`` or the refitted head as ``<name>.head``, and the
          recombination that pins all parts and records its judgment under ``training["bridge"]``.
        - A manifest with ``state``: a component that was not trained here. The module is built from blueprint and
          weights, and derived ports are compared with the stated ones before anything is written. The payload is
          replaced by that of ``state``, and a missing probe is added. Blobs and parents that it names must be in the
          registry.

        Args:
            what: Object to publish.
            name: One to three segments, such as ``"digits/mnist-usps"``; not for a fit, which has a prefix.
            prefix: Prefix of the names of a fit.
            state: Tensors by name, with a manifest.
            rung: Rung of a bridge; None for the chosen one.
            accept_doubtful: Publish a rung of a bridge whose verdict is not ``fit``.
            version: None for the smallest step that the change requires, 1.0.0 for a new name. All parts of a fit get
                the same. Not with a bridge.
            about: Title, description, tags, license and source. Not with a manifest, which has them.
            major: Use the next MAJOR number, which policies do not bind. This and all below apply to a fit, an adapted
                extractor and a manifest.
            data: Images of policies, if they are neither the fit's own nor found by name.
            progress: Called with done, total and what is being done while policies are measured.
            dry_run: With a fit: return the outcomes of policies and publish nothing. The figures are recorded; the
                parts' blobs are stored, and ``gc`` collects them.

        Returns:
            The pinned reference ``name@version``. For a fit, pinned references by ``"<task>.extractor"``,
            ``"shared.<name>"``, ``"<task>.head"``, or outcomes with ``dry_run``; for a bridge, by ``"adapter"``,
            ``"head"`` and ``"recombination"``.

        Raises:
            PolicyBroken: A part does not work with a released partner; carries the outcome with its matrix.
            PolicyDataMissing: The images of a policy are not available.
            CutError: Rebuilt parts do not reproduce the trained network.
            IntegrityError: A part is not in this registry, a module was changed since it was composed, or a contract
                contradicts its weights; lists all contradictions.
            FormatError: A value is invalid in a contract.
            UnknownName: A blueprint's builder or model is unknown here.
            UsageError: The object cannot be published, a setting does not apply to it, or a bridge is not shown to fit.
            VersionExists: The version exists with other content.
            VersionTooSmall: The change requires a larger step than the requested version.
            EnvironmentFailure: Disk full, or no write permission.
        """
        from compatkit.components.publications import publish

        settings = {
            "prefix": prefix,
            "state": state,
            "rung": rung,
            "accept_doubtful": accept_doubtful,
            "version": version,
            "about": about,
            "major": major,
            "data": data,
            "progress": progress,
            "dry_run": dry_run,
        }
        stated = {key: value for key, value in settings.items() if value not in (None, False, ())}
        return publish(self.store, what, name, stated)

    def adopt(
        self,
        path: str | os.PathLike[str] | Mapping[str, Any],
        name: str,
        *,
        model: str | None = None,
        cut: str | None = None,
        builder: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        size: int | tuple[int, int] | None = None,
        key: str | None = None,
        labels: Sequence[str] | None = None,
        data: Split | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        rename: Mapping[str, str] | None = None,
        about: About | None = None,
    ) -> dict[str, str]:
        """Adopt a checkpoint of a timm, torchvision or plugin network as an extractor and a head.

        Safetensors are read directly; files of ``torch.save`` are unpickled as tensors only, in a subprocess with
        limits of time and memory. The parts must reproduce the network bitwise before anything is published.

        Args:
            path: The file, a folder of one (as of the Hugging Face Hub, timm's ``save_for_hf``, or MLflow's flavour
                ``pytorch``), a recombination that ``export`` wrote, or a state dict.
                Name, SHA-256, format and unwrapping are recorded in both manifests. What ``config.json`` and
                ``preprocessor_config.json`` next to the file is used: network, class names, mean, std, size and
                crop; arguments that contradict it are refused.
            name: The parts become ``<name>.extractor`` and ``<name>.head``.
            model: Network that the weights were saved from; None if ``config.json`` or the export names it.
            cut: Module after which it is cut, or ``"forward_features"``; None if the export names it.
            builder: Builder of the network: ``"timm"``, ``"torchvision"``, or one of a plugin; None for the one that
                has a model of this name.
            kwargs: Further arguments of the network; numbers of classes and image channels are inferred from the
                weights unless given.
            size: Height and width of the images, or one number for both; None for the network's own.
            key: Entry of the file that contains the state dict, such as ``"model_ema"``; None for the common one.
            labels: Class names in the order of the outputs.
            data: Images for feature statistics.
            preprocessing: Settings that override the network's configuration; see ``splitting.split``.
            rename: New beginnings of tensors' names by old ones, such as ``{"module.backbone.": ""}``.
            about: Title, description, tags, license and source of both parts.

        Returns:
            Pinned references ``name@version`` by ``"extractor"`` and ``"head"``.

        Raises:
            UnsafeCheckpoint: The file requires code execution, or more time, memory or disk than its size explains.
            CheckpointMismatch: The weights belong to another network; lists missing, unknown and misshapen tensors.
            FormatError: Another format, truncated or damaged.
            IntegrityError: Weights are not finite.
            UnknownName: No such model or builder, or no such module to cut after.
            UsageError: The file contains no state dict; or class names or preprocessing do not fit.
            CutError: The network cannot be cut there.
            EnvironmentFailure: The file cannot be read, disk full, or no write permission.
        """
        from compatkit.components.adopting import adopt

        check_name(f"{name}.extractor")
        adopted = adopt(
            path,
            model=model,
            cut=cut,
            builder=builder,
            kwargs=kwargs,
            size=size,
            key=key,
            labels=labels,
            data=data,
            preprocessing=preprocessing,
            rename=rename,
        )
        return adopted.publish(self.store, name, about=about)

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
        data: PolicyData = (),
        progress: Progress | None = None,
    ) -> str:
        """Publish a head with additional classes; the weights of the old ones do not change.

        Its kind is ``head``, even if it came from an auxiliary head, and its parent relation is ``extended_from``. Its
        contract keeps the anchors. Train it on all classes next: ``registry.task(..., head=name)``.

        Args:
            head: Reference of a head, or of an auxiliary head that classifies.
            classes: Names of the new classes, in the order of the new outputs.
            name: Name to publish under, such as ``"fleet/ten.head"``.
            seed: Seed of the new rows.
            version: None for the smallest step that the change requires, 1.0.0 for a new name.
            major: Use the next MAJOR number, which policies do not bind.
            about: Title, description, tags, license and source.
            data: Images of a policy, if they are not found by name.
            progress: Called with done, total and what is being done while a policy is measured.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            NotFound: The reference does not resolve.
            UsageError: The component is not a head with named classes, a class exists already under this or another
                name, or the class layer is not a single linear layer or 1x1 convolution.
            VersionTooSmall: The change requires a larger step than the requested version.
            EnvironmentFailure: Disk full, or no write permission.
        """
        from compatkit.components.extension import extend

        check_name(name)
        part = load(self.store, self.store.resolve(head))
        extended = extend(part, classes, seed=seed, about=about)
        return self.publish(
            extended.manifest,
            name,
            state=extended.state,
            version=version,
            major=major,
            data=data,
            progress=progress,
        )

    def export(
        self,
        component: str | Recombination,
        path: str | os.PathLike[str],
        *,
        names: str = "auto",
        format: str = "safetensors",
        settings: Mapping[str, Any] | None = None,
        verify: Verify = "auto",
    ) -> ExportedFile:
        """Write a component as one file; ``load_exported`` runs a safetensors file without a registry.

        Args:
            component: Reference of a recombination, an extractor or a head; or a result of ``recombine``.
            path: Path of the file, which is replaced if it exists; of a new folder where the exporter writes one.
            names: ``"whole"`` gives the tensors of a recombination the names of the one network that its halves make
                up, so that its library loads them and gives the same outputs; ``"parts"`` prefixes them with
                ``extractor.``, ``adapters.0.``, ``head.``; ``"auto"`` uses ``"whole"`` if possible. For safetensors
                files only.
            format: ``"safetensors"``, or the name of a plugin's exporter: ``"onnx"``, ``"torch_export"``,
                ``"mlflow"``, ...
            settings: Keyword arguments for the exporter.
            verify: As for ``load``.

        Returns:
            Path, size and description.

        Raises:
            NotFound: The reference does not resolve.
            IntegrityError: A part is missing or damaged, or the recombination was changed since it was composed.
            UsageError: ``names="whole"`` but the parts are not the halves of one network; the path is a directory; or
                there is no such exporter.
            PluginError: The exporter does not take these settings, or fails.
            EnvironmentFailure: Disk full, or no write permission; an existing file is left unchanged.
        """
        from compatkit.components.exports.writing import SAFETENSORS, write, write_as

        if format == SAFETENSORS and settings:
            raise UsageError(f"safetensors files have no settings ({', '.join(settings)}); name a format.")
        if format != SAFETENSORS and names != "auto":
            raise UsageError(f"names={names!r} is for safetensors files; {format} has names of its own.")
        known: dict[str, Any] = {}
        if isinstance(component, str):
            resolved = self.store.resolve(component)
            module, manifest = self.load(component, verify=verify), self.store.manifest(resolved)
            known = {"reference": pinned(resolved), "digest": resolved.digest}
        else:
            from compatkit.components.recombinations import recompose

            manifest, module = recompose(self.store, str(path), component)
        if format == SAFETENSORS:
            return write(path, module, manifest, names=names, **known)
        return write_as(format, path, module, manifest, settings, **known)
