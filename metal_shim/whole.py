"""Read a whole Metal kernel, a `[[kernel]]` function with buffers and attributes of its own.

MLX builds a function around the body of `mx.fast.metal_kernel`, which `signature` reproduces. A
whole kernel, as in a `.metal` file, declares its parameters itself. clang's preprocessor reads the
file first, so that macros may make kernels. What the kernel does not reach is then left out: other
kernels, their functions and their function constants. The emulator runs the rest; on a Mac it is no
input of `mx.fast.metal_kernel`, so nothing launches it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from metal_shim import compiler
from metal_shim.host import FILE_LINES, strip_comments
from metal_shim.signature import ATTRIBUTES, MetalSource, Parameter
from metal_shim.words import (
    Word,
    closing,
    depths,
    join_words,
    opening_angle,
    parts,
    strip_attributes,
    words_of,
)
from workbench.spec import WorkbenchError

_MARKER = re.compile(r'(?m)^# (\d+) "([^"\n]*)"[^\n]*$')
_NAME = re.compile(r"[A-Za-z_]\w*$")
_OF_A_BUFFER = ("buffer", "function_constant", "maybe_unused", "raster_order_group")
_TYPES = ("struct", "class", "union", "enum")
_TEXTURES = re.compile(r"\b(texture\w*|depth\w*|sampler|imageblock\w*|visible_function_table)\b")


class NotWhole(WorkbenchError, ValueError):
    """A text has no kernel of a name, or one that the emulator cannot launch."""


@dataclass(frozen=True, eq=False)
class Declaration:
    """A declaration at the top level of a text, or in a namespace, with all its words."""

    words: list[Word]
    scope: str

    @cached_property
    def head(self) -> list[Word]:
        """Return the words before its braces or its `=`."""
        start = _skip_template(self.words, 0)
        around = depths(self.words[start:], "([")
        ends = (i for i, d in enumerate(around, start) if d == 0 and self.words[i] in ("{", "="))
        return self.words[: next(ends, None)]

    @property
    def instantiates(self) -> bool:
        """Return whether it is the explicit instantiation of a template."""
        return self.words[0] == "template" and self.words[1:2] != ["<"]

    @property
    def specialises(self) -> bool:
        """Return whether it is a structure's template for certain arguments."""
        named = [i for i, word in enumerate(self.head) if word in _TYPES]
        return self.words[0] == "template" and bool(named) and "<" in self.head[named[-1] + 2 :]

    @property
    def is_the_librarys(self) -> bool:
        """Return whether it adds a function of bfloat to Metal's namespace: MLX brings such, and
        the library here has them."""
        own = {"bfloat", "bfloat16_t"} & set(self.head)
        return self.scope.startswith("metal::") and bool(own)

    @property
    def is_kernel(self) -> bool:
        """Return whether it defines a kernel."""
        return "kernel" in self.head and "(" in self.head and self.words[-1] == "}"

    @cached_property
    def names(self) -> frozenset[str]:
        """Return what it declares, empty where that is not seen: then it is always kept."""
        head = strip_attributes(self.head)
        if head and head[0] == "template":
            head = head[closing(head, 1) + 1 :]
        if not head or "operator" in head:
            return frozenset()
        if head[0] in ("typedef", "using", "namespace"):
            return _declared_by_alias(self.words)
        if "(" in head or (self.head[-1] == ")" and set(_TYPES) & set(head)):
            return _function(head)
        for i, word in enumerate(head):
            if word in _TYPES:
                return frozenset(w for w in head[i + 1 : i + 3] if w.isidentifier())
        return _variables(strip_attributes(self.words))


def _variables(words: Sequence[str]) -> frozenset[str]:
    """Return the names of a declaration of variables: what `=`, `[`, `,` or `;` follows."""
    names, value = set[str](), False
    for word, after, depth in zip(words, [*words[1:], ";"], depths(words), strict=True):
        value = depth == 0 and (word == "=" or (value and word != ","))
        if depth == 0 and not value and word.isidentifier() and after in {"=", "[", ";", ",", "{"}:
            names.add(word)
    return frozenset(names)


