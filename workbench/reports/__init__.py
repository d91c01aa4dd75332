"""Render templates with inline figures and write pages atomically.

A page is one self-contained HTML file. Figures are matplotlib's SVG put inline, with text left as
text and every colour a CSS variable, so that one figure serves dark, light and paper. Importing
this module imports neither matplotlib nor Jinja2.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.data.files import FileError, write_file
from workbench.spec import WorkbenchError

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from matplotlib.figure import Figure

    from workbench.data.record import Outcome, Profile
    from workbench.reports.figures.profiled import ProfiledTable

TEMPLATES = Path(__file__).parent

# Held while a page is drawn in a thread: matplotlib's settings are those of the process.
DRAWING = threading.Lock()

# Colours of figures, each the name of a CSS variable of the page. matplotlib only takes real
# colours, so each name is represented by an unlikely colour and replaced in the SVG.
PALETTE = (
    *("ink", "muted", "rule", "hatch", "accent", "roof-memory", "roof-cache", "roof-compute"),
    "ground",
    *(f"impl-{i}" for i in range(4)),
    *(f"heat-{i}" for i in range(7)),
    *(f"heat-ink-{i}" for i in range(7)),
)
_SENTINELS = {name: f"#0a5e{number:02x}" for number, name in enumerate(PALETTE)}


class ReportError(WorkbenchError):
    """A page cannot be made or stored; the message, one sentence, says what to do next."""


_INKS: ContextVar[Mapping[str, str]] = ContextVar("inks", default=_SENTINELS)


def colour(name: str) -> str:
    """Return the placeholder of a CSS variable, or its colour inside `use_inks`. Raises KeyError
    where the palette lacks it."""
    return _INKS.get()[name]


@contextlib.contextmanager
def use_inks(inks: Mapping[str, str]) -> Iterator[None]:
    """Return a context manager in which figures are drawn in these colours, by the names of the
    palette: for a figure outside a page."""
    token = _INKS.set(inks)
    try:
        yield
    finally:
        _INKS.reset(token)


@contextlib.contextmanager
def drawn_at_least(draw: Callable[[], object]) -> Iterator[None]:
    """Run the block and call `draw` if it fails; yields nothing, and raises the error again. For
    work whose last page must be drawn even when it cannot store anything more."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            draw()
        raise


def prewarm_page(page: Callable[[], object]) -> None:
    """Call what draws a page in a background thread, and drop the page. Imports, fonts and
    templates of a first drawing take one to two seconds, and the last page is drawn while the user
    waits. Whoever draws meanwhile holds DRAWING."""

    def draw() -> None:
        with contextlib.suppress(Exception), DRAWING:
            figure_svg(figure(72, 72), "prewarm")  # a page without results may have no figure
            page()

    threading.Thread(target=draw, daemon=True).start()


def write_page(path: Path | str, html: str) -> Path:
    """Write a page atomically, making its folder where needed; returns its path. Raises ReportError
    when the folder cannot be written to."""
    path = Path(path)
    try:
        write_file(path, html, make_folder=True)
    except FileError as error:
        raise ReportError(
            f"The page cannot be written to {path}: {error.reason}; name a folder that you may "
            "write to."
        ) from error
    return path


def render(template_name: str, **context: Any) -> str:
    """Return a rendered template of `workbench/reports/`; text in `context` is escaped unless
    Markup. Raises jinja2.TemplateError, and UndefinedError for a name that is not given."""
    return _environment().get_template(template_name).render(**context)


@cache
def _environment() -> Environment:
    """Return what compiles the templates. It keeps them, as eight take 0.07 s of each page."""
    import jinja2

    from workbench.device.error_band import device_words

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["error_of_model"] = device_words
    environment.globals["software"] = software
    environment.filters["unbroken"] = unbroken
    return environment


def table_of_profiles(
    profiles: Sequence[Profile],
    outcomes: Sequence[Outcome],
    titles: Mapping[str, str] | None = None,
) -> ProfiledTable | None:
    """Return the table of profiled configs, see `figures.profiled`; None where none was profiled,
    which needs nothing of the part that profiles."""
    if not profiles:
        return None
    from workbench.reports.figures.profiled import profiled_table

    return profiled_table(profiles, outcomes, titles)


