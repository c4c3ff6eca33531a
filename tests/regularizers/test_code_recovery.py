"""Code recovery: the loss by hand, only chosen codes count, the real trainer, refusals; the study at a tiny size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.errors import CompatkitError, UsageError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers.code_recovery import CodeRecovery
from compatkit_plugins.regularizers.reverse_pass.full import reconstruct

KWARGS = {"categories": 4, "uniform": 1, "noise": 3, "channels": [4, 3]}
GROUPS = [[0, 4, 2.0], [4, 5, 1.0]]


def task(**settings: Any) -> ck.Task:
    inputs = {"size": 8, "kwargs": KWARGS, **settings}
    return ck.Task(
        "a",
        data_set("a", size=(8, 8)),
        inputs.pop("model", "info_gan"),
        inputs.pop("cut", "generator"),
        **inputs,
    )


class Checks(CodeRecovery):
    """Compares its loss with the reverse pass written out, batch statistics included."""

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Any:
        result = CodeRecovery.compatkit_losses(self, step)
        generator: Any = step.task.extractor.get_submodule("generator")
        (codes,) = step.layers["codes"]
        with torch.no_grad():
            back = step.features
            for layer, before in (
                (generator.body.layer2, generator.body.layer1),
                (generator.body.layer1, None),
            ):
                back = torch.nn.functional.conv2d(
                    back - layer.linear.bias.view(1, -1, 1, 1), layer.linear.weight, None, 2, 1
                )
                if before is not None:
                    mean, var = (
                        back.mean((0, 2, 3), keepdim=True),
                        back.var((0, 2, 3), unbiased=False, keepdim=True),
                    )
                    back = (back - mean) / (var + before.norm.eps).sqrt()
                    back = back * before.norm.weight.view(1, -1, 1, 1) + before.norm.bias.view(1, -1, 1, 1)
                back = back.relu()
            back = (back.flatten(1) - generator.dense.linear.bias) @ generator.dense.linear.weight
            apart = (back - codes.output).square()
            wanted = 2 * apart[:, :4].sum(1).mean() + apart[:, 4].mean()
        torch.testing.assert_close(result["loss"].detach(), wanted, rtol=1e-4, atol=1e-6)
        return result


def test_the_loss_is_that_by_hand_in_the_real_trainer() -> None:
    quick(steps=3).fit([task()], [ck.use("checks", groups=GROUPS)], factories={"checks": Checks})


def test_chosen_codes_are_recovered_and_others_are_not() -> None:
    fit = quick(steps=300, lr=5e-3, batch_size=16).fit([task()], [ck.use("code_recovery", groups=GROUPS)])
    generator: Any = fit.tasks["a"].extractor.get_submodule("generator")
    torch.manual_seed(1)
    codes = fit.tasks["a"].extractor.get_submodule("codes").train()(torch.zeros(400, 1))
    back = reconstruct(generator, codes).detach()
    same = [float(torch.corrcoef(torch.stack([back[:, at], codes[:, at]]))[0, 1]) for at in range(8)]
    assert float((back[:, :4].argmax(1) == codes[:, :4].argmax(1)).float().mean()) > 0.9
    assert same[4] > 0.8


def test_weight_0_of_a_group_leaves_it_out() -> None:
    both = quick(steps=3).fit([task()], [ck.use("code_recovery", groups=[[0, 4, 1.0], [4, 5, 0.0]])])
    assert same_parts(both, quick(steps=3).fit([task()], [ck.use("code_recovery", groups=[[0, 4, 1.0]])]))


def test_it_conforms() -> None:
    assert_regularizer(lambda: CodeRecovery(groups=GROUPS), tasks=[task()])


@pytest.mark.parametrize(
    "settings",
    [
        {"groups": []},
        {"groups": [[3, 3, 1]]},
        {"groups": [[0, 1]]},
        {"groups": [[0.5, 3, 1]]},
        {"groups": 3},
        {"bn_reverse": "none"},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CodeRecovery(**settings)


@pytest.mark.parametrize(
    ("make", "groups"),
    [(lambda: task(model="super_resolution", kwargs={}), GROUPS), (lambda: task(), [[0, 9, 1.0]])],
)
def test_other_networks_are_refused(make: Any, groups: Any) -> None:
    with pytest.raises(CompatkitError) as caught:
        quick(steps=1).fit([make()], [ck.use("code_recovery", groups=groups)])
    assert (caught.value.__cause__ or caught.value).subject == "a"  # type: ignore[attr-defined]


def test_figures_of_codes_by_hand() -> None:
    from compatkit_studies.digit_codes import assigned, drawn, explained, varied

    category = torch.arange(20) % 10
    assert assigned(9 - category, category) == 1
    assert assigned(torch.zeros(20, dtype=torch.int64), category) == pytest.approx(0.1)
    images = category.float()[:, None, None, None].expand(20, 1, 2, 2)
    assert explained(images, category) == pytest.approx(1)
    codes = drawn(30, 0)
    assert codes[:, :10].argmax(1).tolist() == list(range(10)) * 3
    rows = varied(0)
    assert torch.equal(rows["c1"][:10, 10:], rows["c1"][:1, 10:].expand(10, 64))
    assert rows["c2"][:10, 10].tolist() == pytest.approx(torch.linspace(-2, 2, 10).tolist())


@pytest.mark.slow
def test_the_study_measures_and_draws(tmp_path: Path) -> None:
    from small import write_pack

    from compatkit.experiments.studies import run as carry_out

    write_pack(tmp_path, data_set("mnist", classes=tuple("0123456789"), size=(28, 28), count=80))
    changes = {"steps": 2, "batch_size": 8, "train": 0, "judge_steps": 2}
    result = carry_out("0.5", tmp_path / "out", seeds=1, data=str(tmp_path), changes=changes)
    assert all((tmp_path / "out" / name).stat().st_size > 0 for name in result["files"])
