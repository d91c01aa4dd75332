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
from metal_shim.host import FILE_LINES, without_comments
from metal_shim.signature import ATTRIBUTES, MetalSource, Parameter
from workbench.spec import WorkbenchError

_TOKEN = re.compile(r'(?m)^#[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\S')
_MARKER = re.compile(r'(?m)^# (\d+) "([^"\n]*)"[^\n]*$')
_NAME = re.compile(r"[A-Za-z_]\w*$")
_OF_A_BUFFER = ("buffer", "function_constant", "maybe_unused", "raster_order_group")
_TYPES = ("struct", "class", "union", "enum")
_TEXTURES = re.compile(r"\b(texture\w*|depth\w*|sampler|imageblock\w*|visible_function_table)\b")


class NotWhole(WorkbenchError, ValueError):
    """A text has no kernel of a name, or one that the emulator cannot launch."""


@dataclass(frozen=True)
class Word:
    """A word or sign of a text, and where it stands."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Declaration:
    """A declaration at the top level of a text, or in a namespace: `names` are what it declares,
    `words` all that it may refer to."""

    tokens: tuple[Word, ...]
    scope: str
    head: int  # number of the tokens before its braces or its `=`

    @cached_property
    def words(self) -> frozenset[str]:
        """Return the identifiers."""
        return frozenset(t.text for t in self.tokens if t.text.isidentifier())

    @property
    def instantiates(self) -> bool:
        """Return whether it is the explicit instantiation of a template."""
        texts = [token.text for token in self.tokens[:2]]
        return texts[0] == "template" and texts[1:] != ["<"]

    @property
    def specialises(self) -> bool:
        """Return whether it is a structure's template for certain arguments."""
        words = [token.text for token in self.tokens[: self.head]]
        named = [i for i, word in enumerate(words) if word in _TYPES]
        return words[0] == "template" and bool(named) and "<" in words[named[-1] + 2 :]

    @property
    def is_the_librarys(self) -> bool:
        """Return whether it adds a function of bfloat to Metal's namespace: MLX brings such, and
        the library here has them."""
        own = {"bfloat", "bfloat16_t"} & {t.text for t in self.tokens[: self.head]}
        return self.scope.startswith("metal::") and bool(own)

    @property
    def is_kernel(self) -> bool:
        """Return whether it defines a kernel."""
        head = [t.text for t in self.tokens[: self.head]]
        return "kernel" in head and "(" in head and self.tokens[-1].text == "}"

    @cached_property
    def names(self) -> frozenset[str]:
        """Return what it declares, empty where that is not seen: then it is always kept."""
        head = _without_attributes(self.tokens[: self.head])
        if head and head[0] == "template":
            head = head[_closing(head, 1) + 1 :]
        if not head or "operator" in head:
            return frozenset()
        if head and head[0] in ("typedef", "using", "namespace"):
            return _declared_by_alias([token.text for token in self.tokens])
        for i, word in enumerate(head):
            if word in _TYPES:
                named = frozenset(w for w in head[i + 1 : i + 3] if w.isidentifier())
                return (
                    named
                    if self.tokens[self.head - 1].text != ")" and "(" not in head
                    else (_function(head))
                )
        if "(" in head:
            return _function(head)
        return _variables(_without_attributes(self.tokens))


def _variables(words: Sequence[str]) -> frozenset[str]:
    """Return the names of a declaration of variables: what `=`, `[`, `,` or `;` follows."""
    depth, names, value = 0, set[str](), False
    for word, after in zip(words, [*words[1:], ";"], strict=True):
        depth += (word in "([{") - (word in ")]}")
        value = depth == 0 and (word == "=" or (value and word != ","))
        if depth == 0 and not value and word.isidentifier() and after in {"=", "[", ";", ",", "{"}:
            names.add(word)
    return frozenset(names)


def _declared_by_alias(head: Sequence[str]) -> frozenset[str]:
    if "using" in head[:1] and "=" in head:
        return frozenset({head[1]})
    if "typedef" in head[:1] and head[-2:-1] != [")"]:
        tagged = {head[2]} if head[1] in _TYPES else set()  # `typedef struct tag { ... } name;`
        end = len(head) - 2
        while end and head[end] == "]":
            end = max(i for i in range(end) if head[i] == "[") - 1
        return frozenset({head[end], *tagged} - {"{"})
    return frozenset()


