"""The trained model's sizes: text encoder, transformers, and what all of it may weigh."""

import copy
import json
from types import MappingProxyType

from build_engines import tiny_configs
from build_engines.tiny_tokenizer import processor_files
from minimax_h3.weights.dit_config import DiTConfig

Json = dict[str, object]

TEXT_WIDTH = 64
TEXT_LAYERS = 50  # what the transformer reads, and no layer more
# Ten layers work; the other forty have zero output projections and pass the stream on, bit by bit.
# A depth of 50 is the released structure's, not something that captions of one line need.
WORKING_LAYERS = 10
PICTURE_PIXELS = (1024, 65_536)  # a picture of 128x128 is seen as it is: 16 tokens

CANVAS: Json = {
    "short_edge": 128,
    "max_area": 128 * 192,
    "reference_short_edge": 128,
    "ratio": "1:1",
}
"""The canvas rule that the checkpoint states: clips, keyframes and references are small."""

SIGMA_SHIFTS = MappingProxyType({"video": 3.0, "audio": 3.0})
"""Shifts of the schedule, for training and stated by the checkpoint. The released 12 for pictures
suits sequences of 38,000 rows and more; at 1,000 it leaves the last of 20 Euler steps to go from
sigma 0.4 to 0 at once, which blurs shapes."""

DIT = DiTConfig(
    hidden_size=256,
    num_layers=7,
    num_refiner_layers=1,
    num_heads=4,
    head_dim=64,
    ffn_dim=512,
    text_dim=TEXT_WIDTH,
    freq_dim=64,
    time_hidden_dim=128,
    time_out_dim=16,
    rope_freqs=8,  # 48 of 64 dimensions turn, the released share
)

BUDGET_BYTES = MappingProxyType(
    {
        "video_vae": 11_300_000,
        "audio_vae": 2_700_000,
        "text_encoder": 6_000_000,
        "transformer FL2VA": 12_200_000,
        "transformer Ref2VA": 12_200_000,
    }
)
"""Most bytes of each part's weights in 16 bit; their sum leaves room below `WHOLE_BYTES`."""
WHOLE_BYTES = 45_000_000  # of the whole checkpoint folder, configuration and tokenizer included


def text_encoder(layers: int = TEXT_LAYERS) -> Json:
    """`text_encoder/config.json`; training builds the working layers alone."""
    config = copy.deepcopy(tiny_configs.text_encoder())
    text, vision = config["text_config"], config["vision_config"]
    assert isinstance(text, dict)
    assert isinstance(vision, dict)
    text |= {
        "head_dim": 32,
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": 176,
        "num_attention_heads": 2,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
            "rope_type": "default",
        },
    }
    vision |= {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_position_embeddings": 64,
        "out_hidden_size": TEXT_WIDTH,
    }
    return config


def transformer() -> Json:
    """`transformer/config.json`."""
    return {"_class_name": "MiniMaxH3DiTModel", **DIT.to_official()}


def processor() -> dict[str, str]:
    """File name -> content of `processor/`, with limits that suit small pictures."""
    files = processor_files()
    content = json.loads(files["preprocessor_config.json"])
    content["size"] = dict(zip(("shortest_edge", "longest_edge"), PICTURE_PIXELS, strict=True))
    return {**files, "preprocessor_config.json": json.dumps(content, indent=1)}
