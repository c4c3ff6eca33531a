"""Rebuild an exported network from its file alone, and check it against its contract."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from compatkit.components.exports.document import Description, description_of
from compatkit.components.loading import rebuilt
from compatkit.components.verification import hold_against
from compatkit.contracts.arguments import named
from compatkit.contracts.codec import digest
from compatkit.contracts.manifest import About, Edge, Manifest, Payload
from compatkit.errors import FormatError, IntegrityError, UnknownName, UsageError
from compatkit.evaluation.assembly import Assembly
from compatkit.registry.weights.header import check_header, read_whole
from compatkit.registry.weights.tensorfile import deserialise, tensor_digest


class Exported(Assembly):
    """A network from one file: call it as what was exported, or let it ``predict`` the classes of images.

    Attributes:
        description: All that the file says of it.
        about: Title, description, tags, licence and source.
    """

    description: Description
    about: About

    def extra_repr(self) -> str:
        """Say what it is."""
        return f"{self.description.kind}, normalisation={self.normalisation!r}"


@named
def load_exported(path: str | os.PathLike[str]) -> Exported:
    """Return the network of an exported file, in eval mode; needs no registry.

    Nothing in the file is executed: its blueprints name registered builders, its header and its JSON are read strictly,
    and the network must give what its contract states for a fixed input.

    Args:
        path: Of a file that ``Registry.export`` or ``compatkit export`` wrote.

    Returns:
        A module that takes what the exported component takes: normalised images ``(batch, channels, height, width)``
        for a recombination or an extractor, features for a head or an adapter.

    Raises:
        FormatError: It is no such file, truncated, or its description is not strict.
        IntegrityError: The tensors or the network that they make are not what the description states.
        UnknownName: A blueprint's builder or model is not known here.
        EnvironmentFailure: The file is missing or cannot be read.
    """
    place = Path(path)
    data = read_whole(place)
    header = check_header(data)
    try:
        description = description_of(header)
    except FormatError as error:
        raise FormatError(f"{place}: {error}", subject=place) from None
    actual = tensor_digest(data, header)
    if actual != description.tensors:
        raise IntegrityError(
            f"{place}: the description is of the tensors {description.tensors}, the file holds {actual}. Its tensors "
            "were changed after it was written; export it anew.",
            subject=place,
        )
    state = deserialise(data)
    modules: list[nn.Module] = []
    for part in description.parts:
        whose = f"{place}: the {part.blueprint.side} {part.blueprint.model}"
        own = {name: state[part.prefix + name] for name in part.names}
        try:
            modules.append(rebuilt(part.blueprint, own, whose, share=True))
        except UnknownName as error:
            raise UnknownName(f"{whose} cannot be rebuilt here: {error}", subject=place) from error
        except UsageError as error:
            raise IntegrityError(f"{whose} cannot be rebuilt: {error}", subject=place) from error
    made = _assembled(description, modules)
    parameters = sum(one.numel() for one in made.parameters())
    payload = Payload(Edge(digest(data), len(data)), actual, len(header.tensors), parameters)
    manifest = Manifest(
        kind=description.kind,
        blueprint=description.blueprint,
        payload=payload,
        contract=description.contract,
    )
    module = made if description.kind == "recombination" else modules[0]
    hold_against(manifest, module, thorough=False, whose=str(place))
    return made


def _assembled(description: Description, modules: list[nn.Module]) -> Exported:
    extractor = modules[0] if description.parts[0].blueprint.side == "extractor" else None
    head = modules[-1] if description.parts[-1].blueprint.side == "head" else None
    between = [
        one for part, one in zip(description.parts, modules, strict=True) if part.blueprint.side == "adapter"
    ]
    made = Exported(
        extractor,
        head,
        contract=description.contract,
        adapters=between,
        normalisation=description.policy,
    )
    made.description, made.about = description, description.about
    return made.eval()