def _function(head: Sequence[str]) -> frozenset[str]:
    """Return the name before the first bracket of a function's parameters."""
    depth = 0
    for i, word in enumerate(head):
        depth += {"<": 1, ">": -1}.get(word, 0)
        if word == "(" and depth <= 0 and i:
            name = head[i - 1]
            if name == ">":  # a specialisation
                at = _opening(head, i - 1)
                name = head[at - 1] if at else ""
            if name.isidentifier() and name not in ("decltype", "alignas"):
                return frozenset({name})
    return frozenset()


def _without_attributes(tokens: Sequence[Word]) -> list[str]:
    """Return the words without `[[...]]` and `__attribute__((...))`."""
    words, result, i = [token.text for token in tokens], list[str](), 0
    while i < len(words):
        if words[i] == "[" and words[i + 1 : i + 2] == ["["]:
            i = _closing(words, i) + 1
        elif words[i] in ("__attribute__", "alignas"):
            i = _closing(words, i + 1) + 1
        else:
            result.append(words[i])
            i += 1
    return result


_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


def _closing(words: Sequence[str], start: int) -> int:
    """Return the index of the bracket that closes the one at `start`, or the last index. Angles
    inside of round brackets are comparisons."""
    depth, inner = 0, 0
    opening = words[start] if start < len(words) else ""
    for i in range(start, len(words)):
        if opening == "<":
            inner += {"(": 1, ")": -1}.get(words[i], 0)
        if not inner:
            depth += (words[i] == opening) - (words[i] == _CLOSING.get(opening))
            if depth == 0:
                return i
    return len(words) - 1


def _opening(words: Sequence[str], end: int) -> int:
    depth = 0
    for i in range(end, -1, -1):
        depth += {">": 1, "<": -1}.get(words[i], 0)
        if depth == 0:
            return i
    return 0


def tokens_of(text: str) -> list[Word]:
    """Return the tokens of a text without comments; lines of the preprocessor are none."""
    all_words = (Word(m[0], m.start(), m.end()) for m in _TOKEN.finditer(text))
    return [word for word in all_words if not word.text.startswith("#")]


def declarations(text: str) -> Iterator[Declaration]:
    """Yield the declarations of a text without comments, in their order."""
    tokens = tokens_of(text)
    scopes, i = list[str](), 0
    while i < len(tokens):
        word = tokens[i].text
        if word == "}" and scopes:
            scopes.pop()
            i += 1
        elif word == "namespace" or (word == "extern" and tokens[i + 1].text.startswith('"')):
            j = i + 1
            while tokens[j].text not in "{;=":
                j += 1
            if tokens[j].text != "{":
                i = _end(tokens, i)
            else:
                scopes.append(tokens[i + 1].text if tokens[i + 1].text.isidentifier() else "")
                i = j + 1
        else:
            end = _end(tokens, i)
            own = tuple(tokens[i:end])
            scope = "".join(f"{name}::" for name in scopes if name)
            if own and own[0].text != ";":
                yield Declaration(own, scope, _head(own))
            i = end


def _behind_template(tokens: Sequence[Word], start: int) -> int:
    """Return the index behind the parameters of templates."""
    while tokens[start].text == "template" and tokens[start + 1].text == "<":
        depth = inner = 0
        for i in range(start + 1, len(tokens)):
            word = tokens[i].text
            inner += (word == "(") - (word == ")")
            depth += (word == "<") - (word == ">") if not inner else 0
            if depth == 0:
                break
        start = i + 1
    return start


def _end(tokens: Sequence[Word], start: int) -> int:
    """Return the index behind a declaration: a function ends with its brace, others with `;`."""
    start = _behind_template(tokens, start)
    depth, typed = 0, tokens[start].text in ("typedef", "using")
    kind = ""
    for i in range(start, len(tokens)):
        word = tokens[i].text
        if depth == 0:
            if word == ";":
                return i + 1
            kind = word if word in _TYPES and kind != "(" else kind
            kind = "(" if word == "(" and tokens[i - 1].text != "__attribute__" else kind
            typed |= word == "="
        depth += (word in "([{") - (word in ")]}")
        if word == "}" and depth == 0 and not typed and kind not in _TYPES:
            return i + 1
    return len(tokens)


