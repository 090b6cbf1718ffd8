"""Package metadata that depends on where the package is built.

In a release, ``HOOKLINE_REPOSITORY`` is the address of the repository, such as ``https://example.com/team/hookline``.
The package then links to it, and the relative links of the README, which lead nowhere on a package index, become
links to the files of this version. Other builds have no links.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?\[[^\]]*\]\(|(?:src|srcset|href)=\")(?!https?:|#|mailto:)([^)\"\s]+)")


class Metadata(MetadataHookInterface):
    """Adds the links and the README."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add ``urls`` and ``readme``."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get("HOOKLINE_REPOSITORY", "").rstrip("/"):
            files, images = (f"{repository}/{kind}/v{metadata['version']}" for kind in ("blob", "raw"))
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{files}/docs/index.md",
                "Changes": f"{files}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
                "Security": f"{files}/SECURITY.md",
            }
            text = _LINK.sub(lambda link: f"{link[1]}{files if link[1][0] == '[' else images}/{link[2]}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
