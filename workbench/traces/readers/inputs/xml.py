"""XML read element by element. A DOCTYPE is refused at its first token: no entity expands."""

from collections.abc import Callable
from xml.parsers import expat

from workbench.traces.readers.inputs.source import Source

Start = Callable[[str, dict[str, str]], None]
End = Callable[[str, str], None]


def parse(source: Source, start: Start, end: End) -> None:
    """Call `start(name, attributes)` and `end(name, text)` for each element; text that lies before
    an inner element is its own. Raises ValueError where the file is not a whole XML, and ReadError
    for a DOCTYPE or where elements are nested too deeply."""
    parser = expat.ParserCreate()
    texts: list[list[str]] = []

    def refuse(*_: object) -> None:
        source.fail("its XML has a DOCTYPE", "remove it if you trust the file")

    def begin(name: str, attributes: dict[str, str]) -> None:
        source.count()
        source.place = f"line {parser.CurrentLineNumber}"
        texts.append([])
        if len(texts) > source.limits.depth:
            source.fail("its XML is nested too deeply", "check that file")
        start(name, attributes)

    def close(name: str) -> None:
        source.place = f"line {parser.CurrentLineNumber}"
        end(name, "".join(texts.pop()).strip())

    def data(text: str) -> None:
        if texts:
            texts[-1].append(text)

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = begin
    parser.EndElementHandler = close
    parser.CharacterDataHandler = data
    try:
        for block in source.blocks():
            parser.Parse(block, False)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        source.place = f"line {error.lineno}"
        raise ValueError(expat.errors.messages[error.code]) from None
