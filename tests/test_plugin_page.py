"""Pages of plugins and their reference are all that an author needs: what hooks get, and examples that work."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import attrs
import pytest
import torch
from bridged import between, climb, part
from distributions import Install, install
from small import data_set, quick

import compatkit as ck
from compatkit.components.bridges.ladder import chosen_rungs
from compatkit.components.bridges.rungs import RungInputs
from compatkit.evaluation.metrics import KNOWN, OBSERVED
from compatkit.training.testing import assert_builder, assert_metric, assert_regularizer

__all__ = ["install"]

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {page.stem: page.read_text() for page in sorted((DOCS / "how_to" / "plugins").glob("*.md"))}
PAGE = "\n".join(PAGES.values())
REFERENCE = (DOCS / "reference" / "api" / "plugins.md").read_text()
GIVEN = (
    ck.SetUp,
    ck.RunInfo,
    ck.Step,
    ck.Evaluation,
    ck.JointStep,
    ck.Batch,
    ck.TaskState,
    ck.AuxiliaryHead,
    ck.AveragedNetwork,
    ck.Pretraining,
    ck.LayerCall,
)


def undocumented(kind: type) -> list[str]:
    """What an object of a class offers without a docstring: attributes that its own has no entry for, methods."""
    entries = re.findall(r"^    (\w+): ", inspect.getdoc(kind) or "", re.MULTILINE)
    return [
        name
        for name in (shown.partition("(")[0] for shown in public(kind))
        if name not in entries and not inspect.getdoc(vars(kind).get(name))
    ]


def names(text: str) -> list[str]:
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def public(kind: type) -> list[str]:
    """What an object of a class offers: its fields and properties, and its methods as they are called."""
    fields = attrs.fields(kind) if attrs.has(kind) else ()
    offered = {field.name: field.name for field in fields} | {
        name: name for name in getattr(kind, "_fields", ())
    }
    for name, member in vars(kind).items():
        if inspect.isfunction(member):
            result = inspect.signature(member)
            plain = [
                parameter.replace(annotation=parameter.empty)
                for parameter in list(result.parameters.values())[1:]
            ]
            offered[name] = name + str(inspect.Signature(plain)).replace("'", '"')
        elif isinstance(member, property):
            offered[name] = name
    return sorted(shown for name, shown in offered.items() if not name.startswith("_"))


@pytest.mark.parametrize("kind", GIVEN, ids=lambda kind: kind.__name__)
def test_everything_that_hooks_are_given_is_in_the_reference(kind: type) -> None:
    assert f"::: compatkit.{kind.__name__}\n" in REFERENCE
    assert undocumented(kind) == []


def test_what_the_reference_calls_internal_is_there() -> None:
    (text,) = re.findall(r"Internal to the trainer: (.+?)\.\n", REFERENCE, re.DOTALL)
    for internal, kind in re.findall(r"(.+?) of `(\w+)`(?:, |$)", " ".join(text.split())):
        assert set(re.findall(r"`(\w+)`", internal)) <= {
            shown.partition("(")[0] for shown in public(getattr(ck, kind))
        }


@pytest.mark.parametrize("name", ["SetUp", "Step", "JointStep", "TaskState", "Pretraining", "Evaluation"])
def test_classes_have_what_the_protocols_of_hooks_say(name: str) -> None:
    kind, protocol = getattr(ck, name), getattr(ck.hooks, f"{name.removesuffix('State')}Like")
    members = {item for item in (*vars(protocol), *protocol.__annotations__) if not item.startswith("_")}
    assert members <= {*dir(kind), *attrs.fields_dict(kind)}
    for member in members:
        stated, method = vars(protocol).get(member), vars(kind).get(member)
        if inspect.isfunction(stated) and inspect.isfunction(method):
            mine, theirs = (inspect.signature(each).parameters.values() for each in (stated, method))
            assert [(item.name, item.kind, item.default) for item in mine] == [
                (item.name, item.kind, item.default) for item in theirs
            ]


def test_something_new_would_be_missed() -> None:
    @attrs.define
    class More(ck.Batch):
        extra: int = 0

        def flipped(self, side: int = -1, *, copy: bool) -> None: ...

    assert set(undocumented(More)) >= {"extra", "flipped"}


def test_what_metrics_may_name_is_documented() -> None:
    assert names(PAGES["metrics"]) == [*OBSERVED, *KNOWN]


def module(name: str) -> ModuleType:
    """The module of an example, which begins with the path that it says it is saved under."""
    pattern = rf"^( *)```python\n( *# my_package/{name}\.py\n.*?)^ *```$"
    ((_, text),) = re.findall(pattern, PAGE, re.MULTILINE | re.DOTALL)
    made = ModuleType(f"my_package_{name}")
    exec(compile(dedent(text), name, "exec"), made.__dict__)
    return made


def offered(name: str, kind: str) -> Callable[..., Any]:
    """The factory that an example registers."""
    result: dict[str, Callable[..., Any]] = {}
    getattr(module(name), f"compatkit_{kind}")(result.__setitem__)
    (factory,) = result.values()
    return factory


TASKS = [
    ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
    for seed, name in enumerate(("left", "right"))
]


@pytest.mark.parametrize("name", ["feature_norm", "decoder"])
def test_the_regularizers_conform_and_their_losses_fall(name: str) -> None:
    factory = offered(name, "regularizers")
    assert_regularizer(factory)
    fit = quick(steps=30, log_every=5).fit(TASKS, [name], factories={name: factory})
    (losses,) = [fit.history[entry] for entry in fit.history.names if entry.startswith(f"left/{name}/")]
    assert losses[-1] < 0.7 * losses[0]


def test_the_decoder_is_trained_and_refuses_features_of_other_widths() -> None:
    factories = {"decoder": offered("decoder", "regularizers")}
    owners = {
        owner["owner"]: owner
        for owner in quick(steps=1).explain(TASKS, ["decoder"], factories=factories).owners
    }
    assert owners["plugin.decoder.layer"]["moved_by"] == "plugin.decoder.layer (adam)"
    other = ck.Task("other", data_set("other"), "resnet8_cifar", "layer1", size=(16, 16))
    with pytest.raises(ck.errors.PluginError, match="features of one width") as caught:
        quick(steps=1).fit([TASKS[0], other], ["decoder"], factories=factories)
    assert caught.value.subject == "decoder"


def test_the_metric_conforms_and_measures() -> None:
    factory = offered("confidence", "metrics")
    assert_metric(factory)
    fit = quick(steps=1).fit(TASKS)
    (measured,) = ck.measure(fit.tasks["left"], TASKS[0].data, [factory()]).values()
    assert isinstance(measured, ck.metrics.Result) and measured.value is not None
    assert 1 / 3 <= measured.value <= 1 and measured.count == 48


def test_the_builder_conforms() -> None:
    for model in ("small", "wide"):
        assert_builder(offered("networks", "builders"), model, num_classes=5)


def test_what_a_rung_is_given_is_in_the_reference() -> None:
    assert re.search(
        r"^::: compatkit\.components\.bridges\.rungs\n.*RungInputs", REFERENCE, re.MULTILINE | re.DOTALL
    )
    assert undocumented(RungInputs) == []
    assert set(re.findall(r"`inputs\.(\w+)", PAGES["rungs"])) <= {
        shown.partition("(")[0] for shown in public(RungInputs)
    }


def test_the_rung_undoes_a_change_of_scale_and_takes_its_place_on_the_ladder(install: Install) -> None:
    text = re.search(r"^```python\n(# rescaled\.py\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert text is not None
    install("my-package", {"rungs.rescaled": "my_rescaled"}, {"my_rescaled": text[1]})
    own = part("own", torch.eye(4))
    made = between(part("left", torch.diag(torch.tensor([3.0, 0.5, 2.0, 7.0]))), own)
    rungs = chosen_rungs(["rescaled", "direct", "ridge"], False)
    assert rungs == ["direct", "ridge", "rescaled"]
    direct, _, step = climb(made).climb(rungs, None, None)
    assert step.agreement is not None and step.agreement.accuracy == 1
    assert step.explained == pytest.approx(1, abs=1e-4) and step.images == direct.images + len(made.pairs)
    assert step.built.fitted is not None and step.built.fitted.training["method"] == "rescaled"
    (wider,) = climb(between(part("left", torch.ones(7, 4)), own)).climb(["rescaled"], None, None)
    assert wider.note == "Channels are rescaled one by one; got 7, and the head takes 4."


READING = """
from compatkit import hookimpl
from compatkit.components.bridges.rungs import RungFit


