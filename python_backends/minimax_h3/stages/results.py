"""The `results` model: the files of a finished job once more."""

import getpass
import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from minimax_h3.control.operation import checked_name
from minimax_h3.control.result_store import ResultStore
from minimax_h3.stages.base import StageContext, StageRequest, text_tensor


class ResultsStage:
    """Reads what the muxer kept, in a process of its own, so that `jobs` stays light."""

    name: ClassVar[str] = "results"

    def __init__(self, store: ResultStore) -> None:
        self._store = store

    @classmethod
    def load(cls, context: StageContext) -> "ResultsStage":
        """Needs nothing but the folder."""
        return cls(open_store(context))

    def run(self, request: StageRequest) -> dict[str, NDArray[np.generic]]:
        """Fetch a result by job id or request id.

        Raises:
            InvalidRequestError: no id at all.
            UnknownResultError: there is none, or no longer.
        """
        kept = self._store.get(checked_name("JOB", request.text("JOB")))
        return {
            "MP4": np.array(kept.clips, dtype=object),
            "METADATA": text_tensor(kept.metadata),
        }


def open_store(context: StageContext) -> ResultStore:
    """The store that muxer and `results` of one server share."""
    config = context.config
    if config.results_dir:
        folder = (context.model_folder.resolve() / config.results_dir).resolve()
    else:
        folder = Path(tempfile.gettempdir()) / f"h3-results-{getpass.getuser()}"
    return ResultStore(folder, config.results_bytes)
