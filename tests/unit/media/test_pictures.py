import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from source_samples import encoded, oriented, picture

from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.media.facts import inspect
from minimax_h3.media.pictures import prepare_keyframe, read_picture, reference_size, resize

NAME = "references[2]"


def pixels(data: bytes, form: str = "PNG") -> np.ndarray:
    return np.asarray(read_picture(data, form, NAME))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_upright_by_its_exif_orientation(form, orientation):
    """The stored pixels are the upright ones turned away; plain numpy turns them back."""
    stored = picture(64, 32)
    data = oriented(stored, orientation, form)
    shown = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    back = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, 1),
    }[orientation]
    np.testing.assert_array_equal(pixels(data, form), back(shown))
    facts = inspect(data, NAME)
    assert (facts.width, facts.height) == ((64, 32) if orientation < 5 else (32, 64))


def test_alpha_is_flattened_on_white():
    image = picture(32, 32, channels=4)
    image.putalpha(Image.linear_gradient("L").resize((32, 32)))
    colour, alpha = np.asarray(image)[..., :3].astype(float), np.asarray(image)[..., 3:] / 255
    expected = colour * alpha + 255 * (1 - alpha)
    assert np.abs(pixels(encoded(image)) - expected).max() <= 1
    assert (pixels(encoded(Image.new("RGBA", (20, 20), (0, 9, 0, 0)))) == 255).all()


@pytest.mark.parametrize("mode", ["LA", "P", "L", "RGB"])
def test_every_kind_of_transparency_is_flattened(mode):
    if mode == "LA":
        image = Image.new("LA", (20, 20), (0, 0))
        data = encoded(image)
    else:
        image = Image.new(mode, (20, 20), 0)
        data = encoded(image, transparency=(0, 0, 0) if mode == "RGB" else 0)
    assert (pixels(data) == 255).all()


def test_greyscale_and_palette_become_rgb():
    grey = picture(24, 24, channels=1)
    np.testing.assert_array_equal(
        pixels(encoded(grey)), np.repeat(np.asarray(grey)[..., None], 3, -1)
    )
    palette = picture(24, 24).convert("P")
    np.testing.assert_array_equal(pixels(encoded(palette)), np.asarray(palette.convert("RGB")))
    one_bit = picture(24, 24).convert("1")
    assert set(np.unique(pixels(encoded(one_bit)))) <= {0, 255}
    cmyk = picture(24, 24).convert("CMYK")
    assert pixels(encoded(cmyk, "JPEG"), "JPEG").shape == (24, 24, 3)


