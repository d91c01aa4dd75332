"""Read the configs of `@triton.autotune`, and store the winner in its cache."""

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.adapted.travel import AdaptedError

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def autotuner_of(kernel: Any) -> Any | None:
    """Return the Autotuner around a function, also below `heuristics`; None if there is none."""
    from workbench.dsl import triton

    while kernel is not None and not isinstance(kernel, triton.runtime.Autotuner):
        kernel = getattr(kernel, "fn", None)
    return kernel


def configs_of(tuner: Any, given: Arguments) -> tuple[list[Any], list[str]]:
    """Return the configs of `@triton.autotune` without those that its `early_config_prune` drops,
    and notes on what is ignored. Raises AdaptedError where it drops all."""
    configs, notes = list(tuner.configs), []
    args, kwargs = given
    if tuner.early_config_prune:
        try:
            named = dict(zip(tuner.arg_names, args, strict=False))
            configs = list(tuner.early_config_prune(configs, named, **kwargs))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            notes.append(
                f"early_config_prune failed here ({reason}), so that all configs are tried"
            )
        if not configs:
            raise AdaptedError("early_config_prune leaves no config; it must leave at least one.")
    if tuner.perf_model:
        notes.append("perf_model and top_k are ignored: every config is tried")
    if tuner.user_defined_pre_hook or tuner.user_defined_post_hook:
        notes.append(
            "pre_hook and post_hook of @triton.autotune are not run: Triton runs them only while "
            "it tunes, and here what a launch changes is restored before each"
        )
    return configs, notes


def remember(tuner: Any, given: Arguments, best: Any) -> None:
    """Store `best` in the Autotuner's cache, so that the next launch with such arguments uses it.

    The key is that of `Autotuner.run` in Triton 3.6 to 3.9: the values of the arguments in `key`,
    then the dtype of each argument that has one.
    """
    args, kwargs = given
    named = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    named = {k: v for k, v in named.items() if k in tuner.arg_names}
    key = [named[k] for k in tuner.keys if k in named]
    key += [str(v.dtype) for v in named.values() if hasattr(v, "dtype")]
    tuner.cache[tuple(key)] = best
    tuner.best_config = best
