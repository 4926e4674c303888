"""Spare channels of the audio encoder that hear clicks: chosen, cleared, and rewritten.

An encoder that was trained without clicks averages them away behind its third block, whose features
still have them at three deviations. A small network of four channels a layer goes from these
features to the latents, through places of the encoder's own convolutions that do next to nothing.
All else stays what it is: the other channels no longer read these, and these read no others.
"""

import copy
import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from build_engines.train_tiny.click_code import DIRECTIONS, features_of

WIDTH = 4  # channels of each layer
PLACES = (3, 4, 5, 7)  # of the encoder's modules, whose last convolution writes such channels
_UNITS = 3  # residual units at the start of a block
_SNAKE_RATE = 0.5  # of the network's activations, before training


def click_features(module: Any, wave: Tensor) -> Tensor:
    """What the network reads: the input of the third block's last convolution, [B, 16, L * 100]."""
    hidden = module.encoder.block[: PLACES[0]](wave)
    return module.encoder.block[PLACES[0]].block[:-1](hidden)


def trunk(module: Any, features: Tensor, place: int = PLACES[-1]) -> Tensor:
    """What the encoder makes of `click_features` up to a place, that one included."""
    hidden = _convolution(module, PLACES[0])(features)
    return module.encoder.block[PLACES[0] + 1 : place + 1](hidden)


def latents_behind(module: Any, hidden: Tensor, place: int) -> Tensor:
    """Means of the posterior by the output of a place, [B, 32, L]."""
    hidden = module.encoder.block[place + 1 :](hidden)
    return module.mean_proj(module.pre_block(hidden.transpose(1, 2)).transpose(1, 2))


@torch.no_grad()
def spare_channels(
    module: Any, hidden: Tensor, place: int, std: Tensor
) -> tuple[list[int], list[float]]:
    """The channels of a place that matter least: cleared alone, they move the latents least.

    Args:
        module: the autoencoder; it is left as it was.
        hidden: of tones, the output of the place, [B, channels, length].
        place: one of `PLACES`.
        std: deviations of the latents, [32, 1].

    Returns:
        `WIDTH` channels, the least first, and the root mean square of what each moved, in
        deviations.
    """
    before = latents_behind(module, hidden, place)
    readers = _readers(module, place)
    state = {name: values.clone() for name, values in readers.state_dict().items()}
    moved = []
    for channel in range(hidden.shape[1]):
        clear_channels(module, hidden, place, [channel])
        change = (latents_behind(module, hidden, place) - before) / std
        moved.append(change.square().mean().sqrt())
        readers.load_state_dict(state)
    least = torch.stack(moved).topk(WIDTH, largest=False)
    return least.indices.tolist(), least.values.tolist()


@torch.no_grad()
def clear_channels(module: Any, hidden: Tensor, place: int, channels: list[int]) -> None:
    """Let nothing read channels of a place: whatever read them reads their mean, in its bias.

    Until the next place has read them, nothing writes into them either.

    Args:
        module: the autoencoder, changed in place.
        hidden: of tones, the output of the place, over which means are taken.
        place: one of `PLACES`.
        channels: of this output.
    """
    if place == PLACES[-1]:
        _clear_projections(module.pre_block, hidden.transpose(1, 2), channels)
        return
    following = module.encoder.block[place + 1]
    for unit in following.block[:_UNITS] if hasattr(following, "block") else ():
        snake, reads, _, writes = unit.block
        read, hidden = snake(hidden), unit(hidden)
        _forget(reads, channels, read)
        _silence(writes, channels)
    _forget(_convolution(module, _next(place)), channels, _activation(module, place)(hidden))


def _clear_projections(pre_block: Any, hidden: Tensor, channels: list[int]) -> None:
    """The same for the two linear maps behind the trunk, each of which has a norm in front."""
    direct, query_key_value = pre_block.proj, pre_block.attn.qkv
    direct.bias += _mean_part(direct.weight, channels, pre_block.norm3(hidden))
    query, _, value = _mean_part(query_key_value.weight, channels, pre_block.norm1(hidden)).chunk(3)
    pre_block.attn.q_bias += query
    pre_block.attn.v_bias += value  # of keys it needs none: the same for all changes no attention
    for linear in (direct, query_key_value):
        linear.weight[:, channels] = 0


def _mean_part(weight: Tensor, channels: list[int], normed: Tensor) -> Tensor:
    return weight[:, channels] @ normed.mean((0, 1))[channels]


def _forget(convolution: Any, channels: list[int], read: Tensor) -> None:
    """Replace input channels by their means over `read`."""
    weight = weight_of(convolution)
    convolution.bias += weight[:, channels].sum(2) @ read.mean((0, 2))[channels]
    weight[:, channels] = 0
    _set_weight(convolution, weight)


def _silence(convolution: Any, channels: list[int]) -> None:
    """Let output channels be 0."""
    weight = weight_of(convolution)
    weight[channels] = 0
    convolution.bias[channels] = 0
    _set_weight(convolution, weight)


