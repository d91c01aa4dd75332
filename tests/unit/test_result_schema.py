"""The schema of `--json` in docs/ against documents that commands wrote."""

import gzip
import json
import sys
from pathlib import Path

import pytest
import synthetic

from workbench import cli
from workbench.commands.result import RunResult, document, json_text
from workbench.data.record import Evidence, Finding

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[2] / "docs"
GOLDEN = Path(__file__).parents[1] / "golden" / "stored"
SCHEMA = json.loads((DOCS / "result.schema.json").read_text())
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool,
         "null": type(None), "array": list, "object": dict}  # fmt: skip


def faults(value, schema, at="$"):
    """Yield where a value does not fit, for the keywords that the schema uses."""
    if "$ref" in schema:
        yield from faults(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
        return
    if "anyOf" in schema:
        each = [list(faults(value, option, at)) for option in schema["anyOf"]]
        yield from [] if any(not one for one in each) else min(each, key=len)
        return
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, TYPES[k]) for k in kinds):
        yield f"{at}: {value!r} is no {kinds}"
        return
    if isinstance(value, list):
        for n, each in enumerate(value):
            yield from faults(each, schema.get("items", {}), f"{at}[{n}]")
    if isinstance(value, dict):
        own, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        yield from (
            f"{at} lacks {name}" for name in schema.get("required", ()) if name not in value
        )
        for name, each in value.items():
            if name in own or isinstance(rest, dict):
                yield from faults(each, own.get(name, rest), f"{at}.{name}")
            elif rest is False:
                yield f"{at}: {name} is not in the schema"


@pytest.mark.parametrize(
    "make",
    [synthetic.matmul, synthetic.matmul_with_energy, synthetic.copy, synthetic.all_failed,
     lambda: synthetic.matmul(predicted=True)],
)  # fmt: skip
def test_documents_fit_the_schema(make):
    run, outcomes = make()
    rows = (Evidence("time", float("nan"), "s", "measured"),)
    place = (run.kernel, run.sizes, run.dtype)
    finding = Finding(run.id, run.started, "x", *place, "seen", "It is so.", rows)
    result = RunResult(run, outcomes, findings=[finding], state="complete", page=Path("x.html"))
    text = json.loads(json_text(document("sweep", 0, [result], extra={"any": 1})))
    assert list(faults(text, SCHEMA)) == []


@pytest.mark.parametrize(
    ("report", "name"), [("sweep", "sweep_measured"), ("sweep", "sweep_predicted"),
                         ("compare", "compare_measured"), ("experiment", "experiment_measured")],
)  # fmt: skip
def test_what_the_command_line_writes_of_real_runs_fits_the_schema(report, name, tmp_path):
    """Runs of a real GPU and of the model, which version 0.1.0 stored."""
    events = tmp_path / "events.jsonl"
    events.write_bytes(gzip.decompress((GOLDEN / f"{name}.jsonl.gz").read_bytes()))
    out, page = tmp_path / "result.json", tmp_path / "page.html"
    words = ["report", report, str(events), "--out", str(page), "--json", str(out), "--quiet"]
    assert cli.main(words) == 0
    text = json.loads(out.read_text())
    assert text["runs"] and list(faults(text, SCHEMA)) == []


def test_the_schema_refuses_what_no_command_writes():
    run, outcomes = synthetic.softmax()
    text = json.loads(json_text(document("sweep", 0, [RunResult(run, outcomes)])))
    for spoil in (
        lambda t: t["runs"][0]["measured"][0]["timing"].pop("median_s"),
        lambda t: t["runs"][0]["run"].update(kernel=3),
        lambda t: t["runs"][0].update(strange=1),
        lambda t: t.update(meaning="perhaps"),
        lambda t: t.pop("version"),
    ):
        spoilt = json.loads(json.dumps(text))
        spoil(spoilt)
        assert list(faults(spoilt, SCHEMA))


def test_the_schema_is_generated(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from result_schema import result_schema

    assert json.loads(json.dumps(result_schema())) == SCHEMA
    sys.modules.pop("result_schema")