def unbroken(text: str) -> str:
    """Return text in which no line ends between a number and its `%`."""
    return type(text)(re.sub(r"(\d) %", "\\1\u00a0%", text))


# Triton has two of ptxas. 3.6 calls the second from sm_100 on, 3.9 from sm_90 on.
_SOFTWARE = ("workbench", "torch", "triton", "ptxas", "ptxas-blackwell", "mlx", "clang")


def software(versions: Mapping[str, str]) -> str:
    """Return the versions that decide machine code: `torch 2.11.0, triton 3.6.0, ptxas 12.8.93`."""
    return ", ".join(f"{name} {versions[name]}" for name in _SOFTWARE if name in versions)


def palettes() -> tuple[str, str]:
    """Return the CSS variables of the pages, light and dark, from their style sheet."""
    css = (TEMPLATES / "sweep.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, flags=re.S)[:2]
    return " ".join(light.split()), " ".join(dark.split())


def light_inks() -> dict[str, str]:
    """Return the light colours of the pages by their names in the palette."""
    return dict(re.findall(r"--([\w-]+): (#\w+);", palettes()[0]))


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in CSS pixels, without a canvas or global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72)  # an SVG unit is 1/72 inch there


def figure_svg(fig: Figure, prefix: str, title: str = "", overlay: str = "") -> Markup:
    """Return a figure as inline SVG.

    `prefix` makes its ids unique on the page and its output reproducible; `title` is its text for
    screen readers; `overlay` is SVG drawn last, in the same coordinates (see `place`).
    """
    import io

    import matplotlib
    from markupsafe import Markup, escape
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.text import Text

    fig.patch.set_visible(False)  # the page's background shows
    for text in fig.findobj(Text):
        text.set_parse_math(False)  # a kernel may be called $x$
    out = io.StringIO()
    # matplotlib reads these two only from the rc parameters, while it writes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        FigureCanvasSVG(fig).print_svg(out, metadata={"Date": None})
    body = _minify(_own_ids(_inner(out.getvalue()), prefix))
    width, height = (round(inches * 72) for inches in fig.get_size_inches())
    name = f'role="group" aria-label="{escape(title)}"' if title else 'aria-hidden="true"'
    return Markup(
        f'<svg class="figure" viewBox="0 0 {width} {height}" width="{width}" '
        f'style="--natural:{width}px" {name}>{_variables(body)}{overlay}</svg>'
    )


def place(axes: Any, x: float, y: float, scale: float = 1.0) -> tuple[float, float]:
    """Return the coordinates, in px, of a data point in the SVG of `figure_svg`, or in a figure
    whose px are `scale` points. The limits and scales of the axes must be set before."""
    right, up = axes.transData.transform((x, y))
    down = axes.figure.get_size_inches()[1] * 72 - float(up)
    return round(float(right) / scale, 1), round(down / scale, 1)


def _inner(svg: str) -> str:
    """Return the content of the outer tag, without comments and metadata."""
    svg = re.sub(r"<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    return svg[svg.index(">") + 1 : svg.rindex("</svg>")]


def _own_ids(svg: str, prefix: str) -> str:
    """Keep only the ids that are referenced, and prefix them."""
    svg = svg.replace("xlink:href", "href")
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
    keep = {one or other for one, other in used}
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in keep else "", svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", svg)


def _minify(svg: str) -> str:
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r"<[^>]+>", _minify_tag, svg)
    return re.sub(r">\s+<", "><", svg).strip()


def _minify_tag(match: re.Match[str]) -> str:
    """Round to a tenth of a pixel, and drop the font, which the page sets."""
    tag = re.sub(r"font-family: [^;\"]+;? ?", "", match[0])
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    tag = re.sub(r"(?<![#\w])-?\d+\.\d\d+", lambda m: f"{float(m[0]):.1f}", tag)
    tag = re.sub(r"(\d)\.0(?!\d)", r"\1", tag)
    return re.sub(r"\s+", " ", tag)


def _variables(svg: str) -> str:
    for name, sentinel in _SENTINELS.items():
        svg = svg.replace(sentinel, f"var(--{name})")
    return svg
