"""What `mkdocs build` needs beside the pages: the README as the first page, and no links out of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the README, with its links as they are seen from the folder of the pages."""
    readme = Path(config.config_file_path).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\((?!https?:)", "](../", readme).replace("](../docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name what a link outside of the site leads to, without the link: those files lie beside the pages' folder."""
    outside = "../" * (page.file.src_uri.count("/") + 1)
    return _LINK.sub(lambda found: found[1] if found[2].startswith(outside) else found[0], markdown)
