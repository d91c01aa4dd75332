"""Build device functions from their text, in a process that never imports the file under test.

The text is parsed, each node is held to a list of what device code may hold, and a new file is
written from the syntax tree. Decorators, annotations and default values of the text are not
executed: they are written anew, of names of Triton, of other functions of the plan and of plain
constants. Triton's interpreter runs device code as Python; nothing in this file gives that code a
name or an attribute by which it could leave the arithmetic.
"""

import ast
import keyword
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from workbench.dsl.interpreter import libdevice_names
from workbench.evaluation.plan import DeviceName, DeviceText, NotReplayable

# Names of the written file.
TRITON, LANGUAGE, LIBDEVICE = "triton", "tl", "libdevice"
PRECISION = "precision_of"  # of workbench.dsl; the other functions of compile time are not built
LAUNCH_ORDER = ("gdc_launch_dependents", "gdc_wait")  # of triton.language.extra.cuda
RESERVED = frozenset((TRITON, LANGUAGE, LIBDEVICE, PRECISION, *LAUNCH_ORDER))
BUILTINS = frozenset(("range", "min", "max", "abs", "len"))
OF_CONSTANTS = frozenset(("float", "int", "bool"))  # of constants: float("inf")

_NODES = (
    *(ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Expr),
    *(ast.Pass, ast.Assert, ast.Break, ast.Continue, ast.BinOp, ast.UnaryOp, ast.BoolOp),
    *(ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.Attribute, ast.Name, ast.Constant),
    *(
        ast.Starred,
        ast.Tuple,
        ast.List,
        ast.Subscript,
        ast.Slice,
        ast.operator,
        ast.unaryop,
        ast.boolop,
    ),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.expr_context),
)
# What differs between the interpreter and a GPU, or is not arithmetic.
_DENIED = frozenset(
    (
        *("inline_asm_elementwise", "call_extern", "extern_elementwise", "extern", "dispatch"),
        *("device_print", "static_print", "builtin", "jit", "must_use_result", "map_elementwise"),
        *("target_info", "semantic", "core", "standard", "random", "extra", "aggregate_replace"),
        *("tensor", "pointer_type", "function_type", "tuple", "tuple_type", "slice", "str_to_ty"),
        *("block_type", "void", "dtype", "constexpr_type", "async_task", "wrap_tensor"),
    )
)
_SPECIAL = ("constexpr", "range", "static_range")
_MODULES = ("triton.language", "triton.language.math", "triton.language.core")
_OTHERS = ("triton.language.standard", "triton.language.random")  # whose names `tl` has
_LIBDEVICES = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice")
# Attributes of values, beside the methods of tensors.
_ATTRIBUTES = frozenset(
    (
        *("shape", "dtype", "type", "T", "numel", "element_ty", "scalar", "block_shape"),
        *("primitive_bitwidth", "int_bitwidth", "strides", "load", "store", "gather", "scatter"),
        *("atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor"),
        *("is_floating", "is_int", "is_ptr", "is_fp8", "is_fp16", "is_bf16", "is_fp32"),
        *("is_int_signed", "is_int_unsigned", "is_int1", "is_int8", "is_fp64"),
    )
)
_ASSERTS = ("static_assert", "device_assert")
_UNTYPED = ("tensor", "Tensor", "int")  # annotations that change nothing


def device_file_text(functions: Sequence[DeviceText]) -> tuple[str, tuple[str, ...]]:
    """Return the text of a Python file with these device functions, and the name of each in it.
    Raises NotReplayable where one holds what device code may not."""
    file = _DeviceFile(functions)
    try:
        parts = [file.function(i) for i in range(len(functions))]
    except RecursionError:
        raise NotReplayable("its device code is nested too deep") from None
    late = [n for n in LAUNCH_ORDER if any(f"{n}(" in part for part in parts)]
    more = f"from triton.language.extra.cuda import {', '.join(late)}\n" if late else ""
    return "\n\n".join((*file.head(more), *parts)) + "\n", tuple(file.names)


