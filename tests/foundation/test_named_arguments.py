"""Every argument that an error message names is one that a public call, a command or a recipe takes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

import compatkit as ck
from compatkit import errors
from compatkit.cli import program

PACKAGE = Path(ck.__file__).parent
NAMED = re.compile(r"(?<![\w.\-/:%&?{\"'\[=])([a-z][a-z_0-9]+)=(?!=)")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)")
OTHERS = {
    "num_classes": "keyword argument of networks",
    "in_chans": "keyword argument of networks",
    "img_size": "keyword argument of networks",
    "safe_serialization": "of timm's save_for_hf",
    "use_reentrant": "of torch.utils.checkpoint",
    "endpoint_url": "option of s3fs",
}
"""Arguments of other libraries that messages name."""
OTHER_OPTIONS = {"concatenate": "of tar", "nproc-per-node": "of torchrun"}


def texts_of(node: ast.AST) -> Iterator[str]:
    """Yield the text of each string below a node; what is formatted into it is a gap."""
    for child in ast.walk(node):
        if isinstance(child, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in child.values)
            yield "".join(map(str, parts))
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value


def messages() -> Iterator[tuple[str, str]]:
    """Yield where each message is raised and its text."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            made = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and hasattr(errors, node.func.id)
            )
            if made or isinstance(node, ast.Raise):
                for text in texts_of(node):
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text


def parameters(registry: ck.Registry) -> set[str]:
    """Return the names of all arguments of what is public, and of what the properties of a registry give."""
    views = [name for name, member in inspect.getmembers(ck.Registry) if isinstance(member, property)]
    owners = [getattr(ck, name) for name in ck.__all__] + [type(getattr(registry, name)) for name in views]
    names: set[str] = set()
    for owner in owners:
        for member in (
            owner,
            *(value for name, value in inspect.getmembers(owner) if not name.startswith("_")),
        ):
            try:
                names |= inspect.signature(member).parameters.keys()
            except (TypeError, ValueError):  # no call, or one of C code
                continue
    return names


def options() -> set[str]:
    """Return the long options of all commands."""
    context = click.Context(program)
    commands: list[click.Command] = [program]
    names: set[str] = set()
    for command in commands:
        names |= {
            text.removeprefix("--")
            for parameter in command.params
            for text in (*parameter.opts, *parameter.secondary_opts)
        }
        if isinstance(command, click.Group):
            result = (command.get_command(context, name) for name in command.list_commands(context))
            commands += [subcommand for subcommand in result if subcommand is not None]
    return names


def test_arguments_in_messages_exist(tmp_path: Path) -> None:
    known = parameters(ck.Registry(tmp_path / "parts", create=True)) | OTHERS.keys()
    unknown = {
        f"{place}: {name}=" for place, text in messages() for name in NAMED.findall(text) if name not in known
    }
    assert not unknown


def test_options_in_messages_exist() -> None:
    known = options() | OTHER_OPTIONS.keys() | {"help"}
    unknown = {
        f"{place}: --{name}"
        for place, text in messages()
        for name in OPTION.findall(text)
        if name not in known
    }
    assert not unknown


def test_a_message_is_read_with_its_arguments() -> None:
    """The scan sees f-strings, and neither attributes nor comparisons."""
    (raised,) = ast.parse("raise ValueError(f'give bn_policy={x!r}, not a.b=1 or c==2; see --data')").body
    (text, *_) = texts_of(raised)
    assert NAMED.findall(text) == ["bn_policy"] and OPTION.findall(text) == ["data"]
