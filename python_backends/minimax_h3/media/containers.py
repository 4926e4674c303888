"""Opening files with FFmpeg so that a hostile one can neither reach other files nor fill memory."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import LIMITS
from minimax_h3.core.refusals import reason
from minimax_h3.media.boxes import walk_boxes
from minimax_h3.media.index_size import (
    MAX_INDEX_ENTRIES,
    has_compressed_header,
    index_entries,
)
from minimax_h3.media.kinds import MOV, MP4, WAV, FileFormat

# Opening must not decode (a frame may be huge), and no file may name another one to be opened.
_OPEN_OPTIONS = {"codec_whitelist": "none", "protocol_whitelist": "none"}
_MAX_PACKETS = 200_000
# FFmpeg counts the padding of coded pictures too, and frames are checked again once decoded.
_MAX_CODED_PIXELS = 2 * int(LIMITS["video_pixels"].high)
_RIFF_HEADER_BYTES = 8
_UNKNOWN_RIFF_SIZES = (0, 0xFFFFFFFF)  # what a writer leaves that could not seek back
# What FFmpeg and PyAV raise on damaged or hostile files.
_DAMAGE = (av.error.FFmpegError, ValueError, ArithmeticError, LookupError, MemoryError)


@contextmanager
def opened(encoded: bytes, form: FileFormat, name: str) -> Iterator[Any]:
    """An open PyAV container; damage found inside the block becomes a refusal that names the file.

    Args:
        encoded: the whole file.
        form: its format.
        name: the file as a client counts it, such as `references[1]`.

    Raises:
        InvalidRequestError: the file does not open, or something inside the block hit damage.
    """
    try:
        with av.open(
            io.BytesIO(encoded), format=form.reader, options=_OPEN_OPTIONS, metadata_errors="ignore"
        ) as container:
            yield container
    except _DAMAGE as error:
        raise damaged(form.name, name, reason(error)) from error


def damaged(form: str, name: str, what: str) -> InvalidRequestError:
    """The refusal of a file that cannot be read to its end."""
    return InvalidRequestError(
        f"{name}: damaged or truncated {form} ({what}); legal: a complete {form} file"
    )


def check_structure(encoded: bytes, form: FileFormat, name: str) -> None:
    """Refuse what FFmpeg would accept: a file that was cut off, or one whose index fills memory.

    Raises:
        InvalidRequestError: the file ends before the length that it declares, or its header is
            compressed or declares too many samples.
    """
    problem = ""
    if form.name in (MP4, MOV):
        problem = walk_boxes(encoded).problem
        _check_index(encoded, form, name)
    elif form.name == WAV:
        declared = int.from_bytes(encoded[4:8], "little")
        missing = _RIFF_HEADER_BYTES + declared - len(encoded)
        if (
            declared not in _UNKNOWN_RIFF_SIZES and missing > 1
        ):  # one byte of padding is often left out
            problem = f"it ends {missing} bytes behind the file"
    if "behind the file" in problem:
        raise damaged(form.name, name, problem)


def _check_index(encoded: bytes, form: FileFormat, name: str) -> None:
    if has_compressed_header(encoded):
        raise InvalidRequestError(
            f"{name}: {form.name} with a compressed header is not legal; legal: a plain header"
        )
    entries = index_entries(encoded)
    if entries > MAX_INDEX_ENTRIES:
        raise InvalidRequestError(
            f"{name}: {form.name} that declares {entries:,} samples is not legal; "
            f"legal: up to {MAX_INDEX_ENTRIES:,}"
        )


def picture_stream(container: Any) -> Any:
    """The first video stream that is not a cover picture, or None."""
    for stream in container.streams.video:
        if not int(stream.disposition) & int(av.stream.Disposition.attached_pic):
            return stream
    return None


def sound_stream(container: Any) -> Any:
    """The first sound stream, or None."""
    return container.streams.audio[0] if container.streams.audio else None


def codec_name(stream: Any) -> str:
    """FFmpeg's name of a stream's codec, the same for each of its decoders; `unknown` for none."""
    context = stream.codec_context
    return "unknown" if context is None else str(context.codec.canonical_name)


def packets(container: Any, stream: Any, form: FileFormat, name: str) -> Iterator[Any]:
    """The packets of one stream that hold something, and then the closing one.

    Raises:
        InvalidRequestError: more packets than any legal file has.
    """
    for count, packet in enumerate(container.demux(stream)):
        if count > _MAX_PACKETS:
            raise damaged(form.name, name, f"more than {_MAX_PACKETS} packets")
        yield packet


def ready_to_decode(stream: Any, threads: int) -> None:
    """Set a stream's decoder up, before its first packet."""
    context = stream.codec_context
    context.options = {"max_pixels": str(_MAX_CODED_PIXELS)}
    context.thread_count = threads
    if threads > 1:
        context.thread_type = "AUTO"
