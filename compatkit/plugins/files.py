"""Plugins in single Python files that the user names.

A file is named by ``add_file``, ``--plugin`` or the environment variable ``COMPATKIT_PLUGIN_FILES``, which processes
inherit; never by another file. Its package name is its stem, its version a digest of its content. It is imported once
per process, when plugins are first looked up.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from types import CodeType, ModuleType

from packaging.utils import canonicalize_name

from compatkit.errors import PluginError
from compatkit.foundation.addresses import local
from compatkit.hooks import PROJECT, Registration
from compatkit.plugins.implementations import implementations
from compatkit.plugins.isolation import Owner, PluginWarning, described, restored_state
from compatkit.plugins.loading import KINDS, check_api, load, note, own_keys, registered

FILES = "COMPATKIT_PLUGIN_FILES"
DIGITS = 16
"""Hexadecimal digits of the digest that is a file's version."""

_LOCK = threading.RLock()
_IMPORTED: dict[Path, FileDistribution | None] = {}
"""Imported files by path; None during the import of a file, which may look up plugins itself."""


class FileDistribution(Distribution):
    """The plugins of one file as a distribution, called ``mynet.py``."""

    def __init__(self, path: Path, content: bytes, keys: Iterable[str] = ()) -> None:
        self.path = path
        metadata = f"Name: {path.name}\nVersion: sha256-{hashlib.sha256(content).hexdigest()[:DIGITS]}\n"
        lines = "".join(f"{key} = {path.stem}\n" for key in keys)
        self._texts = {"METADATA": metadata, "entry_points.txt": f"[{PROJECT}]\n{lines}"}

    def read_text(self, filename: str) -> str | None:
        """Return the text of a metadata file."""
        return self._texts.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        """Return a path relative to the file's folder."""
        return self.path.parent / path


class _Content(SourceFileLoader):
    """Runs the digested bytes; reads and writes no bytecode."""

    def __init__(self, name: str, path: Path, content: bytes) -> None:
        super().__init__(name, str(path))
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._content, self.path)


def distributions() -> list[FileDistribution]:
    """Import the named files that are not imported yet, and return what they register.

    Raises:
        PluginError: A file cannot be used.
    """
    if not os.environ.get(FILES):
        return []
    imported: list[FileDistribution] = []
    with _LOCK:
        for path in _checked(_files_of_environment()):
            if path not in _IMPORTED:
                _IMPORTED[path] = None
                try:
                    _IMPORTED[path] = _import(path)
                except BaseException:
                    del _IMPORTED[path]
                    raise
            if (file := _IMPORTED[path]) is not None:
                imported.append(file)
    return imported


@contextmanager
def offered(files: Sequence[str | os.PathLike[str]]) -> Iterator[None]:
    """Offer the plugins of further files inside the context, and in processes that it starts.

    Nothing is imported before a plugin is looked up.

    Args:
        files: Paths of Python files.

    Raises:
        PluginError: A file is missing or not a Python file, or two have the same stem.
    """
    before = os.environ.get(FILES, "")
    _name(files)
    try:
        yield
    finally:
        os.environ[FILES] = before


