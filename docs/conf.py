"""Settings of the documentation's site, for Sphinx with MyST and Furo: `make site` builds it.

The folder of sources is the repository, so one relative link serves on GitHub and on the site.
Pages are the Markdown files of PAGES; docs/README.md lists them, and the site's navigation is that
list. A link to any other file of the repository leads to `repository` where that is given
(`sphinx-build -D repository=https://.../blob/REVISION`), and otherwise to a copy on the site.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
INDEX, GLOSSARY = "docs/README", "docs/glossary"
GLOSSARY_TEXT = (ROOT / f"{GLOSSARY}.md").read_text(encoding="utf-8")
WORD = re.compile(r"^\| ([^|]+) \|", flags=re.M)
ENTRY = re.compile(r"^- .*", flags=re.M)
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*(?P<image><img [^>]+>)\s*</picture>'
)
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)\.md\)")

project = "Kernel Workbench"
html_title = "Kernel Workbench"
extensions = ["myst_parser"]
root_doc = INDEX
PAGES = ["docs/**", "examples/**/README.md", "benchmarks/**/README.md", "CONTRIBUTING.md"]
include_patterns = [*PAGES, "AGENTS.md", "CHANGELOG.md", "README.md", "SKILL.md"]
# Folders without pages are not walked.
exclude_patterns = [".*", "build", "results", "runs", "tests", "workbench", "docs/site"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 6  # the anchors that GitHub gives
highlight_language = "none"  # of a block that names no language
suppress_warnings = ["misc.highlighting_failure"]  # `{...}` stands for a part of the JSON left out
pygments_style = "default"
pygments_dark_style = "github-dark"
html_theme = "furo"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_extra_path = ["site/index.html"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add to the index a hidden table of contents for each of its sections."""
    if docname != INDEX:
        return
    source[0] = PICTURE.sub(both_schemes, source[0])
    for section in re.split(r"^## ", source[0], flags=re.M)[1:]:
        heading, _, text = section.partition("\n")
        if pages := listed_pages(text, docname):
            entries = [f"{title} </{page}>" for page, title in pages.items()]
            options = [":hidden:", ":titlesonly:", f":caption: {heading}", ""]
            source[0] += "\n".join(["", "```{toctree}", *options, *entries, "```", ""])


def both_schemes(picture: re.Match[str]) -> str:
    """Return the two images of a `<picture>`, of which the theme shows the one of its own side: its
    switch does not change what the browser prefers."""
    dark, image = picture["dark"], picture["image"]
    light = image.replace("<img ", '<img class="only-light" ')
    return light + re.sub(r'src="[^"]+"', f'src="{dark}"', light).replace("only-light", "only-dark")


def copy_pictures(app: Sphinx, error: Exception | None) -> None:
    """Copy the pictures that the README names in HTML, which Sphinx does not read: for a dark and
    for a light page."""
    if error is None:
        pictures = "docs/images"
        shutil.copytree(ROOT / pictures, Path(app.outdir) / pictures, dirs_exist_ok=True)


def leave_out(app: Sphinx, document: nodes.document) -> None:
    """Keep pages that the README of their own folder lists out of the navigation, which every page
    repeats: one for each kernel would make it long and the build twice as slow."""
    docname = app.env.docname
    readme = ROOT / os.path.dirname(docname) / "README.md"
    if readme.is_file() and readme != ROOT / f"{INDEX}.md":
        folder = readme.relative_to(ROOT).with_suffix("").as_posix()
        if docname in listed_pages(readme.read_text(encoding="utf-8"), folder):
            app.env.metadata[docname]["orphan"] = True


def listed_pages(text: str, docname: str) -> dict[str, str]:
    """Return the pages to which the items of lists in a page link, with the words of the links."""
    links = (link for entry in ENTRY.findall(text) for link in LINK.findall(entry))
    return {relative(docname, page): words for words, page in links}


def glossary_id(word: str) -> str:
    """Return the anchor of a word in the glossary; a plural has that of its singular."""
    return "word-" + nodes.make_id(word.lower().removesuffix("s"))


def link_words(app: Sphinx, document: nodes.document) -> None:
    """Give each word of the glossary an anchor, and link a word that a page has in italics, which
    is how the pages mark its first use."""
    docname = app.env.docname
    if docname == GLOSSARY:
        for row in document.findall(nodes.row):
            words = row.next_node(nodes.entry).astext().split(", ")
            row["ids"] += [glossary_id(word) for word in words]
        return
    known = {glossary_id(w) for row in WORD.findall(GLOSSARY_TEXT) for w in row.split(", ")}
    if docname.startswith(("docs/tutorials/", "docs/howto/", "docs/start")):
        page = os.path.relpath(f"{GLOSSARY}.html", os.path.dirname(docname))
        for node in list(document.findall(nodes.emphasis)):
            anchor = glossary_id(node.astext())
            if anchor in known:
                link = nodes.reference("", "", refuri=f"{page}#{anchor}")
                node.replace_self(link)
                link += node


def relative(docname: str, target: str) -> str:
    """Return a link's path from the repository's root."""
    return os.path.normpath(os.path.join(os.path.dirname(docname), target))


def link_files(app: Sphinx, document: nodes.document) -> None:
    """Resolve links to files and folders of the repository that are not pages of the site: to
    `repository`, or else files to a copy on the site and folders to nothing."""
    base = app.config.repository.rstrip("/")
    for node in list(document.findall(addnodes.download_reference)):
        path = relative(app.env.docname, node["reftarget"])
        if base:
            node.replace_self(nodes.reference("", "", *node.children, refuri=f"{base}/{path}"))
    for node in list(document.findall(addnodes.pending_xref)):
        path = relative(app.env.docname, node["reftarget"])
        if node["reftype"] == "myst" and node.get("refdomain") != "doc" and (ROOT / path).is_dir():
            link = nodes.reference("", "", *node.children, refuri=f"{base}/{path}")
            node.replace_self(link if base else node.children)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect what is done beside MyST's own reading."""
    app.add_config_value("repository", "", "env", str)
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", link_files)
    app.connect("doctree-read", leave_out)
    app.connect("doctree-read", link_words)
    app.connect("build-finished", copy_pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
