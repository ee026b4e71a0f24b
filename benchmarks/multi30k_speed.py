"""Training and decoding at the size of Multi30k beside fairseq, in turns.

    python3.10 -m venv /tmp/fairseq && cd /tmp/fairseq && . bin/activate
    pip install 'pip<24.1' 'setuptools<70' wheel
    pip install torch==2.13.0 omegaconf==2.0.6 hydra-core==1.0.7 cffi cython regex \
        bitarray sacrebleu tqdm 'numpy<1.24'
    pip download --no-deps --no-build-isolation --no-binary fairseq fairseq==0.12.2
    tar xzf fairseq-0.12.2.tar.gz
    deactivate

    python benchmarks/multi30k_speed.py --fairseq /tmp/fairseq     # 18 minutes

Both have 4 + 4 layers of width 128, the kernels 3, 7, 15, 15 with GLU, one table of
6,000 words, the same dropouts, label smoothing and Adam; 2,001,920 parameters. A batch
is 256 random sentences of 14 source and 15 target tokens without padding, so every
position is a token. Decoding: four batches of 128 sentences, beam 5, 17 tokens each
with the end, random weights; ours side by side as in `Translator`, fairseq's one after
the other as in its `generate`; the first translation is left out. "ours, a core each"
is what `keras-seqconv train --devices 2` and `keras-seqconv translate` do: cores share
a training batch, and no operation; bfloat16 is `--precision mixed_bfloat16` (worth it
where `lscpu` shows avx512_bf16 or amx_bf16). "fairseq, bfloat16" is its model and its
Adam in bfloat16, without the float32 copy of the weights that its `--bf16` trains with:
no less than that speed. Every figure is of a process of its own; printed are the
medians of the rounds and their range. The limit of training is the products alone at
the speed of 2048 x 2048 ones: six operations for each weight and target token.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROWS, SOURCE, TARGET, VOCABULARY = 256, 14, 15, 6000
BATCHES, SENTENCES, LENGTH = 4, 128, 16
DECODED = BATCHES * SENTENCES * (LENGTH + 1)
WORKS = "training", "decoding"
SYSTEMS = {"dynamic_conv": "DynamicConv", "transformer": "Transformer"}
OURS = {  # cores that share a batch, and the precision
    "ours": (1, "float32"),
    "ours, a core each": (2, "float32"),
    "ours, a core each, bfloat16": (2, "mixed_bfloat16"),
}
FAIRSEQ = {"fairseq": "float32", "fairseq, bfloat16": "bfloat16"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fairseq", type=Path, help="the folder that was made above")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        who, system, work = options.one
        if who in FAIRSEQ:
            print(measure_fairseq(system, work, FAIRSEQ[who]))
        else:
            print(measure_ours(system, work, *OURS[who]))
    else:
        table(options.fairseq, options.rounds)


def table(fairseq: Path | None, rounds: int) -> None:
    from machine import machine

    from keras_seqconv.presets import PRESETS

    ours = (sys.executable, os.environ)
    environments = dict.fromkeys(OURS, ours)
    if fairseq is not None:
        path = {**os.environ, "PYTHONPATH": str(fairseq / "fairseq-0.12.2")}
        environments |= dict.fromkeys(FAIRSEQ, (str(fairseq / "bin/python"), path))
    rate = matrix_rate()
    print(machine())
    print(f"2048 x 2048 products: {rate:.0f} GFLOP/s")
    print("| system | | training, tokens/s | decoding, tokens/s |")
    print("|---|---|---|---|")
    for system in SYSTEMS:
        found = {who: ([], []) for who in environments}
        for _ in range(rounds):
            for who, (python, environment) in environments.items():
                for work, speeds in zip(WORKS, found[who], strict=True):
                    done = subprocess.run(
                        [python, __file__, "--one", who, system, work],
                        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3"},
                        capture_output=True,
                        text=True,
                    )
                    if done.returncode:
                        sys.exit(done.stderr[-3000:])
                    speeds.append(float(done.stdout.splitlines()[-1]))
        for who, speeds in found.items():
            cells = [
                f"{statistics.median(one):,.0f} ({min(one):,.0f}-{max(one):,.0f})"
                for one in speeds
            ]
            print(f"| {SYSTEMS[system]} | {who} | {cells[0]} | {cells[1]} |")
        for who in environments if "fairseq" in found else ():
            if who in OURS:
                ratios = [
                    statistics.median(ours) / statistics.median(theirs)
                    for ours, theirs in zip(found[who], found["fairseq"], strict=True)
                ]
                print(f"| | {who} / fairseq | {ratios[0]:.2f} | {ratios[1]:.2f} |")
        # The preset counts its weights with another size of its one table.
        preset = PRESETS[f"{system}_multi30k"]
        words = VOCABULARY - preset.task.vocabulary_sizes[1]
        width = preset.architecture["hidden_dim"]
        weights = preset.parameters + words * width
        print(f"| | limit | {rate * 1e9 / (6 * weights):,.0f} | |")


def matrix_rate() -> float:
    import numpy as np

    matrix = np.ones((2048, 2048), "float32")
    matrix @ matrix
    seconds = timed(lambda: matrix @ matrix, 5)
    return 2 * 2048**3 / seconds / 1e9


def timed(function, count: int) -> float:
    """Median of the seconds of `count` calls."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure_ours(system: str, work: str, cores: int, precision: str) -> float:
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_seqconv as ks
    from keras_seqconv.devices import find_devices
    from keras_seqconv.translation.text_model import default_parallel, in_threads

    keras.config.set_dtype_policy(precision)
    # As `train` and `translate` do.
    ks.keep_freed_memory(arenas=1 if work == "training" else default_parallel())
    devices = find_devices(cores)
    keras.utils.set_random_seed(1)
    with devices.scope():
        model = ks.models.from_preset(
            f"{system}_multi30k",
            source_vocabulary_size=VOCABULARY,
            target_vocabulary_size=VOCABULARY,
        )
        model.compile(
            ks.optimizers.AdamW(1e-3, beta_2=0.98, weight_decay=0.0),
            ks.losses.LabelSmoothedCrossentropy(0.1),
        )
    random = np.random.default_rng(0)

    def ids(*shape):
        return random.integers(4, VOCABULARY, shape).astype("int32")

    inputs = {"source_ids": ids(ROWS, SOURCE), "target_ids": ids(ROWS, TARGET)}
    data = tf.data.Dataset.from_tensors((inputs, ids(ROWS, TARGET))).repeat()
    if cores > 1:
        data = model.distribute_strategy.experimental_distribute_dataset(data)
    batches = iter(data)
    with devices.scope():  # in which the optimizer is built
        model.make_train_function()

    def train():
        for value in model.train_function(batches).values():
            np.asarray(value)

    if work == "training":
        for _ in range(3):
            train()
        return ROWS * TARGET / timed(train, 10)
    source = ids(SENTENCES, SOURCE)
    source[:, -1] = model.end_id

    def search(batch):
        found = ks.decoding.beam_search(
            model, batch, 5, max_length=LENGTH, min_length=LENGTH
        )
        return np.asarray(found[0])

    def decode():
        list(in_threads(search, [source] * BATCHES, default_parallel()))

    decode()
    return DECODED / timed(decode, 5)


