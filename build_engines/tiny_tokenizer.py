"""A byte-level tokenizer without merges: every UTF-8 byte is one token."""

import json
from pathlib import Path

from build_engines.tiny_configs import BYTE_TOKENS, SPECIAL_TOKENS, special_id

_FIRST_SPARE_CHARACTER = 256


def byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary.

    Printable Latin-1 characters stand for themselves; the other bytes get characters from 256 on,
    in order of the byte.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    alphabet, spare = {}, _FIRST_SPARE_CHARACTER
    for byte in range(BYTE_TOKENS):
        if byte in printable:
            alphabet[byte] = chr(byte)
        else:
            alphabet[byte] = chr(spare)
            spare += 1
    return alphabet


def tokenizer_files() -> dict[str, str]:
    """File name -> content of a tokenizer folder."""
    vocabulary = {character: byte for byte, character in byte_alphabet().items()}
    added = [
        {
            "id": special_id(token),
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in SPECIAL_TOKENS
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "model_max_length": 262144,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "added_tokens_decoder": {
            str(entry["id"]): {key: value for key, value in entry.items() if key != "id"}
            for entry in added
        },
    }
    return {
        "tokenizer.json": json.dumps(tokenizer, indent=1, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(config, indent=1),
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False),
        "merges.txt": "#version: 0.2\n",
    }


def processor_files() -> dict[str, str]:
    """File name -> content of a processor folder. Source: model sheet section 5 for the limits."""
    shared = {
        "do_rescale": True,
        "do_normalize": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "rescale_factor": 1 / 255,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }
    image = {
        **shared,
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    }
    video = {
        **shared,
        "video_processor_type": "Qwen3VLVideoProcessor",
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": 4096, "longest_edge": 25165824},
        "fps": 2,
        "min_frames": 4,
        "max_frames": 768,
        "do_sample_frames": True,
    }
    return {
        **tokenizer_files(),
        "preprocessor_config.json": json.dumps(image, indent=1),
        "video_preprocessor_config.json": json.dumps(video, indent=1),
    }


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write text files, byte for byte the same on every system."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode())
