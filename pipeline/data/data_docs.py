"""Makes Data Docs of pages that need no network: Great Expectations' content, with the styles in each page.

The pages of Great Expectations load Bootstrap, jQuery, icons and a script for tables from other hosts, and
their first page is empty without these. A site of Data Docs may name the class that makes a page of rendered
content, its view; this one leaves out what the content does not need. The first page is ours: what was
judged, and what came of it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from great_expectations.render.view.view import DefaultJinjaPageView
from jinja2 import ChoiceLoader, Environment, FileSystemLoader

HERE = FileSystemLoader(Path(__file__).parent)
INDEX = "index.html"
# What only works by a script: the links that unfold a part, which is unfolded here.
_FOLD = re.compile(r'<p class="m-0">\s*<a data-toggle="collapse".*?</p>', re.DOTALL)


class OfflineView(DefaultJinjaPageView):
    """A page of what was found in one group of rules."""

    _template = "data_docs.html"

    def __init__(self, **directories: Any) -> None:
        """Looks for the template of the page here, and for those of its parts where the library has them."""
        super().__init__(**directories)
        self.env.loader = ChoiceLoader([loader for loader in (self.env.loader, HERE) if loader])

    def render(self, document: Any, template: str | None = None, **given: Any) -> str:
        """Returns the page of a rendered document."""
        library: Any = super()
        return _FOLD.sub("", library.render(document, template, **given))


def site(folder: Path) -> dict[str, Any]:
    """Returns the configuration of a site in the folder, with pages of what was judged, and of the rules."""
    view = {"view": {"module_name": __name__, "class_name": OfflineView.__name__}}
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve()),
        },
        "site_section_builders": {
            "validations": view,
            "expectations": view,
            "profiling": "none",
        },
    }  # fmt: skip


def write_index(folder: Path, failed: Mapping[str, Sequence[str]]) -> Path:
    """Writes the first page, which leads to the others, and returns its path.

    Args:
        folder: of the site.
        failed: the rules that do not hold, by the group that was judged.
    """
    pages = {path.relative_to(folder).parts[1]: path for path in (folder / "validations").rglob("*.html")}
    groups = [
        {"name": group, "address": pages[group].relative_to(folder).as_posix(), "failed": rules}
        for group, rules in failed.items()
        if group in pages
    ]
    path = folder / INDEX
    path.write_text(
        Environment(loader=HERE, autoescape=True).get_template("data_docs_index.html").render(groups=groups)
    )
    return path
