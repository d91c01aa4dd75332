"""Format exceptions as one sentence."""

from workbench.spec import WorkbenchError


def first_sentence(error: BaseException) -> str:
    """Return an exception as one line of at most 300 characters, from the part of its text that
    names the reason."""
    if isinstance(error, WorkbenchError):  # a sentence of ours
        return " ".join(str(error).split())[:300].rstrip(".")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "fatal" in line or "error:" in line.lower()]
    if telling:
        return telling[0][:300]
    if error.__cause__ is not None and lines and lines[0].startswith("at "):
        return first_sentence(error.__cause__)  # Triton quotes the source line before the reason
    text = lines[-1] if lines and lines[0].startswith("at ") else (lines or [""])[0]
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
