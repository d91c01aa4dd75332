"""A stream of JSON events: one object with a list of events in it, or a bare list.

The events are decoded one after the other, so that a file of a gigabyte needs a few blocks of
memory. With msgspec (extra `traces`) a block of whole events is decoded at once.
"""

import codecs
import json
from collections.abc import Callable, Iterator
from typing import Any

from workbench.traces.readers.inputs.source import MIB, Source

EVENT_BYTES = 16 * MIB  # longest event
VALUE_BYTES = 64 * MIB  # longest other value of the head
WHITE = " \t\n\r"


class JsonStream:
    """Position in the text of a JSON file that is read block by block. Numbers with a point stay
    text, since a float of epoch size would lose nanoseconds."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.head: dict[str, Any] = {}  # all keys beside the events
        self.is_cut = False  # the file ends within its events
        self._blocks = source.blocks()
        self._text = ""
        self._position = 0
        self._characters_before = 0  # characters that are gone
        self._is_done = False
        self._decode = json.JSONDecoder(parse_float=str).raw_decode
        mark = source.head[:2] in (b"\xff\xfe", b"\xfe\xff")
        encoding = "utf-16" if mark else "utf-8-sig"
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def _fill(self) -> bool:
        """Add a block to the text. Returns whether there was one."""
        if self._is_done:
            return False
        block = next(self._blocks, None)
        self._is_done = block is None
        more = self._decoder.decode(block or b"", self._is_done)
        self._characters_before += self._position
        self._text = self._text[self._position :] + more
        self._position = 0
        return not self._is_done or bool(more)

    def _place(self) -> None:
        self.source.place = f"character {self._characters_before + self._position:,}"

    def _peek(self) -> str:
        """Return the next character that is not white space; empty at the end."""
        while True:
            text, at, end = self._text, self._position, len(self._text)
            while at < end and text[at] in WHITE:
                at += 1
            self._position = at
            if at < end:
                return text[at]
            if not self._fill():
                return ""

    def _take(self, sign: str) -> None:
        if self._peek() != sign:
            self._place()
            raise ValueError(f"there should be a {sign}")
        self._position += 1

    def _value(self, most: int) -> Any:
        """Decode the next value. Raises ValueError where it is damaged or longer than `most`."""
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._position)
            except json.JSONDecodeError as error:
                if len(self._text) - self._position > most or not self._fill():
                    self._place()
                    raise ValueError(error.msg) from None
                continue
            length, rest = end - self._position, len(self._text) - end
            if rest < 3 and self._text[end - 1] not in '}]"' and self._fill():
                continue  # a number may go on, also behind `.` or `e+`
            self._position += length
            return value

    def batches(
        self, key: str = "traceEvents", decode: Callable[[str], list[Any]] | None = None
    ) -> Iterator[list[Any]]:
        """Yield the events in lists, in order. `decode` decodes the text of a whole list of
        events; where it cannot, and without it, events are dicts of the standard library.

        The keys beside the events are in `head` afterwards. A file that ends within its events
        yields those that are whole, and `is_cut` is set. Raises ValueError for other damage.
        """
        if self._peek() == "[":
            self._position += 1
            yield from self._list(decode)
            return
        self._take("{")
        if self._peek() == "}":
            return
        while True:
            name = self._value(MIB)
            self._take(":")
            if name == key and self._peek() == "[":
                self._position += 1
                yield from self._list(decode)
            else:
                self.head[str(name)] = self._value(VALUE_BYTES)
            sign = self._peek()
            if sign == "" and self.is_cut:
                return
            if sign == "}":
                return
            self._take(",")

    def _list(self, decode: Callable[[str], list[Any]] | None) -> Iterator[list[Any]]:
        if self._peek() == "]":
            self._position += 1
            return
        separator = ""
        while True:
            batch = self._fast(decode, separator) if decode and separator else None
            if batch is None:
                batch, separator = self._slow()
            self.source.count(len(batch))
            yield batch
            sign = self._peek()
            if sign == "]" and not self.is_cut:
                self._position += 1
                return
            if self.is_cut or not sign:  # Chrome's format lets the end be missing
                self.is_cut = True
                return
            self._take(",")

    def _slow(self) -> tuple[list[Any], str]:
        """Decode events one by one, as many as the text holds. Returns them, and the text from one
        to the next."""
        batch: list[Any] = []
        separator = ""
        while True:
            self._peek()
            try:
                batch.append(self._value(EVENT_BYTES))
            except ValueError:
                if not self._is_done or self._text.find("]", self._position) >= 0:
                    raise
                self.is_cut = True
                self._position = len(self._text)
                return batch, ""
            end = self._position
            sign = self._peek()
            if sign != ",":
                return batch, ""
            following = self._text.find("{", self._position)
            if following >= 0 and self._position >= end:
                separator = "}" + self._text[end : following + 1]
            if len(batch) >= 4096 or len(self._text) - self._position < 4096:
                return batch, separator
            self._position += 1

    def _fast(self, decode: Callable[[str], list[Any]] | None, separator: str) -> list[Any] | None:
        """Decode all whole events of the text at once. Returns None where that cannot be done."""
        if decode is None or len(separator) > 64:
            return None
        self._peek()
        if len(self._text) - self._position < MIB // 2:
            self._fill()
        cut = self._text.rfind(separator, self._position)
        if cut < 0:
            return None
        try:
            batch = decode(f"[{self._text[self._position : cut + 1]}]")
        except ValueError:  # the cut lies within an event, or an event is unusual
            return None
        self._position = cut + 1
        return batch


def load_json(source: Source) -> Any:
    """Return the whole of a JSON file, numbers as Python has them. Raises ValueError where it is
    damaged or nested deeper than the limit."""
    text = source.text()
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        source.place = f"line {error.lineno}"
        raise ValueError(error.msg) from None
    level, depth = [value] if isinstance(value, dict | list) else [], 0
    while level:
        depth += 1
        if depth > source.limits.depth:
            raise RecursionError
        inner = (v for each in level for v in (each.values() if isinstance(each, dict) else each))
        level = [each for each in inner if isinstance(each, dict | list)]
    return value
