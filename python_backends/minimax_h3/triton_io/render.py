"""Writes the `config.pbtxt` files of a model repository, or checks that they are up to date.

`python -m minimax_h3.triton_io.render DIR [--check]`
"""

import argparse
import logging
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import ENSEMBLE, MODELS
from minimax_h3.triton_io.pbtxt import render_repository

CONFIG_FILE = "config.pbtxt"
_log = logging.getLogger(__name__)


def stale_files(repository: Path, config: StageConfig) -> list[Path]:
    """The `config.pbtxt` files of `repository` that are absent or differ from the rendered text."""
    return [
        repository / name / CONFIG_FILE
        for name, text in render_repository(config).items()
        if not _holds(repository / name / CONFIG_FILE, text)
    ]


def write_repository(
    repository: Path, config: StageConfig, models: Collection[str] = MODELS
) -> list[Path]:
    """Write the `config.pbtxt` of these models and of the ensemble, with its empty version folder.

    Returns:
        The files.
    """
    files = []
    for name, text in render_repository(config).items():
        if name not in {*models, ENSEMBLE.name}:
            continue
        folder = repository / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
        files.append(folder / CONFIG_FILE)
    version = repository / ENSEMBLE.name / "1"
    version.mkdir(exist_ok=True)
    (version / ".gitkeep").touch()  # git and Triton both need the folder to exist
    return files


def _holds(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 when `--check` finds a stale file."""
    parser = argparse.ArgumentParser(prog="minimax_h3.triton_io.render", description=__doc__)
    parser.add_argument("repository", type=Path, metavar="DIR", help="model repository")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file is stale")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if not options.check:
        for file in write_repository(options.repository, StageConfig()):
            _log.info("wrote %s", file)
        return 0
    stale = stale_files(options.repository, StageConfig())
    for file in stale:
        _log.error("stale or absent: %s", file)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
