"""From components to modules: parts, recombinations, adapters, and files that run without a registry."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

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

    from compatkit.components.exports.writing import Written
    from compatkit.data.dataset import Split
    from compatkit.evaluation.adapter import Adapter
    from compatkit.evaluation.recombination import Recombination


class Building(Finding):
    """Modules of components, alone and put together."""

    def build(
        self, reference: str, *, verify: Verify = "auto", require_signature: Trust = False
    ) -> nn.Module:
        """Return a component's module with its weights, in eval mode; its contract is checked in one pass.

        A recombination is put together from its parts: see ``load_recombination``.

        Large weights on a local disk are mapped and not copied; training them changes this process only.

        Args:
            reference: Such as ``"digits/mnist.head@^1"``.
            verify: ``"auto"`` hashes the weights and runs the probe the first time, and again when the file or a
                library changed; ``"always"`` each time; ``"never"`` trusts the disk and the libraries.
            require_signature: Whose signature it must have, as in ``open``.

        Raises:
            NotFound: Nothing has that name or version.
            SignatureError: It has no signature that counts; the class says why.
            IntegrityError: The bytes, or the module that they make, are not what the manifest states.
        """
        found = self.store.resolve(reference)
        if self.store.manifest(found).kind == "recombination":
            return self.load_recombination(reference, verify=verify, require_signature=require_signature)
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
        anew = images is None and normalisation is not None and estimates(normalisation)
        if fits or anew:
            remedy = f"Pass {'data=, images to fit the adapter on' if fits else 'images='}, {OR_SET}"
            own = fitting_images(images_again(self.store, [first], remedy)[first.name])
            data, images = own if fits else data, own if anew else images
        places = route(*manifests, report, given, adapt=adapt, data=data)
        left, right = load(self.store, first), load(self.store, second)
        made = put_in(self.store, places, left, right, data)
        return Recombination.of(left, right, report, normalisation=policy, images=images, adapters=made)

    def publish_adapter(
        self, name: str, adapter: Adapter, *, version: str | None = None, about: About | None = None
    ) -> str:
        """Keep an adapter as a component, to be named in ``recombine(..., adapters=[...])``.

        Args:
            name: Such as ``"digits/bridge"``.
            adapter: One of ``Recombination.inserted``.
            version: None takes the least step that the change demands, 1.0.0 for a new name.
            about: Title, description, tags, licence and source.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            VersionExists: The version is taken by other bytes.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            IntegrityError: The extractor that it was made for is not in this registry.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.components.seams import publish_adapter

        check_name(name)
        return pinned(publish_adapter(self.store, name, adapter, version=version, about=about))

    def publish_recombination(
        self,
        name: str,
        recombination: Recombination,
        *,
        version: str | None = None,
        about: About | None = None,
    ) -> str:
        """Keep a recombination as a component that pins its parts by digest.

        It is put together anew from the parts in this registry and compared tensor by tensor before anything is
        written. Statistics that were estimated, and weights of adapters that are no components, go into its payload.

        Args:
            name: Such as ``"digits/mnist-usps"``.
            recombination: From ``recombine``.
            version: None takes the least step that the change demands, 1.0.0 for a new name.
            about: Title, description, tags, licence and source.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            IntegrityError: A part is not in this registry, or the module was changed since it was put together.
            VersionExists: The version is taken by other bytes.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.components.recombinations import publish_recombination

        return pinned(publish_recombination(self.store, name, recombination, version=version, about=about))

    def load_recombination(
        self, reference: str, *, verify: Verify = "auto", require_signature: Trust = False
    ) -> Recombination:
        """Return a published recombination, in eval mode, bitwise as it was published.

        A part that was withdrawn is used all the same, with a ``WithdrawnWarning``.

        Args:
            reference: Such as ``"digits/mnist-usps@^1"``.
            verify: As for ``build``, for all parts.
            require_signature: Whose signature it must have, as in ``open``; it covers its parts, by their digests.

        Raises:
            NotFound: Nothing has that name or version.
            SignatureError: It has no signature that counts; the class says why.
            UsageError: It is no recombination.
            IntegrityError: A part is missing or damaged, or the whole is not what its manifest states.
            IncompatibleError: By the rules of this version the parts cannot be wired; carries the report.
        """
        from compatkit.components.recombinations import load_recombination

        return load_recombination(self.store, reference, verify=verify, require_signature=require_signature)

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
            verify: As for ``build``.

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
        module, manifest = self.build(component, verify=verify), self.store.manifest(resolved)
        return write(path, module, manifest, reference=pinned(resolved), digest=resolved.digest, names=names)
