"""What relayd is known to get wrong, read from docs/conformance.md.

The page has a table with a row for each such case: `| case name | why |`.  It is documentation first;
the suite reads it so that the two cannot differ.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
ROW = re.compile(r"\|\s*`?([\w.-]+)`?\s*\|\s*(.+?)\s*\|")
AT_MOST = 5


def known_exceptions(known_names: set[str]) -> dict[str, str]:
    """Return the reason for each case that the page excuses."""
    if not PAGE.exists():
        return {}
    rows = map(ROW.fullmatch, PAGE.read_text().splitlines())
    return {row[1]: row[2] for row in rows if row and row[1] in known_names}
