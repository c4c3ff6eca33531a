"""MLflow's registry in SQLite with many versions: the first written by its API, the others copied as rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import registry_rivals as rivals
from contest import Contestant, say

PAGE = 1000
"""Largest page of MLflow's search for names."""
Check = Callable[[Any], object]


@attrs.frozen(eq=False)
class MlflowRegistry:
    """MLflow registry with many versions.

    Attributes:
        client: ``MlflowClient`` of the registry.
        wanted: Name to look up, from the middle.
    """

    client: Any
    wanted: str

    @classmethod
    def with_versions(cls, folder: Path, versions: int, each: int, colors: int) -> MlflowRegistry | None:
        """Fill a new database; return None if MLflow is not installed.

        Args:
            folder: Folder to create.
            versions: Number of versions of all names.
            each: Number of versions of a name.
            colors: Number of values of the searched tag.
        """
        mlflow = rivals.with_mlflow(folder)
        if mlflow is None:
            return None
        say("filling MLflow's database")
        client = mlflow.MlflowClient()
        names = [
            f"zone{number % 40}/net{number}.head".replace("/", "-") for number in range(versions // each)
        ]
        client.create_registered_model(names[0])
        for version in range(each):
            tags = {"color": str(version % colors), "serial": str(version)}
            client.create_model_version(names[0], source=(folder / "artifacts").as_uri(), tags=tags)
        _copy(folder / "mlflow.db", names, each, colors)
        return cls(client, names[len(names) // 2])

    def get(self) -> dict[str, Contestant]:
        """Return the contestant that looks up one version."""
        return {
            "MLflow get_model_version": Contestant(
                lambda: self.client.get_model_version(self.wanted, "3"), calls=20
            )
        }

    def search(self, rows: int, check: Check) -> dict[str, Contestant]:
        """Return the contestant that searches for a tag."""
        query = "tags.color = '7'"
        work = lambda: len(self.client.search_model_versions(query, max_results=rows))  # noqa: E731
        return {"MLflow search_model_versions": Contestant(work, check=check)}

    def names(self, check: Check) -> dict[str, Contestant]:
        """Return the contestant that lists all names, page by page."""

        def work() -> int:
            page, count = None, 0
            while True:
                rows = self.client.search_registered_models(max_results=PAGE, page_token=page)
                count, page = count + len(rows), rows.token
                if not page:
                    return count

        return {"MLflow search_registered_models": Contestant(work, check=check)}


def _copy(path: Path, names: list[str], each: int, colors: int) -> None:
    """Copy the rows of the first name for all other names, with new names, numbers and tags."""
    connection = sqlite3.connect(path)
    model = _rows(connection, "registered_models")[0]
    versions, tags = _rows(connection, "model_versions"), _rows(connection, "model_version_tags")
    by_version = {row["version"]: row for row in versions}
    for table in ("registered_models", "model_versions", "model_version_tags"):
        rows: list[dict[str, Any]] = []
        for serial, name in enumerate(names[1:], 1):
            if table == "registered_models":
                rows.append(model | {"name": name})
            for version in range(each) if table != "registered_models" else ():
                number = serial * each + version
                if table == "model_versions":
                    rows.append(by_version[version + 1] | {"name": name})
                else:
                    key = {"name": name, "version": version + 1}
                    rows.append(tags[0] | key | {"key": "color", "value": str(number % colors)})
                    rows.append(tags[0] | key | {"key": "serial", "value": str(number)})
        placeholders = ", ".join("?" * len(rows[0]))
        columns = ", ".join(rows[0])
        connection.executemany(
            f"INSERT INTO {table} ({columns}) VALUES ({placeholders})", [tuple(row.values()) for row in rows]
        )
    connection.commit()
    connection.execute("ANALYZE")
    connection.close()


def _rows(connection: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    cursor = connection.execute(f"SELECT * FROM {table}")
    keys = [column[0] for column in cursor.description]
    return [dict(zip(keys, row, strict=True)) for row in cursor]