def _declared_by_alias(words: Sequence[str]) -> frozenset[str]:
    if words[0] == "using" and "=" in words:
        return frozenset({words[1]})
    if words[0] == "typedef" and words[-2] != ")":
        tagged = {words[2]} if words[1] in _TYPES else set()  # `typedef struct tag { ... } name;`
        around = zip(words, depths(words, "["), strict=True)
        named = [word for word, depth in around if depth == 0 and word not in ("[", "]")]
        return frozenset({named[-2], *tagged} - {"{"})
    return frozenset()


def _function(head: Sequence[str]) -> frozenset[str]:
    """Return the name before the first bracket of a function's parameters."""
    for i, (word, depth) in enumerate(zip(head, depths(head, "<"), strict=True)):
        if word == "(" and depth <= 0 and i:
            at = opening_angle(head, i - 1) if head[i - 1] == ">" else i  # a specialisation
            name = head[at - 1] if at else ""
            if name.isidentifier() and name not in ("decltype", "alignas"):
                return frozenset({name})
    return frozenset()


def declarations(text: str) -> Iterator[Declaration]:
    """Yield the declarations of a text without comments, in their order."""
    words = words_of(text)
    scopes, i = list[str](), 0
    while i < len(words):
        if words[i] == "}" and scopes:
            scopes.pop()
            i += 1
        elif words[i] == "namespace" or (words[i] == "extern" and words[i + 1].startswith('"')):
            j = next(j for j in range(i + 1, len(words)) if words[j] in ("{", ";", "="))
            if words[j] != "{":
                i = _end(words, i)
            else:
                scopes.append(words[i + 1] if words[i + 1].isidentifier() else "")
                i = j + 1
        else:
            end = _end(words, i)
            if words[i] != ";":
                scope = "".join(f"{name}::" for name in scopes if name)
                yield Declaration(words[i:end], scope)
            i = end


def _skip_template(words: Sequence[str], start: int) -> int:
    """Return the index behind the parameters of templates."""
    while words[start] == "template" and words[start + 1] == "<":
        start = closing(words, start + 1) + 1
    return start


def _end(words: Sequence[str], start: int) -> int:
    """Return the index behind a declaration: a function ends with its brace, others with `;`."""
    start = _skip_template(words, start)
    depth, typed, kind = 0, words[start] in ("typedef", "using"), ""
    for i in range(start, len(words)):
        word = words[i]
        if depth == 0:
            if word == ";":
                return i + 1
            kind = word if word in _TYPES and kind != "(" else kind
            kind = "(" if word == "(" and words[i - 1] != "__attribute__" else kind
            typed |= word == "="
        depth += (word in "([{") - (word in ")]}")
        if word == "}" and depth == 0 and not typed and kind not in _TYPES:
            return i + 1
    return len(words)


@dataclass(frozen=True)
class WholeOptions:
    """What a file's kernel needs beside its text: macros, folders of headers, values of function
    constants, bytes of threadgroup memory by parameter, and values of structures' fields."""

    defines: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[Path] = ()
    constants: Mapping[str, int | float] = field(default_factory=dict)
    threadgroup: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def whole_source(
    text: str, function: str, header: str = "", constants: Mapping[str, int] | None = None
) -> MetalSource:
    """Return the kernel `function` of a Metal text as the emulator takes it.

    Args:
        text: The unmodified text; findings name its lines.
        function: Name of the `[[kernel]]` or `kernel` function.
        header: Text before it, such as the headers that it includes.
        constants: Values of the function constants of the text.

    Buffers are the inputs (const or constant) and outputs in the order of the parameters, which for
    MLX's kernels is that of their indices. Raises NotWhole.
    """
    options = WholeOptions(constants=constants or {})
    header = _insert_constants(strip_comments(header), options)
    return replace(_source(strip_comments(text), function, options), header=header)


