"""Random numbers of a sampling search, the same for all backends and runtimes."""

import numpy as np

_LOW = np.uint64(0xFFFFFFFF)


def uniforms(seed: tuple[int, int], shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in [0, 1), float32: those of `tf.random.stateless_uniform`.

    (Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3, Philox4x32-10.) An
    export draws them by TensorFlow's op.

    Args:
        seed: two integers of 64 bits.
        shape: of the result.
    """
    words = np.array(seed, "int64").view("uint64")
    words = np.stack([words & _LOW, words >> np.uint64(32)], axis=1)
    # TensorFlow scrambles the seed into key and counter.
    mixed = _philox(words.reshape(4, 1), np.array([0x3EC8F720, 0x02461E29]))[:, 0]
    size = int(np.prod(shape))
    counter = np.arange(-(-size // 4), dtype="uint64")
    blocks = [counter & _LOW, counter >> np.uint64(32)]
    blocks += [np.full_like(counter, word) for word in mixed[2:]]
    words = _philox(np.stack(blocks), mixed[:2]).T.ravel()[:size]
    mantissas = (words & np.uint64(0x7FFFFF) | np.uint64(0x3F800000)).astype("uint32")
    return mantissas.view("float32").reshape(shape) - np.float32(1)


def _philox(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Counters (4, n) and a key (2,) of 32-bit words in uint64 -> words (4, n)."""
    a, b, c, d = counter.astype("uint64")
    first, second = key.astype("uint64")
    for _ in range(10):
        x, y = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = (y >> np.uint64(32)) ^ b ^ first, y & _LOW
        c, d = (x >> np.uint64(32)) ^ d ^ second, x & _LOW
        first = (first + np.uint64(0x9E3779B9)) & _LOW
        second = (second + np.uint64(0xBB67AE85)) & _LOW
    return np.stack([a, b, c, d])
