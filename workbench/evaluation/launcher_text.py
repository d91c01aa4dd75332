"""Decide from the text of a file whether its launcher can do anything but what a plan records.

A plan shows what a launcher does on tensors without values. It is what the launcher does everywhere
if the launcher can neither see where it runs nor remember a call: then its steps follow from the
shapes, strides and dtypes of its inputs, and nothing in its file changes the process that records.
The file is read and not executed. What is not on the lists below makes its launches a claim.
"""

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

DEVICE = "workbench_device"  # where the tensors of a task's submission lie
# Modules that may be imported, and their names that may be used; None: those that the lists of
# attributes hold.
_MODULES: Mapping[str, frozenset[str] | None] = {
    "__future__": frozenset(("annotations",)),
    "dataclasses": frozenset(("dataclass", "field", "replace")),
    "typing": frozenset(("Any", "Callable", "Optional", "Sequence", "Tuple", "Union")),
    "collections.abc": frozenset(("Callable", "Mapping", "Sequence")),
    "math": None,
    "torch": None,
    "triton": None,
    "triton.language": None,
    "triton.language.extra": frozenset(("libdevice",)),
    "triton.language.extra.libdevice": None,
    "triton.language.extra.cuda": frozenset(("libdevice", "gdc_launch_dependents", "gdc_wait")),
    "triton.tools.tensor_descriptor": frozenset(("TensorDescriptor",)),
    "workbench.dsl": frozenset(
        (
            *("tl", "triton", "TensorDescriptor", "cores", "pad_up", "tile_count", "widest_block"),
            *("meta", "divisors", "strides", "describable", "block_strides", "describe"),
            *("policies", "launch_pdl", "normal", "precision_of", "upcast"),
            *("LIGER", "FLA", "baseline", "compile_call"),  # of a library's versions
        )
    ),
    "workbench.spec": frozenset(
        (
            *("AUTO", "Extent", "Impl", "Limits", "Spec", "Tensor", "Tolerance", "Work"),
            *(
                "among",
                "value_or",
                "rms_bounds",
                "stages",
                "threads",
                "tile",
                "unaligned_rows",
                "TOLERANCE",
            ),
            "ITEMSIZE",
        )
    ),
}
_BASELINES = ("workbench.dsl.baseline", "workbench.dsl.compile_call")
_INSTALLED = ("torch", "triton", "numpy", "workbench")
_TORCH = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "zeros", "zeros_like", "ones", "ones_like"),
        *("full", "full_like", "Tensor", "Size", "finfo", "iinfo", "dtype", "strided"),
        *("contiguous_format", "float64", "float32", "float16", "bfloat16", "float8_e4m3fn"),
        *("float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int64", "int32", "int16", "int8"),
        *("uint8", "bool", "float", "half", "double", "long", "int"),
    )
)
_TRITON = frozenset(("cdiv", "next_power_of_2", "jit", "language", "tools", "tensor_descriptor"))
_BUILTINS = frozenset(
    (
        *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "int"),
        *("isinstance", "len", "list", "max", "min", "pow", "range", "reversed", "round"),
        *("sorted", "slice", "sum", "tuple", "zip", "True", "False", "None"),
    )
)
_ERRORS = frozenset(
    n for n, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, Exception)
)
# Attributes of tensors, of plain values, of a Spec and its Impls, and of the limits of a device.
_ATTRIBUTES = frozenset(
    (
        *("shape", "dtype", "ndim", "size", "stride", "numel", "element_size", "dim", "itemsize"),
        *("is_contiguous", "contiguous", "view", "reshape", "flatten", "unsqueeze", "squeeze"),
        *("transpose", "permute", "t", "T", "mT", "expand", "narrow", "select", "split", "unbind"),
        *("view_as", "as_strided", "new_empty", "new_zeros", "new_full", "new_ones", "zero_"),
        *("new_empty_strided", "fill_", "is_floating_point", "chunk"),
        *(
            "items",
            "keys",
            "values",
            "get",
            "fromkeys",
            "bit_length",
            "from_tensor",
            "eps",
            "tiny",
            "bits",
        ),
        *("impl", "library", "launch", "inputs", "outputs", "check", "bench", "tolerance"),
        *("arch", "warp_size", "shared_bytes", "registers_per_thread", "threads_per_block"),
        *("cores", "nvidia", "buffers", "stages_bytes", "fp32_in_parts", "refuse_held"),
        *("refuse_sums", "refuse_shared", "refuse_grid", "refuse_program", "refuse_rows"),
        *("refuse_fp8", "refuse_pdl", "product", "min", "max"),
    )
)
_CHANGES = frozenset(("append", "extend", "insert", "update", "add", "pop", "setdefault"))
_NODES = (
    *(ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Expr),
    *(ast.Pass, ast.Break, ast.Continue, ast.Assert, ast.Raise, ast.FunctionDef, ast.arguments),
    *(ast.arg, ast.keyword, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call),
    *(ast.Attribute, ast.Subscript, ast.Slice, ast.Name, ast.Constant, ast.Tuple, ast.List),
    *(ast.Dict, ast.Set, ast.Starred, ast.Lambda, ast.ListComp, ast.DictComp),
    *(ast.GeneratorExp, ast.comprehension, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
    ast.expr_context,
)
_NUMBERS = frozenset(
    (
        *("int", "len", "abs", "round", "float", "sum", "numel", "cdiv", "next_power_of_2", "size"),
        *("dim", "element_size", "bit_length", "list", "dict", "set", "sqrt"),
    )
)  # calls that make a new value
_VIEWS = ("items", "keys")  # which give sets by & and |
_TEXTS = (ast.JoinedStr, ast.FormattedValue)
_FRESH = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


class _Opaque(Exception):
    """A file holds what the lists do not; one clause says what."""


def opaque_reason(
    data: bytes, defined: Mapping[str, frozenset[str]], entry: str | None = None
) -> str | None:
    """Return in one clause why a file's launcher may do other things than a plan records, or None.

    `defined` holds the names that trusted modules define, such as that of the Spec, by module. With
    `entry` the launcher is the function of that name, or the `forward` of that class.
    """
    try:
        tree = ast.parse(data)
        _LauncherFile(tree, defined, entry).check()
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"its text is not valid Python ({type(error).__name__})"
    except _Opaque as reason:
        return str(reason)
    return None


def defined_names(data: bytes) -> frozenset[str]:
    """Return the names that a file defines itself at its top, without those that it imports."""
    names: set[str] = set()
    for node in ast.parse(data).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return frozenset(names)


def _opaque(node: ast.AST, what: str) -> _Opaque:
    return _Opaque(f"line {getattr(node, 'lineno', 0)} {what}")


class _LauncherFile:
    """One file: its imports, functions, classes and constants."""

    def __init__(
        self, tree: ast.Module, defined: Mapping[str, frozenset[str]], entry: str | None = None
    ) -> None:
        self._tree, self._defined, self._entry = tree, defined, entry
        self.is_task = entry is not None
        self.modules: dict[str, str] = {}  # by the name that the file gives them
        self.values: set[str] = set()  # names of functions, classes, constants and imports
        self.containers: set[str] = set()  # constants that could be changed
        self.fields: set[str] = set()  # of its classes
        self.functions: dict[str, ast.FunctionDef] = {}  # that only some code calls
        self.imported: dict[str, str] = {}  # values from modules, by the name that the file gives
        self.unlisted: dict[str, str] = {}  # names that it imports and no launcher may use
        self._reached: list[tuple[str, bool]] = []  # names, and whether they may write texts

    def check(self) -> None:
        """Raise _Opaque for the first statement that is on no list. Functions that neither the
        import nor a launcher reaches, such as a reference, run nowhere and are left out."""
        for node in self._tree.body:  # names first: functions use what comes after them
            self._enter(node)
        for node in self._tree.body:
            self._statement(node)
        if self._entry is not None and self._entry not in self.values:
            raise _Opaque(f"it defines no {self._entry}")
        self.reach(self._entry or "", False)
        seen: set[tuple[str, bool]] = set()
        while self._reached:
            if (each := self._reached.pop()) not in seen:
                seen.add(each)
                self._host(self.functions[each[0]], each[1])

    def reach(self, name: str, texts: bool) -> None:
        """Hear that code which runs names a function of the file."""
        if name in self.functions:
            self._reached.append((name, texts))

    def _enter(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self._bind(node, node.name)
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            if isinstance(node, ast.ClassDef):
                self._enter_fields(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if not isinstance(name, ast.Name):
                        raise _opaque(node, "assigns to what is not a name of its own")
                    self._bind(node, name.id)
                    if not isinstance(node.value, (ast.Constant, ast.Tuple, ast.Lambda, ast.Call)):
                        self.containers.add(name.id)

    def _enter_fields(self, node: ast.ClassDef) -> None:
        """Enter the attributes of a class. Raises _Opaque for those that values of other types
        have, too: a launcher may read them of a tensor then."""
        names = {
            f.target.id
            for f in node.body
            if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
        }
        names |= {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
        if self._is_model(node):
            names |= set(map(_self_attribute, ast.walk(node))) - {""}
        names = {name for name in names if not name.startswith("_")}  # refused elsewhere
        if odd := sorted(names & _foreign_attributes()):
            raise _opaque(node, f"names a field {odd[0]}, as values of other types have")
        self.fields |= names

    def _is_model(self, node: ast.ClassDef) -> bool:
        """Return whether a class is the model that a task calls."""
        if node.name != self._entry or len(node.bases) != 1 or node.keywords:
            return False
        return self._nn_name(node.bases[0]) == "Module"

    def _nn_name(self, node: ast.AST) -> str:
        """Return the name of `torch.nn` that an expression is, or nothing."""
        if not isinstance(node, ast.Attribute):
            return ""
        of, names = node.value, self.unlisted
        whole = (
            isinstance(of, ast.Attribute)
            and of.attr == "nn"
            and (isinstance(of.value, ast.Name) and self.modules.get(of.value.id) == "torch")
        )
        own = isinstance(of, ast.Name) and names.get(of.id) == "torch.nn"
        return node.attr if whole or own else ""

    def _bind(self, node: ast.AST, name: str) -> None:
        self._once(node, name)
        self.values.add(name)

    def _once(self, node: ast.AST, name: str) -> None:
        """Raise _Opaque where a name has a meaning already: the last one would hold."""
        if name.startswith("__") or name in vars(builtins):
            raise _opaque(node, f"gives {name} another meaning")
        if name in self.values or name in self.modules or name in self.unlisted:
            raise _opaque(node, f"defines {name} twice")

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                listed = _MODULES.get(alias.name, frozenset()) is None
                if listed and (alias.asname or "." not in alias.name):
                    self._once(node, name)
                    self.modules[name] = alias.name
                else:
                    self._enter_unlisted(node, alias.name, name, alias.name)
            return
        module = node.module or ""
        if node.level:
            raise _opaque(node, "imports from a package of its own")
        for alias in node.names:
            whole = f"{module}.{alias.name}"
            name = alias.asname or alias.name
            if whole in _MODULES and _MODULES[whole] is None:
                self._once(node, name)
                self.modules[name] = whole
            elif module == "workbench.dsl" and alias.name in ("tl", "triton"):
                self._once(node, name)
                self.modules[name] = {"tl": "triton.language"}.get(alias.name, alias.name)
            elif self._may_import(module, alias.name):
                self._bind(node, name)
                self.imported[name] = whole
            else:
                self._enter_unlisted(node, module, name, whole)

    def _enter_unlisted(self, node: ast.AST, module: str, name: str, whole: str) -> None:
        """Enter a name that no code which runs may use. Raises _Opaque where its module is another
        file of the user's, whose code the import runs."""
        top = module.partition(".")[0]
        if name == "*" or (top not in sys.stdlib_module_names and top not in _INSTALLED):
            raise _opaque(node, f"imports {whole}")
        self._once(node, name)
        self.unlisted[name] = whole

    def _may_import(self, module: str, name: str) -> bool:
        if module in self._defined:
            return name in self._defined[module]
        if module in _MODULES:
            allowed = _MODULES[module]
            return name in allowed if allowed is not None else self._may_use_name(module, name)
        return False

    def _may_use_name(self, module: str, name: str) -> bool:
        """Return whether a name of an imported module may be used."""
        if name.startswith("_"):
            return False
        if module == "torch":
            return name in _TORCH
        if module == "triton":
            return name in _TRITON
        return True  # math, and Triton's language: device code is held to lists of its own

    # Statements of the file

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.FunctionDef):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            if isinstance(node, ast.AnnAssign):
                self._expression(node.annotation)
            self._constant(node.value)
        elif isinstance(node, ast.Expr) and _is_registration(node.value):
            self._expression(node.value, registers=True)
        else:
            raise _opaque(
                node, f"holds {type(node).__name__} in addition to functions and constants"
            )

    def _constant(self, value: ast.expr) -> None:
        """Hold a value that is made once to the lists: it is none that a call could change."""
        if isinstance(value, ast.GeneratorExp):
            raise _opaque(value, "keeps a generator")
        if isinstance(value, ast.Call):
            name = getattr(value.func, "id", "")
            of_torch = isinstance(value.func, ast.Attribute) and (
                getattr(value.func.value, "id", "") in self.modules
                and self.modules[value.func.value.id] == "torch"  # type: ignore[attr-defined]
                and value.func.attr not in ("finfo", "iinfo")
            )
            if of_torch or name in ("zip", "enumerate", "reversed") or name in self.functions:
                raise _opaque(value, f"keeps what {ast.unparse(value.func)} returns")
        self._expression(value)

    def _expression(self, value: ast.expr, texts: bool = False, registers: bool = False) -> None:
        stored = {n.id for n in ast.walk(value) if _is_stored(n)}
        body = _HostBody(self, stored, set(), texts)
        body.registers = registers
        body.visit(value)

    def _model(self, node: ast.ClassDef) -> None:
        """Hold a model to the lists: what it keeps is made once, and no call changes it."""
        if node.decorator_list:
            raise _opaque(node, f"decorates {node.name}")
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and not part.decorator_list:
                self._signature(part.args, part.returns)
                if part.name == "__init__":
                    self._model_parts(part)
                elif part.name.startswith("_"):
                    raise _opaque(part, f"defines {part.name}")
                else:
                    self._host(part, False)
            elif not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)):
                raise _opaque(part, f"holds {type(part).__name__} in a model")

    def _model_parts(self, node: ast.FunctionDef) -> None:
        """Hold the parts of a model to numbers, its arguments, torch's parameters and layers."""
        known = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
        for part in node.body:
            if isinstance(part, ast.Expr) and ast.unparse(part) in (
                "super().__init__()", f"super({self._entry}, self).__init__()"
            ):  # fmt: skip
                continue
            if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                continue
            targets = part.targets if isinstance(part, ast.Assign) else []
            if len(targets) != 1 or not _self_attribute(targets[0]):
                raise _opaque(part, f"holds {type(part).__name__} in __init__ of a model")
            value = part.value  # type: ignore[attr-defined]
            if isinstance(value, ast.Call) and self._nn_name(value.func):
                for arg in (*value.args, *(word.value for word in value.keywords)):
                    self._part(arg, known)
            else:
                self._part(value, known)

    def _part(self, value: ast.expr, known: set[str]) -> None:
        if any(isinstance(n, (*_FRESH, ast.Lambda, ast.GeneratorExp)) for n in ast.walk(value)):
            raise _opaque(value, "stores in a model a value that could be changed")
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            of = value.func.value
            if isinstance(of, ast.Name) and self.modules.get(of.id) == "torch":
                if value.func.attr not in ("randn", "rand", "zeros", "ones", "empty", "full"):
                    raise _opaque(value, f"stores the result of torch.{value.func.attr} in a model")
                for arg in (*value.args, *(word.value for word in value.keywords)):
                    self._part(arg, known)
                return
        _HostBody(self, known, set(), False).visit(value)

    def _class(self, node: ast.ClassDef) -> None:
        if self._is_model(node):
            return self._model(node)
        own = all(isinstance(b, ast.Name) and b.id in self.values for b in node.bases)
        if not own or node.keywords:
            raise _opaque(node, "derives a class from another one than its own")
        for decorator in node.decorator_list:
            known = self.imported.get("dataclass") == "dataclasses.dataclass"
            if not known or ast.unparse(decorator) not in ("dataclass", "dataclass(frozen=True)"):
                raise _opaque(node, "decorates a class by another function than dataclass")
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                if part.target.id.startswith("_"):
                    raise _opaque(part, f"names a field {part.target.id}")
                self._expression(part.annotation)
                if part.value is not None:
                    self._constant(part.value)
            elif isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                odd = [d for d in part.decorator_list if ast.unparse(d) != "property"]
                if odd:
                    raise _opaque(part, "decorates a method")
                self._signature(part.args, part.returns)
                self._host(part, False)
            elif not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)):
                raise _opaque(part, f"holds {type(part).__name__} in a class")

    def _function(self, node: ast.FunctionDef) -> None:
        kinds = [self._decorator_kind(d) for d in node.decorator_list]
        if not all(kinds) or (len(kinds) > 1 and "jit" in kinds):
            raise _opaque(node, f"decorates {node.name} by another function than jit and impl")
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                for word in (*decorator.args, *(k.value for k in decorator.keywords)):
                    if getattr(word, "id", "") not in self.containers:  # that nobody else gets
                        self._expression(word, "impl" in kinds)
        self._signature(node.args, node.returns)
        if "jit" in kinds:
            del self.functions[node.name]  # device code, which no launcher runs
        elif "impl" in kinds:
            self._reached.append((node.name, False))

    def _signature(self, args: ast.arguments, returns: ast.expr | None) -> None:
        """Hold annotations and defaults to the lists: Python runs them with the `def`."""
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        every += [a for a in (args.vararg, args.kwarg) if a is not None]
        for each in (*[a.annotation for a in every], returns, *args.defaults, *args.kw_defaults):
            if each is not None:
                self._expression(each)

    def _decorator_kind(self, node: ast.expr) -> str:
        """Return "jit", "impl" or "library", or nothing."""
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, ast.Name):
            return "library" if self.imported.get(called.id) in _BASELINES else ""
        if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
            return ""
        of, name = called.value.id, called.attr
        if self.modules.get(of) == "triton" or self.imported.get(of) == "workbench.dsl.gluon.gluon":
            return {"jit": "jit", "constexpr_function": "constant"}.get(name, "")
        is_spec = of in self.values and of not in self.functions and isinstance(node, ast.Call)
        return name if is_spec and name in ("impl", "library") else ""

    def _host(self, node: ast.FunctionDef, texts: bool) -> None:
        _HostBody(self, set(), set(), texts).visit(node)


