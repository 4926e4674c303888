"""Both autoencoders: released modules under our own tiling, clip streaming and loading."""
