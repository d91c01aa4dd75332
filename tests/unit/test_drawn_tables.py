"""What kernels declare and rules say of drawn arguments is what it was when it was read."""

import difflib

import drawn_tables
import pytest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", drawn_tables.stored())
def test_a_table_is_as_it_was_read(name: str) -> None:
    before, after = drawn_tables.golden(name), list(drawn_tables.TABLES[name]())
    changes = list(difflib.unified_diff(before, after, "golden", "now", lineterm="", n=1))
    assert not changes, "\n".join(changes[:30])
