"""Channels that hear clicks: the code, the cleared channels, the network written into them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from build_engines.tiny_checkpoint import write_tiny
from build_engines.train_tiny.__main__ import main as train_tiny
from build_engines.train_tiny.architecture import new_audio_vae
from build_engines.train_tiny.click_channels import (
    PLACES,
    ClickNetwork,
    clear_channels,
    click_features,
    last_projection,
    latents_behind,
    spare_channels,
    trunk,
    write_network,
)
from build_engines.train_tiny.click_code import (
    click_code,
    click_onsets,
    features_of,
    is_near,
    unused_directions,
)
from build_engines.train_tiny.click_excerpts import ExcerptKind, sounds, training_chunks
from build_engines.train_tiny.click_piece import ClickLearner
from build_engines.train_tiny.scenes import draw_scene, to_tensors
from build_engines.train_tiny.vae_files import kept_statistics, resume_audio_vae, save_audio_vae
from build_engines.train_tiny.vae_report import AudioRoundTrip
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.weights.manifest import CheckpointManifest, identify

RATE, HOP, WIDTH = 32_000, 800, 128
FEW = ExcerptKind(count=8, latents=8, bouncing=0.5, chunk=8, batch=4)
TWO_TONES = ExcerptKind(count=2, latents=8, bouncing=0.0, chunk=2)
STD = torch.linspace(0.2, 0.4, 32)[:, None]
CHANNELS = [[4, 7, 6, 1], [26, 52, 15, 2], [122, 26, 87, 31], [72, 79, 42, 45]]


def frozen_vae(seed: int = 1):
    return new_audio_vae(seed).requires_grad_(False)


@pytest.fixture(scope="module")
def waves() -> torch.Tensor:
    return sounds(training_chunks(3, FEW)[0], FEW.latents)[0]


def cleared_vae(waves: torch.Tensor):
    module = frozen_vae()
    features = click_features(module, waves)
    for place, channels in zip(PLACES, CHANNELS, strict=True):
        clear_channels(module, trunk(module, features, place), place, channels)
    return module


def drawn_network(module, features: torch.Tensor) -> ClickNetwork:
    torch.manual_seed(5)
    network = ClickNetwork(module, features, trunk(module, features), CHANNELS)
    with torch.no_grad():
        network.offset.normal_()
    return network.requires_grad_(False)


@pytest.mark.parametrize("first_s", [0.0, 1.37])
def test_onsets_are_where_scenes_bounce(first_s: float) -> None:
    """Each once, at the first sample that is not before it, in the scene's own pan."""
    scenes = [draw_scene(11, index, canvas=(WIDTH, 128)) for index in range(16)]
    samples = 3 * RATE
    onsets = click_onsets(to_tensors(scenes, [first_s] * len(scenes)), WIDTH, samples)
    for scene, ours in zip(scenes, onsets, strict=True):
        times = [time - first_s for time in scene.bounce_times(first_s + samples / RATE)]
        times = [time for time in times if time > 0]
        found = ours.square().sum(0)
        late = found.nonzero()[:, 0] - torch.tensor(times) * RATE
        assert ((late > -0.2) & (late < 1.2)).all()  # samples; times are in single precision
        torch.testing.assert_close(found[found > 0], torch.ones(len(times)))
    assert onsets.any()


def test_the_code_of_a_click_is_an_angle_at_the_latents_around_it() -> None:
    onsets = torch.zeros(1, 1, 12 * HOP)
    start = 5 * HOP + 200  # a quarter of a latent after the fifth one's begin
    onsets[..., start] = 0.5
    code = click_code(onsets)[0]
    assert code.shape == (2, 12)
    distances = (torch.arange(12) + 0.5) - start / HOP
    strength = 0.5 * 4 * torch.cos(torch.pi * distances / 3) ** 2 * (distances.abs() < 1.5)
    torch.testing.assert_close(code.norm(dim=0), strength, atol=5e-3, rtol=0)
    angle = torch.atan2(code[1], code[0])[4:7]
    torch.testing.assert_close(angle, torch.pi / 2 * distances[4:7], atol=5e-3, rtol=0)
    assert is_near(code[None])[0, 0].nonzero()[:, 0].tolist() == list(range(2, 9))