def whole_file(path: Path, function: str, options: WholeOptions) -> MetalSource:
    """Return a kernel of a `.metal` file, by its name or its `host_name`. Raises NotWhole."""
    text = _preprocess(path, options)
    marks = [m[2] for m in _MARKER.finditer(text) if not m[2].startswith("<")]
    numbers = {n: number for number, n in enumerate(dict.fromkeys([str(path), *marks]))}
    text = re.sub(r"(?m)^#pragma[^\n]*$", "", text)  # hints, and macros in them are not expanded
    marked = _MARKER.sub(
        lambda m: f'#line {numbers.get(m[2], 0) * FILE_LINES + int(m[1])} "@.metal"', text
    )
    source = _source(marked, function, options)
    files = map(Path, numbers)
    texts = tuple((p.name, p.read_text("utf-8", "replace") if p.is_file() else "") for p in files)
    body = source.body.replace('"@.metal"', f'"{source.name}.metal"')
    return replace(source, body=body, files=texts)


def kernel_names(path: Path, options: WholeOptions) -> list[str]:
    """Return the names by which kernels of a file can be chosen."""
    return list(_launchable(list(declarations(_preprocess(path, options)))))


def _preprocess(path: Path, options: WholeOptions) -> str:
    """Return a file with its headers, which lie beside it or in a folder above unless one names
    another folder."""
    folders = [*options.folders, path.parent, *path.resolve().parents]
    try:
        return compiler.preprocess(path, options.defines, folders)
    except compiler.KernelRejected as error:
        raise NotWhole(
            f"{path.name} cannot be read: {error}; --include names a folder of headers."
        ) from None


def _launchable(listed: Sequence[Declaration]) -> dict[str, tuple[str, list[str]]]:
    """Return the names by which kernels can be chosen, each with the name of the kernel and the
    arguments of its template."""
    result = dict[str, tuple[str, list[str]]]()
    for d in listed:
        if not d.instantiates or not (host := _host_name(d)):
            continue
        ends = [i for i, w in enumerate(d.words[:-1]) if w == ">" and d.words[i + 1] in "(;"]
        if ends:
            last = "decltype" in d.words or len(ends) == 1
            start = opening_angle(d.words, ends[-1] if last else ends[0])
            values = join_words(d.words[start + 1 : closing(d.words, start)])
        else:  # `template [[host_name("f")]] kernel void f(...)`
            start, values = max(i for i, word in enumerate(d.words) if word == "("), []
        result.setdefault(host, (d.words[start - 1], values))
    for d in listed:
        if d.is_kernel and d.words[0] != "template":
            for name in d.names:
                result.setdefault(_host_name(d) or name, (name, []))
    return result


def _host_name(declaration: Declaration) -> str:
    """Return the name for the host; neighbouring strings are one."""
    words = declaration.words
    if "host_name" not in words:
        return ""
    start = words.index(Word("host_name")) + 1
    return "".join(word.strip('"') for word in words[start + 1 : closing(words, start)])


