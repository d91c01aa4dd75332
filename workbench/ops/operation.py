"""One operator of torch for one Spec: its schema, its launch, its shapes without a launch, and what
it does under autograd.

The operators are defined with `torch.library.Library`, neither by `torch.library.triton_op` nor by
`custom_op`. `triton_op` traces the launcher on tensors without memory, so the config would be
chosen while torch compiles and kept in its cache, whatever is tuned later; and it takes no launcher
that looks at addresses (tensor descriptors), asks for a cooperative grid, or runs Gluon. Both of
them lead each call through some 16 us of Python; `Library` takes 3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch

from workbench.adapted.launch import MOST
from workbench.data.tuned_cache import LOOKED_UP
from workbench.dsl import INTERPRETED
from workbench.ops.choice import Launcher, first_launch
from workbench.ops.derivatives import DERIVATIVES, Derivative
from workbench.ops.shapes import OperationError, outputs_of, title
from workbench.ops.text import docstring_of, signature_of
from workbench.spec import Spec

NAMESPACE = "workbench"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
PLAIN = (torch.Tensor, torch.nn.Parameter)
ALIKE = 8  # warm calls kept for one shape of the first input
SHAPES = MOST // ALIKE
# neither fake nor on the device `meta`, whose operators have other functions
has_memory = attrgetter("is_cpu" if INTERPRETED else "is_cuda")


def schema_of(spec: Spec, name: str = "") -> str:
    """Return an operator's schema: `rms_norm(Tensor x, Tensor w) -> Tensor`."""
    inputs = ", ".join(f"Tensor {name}" for name in spec.inputs)
    several = ", ".join("Tensor" for _ in spec.outputs)
    return (
        f"{name or spec.name}({inputs}) -> {several if len(spec.outputs) == 1 else f'({several})'}"
    )


def operation_of(spec: Spec) -> Callable[..., Any]:
    """Return a function of tensors that launches the best Impl of a Spec, as an operator of torch.

    It is also `torch.ops.workbench.NAME`. Without a gradient to prepare, the function passes by
    torch's Python of autograd, which takes 7 us of a call; of plain tensors whose operators nobody
    watches it passes by the dispatcher, too, which saves 1. Raises OperationError where there is an
    operator of that name already.
    """
    if hasattr(getattr(torch.ops, NAMESPACE), spec.name):
        raise OperationError(
            f"There is an operation {title(spec)} already; give the Spec another name."
        )
    chosen: dict[Any, Launcher] = {}
    launched = _launching(spec, chosen)
    overload = _define_operator(spec, launched)
    below = torch._C._AutoDispatchBelowAutograd
    compiling, recording = torch.compiler.is_compiling, torch.is_grad_enabled
    warm = WarmCalls(chosen)
    count, known = len(spec.inputs), warm.launcher_of

    def call(*inputs: Any, **named: Any) -> Any:
        if named or compiling():
            return overload(*inputs, **named)
        direct = len(inputs) == count and _is_unwatched()
        if direct and (launcher := known(inputs)) is not None:
            return launcher(*inputs)
        grad = recording()
        for x in inputs:
            if not isinstance(x, torch.Tensor) or (grad and x.requires_grad):
                return overload(*inputs)
            direct = direct and type(x) in PLAIN and has_memory(x) and not x.is_neg()
        if direct:
            output = launched(*inputs)
            warm.keep(inputs)
            return output
        with below():
            return overload(*inputs)

    call.__name__ = call.__qualname__ = spec.name
    call.__module__ = __name__.rpartition(".")[0]
    call.__doc__, call.__signature__ = docstring_of(spec), signature_of(spec)  # type: ignore[attr-defined]
    return call


def _is_unwatched() -> bool:
    """Return whether nothing wants to see the operators that are called."""
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack()
        or torch._C._get_tracing_state()
        or torch._C._autograd._profiler_enabled()
    )


def _define_operator(spec: Spec, launched: Callable[..., Any]) -> Any:
    """Define `torch.ops.workbench.NAME`. Returns its overload."""
    overload = _operator(spec, spec.name, launched)
    derivative = DERIVATIVES.get(spec.name)
    if derivative is None:
        autograd = _refusing(spec, overload)
    elif derivative.extras:
        autograd = _choose_overload(overload, _define_wider(spec, derivative))
    else:
        _differentiate(spec, spec.name, derivative)
        return overload
    LIBRARY.impl(spec.name, autograd, "Autograd", with_keyset=True)
    return overload


