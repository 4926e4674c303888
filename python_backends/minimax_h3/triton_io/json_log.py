"""One JSON object a line, with the job that it is about; beside the Triton log, not instead."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

# Facts that a record may carry (`extra=`), besides its message.
FACTS = ("job_id", "request_id", "seconds", "error_kind")


class JsonFormatter(logging.Formatter):
    """Time (UTC), level, model, message, facts, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "model": record.name.rpartition(".")[2],
            "message": record.getMessage(),
        }
        facts = {name: getattr(record, name, None) for name in FACTS}
        entry |= {name: value for name, value in facts.items() if value not in (None, "")}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def json_handler(path: Path) -> logging.Handler:
    """Appends lines to a file that the processes of all models share.

    A line is written by one call on a file opened for appending, so lines do not mix.
    """
    handler = logging.FileHandler(path, mode="a", encoding="utf-8", delay=True)
    handler.setFormatter(JsonFormatter())
    return handler
