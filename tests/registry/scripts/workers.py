"""Read components in the workers of a data loader; prints the first weight of each version, as JSON.

Run by test_concurrency with a folder and a way to start processes.
"""

from __future__ import annotations

import json
import sys

from torch.utils.data import DataLoader, Dataset

from compatkit.registry.store import Store


class Versions(Dataset[int]):
    """The versions of a component, each by its first weight."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.store = Store.open(root)
        self.references = [f"a@{version}" for version in self.store.versions("a")]

    def __len__(self) -> int:
        return len(self.references)

    def __getitem__(self, index: int) -> int:
        return int(self.store.load_state(self.store.manifest(self.references[index]))["weight"][0])

    def __getstate__(self) -> dict[str, str]:
        return {"root": self.root}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__init__(state["root"])


if __name__ == "__main__":
    loader = DataLoader(
        Versions(sys.argv[1]), num_workers=2, multiprocessing_context=sys.argv[2], batch_size=None
    )
    print(json.dumps([int(entry) for entry in loader]))