def _head(tokens: Sequence[Word]) -> int:
    depth = 0
    for i in range(_behind_template(tokens, 0), len(tokens)):
        word = tokens[i].text
        if depth == 0 and word in "{=":
            return i
        depth += (word in "([") - (word in ")]")
    return len(tokens)


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
    header = _with_constants(without_comments(header), options)
    return replace(_source(without_comments(text), function, options), header=header)


def whole_file(path: Path, function: str, options: WholeOptions) -> MetalSource:
    """Return a kernel of a `.metal` file, by its name or its `host_name`. Raises NotWhole."""
    text = _preprocessed(path, options)
    files = dict.fromkeys(m[2] for m in _MARKER.finditer(text) if not m[2].startswith("<"))
    files = dict.fromkeys([str(path), *files])
    numbers = {name: number for number, name in enumerate(files)}
    text = re.sub(r"(?m)^#pragma[^\n]*$", "", text)  # hints, and macros in them are not expanded
    marked = _MARKER.sub(
        lambda m: f'#line {numbers.get(m[2], 0) * FILE_LINES + int(m[1])} "@.metal"', text
    )
    source = _source(marked, function, options)
    texts = tuple((Path(name).name, _text(Path(name))) for name in files)
    body = source.body.replace('"@.metal"', f'"{source.name}.metal"')
    return replace(source, body=body, files=texts)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def kernel_names(path: Path, options: WholeOptions) -> list[str]:
    """Return the names by which kernels of a file can be chosen."""
    return _kernel_names(list(declarations(_preprocessed(path, options))))


def _preprocessed(path: Path, options: WholeOptions) -> str:
    """Return a file with its headers, which lie beside it or in a folder above unless one names
    another folder."""
    folders = [*options.folders, path.parent, *path.resolve().parents]
    try:
        return compiler.preprocessed(path, options.defines, folders)
    except compiler.KernelRejected as error:
        raise NotWhole(
            f"{path.name} cannot be read: {error}; --include names a folder of headers."
        ) from None


def _kernel_names(listed: Sequence[Declaration]) -> list[str]:
    names = [name for d in listed if d.instantiates and (name := _host_name(d))]
    for d in listed:
        if d.is_kernel and d.tokens[0].text != "template":
            names += [_host_name(d) or name for name in d.names]
    return names


def _host_name(declaration: Declaration) -> str:
    """Return the name for the host; neighbouring strings are one."""
    words = [token.text for token in declaration.tokens]
    if "host_name" not in words:
        return ""
    start = words.index("host_name") + 1
    return "".join(word.strip('"') for word in words[start + 1 : _closing(words, start)])


def _source(plain: str, function: str, options: WholeOptions) -> MetalSource:
    """Return the source of a kernel: its text with blanks in place of what it does not reach."""
    listed = list(declarations(plain))
    name, values = _chosen(listed, function)
    kernels = [d for d in listed if d.is_kernel and name in d.names]
    if not kernels:
        names = _kernel_names(listed)
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        raise NotWhole(
            f"the text has no kernel {function}; name one of its [[kernel]] functions"
            + (f": {shown}." if names else ".")
        )
    kernel = kernels[-1]
    needed = _reached(listed, kernel, frozenset(re.findall(r"[A-Za-z_]\w*", " ".join(values))))
    for declaration in listed:
        if declaration not in needed:
            start, end = declaration.tokens[0].start, declaration.tokens[-1].end
            lines = plain[start:end].split("\n")
            blank = "\n".join(x if x.startswith("#line") else " " * len(x) for x in lines)
            plain = plain[:start] + blank + plain[end:]
    plain = _with_callables(plain, listed, values)
    parameters = [p for part in _listed(kernel) if (p := _parameter(part, kernel, values, options))]
    buffers = [p for p in parameters if p.array]
    return MetalSource(
        name=name,
        inputs=tuple(p.name for p in buffers if not _is_written(p)),
        outputs=tuple(p.name for p in buffers if _is_written(p)),
        body=_with_constants(plain, options),
        whole=tuple(parameters),
        function=f"{kernel.scope}{name}" + (f"<{', '.join(values)}>" if values else ""),
    )


