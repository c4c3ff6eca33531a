"""Examples on the pages of methods and metrics: in Python, as a recipe, as a command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

IMPORT = "import compatkit as ck\n\n"
LONG_LINE = 88
"""Characters from which a line is divided."""
ONE = 'ck.Task("{name}", ck.data.load("{name}"), "{model}", "{cut}", size=16{more})'


def python_use(use: str | Mapping[str, Any]) -> str:
    """Return a regularizer as Python gives it."""
    if isinstance(use, str):
        return json.dumps(use)
    settings = "".join(f", {key}={_python(value)}" for key, value in use.items() if key != "name")
    return f'ck.use("{use["name"]}"{settings})'


def _python(value: Any) -> str:
    return json.dumps(value).replace("true", "True").replace("false", "False")


def toml_use(use: str | Mapping[str, Any]) -> str:
    """Return a regularizer as a recipe gives it."""
    if isinstance(use, str):
        return json.dumps(use)
    return f"{{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in use.items())} }}"


def task(name: str = "digits", model: str = "resnet8_cifar", cut: str = "layer2", more: str = "") -> str:
    """Return a task in Python."""
    return ONE.format(name=name, model=model, cut=cut, more=more)


def method_example(entry: Mapping[str, Any]) -> str:
    """Return the example of a method in Python."""
    if "python" in entry:
        return entry["python"].strip()
    uses = f"[{', '.join(map(python_use, entry['use']))}]"
    setup, frozen = METHOD_SETUPS[entry["setup"]], _keywords(entry.get("frozen", {}))
    *before, last = setup.format(uses=uses, frozen=frozen).splitlines()
    if len(last) > LONG_LINE:
        before, last = [*before, f"uses = {uses}"], setup.splitlines()[-1].format(uses="uses")
    return IMPORT + "\n".join([*before, last])


def _keywords(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_python(value)}" for key, value in values.items())


VAE_TASK = 'ck.Task("sprites", ck.data.load("sprites"), "vae_conv", "decoder", size=32{more})'
METHOD_SETUPS = {
    "one": f"task = {task()}\nfit = ck.Trainer(steps=300).fit([task], {{uses}})",
    "chain": f"task = {task(model='simple_cnn', cut='blocks.1')}\nfit = ck.Trainer(steps=300).fit([task], {{uses}})",
    "two": (
        'sets = [ck.data.load(name) for name in ("digits", "typeset-digits")]\n'
        'tasks = [ck.Task(data.name, data, "resnet8_cifar", "layer2", size=16) for data in sets]\n'
        "fit = ck.Trainer(steps=300).fit(tasks, {uses})"
    ),
    "color": (
        'task = ck.Task("objects", ck.data.load("cifar10"), "resnet8_cifar", "layer2")\n'
        "fit = ck.Trainer(steps=300).fit([task], {uses})"
    ),
    "start": (
        f"source = {task()}\n"
        "start = ck.Trainer(steps=300).fit([source])\n"
        'weights, data = start.weights("digits"), ck.data.load("typeset-digits")\n'
        'task = ck.Task("new", data, "resnet8_cifar", "layer2", size=16, weights=weights)\n'
        "fit = ck.Trainer(steps=100, weight_decay=0.0).fit([task], {uses})"
    ),
    "chain_start": (
        f"source = {task(model='simple_cnn', cut='blocks.1')}\n"
        "start = ck.Trainer(steps=300).fit([source])\n"
        'weights, data = start.weights("digits"), ck.data.load("typeset-digits")\n'
        'task = ck.Task("new", data, "simple_cnn", "blocks.1", size=16, weights=weights)\n'
        "fit = ck.Trainer(steps=100).fit([task], {uses})"
    ),
    "released": (
        'registry, data = ck.Registry("parts"), ck.data.load("usps")\n'
        "frozen = registry.frozen({frozen})\n"
        'task = registry.task("usps", data, extractor="digits/mnist.extractor@^1")\n'
        "fit = ck.Trainer(steps=300).fit([task], {uses}, frozen=frozen)"
    ),
    "vae": (
        f"task = {VAE_TASK.format(more='')}\n"
        "fit = ck.Trainer(steps=800, lr=0.001, weight_decay=0.0).fit([task], {uses})"
    ),
    "vae_start": (
        f"source = {VAE_TASK.format(more='')}\n"
        'start = ck.Trainer(steps=800, lr=0.001).fit([source], ["beta_vae"])\n'
        'weights, data = start.weights("sprites"), ck.data.load("solids")\n'
        'task = ck.Task("solids", data, "vae_conv", "decoder", size=32, weights=weights)\n'
        "fit = ck.Trainer(steps=800, lr=0.001).fit([task], {uses})"
    ),
    "generator": (
        'task = ck.Task("smoke", ck.data.load("smoke"), "super_resolution", "generator", size=64)\n'
        "fit = ck.Trainer(steps=300, batch_size=8).fit([task], {uses})"
    ),
    "info_gan": (
        'digits = ck.data.load("mnist").resized((16, 16))\n'
        'task = ck.Task("digits", digits, "info_gan", "generator", size=16)\n'
        "fit = ck.Trainer(steps=300).fit([task], {uses})"
    ),
    "forecast": (
        'flows, fields = ck.data.load("flow-forecasts"), {{"inputs": 9, "outputs": 3, "channels": 24, "blocks": 4}}\n'
        'task = ck.Task("flow", flows, "forecast_resnet", "last", size=flows.train.size, kwargs=fields)\n'
        "fit = ck.Trainer(steps=150, batch_size=16).fit([task], {uses})"
    ),
}
"""Examples of methods in Python by setup, with places for the methods and for frozen parts."""


def method_recipe(entry: Mapping[str, Any]) -> str:
    """Return what a recipe has for a method."""
    if "recipe" in entry:
        return entry["recipe"].strip()
    lines = [f"regularizers = [{', '.join(map(toml_use, entry['use']))}]"]
    if "frozen" in entry:
        lines += [
            "",
            "[frozen]",
            *(f"{key} = {json.dumps(value)}" for key, value in entry["frozen"].items()),
        ]
    return "\n".join(lines)


def _loaded(model: str, cut: str) -> str:
    return f'data = ck.data.load("digits")\ntask = ck.Task("digits", data, "{model}", "{cut}", size=16)\n'


TRAINED = "fit = ck.Trainer(steps=300).fit([task])\n"
AGAIN = f"{TRAINED}again = ck.Trainer(steps=300, seed=1).fit([task])\n"
START = f"{TRAINED}again = ck.Trainer(steps=0).fit([task])  # the same network before its first step\n"
RESNET, CHAIN = _loaded("resnet8_cifar", "layer2"), _loaded("simple_cnn", "blocks.1")
METRIC_SETUPS = {
    "network": RESNET + TRAINED,
    "weights": RESNET + TRAINED,
    "chain": CHAIN + TRAINED,
    "pair": RESNET + AGAIN,
    "start": RESNET + START,
    "chain_pair": CHAIN + START,
    "vae": (
        'data = ck.data.load("sprites")\n'
        'task = ck.Task("sprites", data, "vae_conv", "decoder", size=32)\n'
        'fit = ck.Trainer(steps=800, lr=0.001).fit([task], ["beta_vae"])\n'
    ),
}
"""Examples of metrics by setup: how the network came about."""


def metric_example(name: str, entry: Mapping[str, Any]) -> str:
    """Return the example of a metric in Python."""
    if "python" in entry:
        return entry["python"].strip()
    setup = entry["setup"]
    settings = entry.get("settings", {})
    metric = f'ck.metrics.make_metric("{name}", {_keywords(settings)})' if settings else json.dumps(name)
    network = "sprites" if setup == "vae" else "digits"
    more = f", layers={json.dumps(entry['layers'])}" if entry["layers"] else ""
    if setup in ("pair", "chain_pair", "start"):
        more += f', other=again.tasks["{network}"]'
    data = "None" if setup == "weights" else "data.test"
    return (
        f"{IMPORT}{METRIC_SETUPS[setup]}"
        f'found = ck.measure(fit.tasks["{network}"], {data}, [{metric}]{more})\nprint({entry["print"]})'
    )


def metric_command(name: str, entry: Mapping[str, Any]) -> str:
    """Return the example of a metric on the command line."""
    if "command" in entry:
        return entry["command"].strip()
    parts = [f"compatkit metric digits/mnist.extractor digits/mnist.head {name}"]
    parts += [f"--layer {_quoted(layer)}" for layer in entry["layers"]]
    parts += [
        f"--set {name}.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in entry.get("settings", {}).items()
    ]
    if entry["setup"] in ("pair", "chain_pair", "start"):
        parts.append("--against digits/usps.extractor digits/usps.head")
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) < 105:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    return " \\\n".join(lines)


def _quoted(glob: str) -> str:
    return f"'{glob}'" if "*" in glob else glob