def add_file(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Import a Python file and offer its plugins in this process and those that it starts.

    Args:
        path: A file with registration hooks, such as ``compatkit_builders``, and ``compatkit_api = 1``.

    Returns:
        Keys of its plugins, such as ``("builders.mynet",)``.

    Raises:
        PluginError: It cannot be used, or changed since it was imported.
    """
    before, path = os.environ.get(FILES, ""), _absolute(path)
    _name([path])
    try:
        file = next(file for file in distributions() if file.path == path)
    except BaseException:
        os.environ[FILES] = before
        raise
    if file.version != FileDistribution(path, path.read_bytes()).version:
        raise _error(path, "it has changed since this process imported it. Restart Python.")
    return tuple(point.name for point in file.entry_points)


def _name(files: Sequence[str | os.PathLike[str]]) -> None:
    paths = _checked([*_files_of_environment(), *(_absolute(file) for file in files)])
    for path in paths:
        if os.pathsep in str(path):
            raise _error(path, f"{FILES} separates files by {os.pathsep!r}. Rename the path.")
    os.environ[FILES] = os.pathsep.join(map(str, paths))


def _absolute(file: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(Path(local(file, "a plugin file")).expanduser()))


def _files_of_environment() -> list[Path]:
    return [Path(text) for text in os.environ.get(FILES, "").split(os.pathsep) if text]


def _checked(files: Sequence[Path]) -> list[Path]:
    """Return absolute paths without duplicates, after checks that need no import."""
    paths = dict.fromkeys(map(_absolute, files))
    stems: dict[str, Path] = {}
    for path in paths:
        if path.suffix != ".py":
            raise _error(path, "expected a Python file, named *.py.")
        if not path.is_file():
            fault = "is a folder" if path.is_dir() else "does not exist"
            raise _error(path, f"it {fault}. Name a Python file with --plugin or in {FILES}.")
        if not (path.stem.isascii() and path.stem.isidentifier()):
            raise _error(
                path, "its stem is no module name (letters, digits, '_'; no digit first). Rename it."
            )
        twin = stems.setdefault(canonicalize_name(path.stem), path)
        if twin != path:
            raise _error(path, f"{twin} has the same stem. Rename one.")
    return list(paths)


def _import(path: Path) -> FileDistribution:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _error(path, f"it cannot be read ({error.strerror or error}).") from error
    _refuse_hiding(path)
    known = sys.modules.get(path.stem)  # set if the program imported the file itself
    try:
        module = known or _run(path, content)
        file = FileDistribution(path, content, _keys(module, path))
        for point in file.entry_points:
            load(point)  # raise now the errors that a run would raise
    except BaseException:
        if known is None:
            sys.modules.pop(path.stem, None)
        raise
    shadowed = [point.name for point in file.entry_points if point.name in own_keys()]
    if shadowed:
        name = shadowed[0].partition(".")[2]
        message = (
            f"{path} registers {', '.join(shadowed)}, which compatkit has itself: {name!r} means compatkit's own, "
            f"'{canonicalize_name(path.stem)}:{name}' this one."
        )
        warnings.warn(message, PluginWarning, stacklevel=2)
    return file


def _run(path: Path, content: bytes) -> ModuleType:
    """Import a file; restore global state that it changes, with a warning."""
    loader = _Content(path.stem, path, content)
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
    module = importlib.util.module_from_spec(spec)  # pyright: ignore[reportArgumentType]
    sys.modules[path.stem] = module
    try:
        with restored_state() as changed:
            loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _error(
            path, f"importing it failed: {described(error)}. Other files of its folder are not importable."
        ) from error
    if changed:
        message = note(changed, Owner(str(path)), "importing it", "It should not do this at import.")
        warnings.warn(message, PluginWarning, stacklevel=2)
    return module


def _keys(module: ModuleType, path: Path) -> list[str]:
    """Return the keys that a module registers, such as ``builders.mynet``."""
    owner = Owner(str(path))
    check_api(getattr(module, "compatkit_api", None), owner)
    hooks = implementations(module, Registration, owner)
    keys = [f"{kind}.{name}" for kind in KINDS for name in registered(module, hooks, owner, kind)]
    if not keys:
        raise owner.error(f"{hooks[0].hook} registers nothing. Call register(name, factory).")
    return keys


def _refuse_hiding(path: Path) -> None:
    """Raise if the stem is the name of another module or distribution."""
    try:
        spec = importlib.util.find_spec(path.stem)
    except (ImportError, ValueError):  # ValueError: such as __main__, in use and found by no spec
        raise _error(path, f"a loaded module is called {path.stem}. Rename the file.") from None
    origin = spec.origin if spec else None
    if origin is not None and not (os.path.exists(origin) and path.samefile(origin)):
        raise _error(path, f"{path.stem} is the name of the module {origin}. Rename the file.")
    try:
        version = distribution(path.stem).version
    except PackageNotFoundError:
        return
    raise _error(path, f"{path.stem} is the name of an installed distribution ({version}). Rename the file.")


def _error(file: str | Path, message: str) -> PluginError:
    return Owner(str(file)).error(message)
