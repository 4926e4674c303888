"""What the server's log says about a start: models that are ready, and why one is not."""

import re

MAX_LINES = 12
MAX_CHARS = 600

_LOADED = re.compile(r"successfully loaded '([^']+)'")
_ERROR = re.compile(r'^E\d{4} [\d:.]+ \d+ \S+\] "?(?P<text>.*?)"?$')
_PLAIN_ERROR = re.compile(r"^(?:error: |tritonserver: )(?P<text>.*)$", re.IGNORECASE)
_FAILED_LOAD = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: \w+: (?P<reason>.*)")
# Said on every machine without a GPU, or said again by a "failed to load" line.
_NOISE = (
    "CudaDriverHelper",
    "unable to create stream",
    "Failed to initialize NVML",
    "Failed to create instance",
    "depends on",
    "cannot load",
    "failed to load all models",
)


def loaded_models(log_text: str) -> list[str]:
    """Names of the models that the log says are ready, in order."""
    return list(dict.fromkeys(_LOADED.findall(log_text)))


def error_lines(log_text: str) -> list[str]:
    """The reasons for a failed start, each once; models that fail alike share a line."""
    models_of: dict[str, list[str]] = {}
    others: dict[str, None] = {}
    for line in log_text.splitlines():
        match = _ERROR.match(line) or _PLAIN_ERROR.match(line)
        if match is None or any(word in match["text"] for word in _NOISE):
            continue
        failed = _FAILED_LOAD.match(match["text"])
        if failed:
            models = models_of.setdefault(_first_line(failed["reason"]), [])
            if failed["model"] not in models:
                models.append(failed["model"])
        else:
            others[_first_line(match["text"])] = None
    loads = [f"{', '.join(models)}: {reason}" for reason, models in models_of.items()]
    return [line[:MAX_CHARS] for line in (*loads, *others)][:MAX_LINES]


def _first_line(text: str) -> str:
    """The server writes line breaks of a message as a backslash and an n."""
    return text.split("\\n")[0].split("\n")[0].strip()
