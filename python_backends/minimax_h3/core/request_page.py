"""`docs/requests.md`: the request contract as text, from the tables that enforce it.

`python -m minimax_h3.core.request_page docs/requests.md` writes it (`make docs`).
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from minimax_h3.core import limits
from minimax_h3.core.contracts import REQUEST_INPUTS, STRING
from minimax_h3.core.fields import FIELDS, MEANINGLESS_FIELDS, OTHER_NAMES, RESERVED_FIELDS
from minimax_h3.core.parameters import PARAMETERS

_PAGE = """# Requests

Written by `make docs` from the tables that enforce it (`core/fields.py`, `core/limits.py`,
`core/parameters.py`); a test compares the two. Nothing is changed silently: an unknown, ill-typed,
conflicting or out-of-range field is refused with INVALID_ARGUMENT (HTTP 400) and a message that
names the field, the value and the legal range, before expensive work. Alignments that are stated
here are reported in METADATA.

## Fields

A field with a tensor of its own is sent as that tensor, shape `[1]`, a list as `[n]`; the rest go
into the BYTES tensor `OPTIONS`, one JSON object. Only `prompt` is required. Text is UTF-8
without control characters, names and ids too; only a prompt may have tabs and line breaks. Whole
numbers are INT64, so that a number in an HTTP body arrives as it was written, or is refused.

{fields}
- `duration` excludes `num_frames`; `width` and `height` go together and exclude `aspect_ratio`.
- Frame counts are aligned up to 17 n + 5: 5.0 s is 124 frames, 15.0 s is 362.
- Refused as not available yet: {reserved}.
- Refused because this model is guidance-distilled: {meaningless}.
- Names of other servers are refused with ours: {others}.

## Tasks and files

| task | files | canvas without a size | model |
|---|---|---|---|
| `t2va` | none | `aspect_ratio` | `dit_fl2va` |
| `fl2va` | `keyframes`: first, last or both | ratio of the first keyframe | `dit_fl2va` |
| `ref2va` | `references`: pictures, videos, sounds in any order | `aspect_ratio` | `dit_ref2va` |

The task is inferred from the files: keyframes make `fl2va`, references `ref2va`, none `t2va`. Both
together are refused. `audio_mode` `lock_source` keeps the one sound among the references as the
sound of the clip: any task takes it, it is neither labelled nor counted, and alone it makes no
`ref2va`; with keyframes it is the one reference they allow.

The prompt calls references by kind and order: "Picture 1", "Video 1", "Audio 1". The order of
`references` is kept; the soundtrack of a video counts as an audio just before its video. Several
`keyframes` are first, then last, as `frame_indices` says.

An element of `keyframes` or `references` is the bytes of a file ({formats}); what it is
is read from the bytes, never from a name. Where the operator set `media_root` (`h3 serve
--media-root DIR`) an element may be the text `file:NAME` instead: a regular file below that folder,
reached without any link. URLs and other paths are never opened.

## Limits of files

Counts, bytes, sides, seconds and codecs are judged before a file is decoded in full, and so is the
row budget: text, conditions, sound and picture of one forward are at most `max_packed_rows` rows.
Videos are {video_codecs}; their soundtracks {soundtrack_codecs} or PCM; sounds PCM, {sound_codecs}.

{limits}
Seconds may exceed their limit by {slack:g} s, the rounding of containers and codecs.

## What becomes of a file

| file | outcome |
|---|---|
| picture or video stored rotated (EXIF, display matrix) | upright |
| transparency | flattened on white |
| greyscale, palette, CMYK or 16 bits a channel | 8-bit RGB |
| first keyframe of another shape than the canvas | stretched (LANCZOS) |
| second keyframe of another shape | scaled to cover the canvas, cut at the centre |
| reference picture | short edge 2048, sides to the nearest 32; or the checkpoint's own edge |
| reference video | 24 frames a second, on the 768 canvas of its own ratio, or the checkpoint's |
| variable frame rate | resampled by time stamps: whole frames are dropped or doubled |
| video longer than the clip | cut to the clip's frames, then down to 17 n + 5 |
| sound | 32 kHz stereo; mono is doubled, more channels are mixed down; cut to the clip's length |
| locked sound (`lock_source`) | cut to the clip, or filled up with zero latents |
| silent track | kept as silence; a video without a track has no sound |
| animated WEBP or GIF, HEIC, AVIF, AVI, WebM, other formats and codecs | refused by name |
| no frames, truncated, damaged, more pixels than it says | refused by name |

## Examples

One a task, with the command line and with `tritonclient` alone, for a server that has every task
(`h3 serve --task-type combined`). Prompts and sizes are such as h3-tiny was trained on, and the
files come from the first clip, because a picture of anything else tells it nothing; the released
weights take any. Without a size a clip has the canvas of the table above.

