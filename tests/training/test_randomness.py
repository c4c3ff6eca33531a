"""Randomness is a function of (seed, task, stream, step) and of nothing else."""

from __future__ import annotations

import torch

from compatkit.training.randomness import Stream, generator, preserved, seed_of
from compatkit.training.resident import Order, augment


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
    assert [Stream(0).at(step) for step in range(3)] == [one >> 1 for one in published]
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


def test_every_epoch_shows_each_image_once_in_a_new_order() -> None:
    order = Order(count=12, batch_size=4, seed=3, task="a")
    first = torch.cat([order.at(step) for step in range(3)])
    second = torch.cat([order.at(step) for step in range(3, 6)])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(12))
    assert first.tolist() != second.tolist()


def test_the_order_at_a_step_does_not_depend_on_how_one_got_there() -> None:
    walked = Order(count=10, batch_size=3, seed=0, task="a")
    steps = [walked.at(step).tolist() for step in range(9)]
    for step in (8, 2, 5):
        assert Order(count=10, batch_size=3, seed=0, task="a").at(step).tolist() == steps[step]


def test_augmentation_equals_a_slow_pixel_loop() -> None:
    images = torch.randint(0, 256, (5, 2, 8, 8), generator=generator(0, "images"), dtype=torch.uint8)
    got = augment(images, ("crop", "flip"), seed=14, padding=2)
    draw = torch.Generator().manual_seed(14)
    shift = torch.randint(-2, 3, (2, 5), generator=draw)
    mirrored = torch.rand(5, generator=draw) < 0.5
    for index in range(5):
        for row in range(8):
            for column in range(8):
                source_row = row + int(shift[0, index])
                place = 7 - column if mirrored[index] else column
                source_column = place + int(shift[1, index])
                inside = 0 <= source_row < 8 and 0 <= source_column < 8
                expected = images[index, :, source_row, source_column] if inside else torch.zeros(2)
                assert torch.equal(got[index, :, row, column], expected.to(torch.uint8)), (index, row, column)


def test_no_augmentation_returns_the_images_as_they_are() -> None:
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    assert augment(images, (), seed=0) is images
