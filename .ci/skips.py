"""Counts the skipped tests of JUnit files by their reason: `python .ci/skips.py FILE ...`."""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def skip_reasons(junit: Path) -> Counter[str]:
    """Number of skipped tests per reason."""
    skipped = ElementTree.parse(junit).iter("skipped")
    return Counter(element.get("message") or "no reason given" for element in skipped)


def main() -> int:
    """Print the counts, the most frequent reason first; 1 when a file is missing."""
    files = [Path(word) for word in sys.argv[1:]]
    missing = [file for file in files if not file.is_file()]
    for file in missing:
        sys.stderr.write(f"{file}: not written, pytest did not get that far\n")
    reasons: Counter[str] = Counter()
    for file in files:
        if file not in missing:
            reasons += skip_reasons(file)
    for reason, count in reasons.most_common():
        sys.stdout.write(f"skipped {count}: {reason}\n")
    if not reasons:
        sys.stdout.write("no test was skipped\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
