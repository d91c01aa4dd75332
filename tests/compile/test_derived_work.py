"""Work derived from the code of the library's kernels, beside what they declare."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

pytestmark = [pytest.mark.compile, pytest.mark.newest]


def held(works):
    import derived_work

    different = {w.title for w in works if not w.not_modelled and not w.agrees}
    assert different <= set(derived_work.REASONS), "declared or derived work is wrong"


def test_some_kernels_declare_what_their_code_does():
    import derived_work

    works = list(derived_work.works(["swiglu"]))
    held(works)
    assert {w.title: w.agrees for w in works if not w.not_modelled} == {"swiglu.blocks": True}


@pytest.mark.nightly
def test_every_kernel_declares_what_its_code_does_or_a_reason_is_named():
    import derived_work

    works = list(derived_work.works())
    held(works)
    known = {w.title for w in works}
    assert set(derived_work.REASONS) <= known and len(works) > 60
    assert sum(not w.not_modelled for w in works) >= 45
    assert "causal_attention.tiles" in {w.title for w in works if w.agrees}
