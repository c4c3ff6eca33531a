"""From components to modules and back: load, recombine, publish, take in, export."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from compatkit.components.loading import load, pinned
from compatkit.components.pairs import check_pair
from compatkit.components.workspace.finding import Finding
from compatkit.contracts.batchnorm import estimates, under_old_name
from compatkit.contracts.manifest import About
from compatkit.errors import UsageError, type_of
from compatkit.registry.blobs import Verify
from compatkit.registry.names import check_name
from compatkit.registry.signing.trust import Trust

if TYPE_CHECKING:
    from torch import nn

    from compatkit.components.bridges.results import Bridge
    from compatkit.components.domains import Adapted
    from compatkit.components.exports.writing import Written
    from compatkit.components.outcomes import Outcome
    from compatkit.components.promises import Given, Progress
    from compatkit.components.workspace.component import Component
    from compatkit.contracts.manifest import Manifest
    from compatkit.data.dataset import Split
    from compatkit.evaluation.adapter import Adapter
    from compatkit.evaluation.recombination import Recombination
    from compatkit.training.fit import Fit


class Building(Finding):
    """Modules of components, alone and put together, and how components come in and leave."""

    def __getitem__(self, reference: str) -> Component:
        """Return the component that a reference leads to; reads no weights.

        Raises:
            NotFound: No such name, version or alias, or the version was withdrawn.
            InvalidName: Not written as a reference.
            IntegrityError: Its manifest is missing or damaged.
        """
        from compatkit.components.workspace.component import Component

        found = self.store.resolve(reference)
        return Component(self, found, self.store.manifest(found))

    def get(self, reference: str) -> Component | None:
        """Return what ``registry[reference]`` does, None where there is nothing."""
        return self[reference] if reference in self else None

    def load(self, reference: str, *, verify: Verify = "auto", require_signature: Trust = False) -> nn.Module:
        """Return a component's module with its weights, in eval mode; its contract is checked in one pass.

        A recombination is put together from its parts, bitwise as it was published, and returned as a
        ``Recombination``. A part of it that was withdrawn is used all the same, with a ``WithdrawnWarning``.

        Large weights on a local disk are mapped and not copied; training them changes this process only.

        Args:
            reference: Such as ``"digits/mnist.head@^1"``.
            verify: ``"auto"`` hashes the weights and runs the probe the first time, and again when the file or a
                library changed; ``"always"`` each time; ``"never"`` trusts the disk and the libraries.
            require_signature: Whose signature it must have, as in ``open``; that of a recombination covers its parts,
                by their digests.

        Raises:
            NotFound: Nothing has that name or version.
            SignatureError: It has no signature that counts; the class says why.
            IntegrityError: The bytes, or the module that they make, are not what the manifest states; a part of a
                recombination is missing or damaged.
            IncompatibleError: By the rules of this version the parts of a recombination cannot be wired; carries the
                report.
        """
        found = self.store.resolve(reference)
        if self.store.manifest(found).kind == "recombination":
            from compatkit.components.recombinations import load_recombination

            return load_recombination(
                self.store, reference, verify=verify, require_signature=require_signature
            )
        return load(self.store, found, verify=verify, require_signature=require_signature).module

    def recombine(
        self,
        extractor: str,
        head: str,
        *,
        bn_policy: str | None = None,
        images: Split | None = None,
        adapt: bool = False,
        data: Split | None = None,
        adapters: str | Sequence[str] = (),
        normalisation: str | None = None,
    ) -> Recombination:
        """Put the head of one network on the extractor of another, once their contracts allow it.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head.
            bn_policy: Statistics of batch normalisation. ``"batch"`` takes those of each batch, ``"running"`` keeps
                the stored ones, ``"reestimate"`` estimates them anew on ``images``, ``"mix:16"`` mixes these with the
                stored ones, which count as 16 images. None takes ``"reestimate"`` where there are ``images``, which
                is what to deploy; without, ``"batch"``, as ``matrix`` measures, but the stored ones where the head was
                trained with this very extractor.
            images: Unlabelled images, 100 or more, of the kind that the extractor was trained on. Where the policy
                needs them, None takes training images of the extractor, found again as by ``matrix``.
            adapt: Put in the adapters that the check names.
            data: Unlabelled images to fit an adapter with weights on (``project``), where one is needed: the
                features are brought to those of the extractor that the head was trained with. None without
                ``adapters`` takes training images of the extractor.
            adapters: References of published adapters, in the order in which the features pass them.
            normalisation: The old name of ``bn_policy``.

        Raises:
            IncompatibleError: The parts cannot be wired, or only with an adapter that was not asked for; carries the
                report.
            UsageError: ``data`` without ``adapt``; ``images`` that the policy does not use.
            DataError: Images are needed, none were given, and the extractor's own cannot be found again.
        """
        from compatkit.components.seams import load_adapter, needs_fit, put_in, route
        from compatkit.components.workspace.images import OR_SET, fitting_images, images_again
        from compatkit.data.dataset import Split
        from compatkit.evaluation.recombination import Recombination

        if data is not None and not isinstance(data, Split):
            raise UsageError(
                f"data= expects a Split of images, got {type_of(data)}. Pass data.train of a data set."
            )
        policy = under_old_name(bn_policy, normalisation)
        first, second = self.store.resolve(extractor), self.store.resolve(head)
        report = check_pair(self.store, first, second)
        given = [
            load_adapter(self.store, one) for one in ([adapters] if isinstance(adapters, str) else adapters)
        ]
        manifests = self.store.manifest(first), self.store.manifest(second)
        fits = adapt and data is None and not adapters and needs_fit(report)
        anew = images is None and policy is not None and estimates(policy)
        if fits or anew:
            remedy = f"Pass {'data=, images to fit the adapter on' if fits else 'images='}, {OR_SET}"
            own = fitting_images(images_again(self.store, [first], remedy)[first.name])
            data, images = own if fits else data, own if anew else images
        places = route(*manifests, report, given, adapt=adapt, data=data)
        left, right = load(self.store, first), load(self.store, second)
        made = put_in(self.store, places, left, right, data)
        return Recombination.of(left, right, report, normalisation=policy, images=images, adapters=made)

    @overload
    def publish(
        self, what: Fit, *, prefix: str, dry_run: Literal[False] = False, **settings: Any
    ) -> dict[str, str]: ...
    @overload
    def publish(
        self, what: Fit, *, prefix: str, dry_run: Literal[True], **settings: Any
    ) -> dict[str, Outcome]: ...
    @overload
    def publish(self, what: Bridge, name: str, **settings: Any) -> dict[str, str]: ...
    @overload
    def publish(
        self, what: Adapted | Adapter | Manifest | Recombination, name: str, **settings: Any
    ) -> str: ...
    def publish(self, what: object, *name: str, **settings: Any) -> Any:
        """Publish what was trained, put together or made elsewhere.

        - A ``Fit`` of ``Trainer.fit``: extractors, then shared auxiliary heads, then heads, as
          ``<prefix>/<task>.extractor``, ``<prefix>/shared.<name>``, ``<prefix>/<task>.head``. Everything is derived and
          proved, and every policy answered, before the first version is linked. A group publish is retryable, not
          atomic: after a failure the same call completes it, and what is there already is left as it is.
        - What ``adapt`` returned: the adapted extractor; its head is the source's, as it was.
        - A ``Recombination``: pins its parts by digest. It is put together anew from the parts in this registry and
          compared tensor by tensor before anything is written. Statistics that were estimated, and weights of
          adapters that are no components, go into its payload.
        - An adapter, one of ``Recombination.inserted``: to be named in ``recombine(..., adapters=[...])``.
        - A ``Bridge``: the fitted adapter as ``<name>.adapter`` or the refitted head as ``<name>.head``, and the
          recombination that pins all parts, which records under ``training["bridge"]`` how well it does.
        - A manifest with ``state``: a component that was not trained here. The module is built from the blueprint and
          the weights; ports are derived anew and compared with the stated ones. Nothing is written before. Its
          payload is replaced by that of ``state``, and a probe is added where it has none. Blobs and parents that it
          names must be in the registry.

        Args:
            what: See above.
            name: One to three segments, such as ``"digits/mnist-usps"``; of a fit there is the prefix.
            settings: ``prefix``: of the names of a fit.
                ``state``: tensors by name, with a manifest.
                ``rung``: of a bridge; None takes the chosen one.
                ``version``: None takes the least step that the change demands, 1.0.0 for a new name. All parts of a
                fit take the same. Not with a bridge.
                ``about``: title, description, tags, licence and source. Not with a manifest, which has them.
                ``major``: take the next MAJOR number, which policies do not bind: a deliberate break. This and what
                follows goes with a fit, what was adapted, and a manifest.
                ``data``: images that policies are decided on, where they are neither the fit's own nor found by name.
                ``progress``: called with done, total and what is being done, while policies are measured.
                ``dry_run``: with a fit: return what policies say of its parts, and publish nothing. The figures are
                kept; the parts' bytes are put, and ``gc`` collects them.

        Returns:
            The pinned reference ``name@version``. Of a fit, pinned references by ``"<task>.extractor"``,
            ``"shared.<name>"``, ``"<task>.head"``, with ``dry_run`` outcomes; of a bridge, by ``"adapter"``, ``"head"``
            and ``"recombination"``.

        Raises:
            PolicyBroken: A part does not work with a released partner; carries the outcome with its matrix.
            PolicyDataMissing: The images that decide a policy are not at hand.
            CutError: Rebuilt parts do not reproduce the trained network.
            IntegrityError: A part is not in this registry, a module was changed since it was put together, or a
                contract does not tell the truth about its weights; lists every lie.
            FormatError: A value is none that a contract can hold.
            UnknownName: A blueprint's builder or model is not known here.
            UsageError: It is nothing that is published, or a setting does not go with it.
            VersionExists: The version is taken by other bytes.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.components.workspace.publishing import publish

        return publish(self.store, what, *name, **settings)

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
        return self.publish(
            made.manifest, name, state=made.state, version=version, major=major, data=data, progress=progress
        )

    def export(
        self,
        component: str | Recombination,
        path: str | os.PathLike[str],
        *,
        names: str = "auto",
        verify: Verify = "auto",
    ) -> Written:
        """Write a component as one safetensors file that ``load_exported`` runs without any registry.

        Args:
            component: Reference of a recombination, an extractor or a head; or what ``recombine`` returned.
            path: Of the file, which is replaced if it is there.
            names: ``"whole"`` gives the tensors of a recombination the names of the one network that its halves make,
                so that ``timm.create_model(...).load_state_dict`` takes them strictly; ``"parts"`` puts ``extractor.``,
                ``adapters.0.``, ``head.`` before their own; ``"auto"`` takes the former where it is possible.
            verify: As for ``load``.

        Returns:
            Path, size and description.

        Raises:
            NotFound: Nothing has that name or version.
            IntegrityError: A part is missing or damaged, or the recombination was changed since it was put together.
            UsageError: The parts are not the halves of one network, whose names were asked for; a folder is named.
            EnvironmentFailure: Disk full, no right to write; what was there before is untouched.
        """
        from compatkit.components.exports.writing import write

        if not isinstance(component, str):
            from compatkit.components.recombinations import drafted

            manifest, made = drafted(self.store, str(path), component)
            return write(path, made, manifest, names=names)
        resolved = self.store.resolve(component)
        module, manifest = self.load(component, verify=verify), self.store.manifest(resolved)
        return write(path, module, manifest, reference=pinned(resolved), digest=resolved.digest, names=names)