def png16(values: np.ndarray) -> bytes:
    """A 16-bit PNG, written by hand: grey [h, w] or colour [h, w, 3]."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    colour = 0 if values.ndim == 2 else 2
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    chunks = b""
    for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        chunks += struct.pack(">I", len(body)) + kind + body
        chunks += struct.pack(">I", zlib.crc32(kind + body))
    return b"\x89PNG\r\n\x1a\n" + chunks


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 3)])
def test_16_bits_keep_their_high_byte(shape):
    values = np.random.default_rng(0).integers(0, 65536, shape)
    expected = (values >> 8).astype(np.uint8)
    if len(shape) == 2:
        expected = np.repeat(expected[..., None], 3, -1)
    np.testing.assert_array_equal(pixels(png16(values)), expected)


@pytest.mark.parametrize(("form", "options"), [("WEBP", {}), ("PNG", {})])
def test_an_animation_is_refused_by_name(form, options):
    frames = [picture(32, 32, seed=seed) for seed in range(3)]
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:], **options)
    with pytest.raises(InvalidRequestError, match=rf"references\[2\]: animated {form} of 3 frames"):
        inspect(data, NAME)


def test_a_jpeg_with_a_second_picture_is_a_still():
    data = encoded(picture(), "MPO", save_all=True, append_images=[picture(seed=1)])
    assert inspect(data, NAME).format == "JPEG"
    assert pixels(data, "JPEG").shape == (48, 64, 3)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_truncated_picture_is_refused_by_name(form, kept):
    data = encoded(picture(200, 150), form)
    with pytest.raises(InvalidRequestError, match=rf"references\[2\]: damaged or truncated {form}"):
        pixels(data[: int(len(data) * kept)], form)


def test_a_decompression_bomb_is_refused_by_its_header():
    with pytest.raises(InvalidRequestError, match=r"references\[2\]: decompression bomb"):
        inspect(with_size(60_000, 60_000), NAME)
    # below Pillow's own limit; a tag behind the pixels may not lead to decoding them either
    for tail in (b"", b"eXIf"):
        with pytest.raises(InvalidRequestError, match=r"56,000,000 pixels.*legal: 256..50,000,000"):
            inspect(with_size(8_000, 7_000) + tail, NAME)


def test_no_pixel_is_decoded_to_inspect_a_picture():
    """Half of a file is enough, but for WEBP, whose reader wants it whole."""
    for form in ("JPEG", "PNG"):
        data = encoded(picture(200, 150), form)
        assert inspect(data[: len(data) // 2], NAME).width == 200


def with_size(width: int, height: int) -> bytes:
    """A tiny PNG file whose header claims another size."""
    data = bytearray(encoded(Image.new("L", (16, 16))))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    return bytes(data)


@pytest.mark.parametrize(
    ("size", "limit"), [((15, 15), "15 pixels a side"), ((16 * 5, 16), "5 width / height")]
)
def test_sides_and_ratio_are_limited(size, limit):
    with pytest.raises(InvalidRequestError, match=rf"references\[2\]: {limit}"):
        inspect(encoded(Image.new("RGB", size)), NAME)


def test_the_ratio_limit_is_that_of_the_upright_picture():
    facts = inspect(oriented(picture(64, 16), 6), NAME)
    assert (facts.width, facts.height) == (16, 64)


def test_a_picture_of_the_canvas_size_is_not_resampled():
    image = picture(64, 32)
    for crop in (False, True):
        np.testing.assert_array_equal(prepare_keyframe(image, 64, 32, crop=crop), np.asarray(image))


def test_keyframes_equal_the_reference_pipeline():
    """First stretched, second cover-cropped, by the resize step of diffusers."""
    step, components = diffusers_resize()
    for index, (width, height) in enumerate([(97, 61), (61, 97), (200, 50), (128, 96), (333, 500)]):
        first, last = picture(width, height, seed=index), picture(height, width, seed=index + 50)
        state = step_state(image=first, last_image=last, width=128, height=96)
        step(components, state)
        expected = [np.asarray(frame) for frame in state.get("keyframes")]
        np.testing.assert_array_equal(prepare_keyframe(first, 128, 96, crop=False), expected[0])
        np.testing.assert_array_equal(prepare_keyframe(last, 128, 96, crop=True), expected[1])


def diffusers_resize():
    from types import SimpleNamespace

    from diffusers.image_processor import VaeImageProcessor
    from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3ResizeStep

    processor = VaeImageProcessor(vae_scale_factor=32, resample="lanczos")
    return MiniMaxH3ResizeStep(), SimpleNamespace(image_processor=processor, canvas_multiple=32)


def step_state(**values):
    from diffusers.modular_pipelines.modular_pipeline import PipelineState

    state = PipelineState()
    for name, value in values.items():
        state.set(name, value)
    return state


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((80, 48), (3424, 2048)),
        ((1920, 1080), (3648, 2048)),
        ((512, 512), (2048, 2048)),
        ((4000, 3000), (2720, 2048)),
        ((4096, 1024), (8192, 2048)),
        ((1024, 4096), (2048, 8192)),
    ],
)
def test_reference_pictures_get_a_short_edge_of_2048(size, expected):
    assert reference_size(*size) == expected


@given(width=st.integers(16, 8192), height=st.integers(16, 8192))
def test_reference_sizes_are_whole_rows(width, height):
    if not 0.25 <= width / height <= 4:
        return
    made = reference_size(width, height)
    assert min(made) == 2048
    assert all(side % 32 == 0 and side <= 8192 for side in made)


def test_resize_is_pillows_lanczos():
    image = picture(100, 70)
    expected = np.asarray(image.resize((64, 96), Image.Resampling.LANCZOS))
    np.testing.assert_array_equal(resize(image, 64, 96), expected)
