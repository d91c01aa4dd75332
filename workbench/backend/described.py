"""Describe kernels as text, in processes that import them, for one that does not.

A description is the word of the code that it describes: it is read as JSON, field by field, and
names what to compile and to check. It decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench import catalog
from workbench.backend.workers import LOST, Workers
from workbench.catalog.source import code_hash, load_kernel
from workbench.data.errors import first_sentence
from workbench.device.hardware import Device
from workbench.spec import Impl, ResolveError, Sizes, values

DESCRIBE_S = 120.0  # of one file; importing torch from a cold disk is not part of it
LARGEST = 1 << 22  # characters of a description; those of the built-in kernels have up to 60,000


@dataclass(frozen=True)
class DescriptionRequest:
    """What is asked of one kernel."""

    kernel: str  # as workers import it
    dtype: str
    devices: tuple[Device, ...]
    version: str | None = None  # path of the kernel's file where it is not the kernel's own
    bench: tuple[Sizes, ...] | None = None  # None: the Spec's own
    check: tuple[Sizes, ...] = ()  # sizes to check, beside the Spec's own


@dataclass(frozen=True)
class DefaultLaunch:
    """The default config of an Impl at one size on one device, or the reason why it has none."""

    device: str
    sizes: Sizes
    config: dict[str, Any] | None
    reason: str


@dataclass(frozen=True)
class CheckedConfig:
    """A config that is the default somewhere, with the sizes to check that it takes."""

    config: dict[str, Any]
    sizes: tuple[Sizes, ...]


@dataclass(frozen=True)
class DescribedImpl:
    """An Impl as its file declares it."""

    name: str
    backend: str
    code: str  # hash of its code
    launches: tuple[DefaultLaunch, ...]
    configs: tuple[CheckedConfig, ...]

    def taken_configs(self, check: Sequence[Sizes]) -> list[CheckedConfig]:
        """Return the configs that take some of these sizes, each with those."""
        every = [
            CheckedConfig(c.config, tuple(s for s in check if s in c.sizes)) for c in self.configs
        ]
        return [c for c in every if c.sizes]


@dataclass(frozen=True)
class Description:
    """A kernel as its file declares it."""

    name: str
    file: str
    dtypes: tuple[str, ...]
    tensors: tuple[tuple[str, ...], tuple[str, ...]]  # names of inputs and outputs
    bench: tuple[Sizes, ...]
    check: tuple[Sizes, ...]
    impls: tuple[DescribedImpl, ...]

    def impl(self, name: str) -> DescribedImpl | None:
        """Return the Impl of this name, or None."""
        return next((impl for impl in self.impls if impl.name == name), None)


def describe(workers: Workers, request: DescriptionRequest) -> Description:
    """Return the description of a kernel, made in a worker. Raises CatalogError where its file
    cannot be imported, or where what came back is not a description."""
    try:
        text = workers.submit(describe_kernel, request, timeout_s=DESCRIBE_S).result()
        return read_description(text)
    except catalog.CatalogError:
        raise
    except LOST as error:
        reason = f"its process {error}"
    except Exception as error:
        reason = first_sentence(error)
    where = request.version or request.kernel
    raise catalog.CatalogError(f"{where} cannot be imported ({reason}); correct it first.")


# In the process that imports the kernel


def describe_kernel(request: DescriptionRequest) -> str:
    """Return the description of a kernel as JSON, in a worker."""
    spec = load_kernel(request.kernel, request.version).spec
    bench = spec.bench if request.bench is None else request.bench
    check = [dict(s) for s in spec.check]
    check += [dict(s) for s in request.check if dict(s) not in check]
    supported = request.dtype in spec.tolerance
    return json.dumps(
        {
            "name": spec.name,
            "file": request.version or catalog.module_of(request.kernel).__file__,
            "dtypes": list(spec.tolerance),
            "tensors": [list(spec.inputs), list(spec.outputs)],
            "bench": [dict(s) for s in bench],
            "check": [dict(s) for s in spec.check],
            "impls": [
                _impl(impl, request, bench if supported else (), check if supported else ())
                for impl in spec.impls
            ],
        }
    )


def _impl(
    impl: Impl, request: DescriptionRequest, bench: Sequence[Sizes], check: Sequence[Sizes]
) -> dict[str, Any]:
    compiled = impl.backend == "triton"
    return {
        "name": impl.name,
        "backend": impl.backend,
        "code": code_hash(impl),
        "launches": [
            _launch(impl, request.dtype, sizes, device)
            for device in (request.devices if compiled else ())
            for sizes in bench
        ],
        "configs": _configs(impl, request, bench, check) if compiled and check else [],
    }


def _launch(impl: Impl, dtype: str, sizes: Sizes, device: Device) -> dict[str, Any]:
    chosen, reason = impl.default_or_reason(device.limits, dtype, sizes)
    config = None if chosen is None else dict(values(chosen))
    return {"device": device.name, "sizes": dict(sizes), "config": config, "reason": reason}


def _configs(
    impl: Impl, request: DescriptionRequest, bench: Sequence[Sizes], check: Sequence[Sizes]
) -> list[dict[str, Any]]:
    """Return each config that is the default somewhere on the first device, with the sizes to check
    that it takes."""
    limits, dtype = request.devices[0].limits, request.dtype
    configs: list[Any] = []
    for sizes in (*check, *bench):
        try:
            config = impl.default(limits, dtype, sizes)
        except ResolveError:
            continue
        if config not in configs:
            configs.append(config)
    return [
        {
            "config": dict(values(c)),
            "sizes": [s for s in check if impl.rejection_reason(c, limits, dtype, s) is None],
        }
        for c in configs
    ]


# In the process that asks


def read_description(text: object) -> Description:
    """Return the description that a worker sent. Raises ValueError where a field is missing or has
    another type than it should."""
    if not isinstance(text, str) or len(text) > LARGEST:
        raise ValueError("it sent no description")
    plain = json.loads(text)
    inputs, outputs = _list(plain, "tensors")
    return Description(
        _text(plain, "name"),
        _text(plain, "file"),
        tuple(_texts(_list(plain, "dtypes"))),
        (tuple(_texts(inputs)), tuple(_texts(outputs))),
        tuple(_sizes(s) for s in _list(plain, "bench")),
        tuple(_sizes(s) for s in _list(plain, "check")),
        tuple(_read_impl(impl) for impl in _list(plain, "impls")),
    )


def _read_impl(plain: Any) -> DescribedImpl:
    launches = [
        DefaultLaunch(
            _text(launch, "device"),
            _sizes(_get(launch, "sizes", dict)),
            None if launch.get("config") is None else _config(_get(launch, "config", dict)),
            _text(launch, "reason"),
        )
        for launch in _list(plain, "launches")
    ]
    configs = [
        CheckedConfig(
            _config(_get(config, "config", dict)), tuple(_sizes(s) for s in _list(config, "sizes"))
        )
        for config in _list(plain, "configs")
    ]
    name, backend, code = (_text(plain, name) for name in ("name", "backend", "code"))
    return DescribedImpl(name, backend, code, tuple(launches), tuple(configs))


def _get(plain: Any, name: str, kind: type) -> Any:
    value = plain.get(name) if isinstance(plain, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"its description has no {name}")
    return value


def _text(plain: Any, name: str) -> str:
    return str(_get(plain, name, str))


def _list(plain: Any, name: str) -> list[Any]:
    result: list[Any] = _get(plain, name, list)
    return result


def _texts(plain: Any) -> list[str]:
    if not isinstance(plain, list) or not all(isinstance(text, str) for text in plain):
        raise ValueError("its description has a list of names that is none")
    return plain


def _sizes(plain: Any) -> dict[str, int]:
    if not isinstance(plain, dict) or not all(type(n) is int for n in plain.values()):
        raise ValueError("its description has sizes that are not whole numbers")
    return plain


def _config(plain: dict[str, Any]) -> dict[str, Any]:
    if not all(isinstance(v, (int, str)) for v in plain.values()):
        raise ValueError("its description has a config of other values")
    return plain
