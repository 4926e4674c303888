"""Memory that was freed between blocks that live on."""

import psutil

from minimax_h3.triton_io.freed_memory import return_freed_memory

BLOCK, COUNT = 100_000, 2_000  # below the size from which each block is a mapping of its own


def test_freed_blocks_go_back_to_the_system() -> None:
    process = psutil.Process()
    blocks = [bytearray(BLOCK) for _ in range(COUNT)]
    last = blocks.pop()  # lives above the others, so that the heap cannot shrink by itself
    blocks.clear()
    held = process.memory_info().rss
    return_freed_memory()
    assert held - process.memory_info().rss > BLOCK * COUNT / 2
    assert len(last) == BLOCK
