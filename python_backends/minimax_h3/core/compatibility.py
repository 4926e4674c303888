"""Which features go together: one table, enforced at start and at admission, printed in the docs.

A pair that is not listed has been served together by the tests of its features. `works` names the
test, `refused` says why, `untested` is allowed and logged.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from minimax_h3.core.config import StageConfig
from minimax_h3.core.constants import TASK_FL2VA, TASK_REF2VA
from minimax_h3.core.errors import ConfigError, NotAvailableError
from minimax_h3.core.request import GenerationRequest

WORKS, REFUSED, UNTESTED = "works", "refused", "untested"

_SERVER_FEATURES: dict[str, Callable[[StageConfig], bool]] = {
    "device=cpu": lambda config: config.device == "cpu",
    "device=cuda": lambda config: config.device.startswith("cuda"),
    "dtype=bf16": lambda config: config.dtype == "bf16",
    "dtype=fp32": lambda config: config.dtype == "fp32",
    "attention=sdpa": lambda config: config.attention == "sdpa",
    "task_type=fl2va": lambda config: config.task_type == "fl2va",
    "task_type=ref2va": lambda config: config.task_type == "ref2va",
    "task_type=combined": lambda config: config.task_type == "combined",
    "offload": lambda config: bool(config.offloaded()),
}
_REQUEST_FEATURES: dict[str, Callable[[GenerationRequest], bool]] = {
    "num_outputs>1": lambda request: request.num_outputs > 1,
    "return_frames": lambda request: request.return_frames,
    "noise_recipe=single_stream": lambda request: request.noise_recipe == "single_stream",
    "flow_shift": lambda request: request.flow_shift is not None,
    "task=fl2va": lambda request: request.task == TASK_FL2VA,
    "task=ref2va": lambda request: request.task == TASK_REF2VA,
    "audio_mode=lock_source": lambda request: request.locks_source,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A verdict on two features; the same feature twice is a verdict on the feature itself."""

    first: str
    second: str
    verdict: str
    why: str


RULES = (
    Rule("task_type=combined", "task_type=combined", WORKS, "test_only_the_chosen_dit_is_called"),
    Rule("task=fl2va", "num_outputs>1", WORKS, "test_clips_of_one_request_share_its_keyframes"),
    Rule(
        "task=fl2va",
        "noise_recipe=single_stream",
        WORKS,
        "test_clips_of_one_request_share_its_keyframes",
    ),
    Rule("task=fl2va", "return_frames", WORKS, "test_clips_of_one_request_share_its_keyframes"),
    Rule("task=ref2va", "noise_recipe=single_stream", WORKS, "test_ref2va_equals_the_reference"),
    Rule("task=fl2va", "audio_mode=lock_source", WORKS, "test_a_driving_audio_may_join_any_task"),
    Rule("task=ref2va", "audio_mode=lock_source", WORKS, "test_a_driving_audio_may_join_any_task"),
    Rule("device=cuda", "task_type=combined", UNTESTED, "no test holds both DiTs on one GPU"),
    Rule("offload", "device=cpu", WORKS, "test_one_job_moves_the_weights_of_each_model_once"),
    Rule("offload", "device=cuda", WORKS, "test_the_memory_of_one_serves_two"),
    Rule("device=cpu", "dtype=bf16", WORKS, "test_bf16_on_cpu_stays_close_to_fp32"),
    Rule("device=cuda", "dtype=fp32", UNTESTED, "no test runs the released sizes in FP32"),
    Rule("num_outputs>1", "return_frames", WORKS, "test_outputs_use_consecutive_seeds"),
    Rule(
        "num_outputs>1", "noise_recipe=single_stream", WORKS, "test_outputs_use_consecutive_seeds"
    ),
    Rule("return_frames", "noise_recipe=single_stream", WORKS, "test_clip_equals_the_reference"),
)


def check_start(config: StageConfig, log: logging.Logger) -> None:
    """Refuse a server configuration whose features exclude each other; log untested pairs.

    Raises:
        ConfigError: names both features and the reason.
    """
    active = {name for name, test in _SERVER_FEATURES.items() if test(config)}
    for rule in _broken(active, log):
        raise ConfigError(_text(rule))


def check_request(request: GenerationRequest, config: StageConfig) -> None:
    """Refuse a request whose features exclude each other or the server's.

    Raises:
        NotAvailableError: names both features and the reason.
    """
    active = {name for name, test in _SERVER_FEATURES.items() if test(config)}
    active |= {name for name, test in _REQUEST_FEATURES.items() if test(request)}
    for rule in _broken(active, None):
        raise NotAvailableError(_text(rule))


def _broken(active: set[str], log: logging.Logger | None) -> list[Rule]:
    touched = [rule for rule in RULES if rule.first in active and rule.second in active]
    for rule in touched:
        if rule.verdict == UNTESTED and log is not None:
            log.warning("%s with %s is untested: %s", rule.first, rule.second, rule.why)
    return [rule for rule in touched if rule.verdict == REFUSED]


def _text(rule: Rule) -> str:
    if rule.first == rule.second:
        return f"{rule.first}: not available; {rule.why}"
    return f"{rule.first}: excludes {rule.second}; {rule.why}"


def as_markdown() -> str:
    """The table as docs/requests and the README print it."""
    lines = ["| feature | with | verdict | why, or the test that shows it |", "|---|---|---|---|"]
    lines += [
        f"| `{rule.first}` | `{rule.second}` | {rule.verdict} | {rule.why} |"
        if rule.first != rule.second
        else f"| `{rule.first}` | - | {rule.verdict} | {rule.why} |"
        for rule in RULES
    ]
    return "\n".join(lines) + "\n"