@hookimpl
def compatkit_rungs(register):
    register("{name}", rung)


def rung(inputs):
    {body}
"""


@pytest.mark.parametrize(
    ("body", "taught", "images"),
    [("inputs.logits(); inputs.features(); return RungFit()", True, 30), ("return RungFit()", False, 30)],
)
def test_a_rung_is_judged_by_what_it_reads(install: Install, body: str, taught: bool, images: int) -> None:
    install("other", {"rungs.reading": "reading"}, {"reading": READING.format(name="reading", body=body)})
    ladder = climb(between(part("left", torch.eye(4)), part("own", torch.eye(4))))
    (step,) = ladder.climb(["reading"], None, None)
    assert (step.taught, step.images) == (taught, images)


@pytest.mark.parametrize("body", ["return 5", "raise ValueError('broken')", "inputs.labeled()"])
def test_errors_of_a_rung_name_its_package(install: Install, body: str) -> None:
    install("other", {"rungs.wrong": "wrong_rung"}, {"wrong_rung": READING.format(name="wrong", body=body)})
    ladder = climb(between(part("left", torch.eye(4)), part("own", torch.eye(4))))
    with pytest.raises(ck.errors.PluginError, match=r"'rungs.wrong' of other .*: it"):
        ladder.climb(["wrong"], None, None)


def test_classes_are_matched_as_the_page_does() -> None:
    (text,) = re.findall(
        r"^```python\n(import compatkit as ck\nimport torch\n\n\ndef outputs.*?)^```$",
        PAGE,
        re.MULTILINE | re.DOTALL,
    )
    space: dict[str, Any] = {"ck": ck, "torch": torch}
    exec(text, space)
    state = type("State", (), {"labels": [ck.label(name) for name in ("cat", "car", "dog")]})
    head = type("Head", (), {"labels": [ck.label(name) for name in ("dog", "automobile")]})
    assert space["outputs"](state, head).tolist() == [-1, 1, 0]


def test_the_logger_has_the_figures_of_a_run(tmp_path: Path, install: Install) -> None:
    text = re.search(r"^```python\n(# my_package/lines_logger\.py\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert text is not None
    install("my-package", {"loggers.lines": "my_lines_logger"}, {"my_lines_logger": text[1]})
    fit = quick(steps=4, log_every=2, run_name="mine", loggers={"lines": tmp_path}).fit(TASKS, ["dcc"])
    first, *rows = map(json.loads, (tmp_path / "lines.jsonl").read_text().splitlines())
    assert first == {"run": "mine", "from": 0, "tasks": 2}
    assert [row["step"] for row in rows] == [2, 4]
    assert [row["left/losses/dcc/loss"] for row in rows] == list(fit.history["left/dcc/loss"])
