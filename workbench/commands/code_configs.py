"""Choose the configs whose machine code is compared: those tuned for a device, else the default."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from workbench import catalog
from workbench.backend.compilers import FactsJob
from workbench.catalog.source import code_hash
from workbench.commands.operands import Operand
from workbench.commands.sizes import sizes_of
from workbench.data.record import Case
from workbench.data.tuned_cache import Entry, Tuned
from workbench.device import hardware
from workbench.device.hardware import Device
from workbench.spec import Impl, Sizes, Spec, values
from workbench.tuner.choice import sources_of

ALL = "all"


@dataclass(frozen=True)
class ChosenConfig:
    """One config to compile for one device."""

    job: FactsJob
    device: Device


@dataclass(frozen=True)
class NotCompiled:
    """What cannot be compiled on a device, and the reason."""

    what: str
    device: str
    reason: str


def devices_of(names: Sequence[str]) -> list[Device]:
    """Return the named devices, each once; all that Triton compiles for, for none or `all`. Raises
    UnknownDevice."""
    if not names or ALL in names:
        return [hardware.DEVICES[name] for name in hardware.DEVICES]
    return list({d.name: d for d in map(hardware.device_named, names)}.values())


@dataclass(frozen=True)
class ConfigChooser:
    """Choose configs of one dtype. `sizes` and `operand` are those of the command line, if any."""

    dtype: str
    tuned_cache: Tuned
    sizes: str | None = None
    operand: Operand | None = None

    def kernel_configs(
        self, kernel: str, devices: Sequence[Device]
    ) -> Iterator[ChosenConfig | NotCompiled]:
        """Yield the configs of each Triton Impl of a kernel on each device: of another dtype where
        the kernel takes none of this one, which its case names."""
        spec = catalog.spec_of(kernel)
        every = list(self._dtype_configs(kernel, spec, devices))
        if not any(isinstance(each, ChosenConfig) for each in every) and self.operand is None:
            # a kernel for other dtypes, as of fp8: it is compiled for the first that it takes
            for dtype in [name for name in spec.tolerance if name != self.dtype]:
                other = list(replace(self, dtype=dtype)._dtype_configs(kernel, spec, devices))
                if any(isinstance(each, ChosenConfig) for each in other):
                    every = other
                    break
        yield from every

    def _dtype_configs(
        self, kernel: str, spec: Spec, devices: Sequence[Device]
    ) -> Iterator[ChosenConfig | NotCompiled]:
        if self.dtype not in spec.tolerance:
            yield NotCompiled(spec.name, "every device", f"it does not support {self.dtype}")
            return
        for device in devices:
            if self.operand is not None:
                yield self._operand_config(kernel, spec, self.operand, device)
                continue
            for impl in spec.impls:
                if impl.backend == "triton":
                    yield from self._impl_configs(kernel, spec, impl, device)

    def _operand_config(
        self, kernel: str, spec: Spec, operand: Operand, device: Device
    ) -> ChosenConfig | NotCompiled:
        sizes = sizes_of(spec, self.sizes)
        impl, config = operand.choose(spec, device.limits, self.dtype, sizes)
        if reason := impl.rejection_reason(config, device.limits, self.dtype, sizes):
            return NotCompiled(impl.title, device.name, reason)
        return self._config(kernel, impl, values(config), sizes, device)

    def _impl_configs(
        self, kernel: str, spec: Spec, impl: Impl, device: Device
    ) -> Iterator[ChosenConfig | NotCompiled]:
        entries = self._entries(impl, spec, device)
        for entry in entries:
            chosen = self._config(kernel, impl, entry.config, entry.sizes, device)
            yield replace(chosen, job=replace(chosen.job, tuning_date=entry.at[:10]))
        if not entries:
            yield self._default(kernel, spec, impl, device)

    def _entries(self, impl: Impl, spec: Spec, device: Device) -> list[Entry]:
        """Return the newest measured entry of each set of sizes, of whichever version of Triton: an
        upgrade leaves those of the version before unused."""
        wanted = sizes_of(spec, self.sizes) if self.sizes else None
        newest: dict[object, Entry] = {}
        for e in self.tuned_cache.matching(spec.name, impl.name, device.name, self.dtype):
            at = tuple(sorted(e.sizes.items()))
            usable = not e.predicted and e.source in sources_of(impl)
            if (
                usable
                and wanted in (None, dict(e.sizes))
                and e.config.keys() == impl.knobs().keys()
            ):
                newest[at] = max(e, newest.get(at, e), key=lambda entry: entry.at)
        return list(newest.values())

    def _default(
        self, kernel: str, spec: Spec, impl: Impl, device: Device
    ) -> ChosenConfig | NotCompiled:
        """Return the default at the first sizes to time that do not reject it."""
        reason = ""
        for sizes in [sizes_of(spec, self.sizes)] if self.sizes else spec.bench:
            config, refused = impl.default_or_reason(device.limits, self.dtype, sizes)
            if config is not None:
                return self._config(kernel, impl, values(config), sizes, device)
            reason = reason or refused
        return NotCompiled(impl.title, device.name, reason)

    def _config(
        self, kernel: str, impl: Impl, config: Mapping[str, int], sizes: Sizes, device: Device
    ) -> ChosenConfig:
        about = impl.spec.name, impl.name, impl.backend, dict(config), dict(sizes)
        case = Case(*about, self.dtype, device.name)
        return ChosenConfig(FactsJob(kernel, case, code_hash(impl)), device)
