"""Libraries that are slow to import: in processes of their own, and never waited for by a final."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import synthetic
from null_backend import Null
from nullside import Place

from workbench.backend import library_processes
from workbench.backend.library_processes import NOT_READY, LibraryProcesses
from workbench.backend.workers import Workers
from workbench.data.record import Failure, Record
from workbench.data.selection import select
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.reports.sweep import page

pytestmark = pytest.mark.unit


def impl(name, *imports):
    return SimpleNamespace(name=name, imports=imports)


def test_each_library_is_in_one_share_and_those_that_import_the_same_are_together():
    impls = [impl("torch"), impl("a", "x"), impl("b", "y"), impl("c", "x"), impl("d", "z")]
    for of in (1, 2, 3, 5):
        shares = [worker.share_of(impls, share, of) for share in range(of)]
        assert sorted(name for names in shares for name in names) == ["a", "b", "c", "d"]
        assert any({"a", "c"} <= set(share) for share in shares)


class FakeSolo:
    """A process that is ready after some seconds, and times everything at once."""

    def __init__(self):
        self.begun, self.ready_s = [], 0.0

    def begin(self, task, *args):
        self.begun.append(task.__name__)

    def is_ready(self, within_s):
        return self.ready_s <= max(0.0, within_s)

    def ask(self, task, candidates, estimates, timeout_s):
        if timeout_s < 1:
            raise TimeoutError("took longer than 1 s")
        times = [synthetic.measured((2 + i) * 1e-5) for i in range(len(candidates))]
        return [Timed(t, 0.0, "gpu") for t in times], None


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(library_processes, "Solo", FakeSolo)
    return LibraryProcesses("k")


def candidates():
    spec = SimpleNamespace(impls=[impl("rows"), impl("compiled", "x"), impl("liger", "y")])
    created = []
    for one in spec.impls:
        one.spec = spec
        created.append(replace(Candidate.create(one.name, {}), impl=one, key=one.name))
    return created


def test_a_library_that_is_not_ready_is_named_and_the_others_are_timed(processes):
    winner, *libraries = candidates()
    one, other = processes._solos
    other.ready_s = 60.0
    began = time.monotonic()
    (timed, winner_s), (late, none) = processes.final("job", winner, libraries, 5.0)
    assert time.monotonic() - began < 2
    assert isinstance(timed, Timed) and winner_s == pytest.approx(2e-5, rel=0.01)
    assert isinstance(late, Refusal) and late.reason == NOT_READY and none is None
    assert one.begun[-1] == "begin" != other.begun[-1]


def test_no_time_left_is_no_time_taken(processes):
    winner, *libraries = candidates()
    for result, winner_s in processes.final("job", winner, libraries, 0.0):
        assert isinstance(result, Refusal) and winner_s is None


def test_a_process_is_asked_whether_it_is_ready_and_goes_on():
    with Workers(1) as pool:
        pool.everywhere(time.sleep, 0.6)
        (solo,) = pool._idle
        assert not solo.is_ready(0.05)
        assert solo.is_ready(60) and solo.is_ready(0.0)
        solo.begin(divmod, 1, 0)  # its error is dropped
        assert solo.is_ready(60)
        assert solo.ask(divmod, 7, 2, timeout_s=60) == (3, 1)


def test_the_ratio_to_a_late_library_is_that_of_its_own_rounds():
    run, outcomes = synthetic.matmul()
    winner = select(run, outcomes).winner
    library = next(o for o in outcomes if isinstance(o, Record) and o.case.is_baseline)
    own = [o for o in outcomes if not o.case.is_baseline]
    late = replace(library, timing=synthetic.measured(3e-4), winner_s=2e-4)
    (baseline,) = select(run, [*own, late]).baselines
    assert baseline.ratio == pytest.approx(1.5, rel=0.01) and baseline.record is late
    assert winner.time_s != pytest.approx(2e-4)


def test_a_sweep_names_the_library_that_has_no_time(tmp_path, monkeypatch, capsys):
    """In its sentence, in a note, and as a failure of its run; and it has its winner."""

    def libraries(self, winner, libraries, limit_s):
        return [(Refusal("measure", NOT_READY), None) for _ in libraries]

    monkeypatch.setattr("workbench.spec.Impl.imports", property(lambda impl: impl.name == "torch"))
    monkeypatch.setattr(Null, "libraries", libraries)
    outcomes = Place(tmp_path).sweep()
    (failure,) = [o for o in outcomes if isinstance(o, Failure) and o.case.is_baseline]
    assert failure.reason == NOT_READY
    assert any(isinstance(o, Record) and o.phase == "final" for o in outcomes)
    text = capsys.readouterr()
    printed = " ".join((text.out + text.err).split())
    assert f"torch: {NOT_READY}." in printed and "torch has no time" in printed


def test_the_page_of_a_late_library_has_the_ratio_of_its_own_rounds_and_none_of_them():
    run, outcomes = synthetic.matmul()
    library = next(o for o in outcomes if isinstance(o, Record) and o.case.is_baseline)
    name = library.case.impl
    own = [o for o in outcomes if not o.case.is_baseline]
    late = replace(library, timing=synthetic.measured(1.95e-4), winner_s=1.3e-4)
    html = page(run, [*own, late])
    assert "· 1.499x" in html  # 194.9 over 130 µs
    rounds = html[html.index("Round by round") :]
    assert name not in rounds[: rounds.index("</svg>")]
    assert name in page(run, outcomes)