def _source(plain: str, function: str, options: WholeOptions) -> MetalSource:
    """Return the source of a kernel: its text with blanks in place of what it does not reach."""
    listed = list(declarations(plain))
    names, (plain_name, _, given) = _launchable(listed), function.partition("<")
    arguments = words_of(given.rpartition(">")[0])
    name, values = names.get(function) or (plain_name, join_words(arguments) if arguments else [])
    kernels = [d for d in listed if d.is_kernel and name in d.names]
    if not kernels:
        shown = ", ".join([*names][:12]) + (
            f" and {len(names) - 12} more" if len(names) > 12 else ""
        )
        raise NotWhole(
            f"the text has no kernel {function}; name one of its [[kernel]] functions"
            + (f": {shown}." if names else ".")
        )
    kernel = kernels[-1]
    needed = _reach(listed, kernel, frozenset(re.findall(r"[A-Za-z_]\w*", " ".join(values))))
    for declaration in listed:
        if declaration not in needed:
            start, end = declaration.words[0].start, declaration.words[-1].end
            lines = plain[start:end].split("\n")
            blank = "\n".join(x if x.startswith("#line") else " " * len(x) for x in lines)
            plain = plain[:start] + blank + plain[end:]
    plain = _rewrite_callables(plain, listed, values)
    parameters = [p for part in _params(kernel) if (p := _parameter(part, kernel, values, options))]
    buffers = [p for p in parameters if p.array]
    outputs = [p.name for p in buffers if not re.search(r"\bconst(ant)?\b", p.declaration)]
    return MetalSource(
        name=name,
        inputs=tuple(p.name for p in buffers if p.name not in outputs),
        outputs=tuple(outputs),
        body=_insert_constants(plain, options),
        whole=tuple(parameters),
        function=f"{kernel.scope}{name}" + (f"<{', '.join(values)}>" if values else ""),
    )


_CALLABLE = re.compile(
    r"\b[\w:]+\s*\(\s*\*\s*(?P<name>\w+)\s*\)\s*\((?:[^()]|\([^()]*\))*\)(?=\s*[,>])"
)


def _rewrite_callables(text: str, listed: Sequence[Declaration], values: list[str]) -> str:
    """Return a text in which structures that call a function stand for functions as arguments of
    templates, which clang does not take in this mode; the same is done to `values`."""
    names = {match["name"] for match in _CALLABLE.finditer(text)}
    if not names:
        return text
    arguments = {*re.findall(r"(?<=[<,])\s*(\w+)\s*(?=[,>])", text), *values}
    functions = dict[str, int]()  # to the end of their last definition
    for declaration in listed:
        if "(" in declaration.head:
            functions |= dict.fromkeys(declaration.names & arguments, declaration.words[-1].end)
    for name, end in sorted(functions.items(), key=lambda item: -item[1]):
        call = f"template <class... A> void operator()(A&&... a) {{ {name}(a...); }}"
        text = f"{text[:end]} struct msl_call_{name} {{ {call} }};{text[end:]}"
        text = re.sub(rf"(?<=[<,])(\s*){name}(?=\s*[,>])", rf"\1msl_call_{name}", text)
    values[:] = [f"msl_call_{value}" if value in functions else value for value in values]
    text = _CALLABLE.sub(r"class \g<name>", text)
    for name in names:
        text = re.sub(rf"(?<!class )\b{name}\s*\(", f"{name}()(", text)
    return text


def _reach(
    listed: Sequence[Declaration], kernel: Declaration, values: frozenset[str]
) -> set[Declaration]:
    """Return the kernel and the declarations that its words, and those of the values of its
    template, may refer to, directly or not."""
    others = [d for d in listed if not (d.is_kernel or d.instantiates or d.is_the_librarys)]
    declared = {name for d in others if not d.specialises for name in d.names}
    nameless = [d for d in others if not d.names or (d.specialises and not d.names & declared)]
    reached, new, words = set[Declaration](), {kernel, *nameless}, set[str](values)
    while new:
        reached |= new
        words.update(*(d.words for d in new))
        new = {d for d in others if d not in reached and d.names & words}
    return reached


_FUNCTION_CONSTANT = re.compile(
    r"\bconstant\s+(?:(?:const|constexpr)\s+)*(\w+)\s+(?:const\s+)?(\w+)\s*\[\[\s*function_constant\([^\]]*\]\]"
)


