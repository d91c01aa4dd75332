"""CSV of ncu's source page: one row an instruction. Each kernel has a head of its own, of its
own width. With `cuda,sass` source lines stand between, and a kernel has a table for each file."""

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs import ncu
from workbench.traces.readers.inputs.numbers import number
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.tables import first_row, rows
from workbench.traces.trace import Dispatch, InstructionTable, Trace, plain

STARTS = ("Kernel Name", "File Path", "Function Name")
HEADS = ("Address", "Line No", "#")


def sniff(source: Source) -> bool:
    """Return whether a file begins with the name of a kernel or of a source file."""
    text = "\n".join(line for line in source.head_text.splitlines()[:200] if line.startswith('"'))
    row = first_row(text)
    return bool(row) and row[0] in STARTS and 2 <= len(row) <= 3 and '"Source"' in text


def read(source: Source) -> Trace:
    """Return the dispatches with their instructions. Raises ValueError where a row is damaged."""
    trace = Trace("ncu", ncu.version_of(source))
    pages = _Pages(trace)
    for row in rows(source, ncu.table_lines(source, trace.notes)):
        if row:
            pages.add(row)
    trace.dispatches = [d for d in trace.dispatches if d.instructions and d.instructions.texts]
    return trace


class _Pages:
    """Where the reader stands: the kernel, the source file, the line and the heads."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.file, self.line = "", ""
        self.files: set[str] = set()  # of the current kernel
        self.dispatch: Dispatch | None = None
        self.address = self.text = 0  # columns
        self.columns: list[int] = []

    def add(self, row: list[str]) -> None:
        """Add one row."""
        if row[0] == "File Path" and len(row) > 1:
            self.file = plain(row[1].rsplit("/", 1)[-1])
        elif row[0] in ("Kernel Name", "Function Name") and 2 <= len(row) <= 3:
            self._begin(plain(row[1]), row[0] == "Kernel Name")
        elif row[0] in HEADS and "Source" in row:
            self._heads(row)
        elif self.dispatch is not None and self.dispatch.instructions is not None:
            self._instruction(row, self.dispatch.instructions)

    def _begin(self, name: str, is_whole: bool) -> None:
        """Begin a kernel, or the next source file of the one before."""
        same = self.dispatch is not None and self.dispatch.name == name
        if is_whole or not same or self.file in self.files:
            self.dispatch = Dispatch(name)
            self.trace.dispatches.append(self.dispatch)
            self.files = set()
        self.files.add(self.file)
        self.line = ""

    def _heads(self, row: list[str]) -> None:
        if self.dispatch is None:
            raise ValueError("a table begins before the name of its kernel")
        self.address = row.index("Address") if "Address" in row else -1
        self.text = self.address + 1
        self.columns = list(range(self.text + 1, len(row)))
        heads = tuple(plain(row[i]) for i in self.columns)
        instructions = self.dispatch.instructions
        if instructions is None:
            self.dispatch.instructions = InstructionTable(heads)
        elif instructions.heads != heads:
            raise ValueError("the tables of one kernel differ in their heads")

    def _instruction(self, row: list[str], instructions: InstructionTable) -> None:
        if not self.columns or len(row) <= self.text:
            raise ValueError("a row is too short")
        if self.address >= 2 and row[0]:
            self.line = f"{self.file}:{plain(row[0])}"
        address = row[self.address] if self.address >= 0 else row[0]
        if address in ("-", "...", ""):
            return
        number = int(address, 16 if address.startswith("0x") else 10)
        cells = (_cell(row[i] if i < len(row) else "") for i in self.columns)
        instructions.add(number, plain(row[self.text]).strip(), self.line, cells)


def _cell(text: str) -> float | None:
    """Return the number of a cell; None for text such as `Global`."""
    try:
        return number(text)
    except ValueError:
        return None


READER = TraceReader("source page of ncu (CSV)", sniff, read)
