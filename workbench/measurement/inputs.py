"""Make the inputs of a Spec: random, seeded, on a given device."""

from collections.abc import Callable
from typing import Any

from workbench.data.errors import first_sentence
from workbench.data.user_code import user_code
from workbench.spec import ITEMSIZE, Sizes, Spec, SpecFault, WorkbenchError, short, sizes_text

# Torch's names where they differ from `spec.ITEMSIZE`. fp8 is e4m3, as in the devices' peaks.
TORCH_NAMES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp64": "float64",
    "fp8": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "fp8_fnuz": "float8_e4m3fnuz",
    "fp8_e5m2_fnuz": "float8_e5m2fnuz",
}


def torch_dtype(name: str) -> Any:
    """Return torch's dtype of our name (`bf16`). Raises KeyError where `spec.ITEMSIZE` lacks it."""
    import torch

    if name not in ITEMSIZE:
        raise KeyError(name)
    return getattr(torch, TORCH_NAMES.get(name, name))


def make(
    spec: Spec, sizes: Sizes, dtype: str, device: str, seed: int = 0, *, lacks_values: bool = False
) -> tuple[Any, ...]:
    """Return a torch tensor for each input of `spec`: standard normal values, or those of its
    maker. `lacks_values`: a maker may give a tensor of the `meta` device.

    Raises SpecFault where a maker raises, or gives another shape, dtype or device than it was
    called with. Values are random, never zeros: a bf16 matrix product on an H200 runs 13 % faster
    on zeros.
    """
    import torch

    if (joint := spec.joint_inputs(sizes, dtype, seed)) is not None:
        return tuple(x.to(device) for x in joint)
    generator = torch.Generator(device=device).manual_seed(seed)
    tensors = []
    for name, tensor in spec.inputs.items():
        shape, kind = tensor.shape(sizes), torch_dtype(tensor.dtype or dtype)
        if tensor.make is not None:
            whose = f"`make` of the input {name} of the Spec {spec.name} at {sizes_text(sizes)}"
            tensors.append(
                _create_inputs(whose, tensor.make, shape, kind, device, generator, lacks_values)
            )
        else:
            tensors.append(torch.randn(shape, generator=generator, device=device).to(kind))
    return tuple(tensors)


def _create_inputs(
    whose: str,
    make: Callable[..., Any],
    shape: tuple[int, ...],
    dtype: Any,
    device: str,
    seed: Any,
    lacks_values: bool,
) -> Any:
    """Call a maker, and hold what it gives to what it was called with."""
    import torch

    try:
        with user_code(whose):
            result = make(shape, dtype, device, seed)
    except (torch.OutOfMemoryError, WorkbenchError):
        raise
    except Exception as error:
        raise SpecFault(
            f"{whose} fails ({first_sentence(error)}); correct the Spec: no kernel was tried."
        ) from error
    fault = f"returned {short(result)}, not a tensor"
    if isinstance(result, torch.Tensor):
        request = {"shape": shape, "dtype": dtype, "device": torch.device(device).type}
        result_facts = {
            "shape": tuple(result.shape),
            "dtype": result.dtype,
            "device": result.device.type,
        }
        if lacks_values and result.is_meta:
            result_facts["device"] = request["device"]
        odd = next((what for what, value in result_facts.items() if value != request[what]), None)
        if odd is None:
            return result
        fault = f"gave a tensor of {odd} {result_facts[odd]} where {request[odd]} was asked for"
    raise SpecFault(f"{whose} {fault}; correct the Spec: no kernel was tried.")


def shapes(spec: Spec, sizes: Sizes, dtype: str) -> tuple[Any, ...]:
    """Return the same inputs without values: torch tensors on the `meta` device."""
    import torch

    return tuple(
        torch.empty(t.shape(sizes), dtype=torch_dtype(t.dtype or dtype), device="meta")
        for t in spec.inputs.values()
    )
