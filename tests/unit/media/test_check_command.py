import argparse
import errno
import json
import os
from unittest.mock import Mock

import numpy as np
import pytest
from media_samples import Recipe, moving_clip, write
from PIL import Image
from source_samples import wav

from minimax_h3.media import check_command
from minimax_h3.media import probe as probe_module
from minimax_h3.media.check_command import summary


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    check_command.add_arguments(parser)
    return check_command.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def good_path(good_file, tmp_path):
    path = tmp_path / "good.mp4"
    path.write_bytes(good_file)
    return path


def test_a_good_file_prints_a_line_per_check_and_returns_0(good_path, capsys):
    assert run(good_path, "--width", 64, "--height", 64, "--frames", 124) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(" pass " in line for line in lines) == 11
    assert sum(" n/a " in line for line in lines) == 4
    assert lines[-1] == "all checks passed"


def test_a_wrong_file_returns_1_and_names_the_check(good_path, tmp_path, capsys):
    assert run(good_path, "--width", 96, "--frames", 107) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "failed: video_format, frame_count, audio_format"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        ("folder", "it is a folder"),
        ("pipe", "it is no regular file"),
        ("locked", "Permission denied"),
        (b"", "the file is empty"),
        (b"words, many words", "Invalid data found when processing input"),
        (bytes(5000), "Invalid data found when processing input"),
        ("picture", "it is no MP4, FFmpeg reads it as png_pipe"),
        ("sound", "it is no MP4, FFmpeg reads it as wav"),
    ],
)
def test_what_is_no_mp4_is_one_failure_that_names_the_file(
    tmp_path, capsys, monkeypatch, content, why
):
    path = tmp_path / "it.mp4"
    match content:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "locked":  # root may read everything
            path.write_bytes(b"x")
            locked = PermissionError(errno.EACCES, "Permission denied")
            monkeypatch.setattr(probe_module, "walk_boxes", Mock(side_effect=locked))
        case "picture":
            Image.fromarray(moving_clip(1)[0]).save(path, "png")
        case "sound":
            path.write_bytes(wav(2.0))
        case bytes():
            path.write_bytes(content)
    assert run(path) == 1
    assert capsys.readouterr().out == f"{path}: does not open: {why}\n"
    assert run(path, "--json") == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [(one["name"], one["detail"]) for one in checks if one["status"] == "fail"] == [
        ("container", f"does not open ({why})")
    ]


def test_another_file_that_does_not_open_is_named(good_path, tmp_path, capsys):
    absent = tmp_path / "absent.mp4"
    for option in ("--repeat", "--cached"):
        assert run(good_path, option, absent) == 1
        said = capsys.readouterr().out
        assert f"{absent} does not open (No such file or directory)" in said
        assert said.count(" fail ") == 1


def test_json(good_path, capsys):
    assert run(good_path, "--json", "--repeat", good_path) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["passed"] is True
    assert [check["number"] for check in answer["checks"]] == list(range(1, 16))
    assert {check["name"]: check["status"] for check in answer["checks"]}["repeat"] == "pass"
    assert answer["num_frames"] == len(answer["frame_hashes"]) == 124


def test_metadata_file(good_path, tmp_path, capsys):
    path = tmp_path / "metadata.json"
    path.write_text(json.dumps({"fps": 24, "num_frames": 124, "duration_s": 5.166667}))
    assert run(good_path, "--metadata", path) == 0
    path.write_text(json.dumps({"fps": 24, "num_frames": 107, "duration_s": 4.458}))
    assert run(good_path, "--metadata", path) == 1
    for content in ("[]", "{"):
        path.write_text(content)
        capsys.readouterr()
        assert run(good_path, "--metadata", path) == 1
        assert capsys.readouterr().err.startswith(f"h3 check: --metadata: {path} ")


def test_summary(good_path, good_file, tmp_path):
    text = summary(good_path)
    assert text == summary(good_file)
    for fact in ("h264", "yuv420p", "64x64", "24 fps", "124 frames", "5.167 s", "BT.709 limited"):
        assert fact in text
    for fact in ("aac", "32000 Hz", "2 channels", "5.175 s", "moov first"):
        assert fact in text
    silent = write(Recipe(wave=None, tagged=False, faststart=False), tmp_path / "silent.mp4")
    assert "audio" not in summary(silent)
    assert "moov not first" in summary(silent)
    assert "colour tags (2, 2, 2, " in summary(silent)
    assert summary(tmp_path / "absent.mp4").startswith("does not open: ")


def test_keyframes_are_prepared_as_the_server_does(good_path, tmp_path, capsys):
    frame = moving_clip(1)[0]
    Image.fromarray(frame).save(tmp_path / "frame.png")
    words = (good_path, "--first", tmp_path / "frame.png", "--width", 64, "--height", 64)
    assert run(*words) == 0
    assert "the first frame is" in capsys.readouterr().out
    assert run(*words, "--min-keyframe-psnr", 99) == 1
    capsys.readouterr()
    Image.fromarray(np.repeat(frame, 2, axis=1)).save(tmp_path / "wide.png")
    sizes = ("--width", 64, "--height", 64, "--json", "--min-keyframe-psnr", 0)
    assert run(good_path, "--first", tmp_path / "wide.png", *sizes) == 0  # stretched: all of it
    assert json.loads(capsys.readouterr().out)["keyframe_psnr_db"]["first"] > 25
    both = ("--first", tmp_path / "frame.png", "--last", tmp_path / "wide.png")
    assert run(good_path, *both, *sizes) == 0  # cropped: the middle of it
    assert set(json.loads(capsys.readouterr().out)["keyframe_psnr_db"]) == {"first", "last"}


def test_the_canvas_of_keyframes_is_the_files_own_unless_it_is_given(good_path, tmp_path, capsys):
    frame = tmp_path / "frame.png"
    Image.fromarray(moving_clip(1)[0]).save(frame)
    assert run(good_path, "--first", frame) == 0
    assert "the first frame is" in capsys.readouterr().out
    for words in (("--width", 96), ("--metadata", tmp_path / "metadata.json")):
        facts = {"fps": 24, "num_frames": 124, "duration_s": 5.166667, "width": 96}
        (tmp_path / "metadata.json").write_text(json.dumps(facts))
        assert run(good_path, "--first", frame, *words) == 1
        assert "first frame (64, 64, 3), keyframe (64, 96, 3)" in capsys.readouterr().out
    silent = tmp_path / "absent.mp4"
    assert run(silent, "--first", frame) == 1
    assert "does not open" in capsys.readouterr().out
    frame.write_bytes(b"words")
    assert run(good_path, "--first", frame) == 1
    assert capsys.readouterr().err.startswith(f"h3 check: {frame}: unknown format (5 bytes) is not")