def _self_attribute(node: ast.AST) -> str:
    """Return the attribute that `self.name` sets, or nothing."""
    is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return node.attr if is_set and getattr(node.value, "id", "") == "self" else ""  # type: ignore[attr-defined]


@cache
def _foreign_attributes() -> frozenset[str]:
    """Return the attributes of tensors, texts and other values that no list of this file has."""
    import torch

    values = (torch.Tensor, torch.Size, torch.dtype, str, bytes, int, float, list, dict, set, tuple)
    values = (*values, type, type(ast.parse), type(ast))
    return frozenset(n for value in values for n in dir(value)) - _ATTRIBUTES


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_registration(value: ast.expr) -> bool:
    """Return whether a statement enters a library's version: `spec.library("torch", call)`."""
    called = getattr(value, "func", None)
    return isinstance(called, ast.Attribute) and called.attr == "library"


class _HostBody(ast.NodeVisitor):
    """Holds a function of the host, or an expression, to the lists."""

    def __init__(self, file: _LauncherFile, local: set[str], fresh: set[str], texts: bool) -> None:
        """`texts`: it sees no tensors, such as `refuse`, and may write numbers into sentences."""
        self._file, self._local, self._fresh, self._texts = file, local, fresh, texts
        self._numbers: set[str] = set()
        self.registers = False  # a baseline, whose Impl no name holds
        self._views: set[int] = set()  # calls of `items` whose result nothing keeps
        self._is_function = False  # whose names are its own, so that `:=` sets no other

    def visit(self, node: ast.AST) -> Any:
        """Raise _Opaque where a node is on no list."""
        more = (_TEXTS if self._texts else ()) + ((ast.NamedExpr,) if self._is_function else ())
        if not isinstance(node, (*_NODES, *more)):
            raise _opaque(node, f"holds {type(node).__name__} in a function of the host")
        return super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Hold a function to the lists, with names of its own."""
        if node.decorator_list and node.name not in self._file.values | self._file.fields:
            raise _opaque(node, "decorates a function within another one")
        self._scope(node, node.args, node.body)
        if node.name not in self._file.values:
            self._local.add(node.name)
            self._file._signature(node.args, node.returns)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Hold a function without a name to the lists."""
        self._scope(node, node.args, [node.body])

    def _scope(self, node: Any, args: ast.arguments, body: Iterable[ast.AST]) -> None:
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        every += [a for a in (args.vararg, args.kwarg) if a is not None]
        for default in (*args.defaults, *args.kw_defaults):
            if default is not None:
                if any(isinstance(n, (*_FRESH, ast.Call)) for n in ast.walk(default)):
                    raise _opaque(default, "has a default that could be changed")
                self.visit(default)
        inner = [n for part in body for n in ast.walk(part)]
        stored = {n.id for n in inner if isinstance(n, ast.Name) and _is_stored(n)}
        names = {a.arg for a in every} | stored
        names |= {n.name for n in inner if isinstance(n, ast.FunctionDef)}
        if odd := [n for n in names if n.startswith("__")]:
            raise _opaque(node, f"names {odd[0]}")
        own, pairs = stored - {a.arg for a in every}, list(_assignments(inner))
        scope = _HostBody(self._file, self._local | names, set(own), self._texts)
        scope._fresh -= {name for name, value in pairs if not isinstance(value, _FRESH)}
        scope._is_function = True
        scope._numbers = own - {name for name, value in pairs if not _is_number(value)}
        for part in body:
            scope.visit(part)

    # Expressions

    def visit_Name(self, node: ast.Name) -> None:
        """Hold a name to those of the function, of the file, and the lists."""
        if node.id in self._local or isinstance(node.ctx, ast.Store):
            return
        if node.id in self._file.containers:
            raise _opaque(node, f"passes {node.id} to a call, which could change it")
        if node.id in self._file.values or node.id in _BUILTINS:
            self._file.reach(node.id, self._texts)
            return
        if self._file.is_task and node.id == DEVICE:
            return
        if node.id in self._file.unlisted:
            raise _opaque(node, f"uses {self._file.unlisted[node.id]}")
        if node.id in self._file.modules:
            raise _opaque(node, f"uses the module {node.id} as a value")
        raise _opaque(node, f"names {node.id}")

    def _is_container(self, node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Name)
            and node.id in self._file.containers
            and node.id not in self._local
        )

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Hold an attribute to the lists."""
        if not isinstance(node.ctx, ast.Load):
            raise _opaque(node, f"sets the attribute {node.attr}")
        if (module := self._module(node.value)) is not None:
            if not self._file._may_use_name(module, node.attr):
                raise _opaque(node, f"uses {module}.{node.attr}")
            return
        if node.attr in _CHANGES and isinstance(node.value, ast.Name):
            if node.value.id in self._fresh:
                return
            raise _opaque(node, f"changes {node.value.id}, which outlives the call")
        if node.attr not in _ATTRIBUTES and node.attr not in self._file.fields:
            raise _opaque(node, f"uses the attribute {node.attr}")
        if node.attr.startswith("_"):
            raise _opaque(node, f"uses the attribute {node.attr}")
        if not self._is_container(node.value):
            self.visit(node.value)

    def _module(self, node: ast.AST) -> str | None:
        """Return the name of the module that an expression is, or None."""
        if isinstance(node, ast.Name) and node.id not in self._local:
            return self._file.modules.get(node.id)
        if isinstance(node, ast.Attribute) and (of := self._module(node.value)) is not None:
            whole = f"{of}.{node.attr}"
            return whole if whole in _MODULES or of.startswith("triton.language") else None
        return None

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Hold an element to the lists: only what the call made itself is changed."""
        own = isinstance(node.value, ast.Name) and node.value.id in self._fresh
        if not (own or isinstance(node.ctx, ast.Load)):
            raise _opaque(node, "changes an element of what outlives the call")
        if not self._is_container(node.value):
            self.visit(node.value)
        self.visit(node.slice)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Allow devices of two tensors to be compared, and a look-up in a constant."""
        operands = (node.left, *node.comparators)
        if all(isinstance(s, ast.Attribute) and s.attr == "device" for s in operands):
            for operand in operands:
                self.visit(operand.value)  # type: ignore[attr-defined]
            return
        is_member = all(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
        for operand in operands:
            self._views.add(id(operand))
            if is_member and isinstance(operand, ast.Set):
                for part in operand.elts:
                    self.visit(part)
            elif not self._is_container(operand):
                self.visit(operand)

    def visit_For(self, node: ast.For) -> None:
        """Allow a loop over a constant."""
        self._views.add(id(node.iter))
        for part in (node.target, *node.body, *node.orelse):
            self.visit(part)
        if not self._is_container(node.iter):
            self.visit(node.iter)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Allow a loop over a constant."""
        self._views.add(id(node.iter))
        self.visit(node.target)
        for part in node.ifs:
            self.visit(part)
        if not self._is_container(node.iter):
            self.visit(node.iter)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Allow a number of the call to be changed: `+=` changes a list in place."""
        if not isinstance(node.target, ast.Name) or node.target.id not in self._numbers:
            raise _opaque(node, "changes in place what may outlive the call")
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        """Hold a call to the lists; `device=x.device` may stand in it."""
        if getattr(node.func, "attr", "") in _VIEWS and id(node) not in self._views:
            raise _opaque(node, f"keeps a view by {ast.unparse(node.func)}")
        if getattr(node.func, "id", "") in _BUILTINS - self._local - self._file.values:
            self._views |= set(map(id, node.args))
        self.visit(node.func)
        if self.registers and getattr(node.func, "attr", "") == "library":  # nobody calls it
            for arg in (*node.args, *(w.value for w in node.keywords)):
                if not isinstance(arg, (ast.Name, ast.Lambda)):
                    self.visit(arg)
            return
        for arg in node.args:
            if not (getattr(node.func, "id", "") == "len" and self._is_container(arg)):
                self.visit(arg)
        named = getattr(node.func, "id", getattr(node.func, "attr", ""))
        for word in node.keywords:
            value = word.value
            if word.arg == "device" and isinstance(value, ast.Attribute) and value.attr == "device":
                value = value.value
            own = self._file.imported.get(named) == f"workbench.spec.{named}"
            of_spec = own and word.arg in ("reference", "make") and named in ("Spec", "Tensor")
            if of_spec and isinstance(value, (ast.Name, ast.Lambda)):
                continue  # of its own Spec, which trusted nothing: nobody calls it
            self.visit(value)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Refuse texts that could write a value out: a text of a tensor names its device."""
        if isinstance(node.value, str) and "%" in node.value and not self._texts:
            raise _opaque(node, "holds a text with %")
        if not isinstance(node.value, (str, int, float, type(None), type(...))):
            raise _opaque(node, f"holds a {type(node.value).__name__}")

    def visit_Set(self, node: ast.Set) -> None:
        """Refuse a set, whose order differs from process to process, but for a look-up."""
        raise _opaque(node, "holds a set")

    def visit_Raise(self, node: ast.Raise) -> None:
        """Allow an error of Python's own, whatever its text."""
        self._error(node.exc)

    def _error(self, node: ast.expr | None) -> None:
        called = node.func if isinstance(node, ast.Call) else node
        if not (isinstance(called, ast.Name) and called.id in _ERRORS):
            raise _opaque(node or ast.Pass(), "raises what is not an error of Python")
        for part in ast.walk(node) if node is not None else ():
            if isinstance(part, ast.Call) and part is not node:
                self.visit(part)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Allow a check of the arguments; its text is not looked at."""
        self.visit(node.test)
        for part in ast.walk(node.msg) if node.msg is not None else ():
            if isinstance(part, ast.Call):
                self.visit(part)

    def visit_arg(self, node: ast.arg) -> None:
        """Skip annotations within functions: they are not run after the import of the file."""


def _assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield each name that a function sets with its value; None where that is another object's."""
    for node in nodes:
        if isinstance(node, (ast.For, ast.comprehension)):
            targets, value = [node.target], None
        elif isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, value
            else:
                names = [n for n in ast.walk(target) if isinstance(n, ast.Name)]
                yield from ((n.id, None) for n in names if _is_stored(n))


def _is_number(value: ast.expr | None) -> bool:
    """Return whether an expression makes a new value, which `+=` cannot change elsewhere."""
    if isinstance(value, ast.Call):
        return getattr(value.func, "id", getattr(value.func, "attr", "")) in _NUMBERS
    return isinstance(value, (ast.Constant, ast.BinOp, ast.UnaryOp, *_FRESH))
