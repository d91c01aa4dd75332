"""The comparison of predictors maps configs, scores choices and reads the tables as it says."""

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def path():
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def table(*rows):
    """A table of (config, microseconds)."""
    from product_tables import TILES, ProductTable, TileConfig, TimedConfig

    timed = [TimedConfig(TileConfig(*knobs), us * 1e-6, None, {}) for knobs, us in rows]
    return ProductTable(TILES, 4096, 4096, 4096, tuple(timed), True)


@pytest.mark.parametrize(
    ("other", "apart"),
    [
        ((128, 256, 64, 8, 3), 0.0),
        ((64, 256, 64, 8, 3), 4.0),
        ((128, 64, 64, 8, 3), 8.0),
        ((128, 256, 128, 8, 3), 2.0),
        ((128, 256, 64, 4, 3), 1.0),
        ((128, 256, 64, 8, 5), 1.0),
        ((256, 128, 32, 16, 2), 4 + 4 + 2 + 1 + 0.5),
    ],
)
def test_a_distance_is_the_weighted_sum_of_octaves_and_stages(other, apart):
    from product_tables import TileConfig, distance

    one, two = TileConfig(128, 256, 64, 8, 3), TileConfig(*other)
    assert distance(one, two) == distance(two, one) == apart


def test_a_config_is_mapped_to_the_nearest_row_and_of_equal_ones_to_the_faster():
    from product_tables import TileConfig

    some = table(
        ((128, 256, 64, 8, 2), 30.0),
        ((128, 256, 64, 8, 4), 20.0),
        ((64, 256, 64, 8, 3), 10.0),
    )
    assert some.nearest(TileConfig(128, 256, 64, 8, 3)) == 1  # both are half a weight away
    assert some.nearest(TileConfig(128, 256, 64, 8, 1)) == 0
    assert some.nearest(TileConfig(40, 256, 64, 8, 3)) == 2  # a tile that no table has


def test_a_choice_is_held_against_the_fastest_row():
    import predictors

    some = table(
        ((128, 256, 64, 8, 2), 30.0),
        ((128, 256, 64, 8, 4), 20.0),
        ((64, 256, 64, 8, 3), 10.0),
        ((64, 64, 64, 4, 3), 40.0),
    )
    assert predictors.regrets(some) == pytest.approx([2.0, 1.0, 0.0, 3.0])
    result = predictors.score(some, [0, 3, 1], 0.5, 0.0)
    assert (result.first, result.best_of_five) == pytest.approx((2.0, 1.0))
    assert (result.tile_first, result.tile_best_of_five) == pytest.approx((1.0, 1.0))
    sixth = predictors.score(some, [3, 3, 3, 3, 3, 2], None, 0.0)
    assert sixth.best_of_five == pytest.approx(3.0)
    named = predictors.line("a name", [result, result])
    assert named[:5] == ["a name", 2, "200.0", 0, "200"]
    assert named[7] == "100.0 / 100.0" and named[9:11] == [None, None]


def test_times_of_all_rows_give_the_order_and_its_correlation():
    import predictors

    some = table(((16, 16, 32, 1, 2), 3.0), ((32, 32, 32, 1, 2), 1.0), ((64, 64, 32, 4, 2), 2.0))
    result = predictors.answer(predictors.Predictor(times=lambda _: [1.0, 1.0, 2.0]), some)
    assert result.first == pytest.approx(2.0)  # equal times stay in the order of the rows
    assert result.best_of_five == 0.0 and result.rank == 0.0  # ranks 1.5, 1.5, 3 and 3, 1, 2
    assert predictors.answer(predictors.Predictor(lambda _: []), some) is None


def test_the_tables_are_those_of_the_page():
    from plain_product import code_key, stored_code, timed_rows
    from product_tables import PLAIN, TILES, tables

    by_kernel = {
        kernel: [one for one in tables() if one.kernel == kernel] for kernel in (TILES, PLAIN)
    }
    assert [len(one.rows) for one in by_kernel[TILES]] == [715] * 12
    assert [len(one.rows) for one in by_kernel[PLAIN]] == [304] * 5
    assert sum(one.is_fitted for one in tables()) == 8
    assert {code_key(row) for row in timed_rows()} == set(stored_code()["configs"])


def test_formulas_choose_large_tiles_for_a_large_product():
    from baseline_predictors import Origami, TritonModel

    some = table(
        ((128, 256, 64, 8, 3), 1.0),
        ((128, 256, 64, 8, 4), 1.0),
        ((32, 32, 32, 4, 3), 1.0),
    )
    assert Origami(8, 3).configs(some)[0].tile == (128, 256)
    assert [one.tile for one in Origami(8, 6).configs(some)] == [(32, 32)]  # 288 KiB do not fit
    model = TritonModel()
    large, _, small = model.times(some)
    assert large < small
    assert model.configs(some)[0].tile == (128, 256)
    deep = table(*(((128, 256, 64, 8, stages), 1.0) for stages in (1, 2, 3, 4)))
    assert [one.num_stages for one in model.configs(deep)] == [1, 2]  # products hide each load


def test_the_warps_of_a_tile_are_those_of_its_parts():
    from baseline_predictors import warp_tile, warps_of
    from product_tables import TileConfig

    assert warps_of((256, 128), (64, 64)) == 8 and warps_of((40, 24), (16, 16)) == 2
    assert warp_tile(TileConfig(128, 128, 64, 4, 3)) == (64, 64)
    assert warp_tile(TileConfig(16, 32, 64, 8, 3)) == (16, 8)  # no part of an instruction


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, tmp_path, capsys):
    import predictors

    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)
    out = tmp_path / "scores.json"
    words = ["predictors.py", "--only", "estimates", "median", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    predictors.main()
    said = capsys.readouterr().out
    assert "nvMatmulHeuristics (pip install nvidia-matmul-heuristics)" in said
    assert list(json.loads(out.read_text())["scores"]) == ["median config"]
    assert "204.4" in said
