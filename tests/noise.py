"""Images of noise, as they may lie in memory."""

import numpy as np


def views_of(image: np.ndarray) -> list[np.ndarray]:
    """The image itself, and others whose pixels lie in memory in another way."""
    padded = np.pad(image, ((1, 1), (2, 3), (0, 0)))
    return [
        image,
        image[::-1],
        image[:, ::-1],
        image[..., ::-1],
        padded[1:-1, 2:-3],
        image.transpose(1, 0, 2),
    ]


def noise(height: int, width: int, low: int, high: int, seed: int) -> np.ndarray:
    """Noise between two values, of other ranges in each channel."""
    image = np.random.default_rng(seed).integers(low, high + 1, (height, width, 3), dtype=np.uint8)
    image[..., 1] //= 1 + seed % 3
    if seed % 5 == 0:
        image[..., 2] = high
    return image
