"""Which folder requests may name files of: none with files that the server reads or writes."""

import os
from collections.abc import Mapping
from pathlib import Path

from minimax_h3.core.errors import ConfigError

LEGAL = (
    "a folder of media alone, neither around nor inside the run folder, kept results, the "
    "checkpoint or the model repository"
)


def check_media_root(media_root: str, own: Mapping[str, Path]) -> str:
    """Refuse a media root that would open the server's own files to requests.

    A run folder holds the results of other clients, so a request could name one as its reference;
    and whoever sets `..` or `/` has rarely looked at all that lies below.

    Args:
        media_root: as asked for; empty is none.
        own: the server's own folders, by what they are; they need not exist yet.

    Returns:
        The absolute path without links, or empty.

    Raises:
        ConfigError: no readable folder, or one that overlaps with one of `own`, which is named.
    """
    if not media_root:
        return ""
    root = Path(media_root).resolve()
    if not root.is_dir():
        raise ConfigError(f"media-root: {root} is not a folder; legal: {LEGAL}")
    if not os.access(root, os.R_OK | os.X_OK):
        raise ConfigError(f"media-root: {root} cannot be read; legal: {LEGAL}")
    for name, folder in own.items():
        place = folder.resolve()
        if root in (place, *place.parents) or place in root.parents:
            relation = "is" if root == place else "lies in" if place in root.parents else "holds"
            raise ConfigError(f"media-root: {root} {relation} the {name} {place}; legal: {LEGAL}")
    return str(root)