def test_clicks_at_both_ends_are_coded() -> None:
    onsets = torch.zeros(1, 1, 4 * HOP)
    onsets[..., 0] = onsets[..., -1] = 1.0
    strength = click_code(onsets)[0].norm(dim=0)
    torch.testing.assert_close(strength[0], strength[-1], atol=2e-2, rtol=0)
    assert strength.min() > 0


def test_directions_are_those_of_least_power_that_can_be_written() -> None:
    torch.manual_seed(0)
    turned = torch.linalg.qr(torch.randn(32, 32))[0]
    power = torch.linspace(1, 4, 32)
    power[[3, 8, 20]] = torch.tensor([1e-6, 1e-3, 2e-3])
    latents = (power.sqrt() * torch.randn(4000, 32)) @ turned.T
    sizes = torch.linspace(0.5, 1, 32)
    sizes[3] = 1e-4  # nothing of the encoder arrives there
    projection = turned * sizes @ torch.linalg.qr(torch.randn(32, 32))[0]
    directions, found = unused_directions(latents.T[None], projection)
    torch.testing.assert_close(directions @ directions.T, torch.eye(2))
    torch.testing.assert_close(
        (directions @ turned)[:, [8, 20]].abs(), torch.eye(2), atol=0.1, rtol=0
    )
    torch.testing.assert_close(found, torch.tensor([1e-3, 2e-3]), rtol=0.1, atol=0)
    written = projection @ features_of(directions, projection)
    torch.testing.assert_close(written, directions.T, atol=1e-4, rtol=0)


@pytest.mark.parametrize("place", PLACES[:-1])
def test_nothing_reads_a_cleared_channel(place: int, waves: torch.Tensor) -> None:
    module = frozen_vae()
    features = click_features(module, waves)
    hidden = trunk(module, features, place)
    channels = CHANNELS[PLACES.index(place)]
    clear_channels(module, hidden, place, channels)
    torch.testing.assert_close(trunk(module, features, place), hidden)
    other = hidden.clone()
    other[:, channels] = torch.randn_like(other[:, channels])
    after, changed = (latents_behind(module, values, place) for values in (hidden, other))
    torch.testing.assert_close(changed, after)
    assert (after - latents_behind(frozen_vae(), hidden, place)).abs().max() > 1e-4


@pytest.mark.parametrize("place", PLACES[:-1])
def test_a_channel_that_never_changes_is_missed_by_none(place: int, waves: torch.Tensor) -> None:
    """Its mean is all that was heard of it, except where a sound ends."""
    module, untouched = frozen_vae(), frozen_vae()
    channels = CHANNELS[PLACES.index(place)]
    for vae in (module, untouched):
        hold_still(vae, place, channels, 0.7)
    features = click_features(module, waves[:2].repeat(1, 1, 6))
    hidden = trunk(module, features, place)
    clear_channels(module, hidden, place, channels)
    ours, theirs = (vae.encoder.block[place + 1 :](hidden) for vae in (module, untouched))
    assert (ours - theirs).abs().max() > 1e-3  # at both ends, where zeros were heard
    torch.testing.assert_close(ours[..., 14:-14], theirs[..., 14:-14], atol=2e-5, rtol=1e-4)


