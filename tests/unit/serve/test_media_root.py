"""The folder that requests may name files of: refused before the start, or told to the operator."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import ConfigError
from minimax_h3.serve.server_process import ServerProcess
from minimax_h3.serve.settings import ServeSettings, check_settings

Settings = Callable[..., ServeSettings]
Build = Callable[[Path], ServeSettings]
LEGAL = (
    "; legal: a folder of media alone, neither around nor inside the run folder, kept results, "
    "the checkpoint or the model repository"
)


@pytest.fixture
def rooted(settings_with: Settings, tmp_path: Path) -> Build:
    """Settings with some media root; the server's own folders are made below `own`."""

    def build(media_root: Path, **changes: object) -> ServeSettings:
        stage = StageConfig(
            checkpoint_dir=str(tmp_path / "own" / "weights"),
            results_dir=str(tmp_path / "own" / "results"),
            media_root=str(media_root),
        )
        return settings_with(stage=stage, run_dir=tmp_path / "own" / "run", **changes)

    for name in ("weights", "results", "run/1234/results"):
        (tmp_path / "own" / name).mkdir(parents=True)
    return build


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("missing", "missing is not a folder"),
        ("file.png", "file.png is not a folder"),
        ("own/run", "own/run is the run folder "),
        ("own/run/1234/results", "results lies in the run folder "),
        ("own", "own holds the run folder "),
        ("own/..", " holds the run folder "),
        ("/", "/ holds the run folder "),
        ("link", "own/run is the run folder "),
        ("own/weights", "own/weights is the checkpoint "),
        ("own/results", "own/results is the folder of kept results "),
        ("repository", "repository is the model repository "),
        ("repository/jobs", "jobs lies in the model repository "),
    ],
)
def test_a_folder_that_is_not_for_media_is_refused(
    rooted: Build, tmp_path: Path, place: str, told: str
) -> None:
    (tmp_path / "file.png").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "own" / "run")
    with pytest.raises(ConfigError, match=r"^media-root: /") as refused:
        check_settings(rooted(tmp_path / place))
    assert told in str(refused.value)
    assert str(refused.value).endswith(LEGAL)


def test_a_run_folder_that_is_still_to_be_made_counts(settings_with: Settings, tmp_path) -> None:
    stage = StageConfig(media_root=str(tmp_path / "media"))
    (tmp_path / "media").mkdir()
    with pytest.raises(ConfigError, match=r"media holds the run folder .*/media/run"):
        check_settings(settings_with(stage=stage, run_dir=tmp_path / "media" / "run"))


def test_an_unreadable_folder_is_refused(rooted: Build, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "media").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may read everything
    with pytest.raises(ConfigError, match="media cannot be read; legal: a folder of media"):
        check_settings(rooted(tmp_path / "media"))


def test_a_folder_beside_the_servers_own_is_legal_and_loses_its_links(
    rooted: Build, tmp_path: Path
) -> None:
    media = tmp_path / "media"
    media.mkdir()
    (tmp_path / "link").symlink_to(media)
    for place in (media, tmp_path / "link", tmp_path / "own" / ".." / "media"):
        assert check_settings(rooted(place)).stage.media_root == str(media)


def test_the_operator_is_told_and_the_facts_have_it(
    settings_with: Settings, fake_server: Callable[[], Path], tmp_path: Path
) -> None:
    media = tmp_path / "media"
    media.mkdir()
    stage = StageConfig(media_root=str(tmp_path / "run" / ".." / "media"))
    said: list[str] = []
    with ServerProcess(settings_with(tritonserver=fake_server(), stage=stage), said.append) as one:
        facts = json.loads(one.launch.facts_file.read_text())
    assert f"requests may name files below {media}" in said
    assert facts["parameters"]["media_root"] == str(media)
