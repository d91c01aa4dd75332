"""The page of a sweep of each kernel, from many, few, one and no outcomes.

By day every fourth kernel has one page from many or from few outcomes, by turns, and every eighth
one from one outcome or from none.
"""

import random
import re

import pytest
from markupsafe import escape
from nightly import nightly
from synthetic import of_kernel

from workbench import catalog
from workbench.data.selection import ranking, select
from workbench.device.hardware import DEVICES
from workbench.reports.selection_sentence import headline
from workbench.reports.sweep import page
from workbench.spec import Impl, label, values

H200 = DEVICES["h200"]
AUTO = re.compile(r"auto warps|xauto|_\w+ auto")
MANY, FEW = 9, 3  # configs of each Impl; the ninth failed


def legal(impl: Impl) -> list:
    """Some configs that the kernel takes at its first size to time, the default first."""
    spec, limits = impl.spec, H200.limits
    sizes, dtype = spec.bench[0], next(iter(spec.tolerance))
    default = impl.default(limits, dtype, sizes)
    every = list(impl.space(default))
    random.Random(impl.title).shuffle(every)
    others = (c for c in every if c != default)
    fit = (c for c in others if impl.rejection_reason(c, limits, dtype, sizes) is None)
    return [default, *(c for c, _ in zip(fit, range(MANY - 1), strict=False))]


def ours(name: str) -> list[Impl]:
    return [i for i in catalog.spec_of(name).impls if i.backend == "triton"]


def in_turn(*kinds, of: int = 1):
    """Every kernel with its place and each kind; by day every so many kernels one kind, the first
    for two of them, then the second for two, so that each kind has kernels that are measured and
    kernels that are predicted."""
    return [
        pytest.param(turn, name, kind, marks=() if turn % of == 0 and today else nightly)
        for turn, name in enumerate(catalog.kernel_names())
        for number, kind in enumerate(kinds)
        for today in [turn // of // 2 % len(kinds) == number]
    ]


@pytest.mark.parametrize("turn, name, kind", in_turn("many", "few", of=8))
def test_every_kernel_has_a_page(turn: int, name: str, kind: str) -> None:
    """Of many outcomes of all Impls and of few of the last, one of the two measured and one
    predicted, by turns."""
    some = [(impl, legal(impl)) for impl in ours(name)]
    if kind == "few":
        some = [(impl, configs[:FEW]) for impl, configs in some[-1:]]
    run, outcomes = of_kernel(some, predicted=turn // 4 % 2 == ("many", "few").index(kind))
    html = page(run, outcomes)
    assert escape(headline(select(run, outcomes))) in html
    assert len(re.findall(r'<tr id="?r\d+', html)) == len(ranking(outcomes))
    assert not AUTO.search(html), "what depends on the sizes is resolved"


@pytest.mark.parametrize("turn, name, count", in_turn(1, 0, of=8))
def test_a_page_of_one_outcome_and_of_none(turn: int, name: str, count: int) -> None:
    impl = ours(name)[0]
    configs = legal(impl)[:count]
    html = page(*of_kernel([(impl, configs)], predicted=turn // 8 % 2 == count))
    if configs:
        assert f"{label(values(configs[0]))}: the default" in html
    else:
        assert "No outcome was recorded, so there is no result." in html
