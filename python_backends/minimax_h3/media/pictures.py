"""Still pictures: size from the header, then upright 8-bit RGB on the model's sizes."""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minimax_h3.core.canvas import RELEASED, CanvasRule
from minimax_h3.core.constants import CANVAS_MULTIPLE
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.limits import LIMITS, check
from minimax_h3.core.refusals import reason

Pixels: TypeAlias = NDArray[np.uint8]


_ORIENTATION_TAG = 0x0112
# What brings a picture upright, by its EXIF orientation.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_FIRST_SIDEWAYS = 5
_PNG_EXIF_MARKS = (b"eXIf", b"Raw profile type exif")
_WHITE = (255, 255, 255, 255)
# What Pillow's readers raise on damaged or hostile files.
_DAMAGE = (
    *(OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError),
    *(struct.error, MemoryError),
)


@dataclass(frozen=True, slots=True)
class PictureHeader:
    """Size of a picture once it is upright, in pixels."""

    width: int
    height: int


@contextmanager
def _opened(encoded: bytes, form: str, name: str) -> Iterator[Image.Image]:
    """An image whose header is read and found legal; damage becomes a refusal that names it."""
    try:
        with Image.open(io.BytesIO(encoded), formats=(form,)) as image:
            _check_header(image, encoded, name)
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidRequestError(
            f"{name}: decompression bomb ({reason(error)}); legal: {LIMITS['picture_pixels'].legal}"
        ) from error
    except _DAMAGE as error:
        raise InvalidRequestError(
            f"{name}: damaged or truncated {form} ({reason(error)}); legal: a complete {form} file"
        ) from error


def _check_header(image: Image.Image, encoded: bytes, name: str) -> None:
    check("picture_side", min(image.size), name)
    check("picture_side", max(image.size), name)
    check("picture_pixels", image.width * image.height, name)
    width, height = _upright_size(image, encoded)
    check("picture_ratio", width / height, name)
    form = image.format
    # A JPEG with a second picture (preview, depth) is a still all the same: its first one counts.
    if form in ("PNG", "WEBP") and getattr(image, "is_animated", False):
        raise InvalidRequestError(
            f"{name}: animated {form} of {getattr(image, 'n_frames', 'several')} frames is not "
            "legal; legal: a still picture, or a video as MP4 or MOV"
        )


def _orientation(image: Image.Image, encoded: bytes) -> int:
    # Pillow decodes a whole PNG in search of a tag behind the pixels.
    if image.format == "PNG" and not any(mark in encoded for mark in _PNG_EXIF_MARKS):
        return 1
    return int(image.getexif().get(_ORIENTATION_TAG, 1))


def _upright_size(image: Image.Image, encoded: bytes) -> tuple[int, int]:
    width, height = image.size
    sideways = _FIRST_SIDEWAYS <= _orientation(image, encoded) <= max(_UPRIGHT)
    return (height, width) if sideways else (width, height)


def read_header(encoded: bytes, form: str, name: str) -> PictureHeader:
    """Read and check the header; no pixel is decoded.

    Args:
        encoded: the file.
        form: its format, a name of `core.limits.PICTURE_FORMATS`.
        name: the file as a client counts it.

    Raises:
        InvalidRequestError: damaged, animated, or outside the limits of pictures.
    """
    with _opened(encoded, form, name) as image:
        return PictureHeader(*_upright_size(image, encoded))


def read_picture(encoded: bytes, form: str, name: str) -> Image.Image:
    """Decode a picture: upright by its EXIF orientation, alpha over white, 8-bit RGB.

    Embedded colour profiles are not applied. Arguments and errors are those of `read_header`.
    """
    with _opened(encoded, form, name) as image:
        image.load()
        picture = _to_rgb(image)
        turn = _UPRIGHT.get(_orientation(image, encoded))
    return picture if turn is None else picture.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow would clip 16 bits at 255; the high byte is what it takes of 16-bit colour too.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, _WHITE), seen).convert("RGB")
    # Pillow would copy a picture that is RGB already: 36 MB of a large photo.
    return image if image.mode == "RGB" else image.convert("RGB")


def prepare_keyframe(picture: Image.Image, width: int, height: int, *, crop: bool) -> Pixels:
    """Put a keyframe onto the canvas.

    Args:
        picture: RGB, upright.
        width: of the canvas in pixels.
        height: of the canvas in pixels.
        crop: False stretches, for the first keyframe of a request; True covers the canvas and cuts
            the centre out, for the second one.

    Returns:
        uint8 [height, width, 3]. A picture of the canvas's size is not resampled.

    Source: pipeline sheet section 1.6.
    """
    if not crop:
        return resize(picture, width, height)
    scale = max(width / picture.width, height / picture.height)
    covering = (
        max(width, round(picture.width * scale)),
        max(height, round(picture.height * scale)),
    )
    left, top = (covering[0] - width) // 2, (covering[1] - height) // 2
    return resize(picture, *covering)[top : top + height, left : left + width].copy()


def reference_size(width: int, height: int, rule: CanvasRule = RELEASED) -> tuple[int, int]:
    """Width and height of a prepared reference picture: the short edge is brought to the rule's.

    Source: pipeline sheet section 1.7; there is no cap of the area.
    """
    scale = rule.reference_short_edge / min(width, height)

    def side(length: int) -> int:
        return max(CANVAS_MULTIPLE, round(length * scale / CANVAS_MULTIPLE) * CANVAS_MULTIPLE)

    return side(width), side(height)


def resize(picture: Image.Image, width: int, height: int) -> Pixels:
    """Lanczos as Pillow computes it; uint8 [height, width, 3]."""
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    return np.array(picture, dtype=np.uint8)
