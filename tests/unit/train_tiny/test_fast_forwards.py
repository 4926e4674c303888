"""The forwards for training against the library's modules, gradients too."""

import pytest
import torch

from build_engines.train_tiny.alias_free import FastActivation, use_fast_activations
from build_engines.train_tiny.architecture import new_audio_vae, new_video_vae
from build_engines.train_tiny.fast_encoder import CausalReflectPad, encode_moments


@pytest.fixture(scope="module")
def video():
    return new_video_vae(0)


def test_moments_of_a_window_are_those_of_the_library(video) -> None:
    torch.manual_seed(0)
    pixels = torch.randn(2, 3, 22, 32, 48)
    with torch.no_grad():
        assert torch.equal(encode_moments(video, pixels, torch.float32), video._encode(pixels))


def test_gradients_are_those_of_the_library(video) -> None:
    torch.manual_seed(1)
    pixels, weight = torch.randn(1, 3, 22, 32, 32), torch.randn(1, 48, 7, 2, 2)
    parameters = [*video.encoder.parameters(), *video.quant_conv.parameters()]
    ours = torch.autograd.grad(
        (encode_moments(video, pixels, torch.float32) * weight).sum(), parameters
    )
    theirs = torch.autograd.grad((video._encode(pixels) * weight).sum(), parameters)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() <= 1e-5 * other.norm() + 1e-7


@pytest.mark.parametrize("before", [0, 1])
def test_padding(before: int) -> None:
    values = torch.randn(1, 2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    pads = (before, 1, before, 1, 0, 0)
    expected = torch.nn.functional.pad(values, pads, mode="reflect")
    expected = torch.nn.functional.pad(expected, (0, 0, 0, 0, 2, 0))
    assert torch.equal(CausalReflectPad.apply(values, before), expected)
    assert torch.autograd.gradcheck(lambda x: CausalReflectPad.apply(x, before), values)


def test_activations_are_those_of_the_library() -> None:
    torch.manual_seed(2)
    library = new_audio_vae(0).decoder.resblocks[3].activations[0]
    with torch.no_grad():
        library.act.alpha.normal_(0, 0.3)
        library.act.beta.normal_(0, 0.3)
    ours = FastActivation(library)
    hidden = torch.randn(2, library.act.alpha.numel(), 37, requires_grad=True)
    weight = torch.randn(hidden.shape)
    wanted = (hidden, library.act.alpha, library.act.beta)
    assert torch.allclose(ours(hidden), library(hidden), atol=1e-5)
    mine = torch.autograd.grad((ours(hidden) * weight).sum(), wanted)
    theirs = torch.autograd.grad((library(hidden) * weight).sum(), wanted)
    for one, other in zip(mine, theirs, strict=True):
        assert torch.allclose(one, other, atol=2e-4)


def test_weights_keep_their_names() -> None:
    module = new_audio_vae(0)
    names = list(module.state_dict())
    use_fast_activations(module)
    assert list(module.state_dict()) == names
