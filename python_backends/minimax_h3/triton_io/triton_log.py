"""Python logging that ends in the Triton log."""

import logging
import os
from pathlib import Path

import triton_python_backend_utils as pb_utils

from minimax_h3.core.contracts import JSON_LOG_VARIABLE
from minimax_h3.triton_io.json_log import json_handler

PACKAGE_LOGGER = "minimax_h3"


def printable(text: str) -> str:
    """The text with what UTF-8 cannot hold escaped: Triton's functions refuse lone surrogates."""
    return text.encode(errors="backslashreplace").decode()


class TritonLogHandler(logging.Handler):
    """Hands each record to Triton's logger, at Triton's level of the same meaning."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record; a multi-line traceback stays one entry."""
        text = printable(self.format(record))
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(text)
        elif record.levelno >= logging.INFO:
            pb_utils.Logger.log_info(text)
        else:
            pb_utils.Logger.log_verbose(text)


def logger_for(model_name: str) -> logging.Logger:
    """The logger of a model; every logger of the package then ends in the Triton log."""
    package = logging.getLogger(PACKAGE_LOGGER)
    if not any(isinstance(handler, TritonLogHandler) for handler in package.handlers):
        handler = TritonLogHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        handler.setLevel(logging.INFO)
        package.addHandler(handler)
        package.setLevel(logging.INFO)
        json_log = os.environ.get(JSON_LOG_VARIABLE)
        if json_log:
            package.addHandler(json_handler(Path(json_log)))
            package.setLevel(logging.DEBUG)  # one entry for each request of each stage
    return logging.getLogger(f"{PACKAGE_LOGGER}.{model_name}")