class _DeviceFile:
    """The names of the file that is written."""

    def __init__(self, functions: Sequence[DeviceText]) -> None:
        self._functions = functions
        self._taken: dict[str, Any] = {name: None for name in RESERVED}
        self.names = [self._free_name(f.name, ("function", i)) for i, f in enumerate(functions)]
        self._constants: dict[str, str] = {}  # text by name

    def _free_name(self, name: str, what: Any) -> str:
        """Return a name of the file for something: its own, or that with a number."""
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
            raise NotReplayable(f"{name[:40]!r} is not a name of a function or a constant")
        number, result = 1, name
        while self._taken.setdefault(result, what) != what or result in RESERVED:
            number += 1
            result = f"{name}_{number}"
        return result

    def head(self, imports: str) -> Iterator[str]:
        """Yield the beginning of the file, with further imports."""
        yield '"""Device functions, written from a plan."""'
        yield (
            "import triton\nimport triton.language as tl\n"
            f"from triton.language.extra import libdevice\n{imports}\n"
            "from workbench.dsl import precision_of"
        )
        yield "\n".join(f"{name} = {text}" for name, text in self._constants.items())

    def function(self, place: int) -> str:
        """Return the text of one function in the file."""
        text = self._functions[place]
        try:
            tree = ast.parse(text.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise NotReplayable(f"the text of {text.name} is not valid Python ({error})") from None
        if len(tree.body) != 1 or type(tree.body[0]) is not ast.FunctionDef:
            raise NotReplayable(f"the text of {text.name} is not a function")
        node = tree.body[0]
        if node.name != text.name:
            raise NotReplayable(f"the text of {text.name} defines {node.name}")
        meanings = {name: self._meaning(name, what) for name, what in text.names.items()}
        body = _DeviceBody(text.name, node, meanings)
        node.args = body.arguments()
        node.body = [body.visit(statement) for statement in _drop_constants(node.body)]
        node.body = node.body or [ast.Pass()]
        node.name, node.returns = self.names[place], None
        node.decorator_list = [_decorator(text)]
        ast.fix_missing_locations(node)
        return ast.unparse(node)

    def _meaning(self, name: str, what: DeviceName) -> ast.expr | tuple[str, ...]:
        """Return what stands for a name: an expression, or the path of a module."""
        value = what.value
        if what.kind == "function":
            if type(value) is not int or not 0 <= value < len(self.names):
                raise NotReplayable(f"{name} is not a function of the plan")
            return ast.Name(self.names[value], ast.Load())
        if what.kind == "language" and isinstance(value, str):
            return _language(value.split("."))
        if what.kind == "dtype":
            return ast.parse(dtype_text(value), mode="eval").body
        text = _literal(value)
        if what.kind == "constexpr":
            text = f"tl.constexpr({text})"
        own = self._free_name(name, ("constant", text))
        self._constants[own] = text
        return ast.Name(own, ast.Load())


def _drop_constants(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return statements without those that are a constant: a line of a docstring that begins with
    `def` is where Triton's interpreter would begin to read the function."""
    lone = [s for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)]
    return [s for s in body if s not in lone]


def _decorator(given: DeviceText) -> ast.expr:
    words = []
    for name, value in given.options.items():
        if name in ("noinline", "debug") and type(value) is bool:
            words.append(f"{name}={value}")
        elif name in ("do_not_specialize", "do_not_specialize_on_alignment"):
            if not isinstance(value, tuple) or any(type(v) not in (int, str) for v in value):
                raise NotReplayable(f"{given.name} has {name} of other values")
            words.append(f"{name}={list(value)!r}")
        else:
            raise NotReplayable(f"{given.name} has the option {name[:40]} of jit")
    text = f"triton.jit({', '.join(words)})" if words else "triton.jit"
    return ast.parse(text, mode="eval").body


def _literal(value: Any) -> str:
    """Return a constant as Python writes it."""
    if type(value) is tuple:
        return f"({''.join(f'{_literal(item)}, ' for item in value)})"
    if type(value) is float and (value != value or value in (float("inf"), -float("inf"))):
        return f'float("{value}")'
    if type(value) in (int, float, bool, str, type(None)):
        return repr(value)
    raise NotReplayable(f"{type(value).__name__} is not a constant")


def dtype_text(name: Any) -> str:
    """Return a dtype of Triton as the file writes it. Raises NotReplayable."""
    import triton.language as tl

    value = getattr(tl, name, None) if isinstance(name, str) and name.isidentifier() else None
    if type(value) is not tl.dtype:
        raise NotReplayable(f"{str(name)[:40]} is not a dtype of Triton")
    return f"{LANGUAGE}.{name}"


def _language(path: Sequence[str]) -> ast.expr | tuple[str, ...]:
    """Return the expression of a value of Triton, or the path itself where it is of a module.
    Raises NotReplayable where device code of a plan may not name it."""
    whole = ".".join(path)
    if whole in (*_MODULES, *_OTHERS, *_LIBDEVICES):
        return tuple(path)
    if whole == f"workbench.dsl.{PRECISION}":
        return ast.Name(PRECISION, ast.Load())
    if whole in ("triton", "triton.language.extra", "triton.language.extra.cuda"):
        return tuple(path)
    if (text := _values().get(whole)) is None:
        raise NotReplayable(f"{whole[:80]} is not among the functions that a plan may use")
    return ast.parse(text, mode="eval").body


@cache
def _values() -> Mapping[str, str]:
    """Return what stands for each function and value of Triton that device code may name, by its
    paths."""
    import triton.language as tl

    result = {}
    for module in (*_MODULES, *_OTHERS):
        for name, value in vars(import_module(module)).items():
            if name.startswith("_") or name in _DENIED or not _is_device_value(value, name):
                continue
            if getattr(tl, name, None) is value:
                result[f"{module}.{name}"] = f"{LANGUAGE}.{name}"
            elif getattr(tl.math, name, None) is value:
                result[f"{module}.{name}"] = f"{LANGUAGE}.math.{name}"
    for module in _LIBDEVICES:
        result |= {f"{module}.{name}": f"{LIBDEVICE}.{name}" for name in libdevice_names()}
    for name in LAUNCH_ORDER:
        result |= {f"triton.language.extra.cuda.{of}{name}": name for of in ("", "gdc.")}
    for name in ("cdiv", "next_power_of_2"):
        result[f"triton.{name}"] = f"{TRITON}.{name}"
    return result


def _is_device_value(value: Any, name: str) -> bool:
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    if name in _SPECIAL or type(value) is tl.dtype:
        return True
    if getattr(value, "__module__", "").startswith("triton.language"):
        interpreted = type(value).__name__ == "InterpretedFunction"
        builtin = bool(getattr(value, tl.core.TRITON_BUILTIN, False))
        return builtin or interpreted or isinstance(value, JITFunction)
    return False


@cache
def _methods() -> frozenset[str]:
    """Return the methods of tensors that device code may call."""
    import triton.language as tl

    named = {n for n, value in vars(tl.tensor).items() if callable(value) and n[0] != "_"}
    return frozenset(named - {"handle"}) | _ATTRIBUTES


class _DeviceBody(ast.NodeTransformer):
    """Holds the statements of one function to what device code may be, and replaces its names."""

    def __init__(
        self, title: str, node: ast.FunctionDef, meanings: Mapping[str, ast.expr | tuple[str, ...]]
    ) -> None:
        self._title, self._known, self._args = title, meanings, node.args
        self._local = {a.arg for a in self._all_arguments()}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                self._local.add(inner.id)
        self._stale(node.body, set())
        if odd := self._local & RESERVED:
            raise NotReplayable(f"{title} has a variable named {min(odd)}")
        if odd := [n for n in self._local if n.startswith("__")]:
            raise NotReplayable(f"{title} has a variable named {odd[0][:40]}")

    def _stale(self, block: Sequence[ast.stmt], stale: set[str]) -> set[str]:
        """Return the variables of loops that nothing has set again at the end of a block; `stale`
        are those at its begin. Raises NotReplayable where one is used: compiled code has no value
        for it, and the interpreter its last one."""
        for part in block:
            if isinstance(part, ast.For):
                self._refuse_stale(part.iter, stale)
                own = {part.target.id} if isinstance(part.target, ast.Name) else set()
                once = self._stale(part.body, stale - own)
                stale = stale | self._stale(part.body, (stale | once) - own) | own
            elif isinstance(part, ast.While):
                self._refuse_stale(part.test, stale)
                once = self._stale(part.body, stale)
                self._refuse_stale(part.test, stale | once)
                stale = stale | self._stale(part.body, stale | once)
            elif isinstance(part, ast.If):
                self._refuse_stale(part.test, stale)
                stale = self._stale(part.body, stale) | self._stale(part.orelse, stale)
            else:
                self._refuse_stale(part, stale)
                names = [n for n in ast.walk(part) if isinstance(n, ast.Name)]
                stale = stale - {n.id for n in names if isinstance(n.ctx, ast.Store)}
        return stale

    def _refuse_stale(self, node: ast.AST, stale: set[str]) -> None:
        changed = {node.target.id} if isinstance(node, ast.AugAssign) else set()  # type: ignore[union-attr]
        for each in ast.walk(node):
            is_read = isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
            if (is_read and each.id in stale) or changed & stale:  # type: ignore[attr-defined]
                name = min(changed) if changed & stale else each.id  # type: ignore[attr-defined]
                raise self._refuse(f"uses {name}, the variable of a loop, after it")

    def _all_arguments(self) -> list[ast.arg]:
        return [*self._args.posonlyargs, *self._args.args, *self._args.kwonlyargs]

    def _refuse(self, what: str) -> NotReplayable:
        return NotReplayable(f"the device function {self._title} {what}")

    def arguments(self) -> ast.arguments:
        """Return the arguments, with `tl.constexpr` as the only annotation and constants as the
        only defaults."""
        args = self._args
        if args.vararg or args.kwarg or args.posonlyargs:
            raise self._refuse("has arguments by * or /")
        for each in self._all_arguments():
            is_constant = each.annotation is not None and self._is_constexpr(each.annotation)
            annotation = ast.parse("tl.constexpr", mode="eval").body if is_constant else None
            each.annotation, each.type_comment = annotation, None
        args.defaults = [self._default(d) for d in args.defaults]
        args.kw_defaults = [None if d is None else self._default(d) for d in args.kw_defaults]
        return args

    def _is_constexpr(self, annotation: ast.expr) -> bool:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except (SyntaxError, ValueError):
                raise self._refuse("has an annotation that is not a name") from None
        last = getattr(annotation, "attr", getattr(annotation, "id", ""))
        if last in _UNTYPED:
            return False
        if last == "constexpr":
            return True
        raise self._refuse(f"has the annotation {ast.unparse(annotation)[:40]}")

    def _default(self, node: ast.expr) -> ast.expr:
        try:
            return ast.parse(_literal(ast.literal_eval(node)), mode="eval").body
        except (ValueError, TypeError, RecursionError, MemoryError):
            result: ast.expr = self.visit(node)  # a constant of the file, a dtype
            if isinstance(result, (ast.Name, ast.Attribute)):
                return result
            raise self._refuse("has a default that is not a constant") from None

    # Nodes

    def visit(self, node: ast.AST) -> Any:
        """Return the node as it is written. Raises NotReplayable."""
        if not isinstance(node, _NODES):
            raise self._refuse(f"holds {type(node).__name__}, which device code may not")
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return what stands for a name."""
        if node.id in self._local:
            return node
        meaning = self._known.get(node.id)
        if isinstance(meaning, tuple):
            raise self._refuse(f"uses the module {node.id} as a value")
        if meaning is not None:
            return meaning
        if node.id in BUILTINS:
            return node
        raise self._refuse(f"names {node.id[:40]}, which is not part of Triton")

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Return a value of a module, or an attribute of a value."""
        if not isinstance(node.ctx, ast.Load):
            raise self._refuse("sets an attribute")
        if (path := self._path(node)) is not None:
            result = _language(path)
            if isinstance(result, tuple):
                raise self._refuse("uses a module as a value")
            return result
        if node.attr not in _methods():
            raise self._refuse(f"uses the attribute {node.attr[:40]}")
        node.value = self.visit(node.value)
        return node

    def _path(self, node: ast.expr) -> tuple[str, ...] | None:
        """Return the path of an attribute of a module, or None for other values."""
        if isinstance(node, ast.Name) and node.id not in self._local:
            meaning = self._known.get(node.id)
            return meaning if isinstance(meaning, tuple) else None
        if isinstance(node, ast.Attribute) and (path := self._path(node.value)) is not None:
            return (*path, node.attr)
        return None

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        """Return the items of a tuple, as the arguments of a call."""
        if not isinstance(node.ctx, ast.Load):
            raise self._refuse("assigns by *")
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Return a call without * and **."""
        if any(k.arg is None for k in node.keywords):
            raise self._refuse("calls a function with **")
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in OF_CONSTANTS and name not in {*self._local, *self._known}:
            plain = all(isinstance(a, ast.Constant) for a in node.args)
            if not (plain and len(node.args) == 1 and not node.keywords):
                raise self._refuse(f"calls {name} of what is not a constant")
            return node
        node.func = self.visit(node.func)
        if getattr(node.func, "attr", "") in _ASSERTS:  # a message is not arithmetic
            node.args, node.keywords = node.args[:1], []
        node.args = [self.visit(a) for a in node.args]
        for each in node.keywords:
            if each.arg is not None and each.arg.startswith("_"):
                raise self._refuse(f"gives the argument {each.arg[:40]}")
            each.value = self.visit(each.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Return a variable with its annotation, which is `tl.constexpr`."""
        if not isinstance(node.target, ast.Name) or node.value is None:
            raise self._refuse("annotates what is not a variable")
        if not self._is_constexpr(node.annotation):
            raise self._refuse("annotates a variable with another type than tl.constexpr")
        node.annotation = ast.parse("tl.constexpr", mode="eval").body
        node.value = self.visit(node.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Return an element that is read."""
        if not isinstance(node.ctx, ast.Load):
            raise self._refuse("sets an element")
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        """Return a loop over a range."""
        if node.orelse or not isinstance(node.target, ast.Name):
            raise self._refuse("has a loop with else, or over several variables")
        node.type_comment = None
        return self._block(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        """Return a loop."""
        if node.orelse:
            raise self._refuse("has a loop with else")
        return self._block(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        """Return a branch."""
        return self._block(node)

    def _block(self, node: Any) -> ast.AST:
        node.body = _drop_constants(node.body) or [ast.Pass()]
        node.orelse = _drop_constants(node.orelse)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Return a call, of which only the effect is used."""
        if not isinstance(node.value, ast.Call):
            raise self._refuse("has a statement that is not a call")
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Return an assignment without a comment of its type."""
        node.type_comment = None
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Return an assertion without its message."""
        node.msg = None
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Return a comparison; `is` compares with None: other identities differ when compiled."""
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, (ast.Is, ast.IsNot)) and not (
                isinstance(right, ast.Constant) and right.value is None
            ):
                raise self._refuse("compares by `is`")
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Return a constant of a plain type."""
        if type(node.value) not in (int, float, bool, str, type(None)):
            raise self._refuse(f"holds the constant {str(node.value)[:40]}")
        return node
