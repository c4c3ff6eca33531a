"""Rebuild an exported network from its file, and check it against its contract."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from compatkit.components.exports.document import Description, description_of
from compatkit.components.loading import rebuilt
from compatkit.components.verification import verify_contract
from compatkit.contracts.manifest import About, Edge, Manifest, Payload
from compatkit.errors import FormatError, IntegrityError, UnknownName, UsageError
from compatkit.evaluation.assembly import Assembly
from compatkit.foundation.addresses import local
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.codec import digest
from compatkit.registry.weights.header import read_header, read_whole
from compatkit.registry.weights.tensorfile import deserialize, tensor_digest


class Exported(Assembly):
    """An exported network: call it like the exported component, or ``predict`` classes of images.

    Attributes:
        description: Description in the file.
        about: Title, description, tags, license and source.
    """

    description: Description
    about: About

    def extra_repr(self) -> str:
        """Return kind and policy, for ``repr``."""
        return f"{self.description.kind}, bn_policy={self.bn_policy!r}"


@checks_arguments
def load_exported(path: str | os.PathLike[str]) -> Exported:
    """Return the network of an exported file, in eval mode, without a registry.

    No code in the file is executed: blueprints name registered builders, header and JSON are read strictly, and the
    network must reproduce the probe of its contract.

    Args:
        path: A file written by ``Registry.export`` or ``compatkit export``.

    Returns:
        A module with the input of the exported component: normalized images ``(batch, channels, height, width)`` for
        a recombination or an extractor, features for a head or an adapter.

    Raises:
        FormatError: The file is not an export, is truncated, or its description is malformed.
        IntegrityError: The tensors or the rebuilt network do not match the description.
        UnknownName: A blueprint's builder or model is unknown here.
        EnvironmentFailure: The file is missing or cannot be read.
    """
    file = Path(local(path, "an exported file"))
    try:
        description = description_of(read_header(file))
    except FormatError as error:
        raise FormatError(f"{file}: {str(error).removeprefix(f'{file}: ')}", subject=file) from None
    data = read_whole(file)
    actual = tensor_digest(data)
    if actual != description.tensors:
        raise IntegrityError(
            f"{file}: expected the tensors {description.tensors}, found {actual}. The file was changed after the "
            "export; export it again.",
            subject=file,
        )
    state = deserialize(data)
    modules: list[nn.Module] = []
    for part in description.parts:
        owner = f"{file}: the {part.blueprint.side} {part.blueprint.model}"
        own = {name: state[part.prefix + name] for name in part.names}
        try:
            modules.append(rebuilt(part.blueprint, own, owner, share=True))
        except UnknownName as error:
            raise UnknownName(f"{owner} cannot be rebuilt here: {error}", subject=file) from error
        except UsageError as error:
            raise IntegrityError(f"{owner} cannot be rebuilt: {error}", subject=file) from error
    network = _assembled(description, modules)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    payload = Payload(Edge(digest(data), len(data)), actual, len(state), parameters)
    manifest = Manifest(
        kind=description.kind,
        blueprint=description.blueprint,
        payload=payload,
        contract=description.contract,
    )
    module = network if description.kind == "recombination" else modules[0]
    verify_contract(manifest, module, thorough=False, owner=str(file))
    return network


def _assembled(description: Description, modules: list[nn.Module]) -> Exported:
    extractor = modules[0] if description.parts[0].blueprint.side == "extractor" else None
    head = modules[-1] if description.parts[-1].blueprint.side == "head" else None
    adapters = [
        module
        for part, module in zip(description.parts, modules, strict=True)
        if part.blueprint.side == "adapter"
    ]
    network = Exported(
        extractor, head, contract=description.contract, adapters=adapters, bn_policy=description.policy
    )
    network.description, network.about = description, description.about
    return network.eval()