_CALLABLE = re.compile(
    r"\b[\w:]+\s*\(\s*\*\s*(?P<name>\w+)\s*\)\s*\((?:[^()]|\([^()]*\))*\)(?=\s*[,>])"
)


def _with_callables(text: str, listed: Sequence[Declaration], values: list[str]) -> str:
    """Return a text in which structures that call a function stand for functions as arguments of
    templates, which clang does not take in this mode; the same is done to `values`."""
    names = {match["name"] for match in _CALLABLE.finditer(text)}
    if not names:
        return text
    arguments = {*re.findall(r"(?<=[<,])\s*(\w+)\s*(?=[,>])", text), *values}
    functions = dict[str, int]()  # to the end of their last definition
    for declaration in listed:
        if "(" in [token.text for token in declaration.tokens[: declaration.head]]:
            end = declaration.tokens[-1].end
            functions |= {name: end for name in declaration.names & arguments}
    for name, end in sorted(functions.items(), key=lambda item: -item[1]):
        call = f"template <class... A> void operator()(A&&... a) {{ {name}(a...); }}"
        text = f"{text[:end]} struct msl_call_{name} {{ {call} }};{text[end:]}"
        text = re.sub(rf"(?<=[<,])(\s*){name}(?=\s*[,>])", rf"\1msl_call_{name}", text)
    values[:] = [f"msl_call_{value}" if value in functions else value for value in values]
    text = _CALLABLE.sub(r"class \g<name>", text)
    for name in names:
        text = re.sub(rf"(?<!class )\b{name}\s*\(", f"{name}()(", text)
    return text


def _chosen(listed: Sequence[Declaration], function: str) -> tuple[str, list[str]]:
    """Return the name of the kernel and the arguments of its template, if they are named."""
    for declaration in listed:
        if declaration.instantiates and _host_name(declaration) == function:
            words = [token.text for token in declaration.tokens]
            ends = [i for i, w in enumerate(words[:-1]) if w == ">" and words[i + 1] in "(;"]
            if not ends:  # `template [[host_name("f")]] kernel void f(...)`
                return words[max(i for i, word in enumerate(words) if word == "(") - 1], []
            start = _opening(words, ends[-1] if "decltype" in words or len(ends) == 1 else ends[0])
            end = _closing(words, start)
            return words[start - 1], _split(words[start + 1 : end])
        if declaration.is_kernel and _host_name(declaration) == function:
            return next(iter(declaration.names)), []
    name, _, values = function.partition("<")
    words = [token.text for token in tokens_of(values.rpartition(">")[0])]
    return name, _split(words) if words else []


def _parts(words: Sequence[str]) -> list[list[str]]:
    """Return the parts of a list that commas at its own level separate."""
    depth, parts = 0, [list[str]()]
    for word in words:
        depth += (word in "([<{") - (word in ")]>}")
        if word == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _split(words: Sequence[str]) -> list[str]:
    """Return these parts as text, with a blank between two names."""
    return [re.sub(r"(\w) (?!\w)|(?<!\w) ", r"\1", " ".join(part)) for part in _parts(words)]


def _reached(
    listed: Sequence[Declaration], kernel: Declaration, values: frozenset[str]
) -> set[Declaration]:
    """Return the kernel and the declarations that its words, and those of the values of its
    template, may refer to, directly or not."""
    others = [d for d in listed if not (d.is_kernel or d.instantiates or d.is_the_librarys)]
    by_name: dict[str, list[Declaration]] = {}
    declared = {name for d in others if not d.specialises for name in d.names}
    nameless = [d for d in others if not d.names or (d.specialises and not d.names & declared)]
    for declaration in others:
        for name in declaration.names:
            by_name.setdefault(name, []).append(declaration)
    reached, todo = {kernel, *nameless}, [values, *(d.words for d in (kernel, *nameless))]
    while todo:
        for word in todo.pop():
            new = [d for d in by_name.get(word, ()) if d not in reached]
            reached.update(new)
            todo += [d.words for d in new]
    return reached


