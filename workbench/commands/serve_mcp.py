"""Answer the calls of a program over the Model Context Protocol, by standard input and output.

Each tool is a command. A call runs it in a process of its own, and its result is the JSON document
of that command: whatever happens to that process, the server answers and goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import workbench
from workbench.commands.options import CommandError, commands
from workbench.commands.serve_tools import TOOLS, environment, input_schema, words_of
from workbench.data.exits import COULD_NOT_RUN, INTERNAL

if TYPE_CHECKING:
    import mcp_types as types

reporting = attrgetter("session")  # of a call: where its progress goes
BEAT_S = 2.0  # between two messages of progress


def tools() -> list[types.Tool]:
    """Return the tools, one for each command of TOOLS."""
    import mcp_types as types

    known = commands()
    return [
        types.Tool(
            name=name, description=known[name].__doc__, input_schema=input_schema(known[name])
        )
        for name in TOOLS
    ]


class _Running:
    """Calls of tools: one after the other, as each may need the GPU."""

    def __init__(self) -> None:
        import anyio

        self._turn = anyio.Lock()

    async def call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Answer one call."""
        if params.name not in TOOLS:
            return _result(f"There is no tool {params.name}; there are {', '.join(TOOLS)}.", True)
        try:
            words = words_of(commands()[params.name], params.arguments or {})
        except CommandError as error:
            return _result(str(error), True)
        async with self._turn:
            with TemporaryDirectory() as folder:
                return await _run_command(context, words, Path(folder) / "result.json")


async def _run_command(context: Any, words: list[str], path: Path) -> types.CallToolResult:
    """Run a command, reporting its lines as progress, and return its document."""
    import anyio
    from anyio.streams.text import TextReceiveStream

    command = [sys.executable, "-P", "-m", "workbench", *words[:1], f"--json={path}", *words[1:]]
    process = await anyio.open_process(
        command, stdin=-3, env=environment(), start_new_session=True
    )  # -3: no input
    lines: list[str] = []
    begin = time.monotonic()

    async def read(stream: Any) -> None:
        async for text in TextReceiveStream(stream, errors="replace"):
            lines.extend(line.strip() for line in text.splitlines() if line.strip())

    async def report(scope: Any) -> None:
        shown = 0
        while True:
            await anyio.sleep(BEAT_S)
            text = lines[-1] if len(lines) > shown else "it runs"
            shown = len(lines)
            await reporting(context).report_progress(time.monotonic() - begin, None, text[:200])

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(report, group)
            async with anyio.create_task_group() as readers:
                readers.start_soon(read, process.stdout)
                readers.start_soon(read, process.stderr)
            code = await process.wait()
            group.cancel_scope.cancel()
    finally:  # also where the caller gave up
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return _document(path, code, lines)


def _document(path: Path, code: int, lines: list[str]) -> types.CallToolResult:
    """Return the document of a command that ended, or its last line where it wrote none."""
    import mcp_types as types

    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        last = lines[-1] if lines else f"the command ended with exit code {code}"
        return _result(last.removeprefix("error: "), True)
    return types.CallToolResult(
        content=[types.TextContent(text=json.dumps(content))],
        structured_content=content,
        is_error=code in (COULD_NOT_RUN, INTERNAL),
    )


def _result(text: str, is_error: bool) -> types.CallToolResult:
    import mcp_types as types

    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)


async def _list_tools(context: Any, params: Any) -> types.ListToolsResult:
    import mcp_types as types

    return types.ListToolsResult(tools=tools())


async def _serve() -> None:
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    running = _Running()
    server: Server[Any] = Server(
        "workbench",
        version=workbench.__version__,
        instructions=(workbench.__doc__ or "").strip().splitlines()[0],
        on_list_tools=_list_tools,
        on_call_tool=running.call,
    )
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def serve() -> None:
    """Serve until standard input ends."""
    import anyio

    anyio.run(_serve)
