"""Serving programs: a real client over standard input and output, and a queue that crashes, hangs
and kills cannot stop."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cheats import SPEC, Cheat

from workbench.commands.serve_tools import TOOLS, environment

ROOT = Path(__file__).parents[2]
OF_MODEL = ROOT / "examples/tasks/kernelbench/softplus_triton.py"
SOFTPLUS = ROOT / "examples/tasks/kernelbench/softplus.py"


def conversation(talk):
    """Run `talk(client)` against a server of its own."""
    mcp = pytest.importorskip("mcp", reason="pip install 'kernel-workbench[mcp]'")
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def run():
        words = ["-P", "-m", "workbench", "serve", "--mcp"]
        started = StdioServerParameters(command=sys.executable, args=words, env=environment())
        async with stdio_client(started) as streams, mcp.ClientSession(*streams) as client:
            await client.initialize()
            return await talk(client)

    return asyncio.run(run())


def test_a_client_lists_the_tools_and_gets_mistakes_as_sentences():
    async def talk(client):
        listed = await client.list_tools()
        wrong = await client.call_tool("evaluate", {"kernel": "k", "json": "x"})
        return [tool.name for tool in listed.tools], wrong

    names, wrong = conversation(talk)
    assert names == list(TOOLS)
    assert wrong.is_error and wrong.content[0].text.startswith("evaluate takes no json; it takes")


@pytest.mark.nightly
def test_a_client_gets_documents_and_progress():
    async def talk(client):
        reports = []

        async def heard(progress, total, message):
            reports.append((progress, message))

        predicted = await client.call_tool("predict", {"kernel": "softmax", "device": "h200"})
        code = await client.call_tool("code", {"target": "copy", "device": "h200"})
        given = {"kernel": str(OF_MODEL), "task": str(SOFTPLUS), "device": "h200"}
        verdict = await client.call_tool("evaluate", given, progress_callback=heard)
        unknown = await client.call_tool("evaluate", {"kernel": "nothing"})
        return predicted, code, verdict, unknown, reports

    predicted, code, verdict, unknown, reports = conversation(talk)
    assert predicted.structured_content["command"] == "predict"
    assert code.structured_content["command"] == "code" and not code.is_error
    assert verdict.structured_content["verdict"] == "correct"
    assert json.loads(verdict.content[0].text) == verdict.structured_content
    assert reports and [p for p, _ in reports] == sorted(p for p, _ in reports)
    assert unknown.is_error and unknown.content[0].text.startswith("There is no kernel 'nothing'")


BAD = ("import os; os._exit(7)", "import os; os.kill(os.getpid(), 11)", "while True: pass",
       "raise SystemExit(0)", "import os; os.kill(os.getppid(), 9)")  # fmt: skip


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_fifty_submissions_of_which_twenty_hang_or_crash_and_a_kill(tmp_path):
    folder = tmp_path / "jobs"
    folder.mkdir()
    for number in range(50):
        parts = {"top": BAD[number % 5]} if number % 5 < 2 else {}
        if number % 10 == 5:
            parts = {"top": BAD[2 + number // 10 % 3]}
        if number % 10 == 4:
            parts = {"kernel": "y = y * 0.0"}
        Cheat(f"number {number:02}", (), parts).write(folder)
    (folder / "scaled_rows.py").rename(tmp_path / "scaled_rows.py")
    env = environment() | {"PYTHONPATH": f"{environment()['PYTHONPATH']}:{tmp_path}"}
    words = [sys.executable, "-P", "-m", "workbench", "serve", "--jobs", str(folder), "--spec",
             str(tmp_path / SPEC.name), "--dtype", "fp32", "--device", "h200", "--limit=45",
             f"--database=sqlite:///{tmp_path}/h.db", f"--json={tmp_path}/r.json"]  # fmt: skip
    killed = subprocess.Popen(words, env=env, start_new_session=True)
    time.sleep(60)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    subprocess.run(words, env=env, check=False)
    result = {r["name"]: r for r in json.loads((tmp_path / "r.json").read_text())["submissions"]}
    assert len(result) == 50
    for number in range(50):
        verdict = result[f"number_{number:02}.py"]["verdict"]
        bad = number % 5 < 2 or number % 10 == 5
        wanted = ("rejected", None) if bad else ("rejected",) if number % 10 == 4 else ("correct",)
        assert verdict in wanted, (number, result[f"number_{number:02}.py"])
