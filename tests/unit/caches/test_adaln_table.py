import pytest
import torch
from oracles.diffusers_dit import NARROW, random_transformer, small_layout
from torch.nn.functional import silu

from minimax_h3.caches.adaln_table import AdaLNTableCache
from minimax_h3.dit.adaln import BlockModulation, ModulationTable
from minimax_h3.dit.dummy import SeededProjection, dummy_transformer
from minimax_h3.packing.row_times import schedule_times
from minimax_h3.schedules.sigma import SigmaSchedule


def schedule(num_points: int = 50) -> torch.Tensor:
    times = (SigmaSchedule.build(num_points, shift).times for shift in (12.0, 3.0))
    return schedule_times(small_layout(("first",)), *times).times


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_table_equals_each_block_run_on_its_own(dtype: torch.dtype) -> None:
    model, times = random_transformer(NARROW).cast_(dtype), schedule()
    table = AdaLNTableCache().table(model, times, "a")
    hidden, count = NARROW.hidden_size, times.numel()
    assert table.blocks.shape == (2, count, 3, 6, hidden)
    assert table.final.shape == (count, 2, hidden)
    assert table.blocks.dtype == dtype
    # The activation is taken in fp32 and rounded afterwards.
    activated = silu(model.time_embedder(times)).to(dtype)
    for block, rows in zip(model.blocks, table.blocks, strict=True):
        direct = block.adaln(activated).view(count, 3, 6, hidden)
        assert torch.equal(rows, direct)
    assert torch.equal(table.final, model.final.adaln(activated).view(count, 2, hidden))


def test_activation_before_the_rounding_is_not_the_same() -> None:
    model, times = random_transformer(NARROW).cast_(torch.bfloat16), schedule()
    embedding = model.time_embedder(times)
    assert not torch.equal(silu(embedding).bfloat16(), silu(embedding.bfloat16()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_schedules_table_equals_a_steps_own(dtype: torch.dtype) -> None:
    """One time in a product of 98 rows or of one row: equal up to the order of summation."""
    model, times = random_transformer(NARROW).cast_(dtype), schedule()
    table = AdaLNTableCache().table(model, times, "a")
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    for row in (0, 1, 50, times.numel() - 1):
        alone = model.modulation(times[row : row + 1])
        torch.testing.assert_close(table.blocks[:, row], alone.blocks[:, 0], rtol=0, atol=tolerance)
        torch.testing.assert_close(table.final[row], alone.final[0], rtol=0, atol=tolerance)


def test_lookup_puts_parts_and_modalities_in_their_place() -> None:
    model, times = random_transformer(NARROW), schedule(5)
    table = model.modulation(times)
    picked = torch.tensor([3, 0])
    step = table.at(picked)
    for layer, block in enumerate(step.blocks):
        for part, name in enumerate(BlockModulation._fields):
            for rank, time in enumerate(picked.tolist()):
                for tag in range(3):
                    row = getattr(block, name)[3 * rank + tag]
                    assert torch.equal(row, table.blocks[layer, time, tag, part])
    assert torch.equal(step.final.shift, table.final[picked, 0])
    assert torch.equal(step.final.scale, table.final[picked, 1])


def test_a_hit_is_the_miss_bit_for_bit() -> None:
    model, times, cache = random_transformer(NARROW), schedule(), AdaLNTableCache()
    miss = cache.table(model, times, "a")
    hit = cache.table(model, times.clone(), "a")
    assert (cache.hits, cache.misses) == (1, 1)
    fresh = AdaLNTableCache().table(model, times, "a")
    assert torch.equal(hit.blocks, miss.blocks)
    assert torch.equal(hit.blocks, fresh.blocks)
    assert torch.equal(hit.final, fresh.final)


def test_the_key_is_times_dtype_and_weights() -> None:
    model, cache, times = random_transformer(NARROW), AdaLNTableCache(8), schedule()
    cache.table(model, times, "a")
    cache.table(model, times, "with an adapter")
    cache.table(model, torch.nextafter(times, torch.tensor(2.0)), "a")  # one ulp is another key
    cache.table(model, times[:-1], "a")
    model.cast_(torch.bfloat16)
    assert cache.table(model, times, "a").blocks.dtype == torch.bfloat16
    assert (cache.hits, cache.misses, len(cache)) == (0, 5, 5)


def test_the_key_is_the_numeric_environment_too() -> None:
    model, cache, times = random_transformer(NARROW), AdaLNTableCache(8), schedule()
    cache.table(model, times, "a")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium" if before != "medium" else "highest")
        cache.table(model, times, "a")
    finally:
        torch.set_float32_matmul_precision(before)
    with torch.autocast("cpu", torch.bfloat16):
        cache.table(model, times, "a")
    cache.table(model, times, "a")
    assert (cache.hits, cache.misses) == (1, 3)


def test_weights_elsewhere_visit_one_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection that is drawn, or fetched, when it is read gives the resident one's bits."""
    resident = dummy_transformer(NARROW, torch.device("cpu"), seed=3, resident_adaln=True)
    drawn = dummy_transformer(NARROW, torch.device("cpu"), seed=3)
    read: list[int] = []
    plain = SeededProjection.weight.fget
    monkeypatch.setattr(
        SeededProjection, "weight", property(lambda self: read.append(id(self)) or plain(self))
    )
    times = schedule()
    for ours, theirs in zip(
        vars_of(drawn.modulation(times)), vars_of(resident.modulation(times)), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert read == [id(block.adaln) for block in drawn.blocks]


def vars_of(table: ModulationTable) -> tuple[torch.Tensor, torch.Tensor]:
    return table.blocks, table.final


def test_the_least_recently_used_goes_first() -> None:
    model, cache = random_transformer(NARROW), AdaLNTableCache(capacity=2)
    schedules = [schedule(points) for points in (4, 5, 6)]
    cache.table(model, schedules[0], "a")
    cache.table(model, schedules[1], "a")
    cache.table(model, schedules[0], "a")  # now the second is the oldest
    cache.table(model, schedules[2], "a")
    assert len(cache) == 2
    cache.table(model, schedules[0], "a")
    assert (cache.hits, cache.misses) == (2, 3)
    cache.table(model, schedules[1], "a")
    assert cache.misses == 4


def test_clear_forgets_everything() -> None:
    model, cache = random_transformer(NARROW), AdaLNTableCache()
    cache.table(model, schedule(), "a")
    cache.clear()
    assert len(cache) == 0