```bash
.venv/bin/h3 generate "a red circle bounces to the left on a blue ground" -o t2va.mp4 \\
  --width 128 --height 128 --steps 20
.venv/bin/python -c \\
  "import av; next(av.open('t2va.mp4').decode(video=0)).to_image().save('first.png')"
.venv/bin/h3 generate "a red circle bounces to the left on a blue ground" -o fl2va.mp4 \\
  --width 128 --height 128 --steps 20 --first first.png
.venv/bin/h3 generate "video 1 goes on: a red circle bounces to the left on a blue ground" \\
  -o ref2va.mp4 --width 128 --height 128 --steps 20 --ref t2va.mp4 --start 2.8
```

```python
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton


def tensor(name, datatype, dtype, *values):
    filled = triton.InferInput(name, [len(values)], datatype)
    filled.set_data_from_numpy(np.array(values, dtype=dtype))
    return filled


def generate(prompt, *files):
    inputs = [tensor("PROMPT", "BYTES", object, prompt.encode()), *files]
    inputs += [tensor(name, "INT64", np.int64, number) for name, number in NUMBERS.items()]
    answer = triton.InferenceServerClient("127.0.0.1:8001").infer("minimax_h3", inputs)
    return answer.as_numpy("MP4")[0]


NUMBERS = {{"WIDTH": 128, "HEIGHT": 128, "NUM_INFERENCE_STEPS": 20}}
prompt = "a red circle bounces to the left on a blue ground"
t2va = generate(prompt)
first = Path("first.png").read_bytes()  # as above
fl2va = generate(prompt, tensor("KEYFRAMES", "BYTES", object, first))
video = tensor("REFERENCES", "BYTES", object, t2va)
end = tensor("START_TIME_SECONDS", "FP32", np.float32, 2.8)  # of 5.2 s
ref2va = generate(f"video 1 goes on: {{prompt}}", video, end)
```

## Parameters of a request

No field is a request parameter: not in gRPC's `parameters`, not in those of an HTTP body, not as a
JSON key of `/generate` and `/generate_stream` that is no tensor, which Triton makes one. There it
would have no effect, so it is refused like an unknown field. Legal are:

{parameters}
## Errors

| gRPC | HTTP | when |
|---|---|---|
| INVALID_ARGUMENT | 400 | the request is wrong, or needs what this server does not have |
| UNAVAILABLE | 503 | the server is full; the same request may succeed later |
| CANCELLED | 400 | the job was cancelled; `jobs` tells it from a wrong request |
| NOT_FOUND, INTERNAL | 404, 500 | the server is at fault; its log has the reason |

Triton itself refuses what it cannot read, in words of its own: a tensor of another name, type or
shape is HTTP 400; a body that is not JSON, or a value in it that is no number of its tensor's type,
such as 64.0 or 2^63 for INT64, is HTTP 500, although the request is at fault. So is an object, a
number or null for a text, such as a PROMPT of `/generate_stream`, with "attempt to access JSON
non-string as string"; no model sees such a request.
"""


def fields_table() -> str:
    """The fields as the documents print them."""
    wire = {STRING: "BYTES"}  # what clients call it
    tensors = {
        spec.name: f"{spec.name}, {wire.get(spec.dtype, spec.dtype)}" for spec in REQUEST_INPUTS
    }
    lines = [
        "| field | type | legal | default | meaning | sent as |",
        "|---|---|---|---|---|---|",
    ]
    for name, field in FIELDS.items():
        sent_as = tensors.get(name.upper(), "OPTIONS")
        legal = field.legal.replace("one of ", "")
        lines.append(
            f"| `{name}` | {field.type_name} | {legal} | {field.default} | {field.meaning} "
            f"| {sent_as} |"
        )
    return "\n".join(lines) + "\n"


def parameters_table() -> str:
    """The request parameters as the documents print them."""
    lines = [f"| `{name}` | {meaning} |" for name, meaning in PARAMETERS.items()]
    return "\n".join(["| parameter | meaning |", "|---|---|", *lines]) + "\n"


def page() -> str:
    """The whole document."""
    return _PAGE.format(
        fields=fields_table(),
        limits=limits.as_markdown(),
        parameters=parameters_table(),
        reserved=_names(sorted(RESERVED_FIELDS)),
        meaningless=_names(sorted(MEANINGLESS_FIELDS)),
        others=_names(OTHER_NAMES),
        formats=", ".join(limits.MEDIA_FORMATS),
        video_codecs=" or ".join(limits.VIDEO_CODECS),
        soundtrack_codecs=", ".join(limits.SOUNDTRACK_CODECS),
        sound_codecs=", ".join(limits.SOUND_CODECS),
        slack=limits.SECONDS_SLACK,
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
