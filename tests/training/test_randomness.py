"""Randomness is a function of (seed, task, stream, step) and of nothing else."""

from __future__ import annotations

import attrs
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.hooks import effect
from compatkit.training.randomness import Stream, preserved, seed_of


def test_streams_differ_by_every_part_of_their_key() -> None:
    seeds = [
        seed_of(0, "order", "a", 0),
        seed_of(1, "order", "a", 0),
        seed_of(0, "order", "a", 1),
        seed_of(0, "order", "b", 0),
        seed_of(0, "ordera", "", 0),
        seed_of(0, "a", "order", 0),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_is_the_same_in_every_process_and_version() -> None:
    # sha256("1:05:order1:31:7")[:8] >> 1, worked out with the standard library alone.
    import hashlib

    text = b"1:05:order1:31:7"
    assert seed_of(0, "order", 3, "7") == int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def test_a_stream_is_splitmix64() -> None:
    """The published generator's first numbers from seed 0, and that it can be entered at any step."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [Stream(0).at(step) for step in range(3)] == [number >> 1 for number in published]
    assert Stream(2**64 - 1).at(10**6) < 2**63


def test_streams_of_different_keys_and_their_steps_differ() -> None:
    streams = [Stream.of(0, "network", "a"), Stream.of(1, "network", "a"), Stream.of(0, "network", "b")]
    seeds = [stream.at(step) for stream in streams for step in range(1000)]
    assert len(set(seeds)) == 3000


def test_preserved_gives_back_the_global_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with preserved():
        torch.manual_seed(99)
        torch.rand(7)
    assert torch.equal(torch.rand(3), expected)


def test_a_pure_view_that_draws_from_torchs_own_generator_is_refused() -> None:
    """Nobody seeds it for a pure view, so that a resumed run would see other views."""

    class Noise:
        @ck.hookimpl
        @effect("pure")
        def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
            return attrs.evolve(batch, images=batch.images + torch.randn_like(batch.images))

    class Proper:
        @ck.hookimpl
        @effect("pure")
        def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
            noise = torch.randn(batch.images.shape, generator=step.rng("proper"))
            return attrs.evolve(batch, images=batch.images + noise)

    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=(16, 16))
    with pytest.raises(
        PluginError, match=r"'noise': compatkit_views is declared @effect\('pure'\) but draws"
    ):
        quick(steps=1).fit([task], ["noise"], factories={"noise": Noise})
    quick(steps=2).fit([task], ["proper"], factories={"proper": Proper})
