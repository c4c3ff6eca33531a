"""Write a new package of plugins: a regularizer and a metric with tests, pages and continuous integration."""

from __future__ import annotations

import keyword
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from packaging.version import Version

from compatkit.errors import EnvironmentFailure, UsageError

PACKAGE = re.compile(r"[a-z]([a-z0-9]|-(?=[a-z0-9])){0,62}")
PLUGIN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    ".github/workflows/test.yml": "test.yml",
    "src/{module}/__init__.py": "init.py",
    "src/{module}/py.typed": "",
    "src/{module}/{regularizer}.py": "regularizer.py",
    "src/{module}/{metric}.py": "metric.py",
    "tests/test_{regularizer}.py": "test_regularizer.py",
    "tests/test_{metric}.py": "test_metric.py",
    "docs/{regularizer}.md": "regularizer.md",
    "docs/{metric}.md": "metric.md",
}
"""Template of each file; an empty name is an empty file."""


def new_package(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    regularizer: str = "feature_norm",
    metric: str = "confidence",
) -> list[Path]:
    """Write a package that passes its own tests once it is installed, and return its files.

    Args:
        name: Name of the distribution, such as ``lab-methods``; the module is ``lab_methods``.
        folder: Folder to write, which must not exist; None takes the name, in the current folder.
        regularizer: Name of the regularizer, also that of its module.
        metric: Name of the metric, also that of its module.

    Raises:
        UsageError: A name is not allowed, both plugins have one name, or the folder exists.
        EnvironmentFailure: The folder cannot be written.
    """
    module = name.replace("-", "_")
    if not PACKAGE.fullmatch(name) or not _free(module):
        raise UsageError(
            f"{name!r:.80} cannot be the name of a package: use lowercase letters, digits and single hyphens, "
            "such as lab-methods; not the name of a module of Python or compatkit.",
            subject=name,
        )
    for kind, plugin in (("regularizer", regularizer), ("metric", metric)):
        if not PLUGIN.fullmatch(plugin) or keyword.iskeyword(plugin):
            raise UsageError(
                f"{plugin!r:.80} cannot be the name of a {kind}: use lowercase letters, digits and underscores, "
                "such as feature_norm.",
                subject=plugin,
            )
    if regularizer == metric:
        raise UsageError(
            f"The regularizer and the metric are both called {metric!r}; each has a module of its own.",
            subject=metric,
        )
    target = Path(name if folder is None else folder)
    if os.path.lexists(target):
        raise UsageError(f"{target} exists; name another folder, or remove it.", subject=str(target))
    texts = _texts({"name": name, "module": module, "regularizer": regularizer, "metric": metric})
    try:
        _write(target, texts)
    except OSError as error:
        raise EnvironmentFailure(
            f"could not write {target}: {error.strerror or error}; nothing was left behind.", subject=target
        ) from error
    return [target / file for file in texts]


def _free(module: str) -> bool:
    return (
        module not in sys.stdlib_module_names
        and not module.startswith("compatkit")
        and not keyword.iskeyword(module)
    )


def _texts(names: dict[str, str]) -> dict[str, str]:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from compatkit import __version__

    environment = Environment(
        loader=PackageLoader("compatkit.plugins", "package"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # names are checked, and the files are no markup
    )
    values = {**names, "version": Version(__version__).base_version}
    for kind in ("regularizer", "metric"):
        words = names[kind].split("_")
        values[f"{kind}_class"] = "".join(word.capitalize() for word in words)
        values[f"{kind}_title"] = " ".join(words).capitalize()
    return {
        file.format_map(names): environment.get_template(f"{template}.j2").render(values) if template else ""
        for file, template in FILES.items()
    }


def _write(target: Path, texts: dict[str, str]) -> None:
    """Write all files beside the target and rename the folder, so that no half package is left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        package = Path(folder) / "package"
        for file, text in texts.items():
            path = package / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        shutil.copymode(target.parent, package)
        package.rename(target)
