"""The browser of the browser tests: Debian's Chromium."""

import os
import shutil

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
MISSING = "the browser tests need Chromium: install it (apt install chromium), or set CHROMIUM"
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason=MISSING)
