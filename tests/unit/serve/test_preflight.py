"""What a released checkpoint needs, and what an operator is told when a machine is too small.

The numbers of the release are computed here once more, from parameter counts alone.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from build_engines.full_width import Pencil, write_full_width
from build_engines.released_configs import released
from minimax_h3.core.config import StageConfig
from minimax_h3.core.errors import ConfigError
from minimax_h3.serve import machine as machine_module
from minimax_h3.serve.machine import Gpu, Machine, measure
from minimax_h3.serve.preflight import PreflightError, chosen_gpu, look_ahead
from minimax_h3.serve.residency import CROSSING, DEVICE, HOST, plan_residency
from minimax_h3.serve.settings import ServeSettings
from minimax_h3.weights.footprint import footprint
from minimax_h3.weights.manifest import CheckpointManifest, identify

GB = 1_000_000_000
H200 = Gpu("NVIDIA H200", 150_754_820_096, 150_200_000_000)
MACHINE = Machine((H200,), host=128 * GB, shared_memory=64 * GB, disk=60 * GB)
ROOMY = replace(MACHINE, gpus=(replace(H200, free=300 * GB),))

# Parameters of the release, as counted on its modules. The first two in BF16, an island in FP32.
DIT, ADALN, ISLAND = 33_122_992_896, 50 * 260_209_152, 17_222_144
KEPT_TEXT = 25_753_095_920
VIDEO_VAE, AUDIO_VAE = 2_603_868_984, 151_321_489


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both partitions of a checkpoint of the released sizes: headers and holes."""
    folder = tmp_path_factory.mktemp("release")
    pencil = Pencil(0, torch.device("cpu"), hollow=True)
    for partition in ("FL2VA", "Ref2VA"):
        write_full_width(folder, released(50, whole=True), pencil, partition=partition)
    return folder


@pytest.fixture(scope="module")
def manifest(release: Path) -> CheckpointManifest:
    return identify(release, "fl2va")


def settings(release: Path, task_type: str = "fl2va", **changes: object) -> ServeSettings:
    stage = StageConfig(checkpoint_dir=str(release), task_type=task_type)
    values = {key: changes.pop(key) for key in list(changes) if hasattr(stage, key)}
    return ServeSettings(stage=replace(stage, **values), **changes)


def test_the_footprint_is_that_of_the_release(manifest: CheckpointManifest) -> None:
    sizes = footprint(manifest, 2, 2)
    assert sizes.adaln == 2 * ADALN == 26_020_915_200
    assert sizes.transformer == 2 * (DIT - ADALN) + 2 * ISLAND == 40_259_514_880
    assert sizes.text_encoder == 2 * KEPT_TEXT == 51_506_191_840
    # 2,423.5 million values in FP16, and the norms of 36 blocks in FP32 on top.
    assert sizes.video_decoder == pytest.approx(2 * 2_423.5e6, rel=2e-4)
    assert sizes.video_encoder == pytest.approx(4 * 180.3e6, rel=1e-3)
    assert sizes.audio_decoder + sizes.audio_encoder == pytest.approx(4 * AUDIO_VAE, rel=1e-3)
    fp32 = footprint(manifest, 4, 4)
    assert fp32.video_decoder + fp32.video_encoder == 4 * VIDEO_VAE
    assert fp32.transformer + fp32.adaln == 4 * DIT


def test_payloads_are_as_large_as_published(manifest: CheckpointManifest) -> None:
    payload = {
        name: sum(header.num_bytes for header in files.tensors.values())
        for name, files in manifest.weights.items()
    }
    assert payload["transformer"] == 66_280_430_144
    assert payload["text_encoder"] == 66_714_780_128
    assert payload["video_vae"] == 4 * (VIDEO_VAE + 2048)  # with the unused mask token


@pytest.mark.parametrize(("frames", "rows"), [(124, 37_966), (362, 109_318)])
def test_everything_stays_resident_on_one_h200(
    manifest: CheckpointManifest, frames: int, rows: int
) -> None:
    plan = plan_residency({"fl2va": manifest}, StageConfig(max_packed_rows=rows), on_gpu=True)
    weights = sum(part.weights for part in plan.parts if part.place == DEVICE)
    assert weights / GB == pytest.approx(40.26 + 51.51 + 4.85 + 0.72 + 0.61, abs=0.02)
    assert plan.peak_of(plan.parts[0]) < (120 if frames == 362 else 110) * GB
    assert plan.need(DEVICE) < H200.free
    assert [part.weights for part in plan.parts if part.model == "dit_fl2va AdaLN"] == [2 * ADALN]


