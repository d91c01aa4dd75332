"""Leave the best predicted configs to `@triton.autotune`: its `early_config_prune`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.adapted.predicted import PredictedCall
from workbench.code.ttgir import NotModelled
from workbench.data.errors import first_sentence
from workbench.device.hardware import Device

MOST = 5  # configs that are left
_log = logging.getLogger("workbench")


def pruner(kernel: Any, device: Device, most: int = MOST) -> Callable[..., list[Any]]:
    """Return a function for `early_config_prune`: it compiles all configs for the device, predicts
    their times from the code, and leaves the best. It leaves all where no time can be derived."""

    def early_config_prune(
        configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any
    ) -> list[Any]:
        every, given = list(configs), dict(named_args)
        if len(every) <= most:
            return every
        own = {n: v for n, v in kwargs.items() if n in kernel.arg_names}
        call = PredictedCall(kernel, device, {**given, **own}, kwargs["grid"])
        times: list[tuple[float, int]] = []
        for i, config in enumerate(every):
            try:
                times.append((call.predict(config)[0].predicted_s, i))
            except NotModelled as reason:
                _log.warning("%s: no config is left out: %s", kernel.__name__, reason)
                return every
            except Exception as error:  # the config does not compile: nothing would launch it
                _log.info("%s: %s: %s", kernel.__name__, config, first_sentence(error))
        return [every[i] for _, i in sorted(times)[:most]] or every

    return early_config_prune
