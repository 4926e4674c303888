"""The checkpoint's own tokenizer, through the `tokenizers` library. No torch, no transformers."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as _Tokenizer

from minimax_h3.core.errors import CheckpointError

VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
IMAGE_PAD = "<|image_pad|>"
VIDEO_PAD = "<|video_pad|>"
_SPECIAL_TOKENS = (VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD)


class Tokenizer:
    """Text -> token ids, verbatim: no chat template, no special tokens added.

    Source: model sheet section 5, pipeline sheet 1.7.
    """

    def __init__(self, backend: _Tokenizer, special_ids: dict[str, int]) -> None:
        self._backend = backend
        self._special_ids = special_ids

    def encode(self, text: str) -> NDArray[np.int64]:
        """Token ids of `text`, int64 [L]."""
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=np.int64)

    def special_id(self, token: str) -> int:
        """Id of one of the four vision tokens."""
        return self._special_ids[token]


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read `tokenizer.json`.

    Raises:
        CheckpointError: the file is missing or unreadable, or lacks a vision token.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: missing")
    try:
        backend = _Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: not readable as a tokenizer ({error})") from error
    # A file may carry limits of its own; a prompt is never cut or padded silently.
    backend.no_truncation()
    backend.no_padding()
    ids: dict[str, int] = {}
    for token in _SPECIAL_TOKENS:
        token_id = backend.token_to_id(token)
        if token_id is None:
            raise CheckpointError(f"{path}: missing token {token}")
        ids[token] = token_id
    return Tokenizer(backend, ids)