def test_the_working_memory_of_the_transformer_is_the_measured_one(
    manifest: CheckpointManifest,
) -> None:
    """One session of 124 frames took 45.86 GB on an H200, with one AdaLN table of 0.94 GB."""
    config = StageConfig(max_packed_rows=37_966, running_jobs=1)
    dit = plan_residency({"fl2va": manifest}, config, on_gpu=True).parts[0]
    assert (dit.weights + dit.working) / GB - 0.94 == pytest.approx(45.86, rel=0.01)


def test_the_largest_request_that_fits_is_found(release: Path) -> None:
    found = look_ahead(settings(release), MACHINE)
    assert found.shortfalls == ()
    rows = found.settings.stage.max_packed_rows
    assert 109_318 < rows < 262_144
    more = look_ahead(settings(release, max_packed_rows=rows + 1024, fits_rows=False), MACHINE)
    [shortfall] = more.shortfalls
    assert shortfall.resource == "memory of the GPU NVIDIA H200"
    with pytest.raises(PreflightError, match=rf"150\.20 GB free .*; --max-packed-rows {rows} fits"):
        more.lines()
    roomy = replace(MACHINE, gpus=(replace(H200, free=200 * GB),))
    assert look_ahead(settings(release), roomy).settings.stage.max_packed_rows == 262_144


def test_two_transformers_are_refused_with_the_numbers_and_accepted_where_they_fit(
    release: Path,
) -> None:
    found = look_ahead(settings(release, "combined"), MACHINE)
    with pytest.raises(PreflightError) as refusal:
        found.lines()
    [shortfall] = found.shortfalls
    assert shortfall.needed > 2 * 40.26 * GB + 51.5 * GB
    assert f"{shortfall.needed / GB:.2f} GB needed, 150.20 GB free" in str(refusal.value)
    assert "dit_fl2va" in str(refusal.value)
    assert "dit_ref2va" in str(refusal.value)
    assert "--task-type fl2va or ref2va holds one DiT" in str(refusal.value)
    assert "--max-packed-rows" not in str(shortfall)  # no useful number of rows fits
    large = replace(MACHINE, gpus=(replace(H200, total=280 * GB, free=280 * GB),))
    assert look_ahead(settings(release, "combined"), large).shortfalls == ()


HEAVY = "text_encoder,dit_fl2va"


def on_gpu_of(free: float, host: int) -> Machine:
    return replace(MACHINE, gpus=(replace(H200, free=int(free * GB)),), host=host * GB)


@pytest.mark.parametrize(
    ("task_type", "free", "host", "offload"),
    [
        ("fl2va", 150.2, 128, "none"),  # one H200
        ("fl2va", 121, 160, "none"),
        ("fl2va", 110, 160, HEAVY),
        ("fl2va", 79, 160, HEAVY),  # a GPU of 80 GB
        ("fl2va", 64, 160, f"{HEAVY},video_decoder"),
        ("ref2va", 79, 160, "text_encoder,dit_ref2va"),
        ("combined", 150.2, 256, f"{HEAVY},dit_ref2va"),
        ("combined", 280, 256, "none"),
    ],
)
def test_the_fewest_weights_take_turns(
    release: Path, task_type: str, free: float, host: int, offload: str
) -> None:
    found = look_ahead(settings(release, task_type), on_gpu_of(free, host))
    assert found.shortfalls == ()
    stage = found.settings.stage
    assert stage.offload == offload
    assert stage.max_packed_rows >= 37_966  # 124 frames of 1344x768
    told = [line for line in found.lines() if "take turns" in line]
    assert len(told) == (offload != "none")
    for line in told:
        start = f"weights take turns (--offload {offload}), because 38912 would need "
        assert line.startswith(start)
        assert line.endswith(f"GB of GPU memory, {free:.2f} GB are free")