class ClickNetwork(nn.Module):
    """The network of the spare channels, trained alone beside the cleared encoder."""

    convolutions: Any
    snakes: Any
    scale: Tensor
    still: Tensor
    resting: Tensor

    def __init__(
        self, module: Any, features: Tensor, hidden: Tensor, channels: list[list[int]]
    ) -> None:
        """Draw weights.

        Args:
            module: the cleared autoencoder; it is not changed.
            features: `click_features` of sounds; they are read in their deviations.
            hidden: the trunk's output of the same sounds. The last channels keep their means, so
                that the norm behind them does to all others what it did.
            channels: of each of `PLACES`.
        """
        super().__init__()
        self.channels = channels
        likes = [_convolution(module, place) for place in PLACES]
        widths = [features.shape[1], *(len(taken) for taken in channels)]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(*pair, like.kernel_size[0], like.stride[0], like.padding[0])
            for pair, like in zip(itertools.pairwise(widths), likes, strict=True)
        )
        self.snakes = nn.ModuleList(
            copy.deepcopy(_activation(module, place)) for place in PLACES[:-1]
        )
        for snake, width in zip(self.snakes, widths[1:], strict=False):
            snake.alpha = nn.Parameter(torch.full((1, width, 1), _SNAKE_RATE))
        self.norm = copy.deepcopy(module.pre_block.norm3).requires_grad_(False)
        self.read = nn.Parameter(0.5 * torch.randn(DIRECTIONS, widths[-1]))
        self.offset = nn.Parameter(torch.zeros(DIRECTIONS))
        scale = features.std((0, 2))
        self.register_buffer("scale", scale[:, None])
        self.register_buffer("resting", hidden.mean((0, 2))[channels[-1], None])
        self.register_buffer("still", F.normalize(features.mean((0, 2)) / scale, dim=0))

    def forward(self, features: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Listen.

        Args:
            features: `click_features`, [B, 16, L * 100].
            hidden: the cleared encoder's whole trunk, [B, 128, L].

        Returns:
            The code that it adds to the latents, [B, 2, L], and what it adds to the means of the
            last channels, [B, 4, L].
        """
        first, *others = self.convolutions
        carried = F.conv1d(features, self.first_weight(), first.bias, first.stride, first.padding)
        for snake, convolution in zip(self.snakes, others, strict=True):
            carried = convolution(snake(carried))
        places = torch.tensor(self.channels[-1], device=hidden.device)
        written = hidden.index_copy(1, places, carried + self.resting)
        normed = self.norm(written.transpose(1, 2))[..., places]
        return (normed @ self.read.T + self.offset).transpose(1, 2), carried

    def first_weight(self) -> Tensor:
        """Of the first convolution, deaf to the mean of the features.

        So the zeros beyond both ends of a sound are no step for it, hence no click.
        """
        weight = self.convolutions[0].weight
        heard = torch.einsum("oct,c->ot", weight, self.still)
        return (weight - heard[:, None] * self.still[:, None]) / self.scale


@torch.no_grad()
def write_network(module: Any, network: ClickNetwork, directions: Tensor, std: Tensor) -> None:
    """Put a network into the channels that were cleared for it.

    Args:
        module: the cleared autoencoder, changed in place.
        network: trained beside it.
        directions: of the normalised latents, into which the code goes, [2, 32].
        std: deviations of the latents, [32, 1].
    """
    inputs: list[int] | slice = slice(None)
    for index, (place, rows) in enumerate(zip(PLACES, network.channels, strict=True)):
        ours = network.convolutions[index]
        theirs = _convolution(module, place)
        weight = weight_of(theirs)
        block = torch.zeros_like(weight[rows])
        block[:, inputs] = ours.weight if index else network.first_weight()
        weight[rows] = block
        _set_weight(theirs, weight)
        theirs.bias[rows] = ours.bias
        if index < len(network.snakes):
            _activation(module, place).alpha[:, rows] = network.snakes[index].alpha
        inputs = rows
    back = features_of(directions, last_projection(module, std))
    _convolution(module, PLACES[-1]).bias[network.channels[-1]] += network.resting[:, 0]
    module.pre_block.proj.weight[:, network.channels[-1]] = back @ network.read
    module.pre_block.proj.bias += back @ network.offset


def last_projection(module: Any, std: Tensor) -> Tensor:
    """The encoder's last matrix, from its features to normalised latents, [32, 32]."""
    return module.mean_proj.weight[..., 0] / std


def weight_of(convolution: Any) -> Tensor:
    """A copy of the weight that a convolution works with, its norm put in, [out, in, taps]."""
    if not hasattr(convolution, "weight_g"):
        return convolution.weight.detach().clone()
    direction = convolution.weight_v.detach()
    return convolution.weight_g.detach() * direction / direction.norm(dim=(1, 2), keepdim=True)


def _set_weight(convolution: Any, weight: Tensor) -> None:
    if not hasattr(convolution, "weight_g"):
        convolution.weight.copy_(weight)
        return
    length = weight.norm(dim=(1, 2), keepdim=True)
    convolution.weight_g.copy_(length)
    # A row of zeros has no direction, but it must not be divided by its length.
    convolution.weight_v.copy_(torch.where(length > 0, weight, torch.ones_like(weight)))


def _convolution(module: Any, place: int) -> Any:
    """The convolution that ends a module of the encoder."""
    block = module.encoder.block[place]
    return block.block[-1] if hasattr(block, "block") else block


def _activation(module: Any, place: int) -> Any:
    """The activation in front of the next place's convolution."""
    block = module.encoder.block[place + 1]
    return block.block[_UNITS] if hasattr(block, "block") else block


def _readers(module: Any, place: int) -> Any:
    """All that reads a place's channels, as far as the next place."""
    if place == PLACES[-1]:
        return module.pre_block
    return module.encoder.block[place + 1 : _next(place) + 1]


def _next(place: int) -> int:
    return PLACES[PLACES.index(place) + 1]
