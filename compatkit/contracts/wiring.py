"""The structural level of a check: can what leaves one component enter the other, and with which adapters?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compatkit.contracts.adaptation import on_port
from compatkit.contracts.contract import Blueprint, Data, Port
from compatkit.contracts.ports import AtSize, Sides, at_size
from compatkit.contracts.verdict import Codes, Finding
from compatkit.contracts.walk import SAME_TENSORS, Difference, Walk
from compatkit.errors import IncompatibleError


class Inputs(NamedTuple):
    """All that wiring depends on of a head.

    Attributes:
        names: Of its inputs.
        taken: What they take, at the size of the images that the head was trained on.
    """

    names: tuple[str, ...]
    taken: tuple[AtSize, ...]


def inputs_of(ports: Sequence[Port], data: Data) -> Inputs:
    """Return the inputs of a head that was trained on such images."""
    return Inputs(tuple([port.name for port in ports]), tuple([at_size(port, data.size) for port in ports]))


def wiring_findings(
    outputs: Sequence[Port], inputs: Sequence[Port], data: Data, head_data: Data
) -> Iterator[Finding]:
    """Yield what keeps the extractor's outputs from entering the head as they are.

    One output and one input are wired whatever their names; several are matched by name, in order.

    Args:
        outputs: Of the extractor.
        inputs: Of the head.
        data: Images of the extractor: the sizes at its outputs follow from their size.
        head_data: Images that the head was trained on.
    """
    asked = inputs_of(inputs, head_data)
    for place, difference in _differences(outputs, asked, data.size):
        yield difference.finding(_whose(outputs, asked, place))


def wiring_codes(outputs: Sequence[Port], inputs: Inputs, size: Sides) -> Codes:
    """Return code and severity of what ``wiring_findings`` yields, each once, in less time.

    Args:
        outputs: Of the extractor.
        inputs: Of the head.
        size: Of the extractor's images.
    """
    return tuple(dict.fromkeys([one[:2] for _, one in _differences(outputs, inputs, size)]))


def adapters_for(
    outputs: Sequence[Port], inputs: Sequence[Port], data: Data, head_data: Data, *, fitted: bool = False
) -> tuple[Blueprint, ...]:
    """Return the adapters that make the outputs enter the head, in order; none where they do already.

    Each is the remedy of one adaptable finding of ``wiring_findings``, which takes the same arguments.

    Args:
        outputs: Of the extractor.
        inputs: Of the head.
        data: Images of the extractor.
        head_data: Images that the head was trained on.
        fitted: Put a projection in also where the widths are equal.

    Raises:
        IncompatibleError: No adapters make the ports fit.
    """
    asked = inputs_of(inputs, head_data)
    found = _differences(outputs, asked, data.size, fitted)
    refused = [
        str(one.finding(_whose(outputs, asked, place))) for place, one in found if one.severity == "refuses"
    ]
    if refused:
        raise IncompatibleError("No adapter makes these parts fit:\n" + "\n".join(refused))
    return tuple(
        on_port(one.adapter, place, len(outputs)) if len(outputs) > 1 else one.adapter
        for place, one in found
        if one.adapter is not None
    )


def _differences(
    outputs: Sequence[Port], inputs: Inputs, size: Sides, fitted: bool = False
) -> list[tuple[int, Difference]]:
    """Return what differs, each with the place of its port; -1 for what differs between all ports."""
    if len(outputs) == len(inputs.taken) == 1:
        return [(0, one) for one in Walk(outputs[0], inputs.taken[0], size, fitted).differences()]
    given, asked = tuple(port.name for port in outputs), inputs.names
    if given != asked:
        expected, came = (f"{len(names)} tensors ({', '.join(names)})" for names in (asked, given))
        return [(-1, Difference("ports-differ", "refuses", expected, came, SAME_TENSORS))]
    return [
        (place, one)
        for place, (output, taken) in enumerate(zip(outputs, inputs.taken, strict=True))
        for one in Walk(output, taken, size, fitted).differences()
    ]


def _whose(outputs: Sequence[Port], inputs: Inputs, place: int) -> str:
    if place < 0:
        return "head inputs expect, extractor outputs give"
    return f"head input {inputs.names[place]!r} expects, extractor output {outputs[place].name!r} gives"