def test_turns_hold_the_weights_of_one_and_the_host_those_of_all(manifest) -> None:
    config = StageConfig(max_packed_rows=37_966, running_jobs=1)
    turns = replace(config, offload=f"{HEAVY},video_decoder")
    at_once, by_turns = (
        plan_residency({"fl2va": manifest}, each, on_gpu=True) for each in (config, turns)
    )
    sizes = footprint(manifest, 2, 2)
    away = sizes.transformer + sizes.video_decoder  # while the largest, the text encoder, works
    parts = {part.model: part for part in at_once.parts}
    idle = sum(parts[name].working for name in ("dit_fl2va", "video_decoder"))
    kept = 2 * 0.94 * GB + 37_966 * 2048  # tables and a session outlive the turn
    saved = at_once.need(DEVICE) - by_turns.need(DEVICE)
    assert saved == pytest.approx(away + idle - kept, rel=0.01)
    waiting = sizes.transformer + sizes.text_encoder + sizes.video_decoder
    assert by_turns.need(HOST) - at_once.need(HOST) == waiting
    text = next(part for part in by_turns.parts if part.model == "text_encoder")
    decoder = next(part for part in by_turns.parts if part.model == "audio_decoder")
    assert by_turns.peak_of(text) <= by_turns.need(DEVICE)
    # Whoever worked last is still there while a model without turns works.
    assert by_turns.peak_of(decoder) > sizes.text_encoder
    line = by_turns.lines({DEVICE: 80 * GB})[1]
    assert line.split()[:4] == ["dit_fl2va", "device,", "by", "turns"]


def test_a_refusal_says_what_turns_would_take(release: Path) -> None:
    stage = {"max_packed_rows": 37_966, "fits_rows": False}
    found = look_ahead(settings(release, **stage), on_gpu_of(79, 64))
    assert found.settings.stage.offload == "none"  # the host has no room for what waits
    [shortfall] = found.shortfalls
    needed = replace(found.settings.stage, offload=f"{HEAVY},video_decoder")
    plan = plan_residency({"fl2va": identify(release, "fl2va")}, needed, on_gpu=True)
    assert (
        f"--offload {HEAVY},video_decoder needs {plan.need(DEVICE) / GB:.2f} GB there and "
        f"{plan.need(HOST) / GB:.2f} GB of host memory (64.00 GB free)"
    ) in shortfall.change
    asked = look_ahead(settings(release, offload="none", **stage), on_gpu_of(79, 160))
    assert "--offload" in asked.shortfalls[0].change
    turns = look_ahead(settings(release, offload=HEAVY, **stage), on_gpu_of(150, 64))
    assert turns.shortfalls[0].resource == "host memory"
    assert "weights that wait 91.77 GB" in str(turns.shortfalls[0])


def test_nothing_takes_turns_on_a_cpu_unless_asked_to(tiny_checkpoint: Path) -> None:
    machine = Machine((), host=30 * GB, shared_memory=8 * GB, disk=10 * GB)
    assert look_ahead(settings(tiny_checkpoint), machine).settings.stage.offload == "none"
    asked = look_ahead(settings(tiny_checkpoint, offload=HEAVY), machine)
    assert asked.settings.stage.offload == HEAVY


@pytest.mark.parametrize(
    ("machine", "resource", "change"),
    [
        ({"host": 20 * GB}, "host memory", "--adaln-weights device"),
        ({"shared_memory": 64 * 2**20}, "/dev/shm", "--shm-size=8g"),
        ({"disk": GB}, "disk of --run-dir", "a --run-dir on a larger disk"),
    ],
)
def test_each_shortfall_is_named(
    release: Path, machine: dict[str, int], resource: str, change: str
) -> None:
    small = replace(MACHINE, **machine)
    wanted = settings(release, max_packed_rows=109_318, fits_rows=False)
    found = look_ahead(wanted, small)
    [shortfall] = found.shortfalls
    assert shortfall.resource == resource
    assert shortfall.free == next(iter(machine.values()))
    assert change in shortfall.change
    with pytest.raises(PreflightError, match=rf"{resource}: .* GB needed, .* GB free"):
        found.lines()
    warned = look_ahead(replace(wanted, preflight="warn"), small).lines()
    assert warned[-1] == f"warning: {shortfall}"


def test_dummy_weights_leave_the_hosts_memory_alone(manifest: CheckpointManifest) -> None:
    for weights, hosted in (("checkpoint", 2 * ADALN), ("dummy", 0)):
        plan = plan_residency({"fl2va": manifest}, StageConfig(weights=weights), on_gpu=True)
        assert sum(part.weights for part in plan.parts if part.place == HOST) == hosted


