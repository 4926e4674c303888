"""`h3 serve` counts the GPUs that the models will find."""

import pytest
import torch

from minimax_h3.serve.gpus import check_device, count_gpus

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_the_driver_counts_as_pytorch_does() -> None:
    assert count_gpus() == torch.cuda.device_count()
    check_device("cuda")