def test_the_last_channels_are_their_means_behind_each_norm(waves: torch.Tensor) -> None:
    module, untouched = frozen_vae(), frozen_vae().pre_block
    features = click_features(module, waves)
    hidden = trunk(module, features)
    clear_channels(module, hidden, PLACES[-1], CHANNELS[-1])
    ours, rows = module.pre_block, hidden.transpose(1, 2)
    normed = {}
    for norm in ("norm1", "norm3"):
        normed[norm] = getattr(untouched, norm)(rows)
        held = normed[norm].clone()
        held[..., CHANNELS[-1]] = held.mean((0, 1))[CHANNELS[-1]]
        normed[f"held {norm}"] = held
    torch.testing.assert_close(ours.proj(normed["norm3"]), untouched.proj(normed["held norm3"]))
    # A part of the keys that is the same for all changes no attention: queries and values count.
    width = rows.shape[-1]
    for part, bias in (("q_bias", slice(0, width)), ("v_bias", slice(2 * width, None))):
        found = ours.attn.qkv(normed["norm1"])[..., bias] + getattr(ours.attn, part)
        wanted = untouched.attn.qkv(normed["held norm1"])[..., bias]
        torch.testing.assert_close(found, wanted + getattr(untouched.attn, part))
    held_rows = untouched.attn(normed["held norm1"])
    torch.testing.assert_close(ours.attn(normed["norm1"]), held_rows, atol=1e-5, rtol=1e-4)


def hold_still(module, place: int, channels: list[int], value: float) -> None:
    """Let channels of a place be constants, in the residual units that follow it too."""
    block = module.encoder.block[place]
    silence(block.block[-1] if hasattr(block, "block") else block, channels, value)
    following = module.encoder.block[place + 1] if place < PLACES[-1] else None
    for unit in following.block[:3] if hasattr(following, "block") else ():
        silence(unit.block[3], channels, value)


def silence(convolution, channels: list[int], value: float) -> None:
    convolution.bias[channels] = value
    if hasattr(convolution, "weight_g"):
        convolution.weight_g[channels] = 0
    else:
        convolution.weight[channels] = 0


@pytest.mark.parametrize("place", PLACES[1:3])
def test_silent_channels_are_the_spare_ones(place: int, waves: torch.Tensor) -> None:
    module = frozen_vae()
    channels = CHANNELS[PLACES.index(place)]
    hold_still(module, place, channels, 0.0)
    state = {name: values.clone() for name, values in module.state_dict().items()}
    hidden = trunk(module, click_features(module, waves[:1]), place)
    chosen, moved = spare_channels(module, hidden, place, STD)
    assert sorted(chosen) == sorted(channels)
    assert max(moved) < 1e-5
    for name, values in module.state_dict().items():
        assert torch.equal(values, state[name]), name


def test_channels_are_in_order_of_what_they_move(waves: torch.Tensor) -> None:
    module = frozen_vae()
    features = click_features(module, waves[:1])
    hidden = trunk(module, features, 4)
    chosen, moved = spare_channels(module, hidden, 4, STD)
    before = latents_behind(module, hidden, 4)
    assert moved == sorted(moved)
    clear_channels(module, hidden, 4, chosen[:1])
    change = (latents_behind(module, hidden, 4) - before) / STD
    assert change.square().mean().sqrt().item() == pytest.approx(moved[0], rel=1e-4)


def test_the_written_encoder_says_what_the_network_says(waves: torch.Tensor) -> None:
    """Every channel of the trunk, and what comes in front of the last block's second half."""
    module = cleared_vae(waves)
    features = click_features(module, waves)
    hidden = trunk(module, features)
    network = drawn_network(module, features)
    said, carried = network(features, hidden)
    cleared = module.pre_block.proj(module.pre_block.norm3(hidden.transpose(1, 2)))
    directions = torch.linalg.qr(torch.randn(32, 2))[0].T
    write_network(module, network, directions, STD)

    expected = hidden.index_copy(1, torch.tensor(CHANNELS[-1]), carried + network.resting)
    written = trunk(module, features)
    torch.testing.assert_close(written, expected, atol=2e-5, rtol=1e-4)
    rows = module.pre_block.proj(module.pre_block.norm3(written.transpose(1, 2)))
    # The other channels now stand beside other values in the norm: that part is the encoder's own.
    blank = module.pre_block.norm3(expected.transpose(1, 2)).clone()
    blank[..., CHANNELS[-1]] = 0
    back = features_of(directions, last_projection(module, STD))
    own = module.pre_block.proj(blank) - back @ network.offset
    torch.testing.assert_close(rows - own, said.transpose(1, 2) @ back.T, atol=2e-4, rtol=1e-3)
    assert (cleared - own).abs().mean() < 0.5 * cleared.abs().mean()