def test_the_plan_as_table_and_as_json(manifest: CheckpointManifest) -> None:
    plan = plan_residency({"fl2va": manifest}, StageConfig(), on_gpu=True)
    lines = plan.lines({DEVICE: 150 * GB, HOST: 64 * GB, CROSSING: 8 * GB})
    assert lines[0].split()[:3] == ["model", "place", "weights"]
    assert lines[1].split()[:4] == ["dit_fl2va", "device", "40.26", "GB"]
    assert lines[1].endswith(f"{plan.peak_of(plan.parts[0]) / GB:.2f} GB")
    assert lines[-3] == f"all at once, device: {plan.need(DEVICE) / GB:.2f} GB of 150.00 GB free"
    assert lines[-2] == f"all at once, host: {plan.need(HOST) / GB:.2f} GB of 64.00 GB free"
    assert lines[-1] == f"all at once, /dev/shm: {plan.shared_memory / GB:.2f} GB of 8.00 GB free"
    told = json.loads(json.dumps(plan.as_json()))
    assert told["device_bytes"] == plan.need(DEVICE)
    assert sum(part["weights_bytes"] for part in told["parts"]) == sum(
        part.weights for part in plan.parts
    )


def test_a_cpu_has_peaks_too(manifest: CheckpointManifest) -> None:
    plan = plan_residency({"fl2va": manifest}, StageConfig(), on_gpu=False)
    idle = sum(part.weights + part.overhead for part in plan.parts)
    table = plan.lines({HOST: 64 * GB})[1 : 1 + len(plan.parts)]
    for part, line in zip(plan.parts, table, strict=True):
        if part.working:
            assert line.endswith(f" {(idle + part.working) / GB:.2f} GB"), line
    assert {part.model for part in plan.parts if not part.working} == {"other processes"}


@pytest.mark.parametrize(
    ("checkpoint", "machine", "told"),
    [
        ("release", MACHINE, "of GPU memory, 150.20 GB are free"),
        ("release", replace(ROOMY, shared_memory=GB), "of /dev/shm, 1.00 GB are free"),
        ("tiny_checkpoint", replace(MACHINE, gpus=(), host=6 * GB), "of host memory, 6.00 GB"),
    ],
)
def test_what_lowered_the_largest_request_is_told(
    request: pytest.FixtureRequest, checkpoint: str, machine: Machine, told: str
) -> None:
    folder = request.getfixturevalue(checkpoint)
    found = look_ahead(settings(folder), machine)
    rows = found.settings.stage.max_packed_rows
    assert rows < 262_144
    line = next(line for line in found.lines() if line.startswith("largest request"))
    start = f"largest request: {rows} rows (--max-packed-rows)"
    assert line.startswith(f"{start}, because 262144 would need ")
    assert told in line
    assert line.count(" free") == 1  # the other places have enough
    asked = look_ahead(settings(folder, max_packed_rows=rows, fits_rows=False), machine)
    assert start in asked.lines()


def test_the_advice_for_shared_memory_is_enough(tiny_checkpoint: Path) -> None:
    wanted = settings(tiny_checkpoint, max_packed_rows=2**20, fits_rows=False)
    small = Machine((), host=2000 * GB, shared_memory=GB // 8, disk=10 * GB)
    [shortfall] = look_ahead(wanted, small).shortfalls
    gib = int(shortfall.change.split("--shm-size=")[1].split("g)")[0])
    assert gib >= 8
    assert gib * 2**30 >= shortfall.needed


def test_the_tiny_checkpoint_needs_little(tiny_checkpoint: Path) -> None:
    modest = Machine((), host=6 * GB, shared_memory=2 * GB, disk=10 * GB)
    found = look_ahead(settings(tiny_checkpoint), modest)
    assert found.shortfalls == ()
    assert found.settings.stage.max_packed_rows >= 8192
    assert found.plan.need(DEVICE) == 0


@pytest.mark.parametrize(
    ("device", "expected"), [("auto", H200), ("cpu", None), ("cuda", H200), ("cuda:0", H200)]
)
def test_the_device_is_the_one_that_models_take(device: str, expected: Gpu | None) -> None:
    assert chosen_gpu(device, MACHINE) == expected


def test_a_gpu_that_is_not_here_is_named() -> None:
    with pytest.raises(ConfigError, match="device: 'cuda:1' is not here; legal: cpu, cuda:0"):
        chosen_gpu("cuda:1", MACHINE)
    assert chosen_gpu("auto", replace(MACHINE, gpus=())) is None


def test_this_machine_is_measured(tmp_path: Path) -> None:
    found = measure(tmp_path / "not" / "yet")
    assert found.host > 0
    assert found.shared_memory > 0
    assert found.disk > 0


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    assert machine_module._container_headroom(tmp_path) > 1 << 60
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 400\ninactive_file 200\nactive_file 100\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_module._container_headroom(tmp_path) > 1 << 60
    (tmp_path / "memory.max").write_text("1000\n")
    assert machine_module._container_headroom(tmp_path) == 1000 - 700 + 300