def measure_fairseq(system: str, work: str, precision: str) -> float:
    import torch
    from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
    from fairseq.sequence_generator import SequenceGenerator

    torch.manual_seed(1)
    model, dictionary = fairseq_model(system)
    model.to(getattr(torch, precision))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))

    def ids(*shape):
        return torch.randint(4, VOCABULARY, shape)

    source, target = ids(ROWS, SOURCE), ids(ROWS, TARGET)
    previous = torch.cat([torch.full((ROWS, 1), 2), target[:, :-1]], 1)
    lengths = torch.full((ROWS,), SOURCE)

    def train():
        optimizer.zero_grad()
        outputs = model(source, lengths, previous)
        log_probs = model.get_normalized_probs(outputs, log_probs=True)
        loss, _ = label_smoothed_nll_loss(
            log_probs.view(-1, VOCABULARY), target.view(-1, 1), 0.1, ignore_index=1
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 25.0)
        optimizer.step()
        loss.item()

    if work == "training":
        for _ in range(3):
            train()
        return ROWS * TARGET / timed(train, 10)
    model.eval()
    generator = SequenceGenerator(
        [model], dictionary, beam_size=5, max_len_a=0, max_len_b=LENGTH, min_len=LENGTH
    )
    source = ids(SENTENCES, SOURCE)
    source[:, -1] = dictionary.eos()
    lengths = torch.full((SENTENCES,), SOURCE)
    sample = {"net_input": {"src_tokens": source, "src_lengths": lengths}}

    def decode():
        with torch.no_grad():
            for _ in range(BATCHES):
                generator.generate([model], sample)

    decode()
    return DECODED / timed(decode, 5)


def fairseq_model(system: str):
    """A model of fairseq 0.12.2 with the sizes of our preset, and its dictionary."""
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for number in range(VOCABULARY - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    task = argparse.Namespace(
        source_dictionary=dictionary, target_dictionary=dictionary, cfg=None
    )
    sides = {
        "embed_dim": 128, "ffn_embed_dim": 256, "layers": 4, "attention_heads": 4,
        "conv_dim": 128, "kernel_size_list": [3, 7, 15, 15], "conv_type": "dynamic",
        "glu": True, "normalize_before": False,
    }  # fmt: skip
    arguments = argparse.Namespace(
        **{f"{side}_{key}": value for side in ("encoder", "decoder")
           for key, value in sides.items()},
        weight_softmax=True, weight_dropout=0.1, dropout=0.3, attention_dropout=0.1,
        relu_dropout=0.0, input_dropout=0.0, share_all_embeddings=True,
        left_pad_source=False, left_pad_target=False, max_source_positions=1024,
        max_target_positions=1024, adaptive_input=False,
        no_token_positional_embeddings=False,
    )  # fmt: skip
    if system == "transformer":
        from fairseq.models.transformer import TransformerModel as Model
        from fairseq.models.transformer.transformer_legacy import base_architecture
    else:
        from fairseq.models.lightconv import LightConvModel as Model
        from fairseq.models.lightconv import base_architecture
    base_architecture(arguments)
    return Model.build_model(arguments, task), dictionary


if __name__ == "__main__":
    main()
