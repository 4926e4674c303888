import pytest
from media_samples import product_file


@pytest.fixture(scope="session")
def good_file() -> bytes:
    """A file of the product's own writers: 64x64, 124 frames, with sound."""
    return product_file(124)
