"""The kernels that exist for experiments, those of examples included: every file fits the format,
and every Impl is right at the sizes to check, in its dtypes by turns, at its default config and the
last one of its space."""

from functools import cache

import pytest
from kernel_cases import H200, applicable, dtypes_of, first_applicable
from nightly import at_night

from workbench import catalog
from workbench.measurement.correctness import PreparedProblem, check
from workbench.spec import values

EXAMPLES = {path.stem: str(path) for path in sorted(catalog.EXAMPLES.glob("*/kernels/*.py"))}
VARIANTS = [*catalog.names_in(catalog.VARIANTS), *EXAMPLES]


@cache
def spec_of(name):
    return catalog.spec_of(EXAMPLES.get(name, name))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_file_fits_the_format(name):
    assert spec_of(name).name == name
    assert name not in catalog.kernel_names(), "which of the two would be meant?"


@pytest.mark.parametrize("name", at_night(VARIANTS, lambda name: VARIANTS.index(name) % 2 == 0))
def test_every_impl_is_right(name):
    spec = spec_of(name)
    for impl in spec.impls:
        if impl.backend != "triton":
            continue
        seen, dtypes = 0, dtypes_of(impl, H200)
        for i in range(max(len(dtypes), len(spec.check))):  # each size and each dtype, in turn
            dtype, sizes = dtypes[i % len(dtypes)], spec.check[i % len(spec.check)]
            for config in configs(impl, sizes, dtype):
                result = check(impl, config, PreparedProblem.make(spec, sizes, dtype, "cpu"))
                where = f"{impl.title} {values(config)} at {dict(sizes)} in {dtype}"
                assert result.wrong is None, f"{where}: {result.wrong}"
                seen += 1
        assert seen, f"{impl.title} takes none of the sizes to check"


def configs(impl, sizes, dtype):
    """The default and the last of the space, of those that run at these sizes."""
    default = impl.default(H200, dtype, sizes)
    every = [default] if not applicable(impl, default, sizes, dtype, H200) else []
    if not every and (first := first_applicable(impl, sizes, dtype, H200)) is not None:
        every = [first]
    last = [c for c in impl.space(default) if not applicable(impl, c, sizes, dtype, H200)][-1:]
    return list(dict.fromkeys(every + last))
