"""Count the elements of its inputs that a reference reads.

Memory is followed, not tensors: a view lies in the memory of an input, and its strides say which
elements it has. A copy, a cast and the result of a lookup are followed in their own memory, by the
places that their elements come from. Any other operator reads all of the tensors that it gets.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from workbench.measurement.observed import HARMLESS
from workbench.spec import ITEMSIZE, Sizes, Spec

MOST = 1 << 26  # places that are held one by one
MOST_MARKS = 1 << 33  # elements of an input, each with a byte that says whether it was read
COPIES = ("clone", "_to_copy")
LOOKUPS = ("index", "_unsafe_index", "index_select", "embedding", "gather", "take", "masked_select")
BAGS = ("_embedding_bag", "_embedding_bag_forward_only")  # lookups whose rows are added up
WHOLE_WRITES = ("copy_", "fill_", "zero_")
PART_WRITES = ("index_put_", "masked_fill_", "index_copy_", "index_fill_", "scatter_")
ADDITIONS = ("index_add_", "scatter_add_")  # to elements that indices name
Pick = Callable[[Any], Any]


class UnknownPart(Exception):
    """Which elements are read depends on values that are not there, or takes too long to say."""


class ReadInput:
    """Which elements of an input's memory were read."""

    is_whole = is_unknown = False

    def __init__(self, x: Any) -> None:
        self.count = x.untyped_storage().nbytes() // x.element_size()
        self.device = torch.device("cpu") if x.is_meta else x.device
        self.mask: Any = None

    def read(self, x: Any = None) -> Any:
        """Return the mask of the elements that were read, or the part of it that a tensor has."""
        if self.mask is None:
            if self.count > MOST_MARKS:
                raise UnknownPart
            self.mask = torch.zeros(self.count, dtype=torch.bool, device=self.device)
        return self.mask if x is None else _part(self.mask, x)

    def mark(self, places: Any, width: int = 1) -> None:
        """Note that `width` elements were read from each place on; a place below 0 is none."""
        self.read().view(-1, width)[places[places >= 0] // width] = True


@dataclass
class FollowedMemory:
    """Memory that holds elements of an input: those from `starts` on at every `width`-th place, as
    the input itself where there are none. A start of -1 is none."""

    source: ReadInput
    count: int
    starts: Any = None
    width: int = 1
    write_mask: Any = None  # elements that were written since

    def elements(self, places: Any) -> Any:
        """Return the input's element at each place; -1 where there is none."""
        result = places
        if self.starts is not None:
            result = self.starts[places // self.width] + places % self.width
        if self.write_mask is None:
            return result
        return result.masked_fill(self.write_mask[places], -1)

    def write(self, x: Any) -> Any:
        """Return the mask of the elements of a tensor that were written."""
        if self.write_mask is None:
            self.write_mask = torch.zeros(self.count, dtype=torch.bool, device=self.source.device)
        return _part(self.write_mask, x)


def _is_all(x: Any) -> bool:
    """Return whether a tensor has each element of its memory, once."""
    dense = torch.ops.aten.is_non_overlapping_and_dense(x)
    return bool(dense) and x.numel() * x.element_size() == x.untyped_storage().nbytes()


def _part(mask: Any, x: Any) -> Any:
    """Return the part of a mask of memory that a tensor has, without its repetitions."""
    if mask.numel() * x.element_size() != x.untyped_storage().nbytes():
        raise UnknownPart  # a view of another dtype
    shape = [1 if stride == 0 else n for n, stride in zip(x.shape, x.stride(), strict=True)]
    return mask.as_strided(shape, x.stride(), x.storage_offset())


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors among an operator's arguments or results, which are in no deeper lists. A
    reference that walks over tokens calls 60,000 operators: `tree_leaves` took half of its time."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (one for one in value if isinstance(one, torch.Tensor))


def _all(line: Any) -> Any:
    return line


def _places(x: Any, depth: int, device: Any, pick: Pick = _all) -> Any:
    """Return where that lies in its memory which `pick` takes of the first `depth` axes."""
    shape, places = x.shape[:depth], torch.tensor(x.storage_offset(), device=device)
    if pick is _all and math.prod(shape) > MOST:
        raise UnknownPart
    for d, stride in enumerate(x.stride()[:depth]):
        line = torch.arange(shape[d], device=device)
        line = line.view([-1 if n == d else 1 for n in range(depth)]).expand(shape)
        places = places + stride * pick(line)
    return places


class Reads(TorchDispatchMode):  # type: ignore[misc]  # untyped, as all of torch is here
    """The elements that one call of a reference reads and writes."""

    def __init__(self, without_floats: bool = False, limit_s: float = math.inf) -> None:
        """`without_floats`: floats have a shape and no values. An operator that needs them raises
        UnknownPart, and so does any after `limit_s` seconds."""
        super().__init__()
        self._until, self._without_floats = time.monotonic() + limit_s, without_floats
        self._inputs: dict[str, ReadInput] = {}
        self._memories: dict[StorageWeakRef, FollowedMemory] = {}
        self._written: list[int | None] = []  # elements of each output; None: all

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see `observed.py`

    @contextmanager
    def watch(self, spec: Spec, inputs: Sequence[Any]) -> Iterator[None]:
        """Return a context manager that follows these inputs."""
        for name, x in zip(spec.inputs, inputs, strict=True):
            self._inputs[name] = source = ReadInput(x)
            self._add(x, FollowedMemory(source, source.count))
        with self:
            yield

    def end(self, spec: Spec, outputs: Sequence[Any]) -> None:
        """Note what lies in the outputs: what is there of an input is read, unless a kernel may
        return the input itself."""
        mutated = [x for name, x in self._inputs.items() if name in spec.mutates]
        for output in outputs:
            memory = self._memory(output)
            if memory is not None and any(memory.source is x for x in mutated):
                self._written.append(int(memory.write(output).count_nonzero()))
            else:
                self._read(output)
                self._written.append(None)

    def bytes(self, spec: Spec, sizes: Sizes, dtype: str) -> tuple[int, int]:
        """Return the bytes that are read and written: with inputs of which the part is unknown as a
        whole, and without these."""
        most = certain = 0
        for tensor, x in zip(spec.inputs.values(), self._inputs.values(), strict=True):
            size, every = ITEMSIZE[tensor.dtype or dtype], math.prod(tensor.shape(sizes))
            part = every if x.is_whole else 0 if x.mask is None else int(x.mask.count_nonzero())
            most += size * (every if x.is_unknown else part)
            certain += 0 if x.is_unknown else size * part
        for tensor, count in zip(spec.outputs.values(), self._written, strict=True):
            written = math.prod(tensor.shape(sizes)) if count is None else count
            most, certain = (n + written * ITEMSIZE[tensor.dtype or dtype] for n in (most, certain))
        return most, certain

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.monotonic() > self._until:
            raise UnknownPart
        tensors = [*_tensors(args), *_tensors((kwargs or {}).values())]
        result = self._run(func, args, kwargs or {}, tensors)
        memories = list(filter(None, map(self._memory, tensors)))
        try:
            if memories:
                self._note(func, args, tensors, result)
        except Exception:  # a call of an operator that is not modelled, or not enough memory
            for memory in memories:
                memory.source.is_unknown = True
        return result

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Any]) -> Any:
        """Run an operator: on values where it has them, and otherwise on shapes."""
        if not self._without_floats:
            return func(*args, **kwargs)
        is_shape = any(x.is_meta for x in tensors)
        if is_shape and func._schema.is_mutable and not tensors[0].is_meta:
            raise UnknownPart
        if is_shape or not tensors:  # without tensors it makes one
            meta = {n: None if n == "generator" else v for n, v in kwargs.items()}
            if not tensors or "device" in kwargs:
                meta["device"] = torch.device("meta")
            given, meta = tree_map_only(torch.Tensor, lambda x: x.to("meta"), (args, meta))
            result = func(*given, **meta)
            if is_shape or result.is_floating_point():
                return result
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return func(*args, **kwargs)

    def _note(self, func: Any, args: Any, tensors: list[Any], result: Any) -> None:
        """Note what an operator reads and writes."""
        name, (x, *rest) = func._schema.name.removeprefix("aten::"), tensors
        memory, mutable = self._memory(x), func._schema.is_mutable
        if not mutable and (name in HARMLESS or self._is_view(memory, result)):
            return
        is_followed = memory is not None and name in (
            COPIES + LOOKUPS + BAGS + WHOLE_WRITES + PART_WRITES + ADDITIONS
        )
        self._read(*(rest if is_followed else tensors))
        if memory is None:
            return
        if name in COPIES:
            self._copy(memory, x, result)
        elif name in LOOKUPS:
            self._look_up(memory, func, name, args, result)
        elif name in BAGS:
            rows = torch.ops.aten.embedding(x, args[1].to(x.device))
            self._look_up(memory, func, "embedding", args, rows)
            self._read(rows)
        elif name in PART_WRITES + ADDITIONS:
            self._write_part(memory, func, name, args)
        elif mutable:  # all that it changes
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for changed in _tensors((value,)):
                        if (memory := self._memory(changed)) is not None:
                            memory.write(changed).fill_(True)

    def _is_view(self, memory: FollowedMemory | None, result: Any) -> bool:
        memories = list(map(self._memory, _tensors((result,))))
        return memory is not None and bool(memories) and all(m is memory for m in memories)

    def _memory(self, x: Any) -> FollowedMemory | None:
        return self._memories.get(StorageWeakRef(x.untyped_storage()))

    def _add(self, x: Any, memory: FollowedMemory) -> None:
        for gone in [key for key in self._memories if key.expired()]:
            del self._memories[gone]
        self._memories[StorageWeakRef(x.untyped_storage())] = memory

    def _read(self, *tensors: Any) -> None:
        for x in tensors:
            memory = self._memory(x)
            if memory is None or memory.source.is_whole:
                continue
            source, written, starts = memory.source, memory.write_mask, memory.starts
            if starts is None and written is None and _is_all(x):
                source.is_whole = True
            elif written is None and _is_all(x):
                source.mark(starts, memory.width)
            elif starts is None and written is None:
                source.read(x).fill_(True)
            elif starts is None:
                source.read(x).logical_or_(~_part(written, x))
            else:
                source.mark(memory.elements(_places(x, x.dim(), source.device)))

    def _copy(self, memory: FollowedMemory, x: Any, result: Any) -> None:
        written, depth = memory.write_mask, x.dim()
        memory = replace(memory, write_mask=None if written is None else written.clone())
        while depth and x.stride(depth - 1) == math.prod(x.shape[depth:]):
            depth -= 1
        try:
            if _is_all(x) and x.stride() == result.stride():
                self._add(result, memory)
            else:
                self._follow(memory, x, depth, _all, result)
        except UnknownPart:
            self._read(x)

    def _look_up(
        self, memory: FollowedMemory, func: Any, name: str, args: Any, result: Any
    ) -> None:
        """Follow the elements that a lookup names into its result."""
        x, rest, depth = args[0], args[1:], args[0].dim()
        if name == "index_select":
            rest, depth = (args[1] % depth, args[2]), args[1] % depth + 1
        elif name in ("index", "_unsafe_index"):
            last = max(n for n, index in enumerate(args[1]) if index is not None) + 1
            rest, masks = (args[1][:last],), (i for i in args[1] if i is not None)
            depth = last + sum(i.dim() - 1 for i in masks if i.dtype == torch.bool)
        elif name == "embedding":
            func, rest, depth = torch.ops.aten.index.Tensor, ([args[1]],), 1
        self._follow(memory, x, depth, lambda line: func(line, *rest), result)

    def _follow(self, memory: FollowedMemory, x: Any, least: int, pick: Pick, result: Any) -> None:
        """Follow what `pick` takes of the first `least` axes, or of more, of a tensor into its
        result."""
        whole = memory.source.count if memory.starts is None else memory.width
        for depth in range(least, x.dim() + 1):
            width = math.prod(x.shape[depth:])
            rows = [math.prod(x.shape[n + 1 :]) for n in range(depth, x.dim())]
            at = (*x.stride()[:depth], x.storage_offset(), whole)
            is_dense = list(x.stride()[depth:]) == rows and result.is_contiguous()
            if is_dense and memory.write_mask is None and not any(n % width for n in at):
                break
        else:
            width = 1
        count = result.untyped_storage().nbytes() // result.element_size()
        if memory.count * x.element_size() != x.untyped_storage().nbytes() or count // width > MOST:
            raise UnknownPart
        starts = memory.elements(_places(x, depth, memory.source.device, pick)).flatten()
        if width == 1:
            places = _places(result, result.dim(), memory.source.device).flatten()
            starts = torch.full((count,), -1, device=places.device).index_put_((places,), starts)
        self._add(result, FollowedMemory(memory.source, count, starts, width))

    def _write_part(self, memory: FollowedMemory, func: Any, name: str, args: Any) -> None:
        """Note what an operator writes by indices, and reads there where it adds."""
        named = torch.zeros(memory.count, dtype=torch.bool, device=memory.source.device)
        part, adds = _part(named, args[0]), name in ADDITIONS or "reduce" in func._overloadname
        if name == "index_put_":
            adds = len(args) > 3 and args[3]
            torch.ops.aten.index_put_(part, args[1], torch.tensor(True, device=part.device))
        elif name == "masked_fill_":
            part.masked_fill_(args[1], True)
        elif name.startswith("index"):
            part.index_fill_(args[1], args[2], True)
        else:
            part.scatter_(args[1], args[2], True)
        if adds:
            memory.source.mark(memory.elements(named.nonzero().flatten()))
        memory.write(args[0]).logical_or_(part)