_FUNCTION_CONSTANT = re.compile(
    r"\bconstant\s+(?:(?:const|constexpr)\s+)*(\w+)\s+(?:const\s+)?(\w+)\s*\[\[\s*function_constant\([^\]]*\]\]"
)


def _with_constants(text: str, options: WholeOptions) -> str:
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


def _listed(kernel: Declaration) -> list[list[str]]:
    """Return the parameters of the kernel, each as words."""
    words = [token.text for token in kernel.tokens[: kernel.head]]
    (name,) = kernel.names
    start = max(i for i in range(len(words) - 1) if words[i] == name and words[i + 1] == "(") + 1
    return [part for part in _parts(words[start + 1 : _closing(words, start)]) if part]


def _parameter(
    words: list[str], kernel: Declaration, values: Sequence[str], options: WholeOptions
) -> Parameter | None:
    """Return a parameter of the kernel."""
    plain = _without_attributes([Word(word, 0, 0) for word in words])
    text = " ".join(plain)
    if "[" in plain:  # `constant size_t shape[3]` is a pointer
        plain = [*plain[: plain.index("[") - 1], "*", plain[plain.index("[") - 1]]
    if len(plain) < 2 or not _NAME.fullmatch(plain[-1]):
        raise NotWhole(f"the parameter {text!r} cannot be read; write it as `type name`.")
    declaration, name = " ".join(plain[:-1]), plain[-1]
    declaration = re.sub(r"\s*([*&<>]|::)\s*", r"\1", declaration).replace(">const", "> const")
    declaration = declaration.replace(" ,", ",")
    if match := _TEXTURES.search(declaration):
        raise NotWhole(f"Metal has {match[1]}, which {name} is; the emulator lacks it.")
    attributes = _attributes(words)
    condition = attributes.get("function_constant")
    if condition is not None and not options.constants.get(condition, 0):
        return Parameter(declaration, name, "", "absent")
    declaration = _instantiated(declaration, kernel, values)
    if "threadgroup" in attributes or re.match(r"(const )?threadgroup\b", declaration):
        if name not in options.threadgroup:
            raise NotWhole(f"{name} is threadgroup memory of the launch; give its bytes.")
        return Parameter(declaration, name, "", "threadgroup", options.threadgroup[name])
    known = [attribute for attribute in attributes if attribute in ATTRIBUTES]
    if known:
        return Parameter(declaration, name, "", known[0])
    others = [attribute for attribute in attributes if attribute not in _OF_A_BUFFER]
    if declaration[-1:] not in "*&" or others:
        attribute = next(iter(others), "value")
        raise NotWhole(f"the emulator gives no {attribute}, which {name} takes; pass it otherwise.")
    fields = tuple(options.fields.get(name, {}).items())
    return Parameter(declaration, name, name, fields=fields)


def _attributes(words: Sequence[str]) -> dict[str, str]:
    """Return the attributes in `[[...]]` and what each has in brackets."""
    result = dict[str, str]()
    for i in range(len(words) - 1):
        if words[i] == words[i + 1] == "[":
            inner = words[i + 2 : _closing(words, i) - 1]
            for part in _split(inner):
                name, _, rest = part.partition("(")
                result[name.strip()] = rest.rstrip(") ")
    return result


def _instantiated(declaration: str, kernel: Declaration, values: Sequence[str]) -> str:
    """Return the declaration with the values of the template's parameters, as far as named."""
    words = [token.text for token in kernel.tokens]
    if words[0] != "template" or not values:
        return declaration
    names = [part.partition("=") for part in _split(words[2 : _closing(words, 1)])]
    given = {
        head.split()[-1]: values[i] if i < len(values) else default.strip()
        for i, (head, _, default) in enumerate(names)
        if i < len(values) or default
    }
    for _ in range(2):  # a default may name another parameter
        declaration = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: given.get(m[0], m[0]), declaration)
    return declaration


def _is_written(parameter: Parameter) -> bool:
    return not re.search(r"\bconst(ant)?\b", parameter.declaration)
