"""Rows of the floor about publishing, loading and verifying."""

from __future__ import annotations

from floor.row import Row

ROWS = (
    Row(
        "publish-large",
        "publish of 94 MB, durable and hashed",
        "save_file, sha256 of the map beside fsync, link, sync of the folder",
        "x",
        1.3,
        "registry_floor:publish_large",
        7,
        "Of 150 ms the file's digest takes 67, with the tensors' digest and the writing beside it on another core. The "
        "sync takes 50 after it, as a known file is not synced. The rival syncs beside its digest.",
    ),
    Row(
        "publish-small",
        "publish of 1 MB, durable and read back, in a registry in use",
        "save, hash, fsync and link weights, manifest and version",
        "ms",
        2,
        "registry_floor:publish_small",
        15,
        "Nearly all is the processor's, see below. Folders that are synced in threads, and the second digest in one, "
        "made it 6.1 ms on a quiet disk.",
    ),
    Row(
        "publish-small-processor",
        "the same, processor time",
        "the same",
        "ms",
        2,
        "registry_floor:publish_small_processor",
        15,
        "Beyond the rival, a second digest, of the tensors, takes 0.7 ms, a search for values that are not finite 0.5, "
        "a fourth file, the record of the publication, 0.6, the strict manifest and its edges 0.7; looking for links "
        "among the folders, for copies in the trash, and paths take the rest, about 0.3 for each of four files.",
    ),
    Row(
        "verify",
        "`verify` of 5,000 versions, processor time",
        "one read of all files",
        "x",
        3,
        "registry_floor:verify",
        5,
        "Of 80 us for a version (one read: 20), 21 read the manifest strictly, 8 of them its title and tags, which are "
        "decoded and encoded again; 13 list and classify files; 11 read and check the version file; 9 read and hash "
        "the manifest's; 10 compare with the version below; 12 record who uses which file; 4 compare modes and sizes.",
    ),
    Row(
        "load-large",
        "first load of 94 MB, hashed and probed, processor time",
        "sha256, timm on meta, load, touch",
        "x",
        1.3,
        "loading_floor:large",
        7,
        "Of 182 ms of processor (rival: 140) the hash takes 74, as the rival's, the build within bounds 19 "
        "(rival: 43), the probe 60, of which the pass is 35 without its bounds, or 62 in NHWC. Without the probe "
        "it would be .87. A pass on meta would show shapes only; the contract promises values, by which "
        "exchanged weights are noticed.",
    ),
    *(
        Row(
            f"load-large-later{'' if initialized else '-strict'}",
            "later load of 94 MB in a registry that is opened anew, processor time",
            f"timm on meta{'' if initialized else ' without its initialization'}, load, touch",
            "x",
            goal,
            "loading_floor:large_later",
            arguments={"initialized": initialized},
        )
        for initialized, goal in ((True, 1.0), (False, 1.25))
    ),
    Row(
        "load-small-again",
        "later load of a small part in one process, in a registry that is opened anew, processor time",
        "the whole network built as usual, load, assign, touch",
        "x",
        1.35,
        "loading_floor:small_again",
    ),
    *(
        Row(
            f"load-small-{'later' if known else 'first'}",
            f"first load of a small part in a new process, {'proved before' if known else 'hashed and probed'}, "
            "processor time after imports of torch and timm",
            "sha256, build on meta, load, touch, in a new process",
            "x",
            2,
            "loading_floor:small",
            5,
            "Of 66 ms of a later load (rival: 26), imports take 17 to 20, two traces by torch.fx and their cut 20, "
            "building 7, finding the builder 5 (15 before), assigning weights 3. A first load adds 20: the probe takes "
            "17, of which 9 are the pass in a new process without its bounds.",
            arguments={"known": known},
        )
        for known in (False, True)
    ),
)