def _operator(spec: Spec, name: str, launched: Callable[..., Any]) -> Any:
    """Define an operator without anything for autograd. Returns its overload."""
    LIBRARY.define(schema_of(spec, name), tags=torch.Tag.pt2_compliant_tag)
    LIBRARY.impl(name, launched, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", _fake(spec), lib=LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _define_wider(spec: Spec, derivative: Derivative) -> Any:
    """Define the operator that also returns what the backward needs, as
    `attention_with_lse(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)`, with its backward.
    Returns its overload."""
    name = "_with_".join((spec.name, *derivative.extras))
    wider = replace(spec, outputs={**spec.outputs, **derivative.extras})
    overload = _operator(wider, name, _launching(wider, {}, dict.fromkeys(derivative.extras, True)))
    _differentiate(wider, name, derivative)
    return overload


def _differentiate(spec: Spec, name: str, derivative: Derivative) -> None:
    """Give an operator its backward."""
    setup, backward = _formula(spec, derivative)
    torch.library.register_autograd(
        f"{NAMESPACE}::{name}", backward, setup_context=setup, lib=LIBRARY
    )


def _key(inputs: Sequence[torch.Tensor]) -> Any:
    """Return what the choice of a launcher is kept by. It takes 0.5 us an input."""
    each = [(t.shape, t.stride(), t.dtype, t.data_ptr() & 15) for t in inputs]
    return inputs[0].device, *each


def _launching(
    spec: Spec, chosen: dict[Any, Launcher], more: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return the function that launches an operation on tensors with memory, with `more` keywords.
    Impl and config are chosen at the first launch for a device, shapes, strides, dtypes and
    alignment."""
    LOOKED_UP.append(chosen)

    def first(at: Any, inputs: Sequence[torch.Tensor]) -> Any:
        launcher, output = first_launch(spec, inputs, more)
        if len(chosen) >= MOST:
            chosen.clear()
        chosen[at] = launcher
        return output

    def launch(*inputs: torch.Tensor) -> Any:
        x = inputs[0]
        if x.is_cuda and x.get_device() != torch._C._cuda_getDevice():
            with torch.cuda.device(x.device):  # Triton launches on the current one
                return launch(*inputs)
        at = _key(inputs)
        known = chosen.get(at)
        return first(at, inputs) if known is None else known(*inputs)

    return launch


class WarmCalls:
    """Launchers of plain tensors that were launched before, found by torch's own guards: they
    compare types, dispatch keys, dtypes, devices, shapes and strides of all tensors in one call of
    C++, 0.1 us an input where Python takes 0.9. Addresses are multiples of 16 in all of them."""

    def __init__(self, chosen: Mapping[Any, Launcher]) -> None:
        self._chosen = chosen
        self._by_shape: dict[Any, list[tuple[Any, bool, int, Launcher]]] = {}  # of the first input
        LOOKED_UP.append(self._by_shape)

    def launcher_of(self, inputs: Sequence[Any]) -> Launcher | None:
        """Return the launcher of such inputs; None if there is none yet, if a gradient is to be
        prepared, or if a launch needs another GPU than the current one."""
        if type(inputs[0]) not in PLAIN:
            return None
        for matches, graded, index, launcher in self._by_shape.get(inputs[0].shape, ()):
            if matches(*inputs):
                bits = 0
                for x in inputs:
                    bits |= x.data_ptr()
                if (
                    bits & 15
                    or (graded and torch.is_grad_enabled())
                    or (index >= 0 and index != torch._C._cuda_getDevice())
                ):
                    return None
                return launcher
        return None

    def keep(self, inputs: Sequence[torch.Tensor]) -> None:
        """Keep the launcher of inputs that were launched."""
        if len(self._by_shape) >= SHAPES:
            self._by_shape.clear()
        same = self._by_shape.setdefault(inputs[0].shape, [])
        if len(same) >= ALIKE or any(x.data_ptr() & 15 for x in inputs):
            return  # before the key, which takes longer: such calls come here each time
        if (launcher := self._chosen.get(_key(inputs))) is not None:
            sizes, strides = [list(x.shape) for x in inputs], [list(x.stride()) for x in inputs]
            guards = torch._C._dynamo.guards.TensorGuards(
                *inputs, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
            )
            graded = any(x.requires_grad for x in inputs)
            same.append((guards.check, graded, inputs[0].get_device(), launcher))


def _fake(spec: Spec) -> Callable[..., Any]:
    def fake(*inputs: torch.Tensor) -> Any:
        outputs = outputs_of(spec, inputs)
        return outputs if len(outputs) > 1 else outputs[0]

    return fake


def _refusing(spec: Spec, overload: Any) -> Callable[..., Any]:
    """Return the function under autograd of an operation without a derivative."""
    below = torch._C._after_autograd_keyset

    def refuse(keyset: Any, *inputs: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            for name, x in zip(spec.inputs, inputs, strict=True):
                if x.requires_grad:
                    raise OperationError(
                        f"{title(spec)} has no backward, and {name} requires a gradient; call it "
                        "under torch.no_grad(), or detach the input."
                    )
        return overload.redispatch(keyset & below, *inputs)

    return refuse


def _choose_overload(overload: Any, wider: Any) -> Callable[..., Any]:
    """Return the function under autograd of an operation whose backward needs more outputs: where a
    gradient is to be prepared, `wider` computes them."""
    below = torch._C._after_autograd_keyset

    def call(keyset: Any, *inputs: torch.Tensor) -> Any:
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            return wider(*inputs)[0]
        return overload.redispatch(keyset & below, *inputs)

    return call


def _formula(spec: Spec, derivative: Derivative) -> tuple[Callable[..., None], Callable[..., Any]]:
    """Return what to keep for the backward, and the backward, as torch registers them."""

    def setup(ctx: Any, inputs: Sequence[torch.Tensor], output: Any) -> None:
        for name, needed in zip(spec.inputs, ctx.needs_input_grad, strict=False):
            if needed and name in derivative.constant:
                raise OperationError(
                    f"{title(spec)} has no gradient for {name}, which requires one; detach it."
                )
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.mark_non_differentiable(*outputs[len(outputs) - len(derivative.extras) :])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*derivative.keep(inputs, outputs))

    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        if all(g is None for g in gradients):
            return (None,) * len(spec.inputs)
        return derivative.formula(ctx.needs_input_grad, ctx.saved_tensors, gradients)

    return setup, backward
