"""Counts the skipped tests of a JUnit file by their reason: `python .ci/skips.py FILE`."""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def skip_reasons(junit: Path) -> Counter[str]:
    """Number of skipped tests per reason."""
    skipped = ElementTree.parse(junit).iter("skipped")
    return Counter(element.get("message") or "no reason given" for element in skipped)


def main() -> int:
    """Print the counts, the most frequent reason first; 1 when there is no such file."""
    junit = Path(sys.argv[1])
    if not junit.is_file():
        sys.stderr.write(f"{junit}: not written, pytest did not get that far\n")
        return 1
    reasons = skip_reasons(junit)
    for reason, count in reasons.most_common():
        sys.stdout.write(f"skipped {count}: {reason}\n")
    if not reasons:
        sys.stdout.write("no test was skipped\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