def test_a_network_hears_no_step_at_the_ends_of_a_sound(waves: torch.Tensor) -> None:
    """Features at their mean all the time are the zeros beyond their ends."""
    module = cleared_vae(waves)
    features = click_features(module, waves)
    network = drawn_network(module, features)
    still = features.mean((0, 2), keepdim=True).expand(1, -1, 800)
    first = network.convolutions[0]
    heard = torch.conv1d(still, network.first_weight(), None, first.stride, first.padding)
    assert heard.abs().max() < 1e-4 * torch.conv1d(features, network.first_weight()).abs().max()


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An autoencoder as an earlier piece leaves it."""
    folder = tmp_path_factory.mktemp("earlier")
    save_audio_vae(new_audio_vae(1), [0.1] * 32, STD[:, 0].tolist(), folder)
    return folder


def few(folder: Path, **options) -> ClickLearner:
    return ClickLearner(folder, kinds={"excerpt": FEW, "clip": FEW}, tones=TWO_TONES, **options)


def whole_checkpoint(audio_vae: Path, scratch: Path) -> CheckpointManifest:
    """All else is tiny and random."""
    root = write_tiny(scratch, 0, "FL2VA")
    shutil.rmtree(root / "audio_vae")
    shutil.copytree(audio_vae, root / "audio_vae")
    return identify(root, "fl2va")


def test_the_command_writes_the_channels_and_keeps_the_statistics(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr("build_engines.train_tiny.__main__.ClickLearner", few)
    folder = tmp_path / "parts" / "audio_vae"
    options = ["--resume", str(earlier), "--max-steps", "30", "--held-out", "4"]
    assert train_tiny(["audio-clicks", str(folder), *options]) == 0
    said = capsys.readouterr().out
    assert "excerpts: 8 of 8" in said
    assert "module 7: channels" in said
    assert "written: explained" in said

    assert kept_statistics(folder) == kept_statistics(earlier)
    facts = json.loads((folder / "training.json").read_text())
    assert facts["steps"] == 30
    assert set(facts["held_out"]) == {
        *("explained", "drift_elsewhere", "drift_at_clicks", "code_at_clicks")
    }
    served = AudioRoundTrip(whole_checkpoint(folder, tmp_path / "whole"))
    assert served(np.zeros((2, 4 * HOP), np.float32)).shape == (2, 4 * HOP)
    after, before = frozen_vae(), frozen_vae()
    resume_audio_vae(after, folder)
    resume_audio_vae(before, earlier)
    spare = facts["channels"]["3"]
    ours, theirs = (vae.encoder.block[3].block[-1].bias for vae in (after, before))
    others = [channel for channel in range(32) if channel not in spare]
    torch.testing.assert_close(ours[others], theirs[others])
    assert not torch.isclose(ours[spare], theirs[spare]).any()
    for name, values in after.decoder.state_dict().items():
        assert torch.equal(values, before.decoder.state_dict()[name]), name


def test_clips_without_clicks_and_missing_pieces_are_refused(
    earlier: Path, tmp_path: Path, capsys
) -> None:
    assert train_tiny(["audio-clicks", str(tmp_path), "--resume", str(tmp_path)]) == 1
    assert "nothing to resume from" in capsys.readouterr().err
    with pytest.raises(InvalidRequestError, match="held-out: 1 clips have no click"):
        few(earlier, held_out=1, say=lambda line: None)
