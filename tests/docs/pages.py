"""Every Markdown file of the repository."""

import functools

from tests.docs.markdown import Page
from tests.pair.paths import REPO
from tests.release.tracked import tracked_files


@functools.cache
def pages() -> dict[str, Page]:
    names = [name for name in tracked_files() if name.endswith(".md")]
    return {name: Page.read(name, (REPO / name).read_text(encoding="utf-8")) for name in names}
