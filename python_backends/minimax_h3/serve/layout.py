"""The files of one start: models with the settings' parameters, and the wheel's backend.

`python -m minimax_h3.serve.layout FOLDER SETTINGS` writes them for a start by hand, as the script
of `h3 serve --print-command` does.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from minimax_h3.core.config import parse_parameters
from minimax_h3.core.contracts import models_of
from minimax_h3.serve.installation import find_installation
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.triton_io.render import write_repository

REPOSITORY, BACKENDS = "model_repository", "backends"


def lay_out(settings: ServeSettings, folder: Path) -> None:
    """Write the files of a start.

    Args:
        settings: with an absolute checkpoint path.
        folder: of this start; it must not exist.

    Raises:
        BackendUnavailableError: there is no server to start.
    """
    installation = find_installation(settings.tritonserver, folder / BACKENDS)
    folder.mkdir(parents=True)
    installation.lay_out()
    repository = folder / REPOSITORY
    models = models_of(settings.stage.task_type)
    write_repository(repository, settings.stage, models)
    for name in models:
        # Copies, because the interpreter writes its cache beside them.
        shutil.copytree(
            settings.model_repository / name / "1",
            repository / name / "1",
            ignore=shutil.ignore_patterns("__pycache__"),
        )


def to_json(settings: ServeSettings) -> str:
    """What `main` needs of the settings."""
    server = settings.tritonserver
    return json.dumps(
        {
            "stage": settings.stage.parameters(),
            "model_repository": str(settings.model_repository),
            "tritonserver": str(server) if server else None,
        }
    )


def main(words: Sequence[str] | None = None) -> None:
    """Write the files of a start by hand."""
    parser = argparse.ArgumentParser(prog="python -m minimax_h3.serve.layout")
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", type=json.loads, help="JSON of `to_json`")
    options = parser.parse_args(words)
    server = options.settings["tritonserver"]
    settings = ServeSettings(
        stage=parse_parameters(options.settings["stage"]),
        model_repository=Path(options.settings["model_repository"]),
        tritonserver=Path(server) if server else None,
    )
    lay_out(settings, options.folder)


if __name__ == "__main__":
    main()
