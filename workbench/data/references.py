"""Library references of GPUs: the rates by which the times of two GPUs are told apart."""

from collections.abc import Mapping

# Copy bandwidth and one product repeat to within 1 to 2 % on one GPU; GPUs of one model differ by
# up to 5 %. It is also the portfolio's tolerance.
ALIKE = 0.03


def apart(left: Mapping[str, float], right: Mapping[str, float]) -> float:
    """Return the largest relative difference of two GPUs' library references: 0.05 is 5 %.
    Infinite where they are not of the same names."""
    if left.keys() != right.keys() or not left:
        return float("inf")
    return max(abs(left[name] / right[name] - 1) for name in left)


def alike(left: Mapping[str, float], right: Mapping[str, float]) -> bool:
    """Return whether times of two GPUs with these library references may be ranked together."""
    return apart(left, right) <= ALIKE
