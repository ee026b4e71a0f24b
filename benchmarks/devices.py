"""What a second device brings: this machine's cores as one and two devices.

    python benchmarks/devices.py                       # TensorFlow, 13 minutes
    KERAS_BACKEND=jax python benchmarks/devices.py     # JAX

DynamicConv preset of Multi30k, V 10,000, sentences of 32 tokens, float32, in processes
of their own: one device on one core with 128 sentences in an update; two devices on two
cores with as many in all ("strong") and with twice as many ("weak"), and one device on
two cores with 128, which share every operation. Seconds an update, median of three
processes and range; "of ideal" is the speed by the one of one core, by two.
"""

import os
import time

from machine import in_a_process, machine

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROWS, LENGTH, WORDS, FIRST, LAST = 128, 32, 10_000, 4, 12


def time_update(number: int, cores: tuple[int, ...], rows: int) -> float:
    """Seconds of an update on a number of devices of these cores."""
    os.sched_setaffinity(0, cores)
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={number}"
    import keras
    import numpy as np

    import keras_seqconv as ks
    from keras_seqconv.devices import find_devices

    ks.keep_freed_memory()
    devices, rng = find_devices(number), np.random.default_rng(1)
    ids = rng.integers(4, WORDS, (rows * (LAST + 2), LENGTH))
    stream = ks.data.BatchStream(
        ks.data.IdStore.from_rows({"source_ids": r, "target_ids": r} for r in ids),
        rows * LENGTH // number,
        num_replicas=number,
        max_shapes=1,
    )
    sizes = dict.fromkeys(("source_vocabulary_size", "target_vocabulary_size"), WORDS)
    times = {}

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch + 1 in (FIRST, LAST):
                float(logs["loss"])  # waits until it is done
                times[batch + 1] = time.perf_counter()

    with devices.scope():
        model = ks.models.from_preset("dynamic_conv_multi30k", **sizes)
        model.compile(ks.optimizers.AdamW(1e-4), ks.losses.LabelSmoothedCrossentropy())
        ks.fit_stream(model, stream, max_updates=LAST, callbacks=[Clock()])
    return (times[LAST] - times[FIRST]) / (LAST - FIRST)


def main() -> None:
    settings = {
        "one device, one core": (1, (0,), ROWS),
        "two devices, strong": (2, (0, 1), ROWS),
        "two devices, weak": (2, (0, 1), 2 * ROWS),
        "one device, two cores": (1, (0, 1), ROWS),
    }
    seconds = {name: [] for name in settings}
    for _ in range(3):
        for name, arguments in settings.items():
            seconds[name].append(in_a_process(time_update, *arguments))
    print(f"{machine()}, {os.environ.get('KERAS_BACKEND', 'tensorflow')}\n")
    print("| | s an update | sentences a second | of ideal |\n|---|---|---|---|")
    alone = sorted(seconds["one device, one core"])[1]
    for name, (_, cores, rows) in settings.items():
        low, middle, high = sorted(seconds[name])
        ideal = rows / middle / (ROWS / alone * len(cores))
        print(
            f"| {name} | {middle:.3f} ({low:.3f}–{high:.3f}) | {rows / middle:,.0f} "
            f"| {ideal:.0%} |"
        )


if __name__ == "__main__":
    main()
