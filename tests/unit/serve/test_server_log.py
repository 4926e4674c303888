"""Reading the log of server 2.51: what is ready, and why a start failed."""

from minimax_h3.serve.server_log import MAX_CHARS, MAX_LINES, error_lines, loaded_models

NOISE = """\
W1129 15:30:31.973196 6724 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"
E1129 15:30:31.973390 6724 server.cc:241] "CudaDriverHelper has not been initialized."
E1129 15:30:54.512561 6927 ensemble_scheduler.cc:1468] "unable to create stream for minimax_h3: no"
Error: Failed to initialize NVML
I1129 15:30:31.975813 6724 model_lifecycle.cc:472] "loading: audio_decoder:1"
"""
FAILED = """\
E1129 15:30:32.391310 6724 backend_model.cc:692] "ERROR: Failed to create instance: TypeError: no"
E1129 15:30:32.3 6724 triton_log.py:17] "minimax_h3.{model}: cannot load: checkpoint: w is missing"
E1129 15:30:32.391443 6724 model_lifecycle.cc:642] "failed to load '{model}' version 1: Internal: \
CheckpointError: w is missing\\n\\nAt:\\n  /somewhere/adapter.py(88): initialize\\n"
E1129 15:30:33.154546 6724 model_repository_manager.cc:703] "Invalid argument: ensemble 'e' \
depends on '{model}' which has no loaded version."
error: creating server: Internal - failed to load all models
"""


def test_models_that_are_ready_in_order() -> None:
    line = "I1129 15:30:54.10 1 model_lifecycle.cc:839] \"successfully loaded '{}'\"\n"
    assert loaded_models(line.format("jobs") + NOISE + line.format("muxer")) == ["jobs", "muxer"]


def test_a_start_without_a_fault_has_no_reasons() -> None:
    assert error_lines(NOISE) == []


def test_a_failed_load_is_one_line_with_its_reason() -> None:
    log = NOISE + FAILED.format(model="dit_fl2va")
    assert error_lines(log) == ["dit_fl2va: CheckpointError: w is missing"]


def test_models_that_fail_alike_share_a_line() -> None:
    log = FAILED.format(model="dit_fl2va") + FAILED.format(model="text_encoder") * 2
    assert error_lines(log) == ["dit_fl2va, text_encoder: CheckpointError: w is missing"]


def test_other_errors_are_kept() -> None:
    log = NOISE + 'E1129 15:30:32.39 6724 main.cc:88] "failed to start HTTP service: in use"\n'
    assert error_lines(log) == ["failed to start HTTP service: in use"]
    assert error_lines("tritonserver: unrecognized option '--x'\n") == ["unrecognized option '--x'"]


def test_a_flood_is_cut() -> None:
    log = "".join(f'E1129 15:30:32.39 6724 m.cc:8] "{n} {"x" * 2000}"\n' for n in range(99))
    lines = error_lines(log)
    assert len(lines) == MAX_LINES
    assert {len(line) for line in lines} == {MAX_CHARS}