def _insert_constants(text: str, options: WholeOptions) -> str:
    """Return a text with values in place of its function constants."""
    values = options.constants

    def value(match: re.Match[str]) -> str:
        kind, name = match.groups()
        uses = re.findall(rf"(?<!function_constant\()\b{name}\b", text)
        if name not in values and len(uses) == 1:  # conditions of arguments, which are absent
            return f"constant {kind} {name} = 0"
        if name not in values:
            raise NotWhole(f"the function constant {name} has no value; name one in constants.")
        number = values[name]
        return f"constant {kind} {name} = {number if kind in ('float', 'half') else int(number)}"

    text = re.sub(
        r"\bis_function_constant_defined\s*\(\s*(\w+)\s*\)",
        lambda m: "true" if m[1] in values else "false", text,
    )  # fmt: skip
    return _FUNCTION_CONSTANT.sub(value, text)


def _params(kernel: Declaration) -> list[list[str]]:
    """Return the parameters of the kernel, each as words."""
    words, (name,) = kernel.head, kernel.names
    start = max(i for i in range(len(words) - 1) if words[i] == name and words[i + 1] == "(") + 1
    return [part for part in parts(words[start + 1 : closing(words, start)]) if part]


def _parameter(
    words: list[str], kernel: Declaration, values: Sequence[str], options: WholeOptions
) -> Parameter | None:
    """Return a parameter of the kernel."""
    plain = strip_attributes(words)
    text = " ".join(plain)
    if "[" in plain:  # `constant size_t shape[3]` is a pointer
        plain = [*plain[: plain.index("[") - 1], "*", plain[plain.index("[") - 1]]
    if len(plain) < 2 or not _NAME.fullmatch(plain[-1]):
        raise NotWhole(f"the parameter {text!r} cannot be read; write it as `type name`.")
    declaration, name = " ".join(plain[:-1]), plain[-1]
    declaration = re.sub(r"\s*([*&<>]|::)\s*", r"\1", declaration).replace(">const", "> const")
    declaration = declaration.replace(" ,", ",")
    if match := _TEXTURES.search(declaration):
        raise NotWhole(f"{name} is a {match[1]}; the emulator does not support it.")
    attributes = _attributes(words)
    condition = attributes.get("function_constant")
    if condition is not None and not options.constants.get(condition, 0):
        return Parameter(declaration, name, "", "absent")
    declaration = _instantiate(declaration, kernel, values)
    if "threadgroup" in attributes or re.match(r"(const )?threadgroup\b", declaration):
        if name not in options.threadgroup:
            raise NotWhole(f"{name} is threadgroup memory of the launch; give its bytes.")
        return Parameter(declaration, name, "", "threadgroup", options.threadgroup[name])
    if known := [attribute for attribute in attributes if attribute in ATTRIBUTES]:
        return Parameter(declaration, name, "", known[0])
    others = [attribute for attribute in attributes if attribute not in _OF_A_BUFFER]
    if declaration[-1:] not in "*&" or others:
        attribute = next(iter(others), "value")
        raise NotWhole(f"{name} takes {attribute}; the emulator does not provide it.")
    fields = tuple(options.fields.get(name, {}).items())
    return Parameter(declaration, name, name, fields=fields)


def _attributes(words: Sequence[str]) -> dict[str, str]:
    """Return the attributes in `[[...]]` and what each has in brackets."""
    result = dict[str, str]()
    for i in range(len(words) - 1):
        if words[i] == words[i + 1] == "[":
            for part in join_words(words[i + 2 : closing(words, i) - 1]):
                name, _, rest = part.partition("(")
                result[name.strip()] = rest.rstrip(") ")
    return result


def _instantiate(declaration: str, kernel: Declaration, values: Sequence[str]) -> str:
    """Return the declaration with the values of the template's parameters, as far as named."""
    words = kernel.words
    if words[0] != "template" or not values:
        return declaration
    names = [part.partition("=") for part in join_words(words[2 : closing(words, 1)])]
    given = {
        head.split()[-1]: values[i] if i < len(values) else default.strip()
        for i, (head, _, default) in enumerate(names)
        if i < len(values) or default
    }
    for _ in range(2):  # a default may name another parameter
        declaration = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: given.get(m[0], m[0]), declaration)
    return declaration
