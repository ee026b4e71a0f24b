"""One translation model in several runtimes and precisions: size, speed, BLEU.

    python benchmarks/runtimes.py MODEL SOURCE REFERENCE  # five minutes for Multi30k

MODEL is a model directory with SentencePiece tokenizers; the files have a sentence a
line. Each row is translated in a process of its own: processor time until the first
sentence is there, Python's start included; sentences a second of processor time one by
one (the first 100) and in batches (all), and by the clock in batches, on all cores. Of
two turns the better one counts. The rows of CTranslate2, if it is installed, are a
Transformer of the multi30k preset with random weights that writes as many tokens as the
first row's search takes steps for a sentence (in a batch their mean). A search takes as
many as the longest of its hypotheses has tokens.
"""

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from machine import in_a_process, lines_of, machine

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ALONE = 100
BATCH = 64
BEAMS = 5
TURNS = 2
ROWS = ["onnx", "onnx int8", "keras", "keras bfloat16", "keras int8"]
if find_spec("ctranslate2"):
    ROWS += ["ctranslate2 float32", "ctranslate2 int8"]


class RandomTransformer:
    """One of CTranslate2 that writes as many tokens as the first row takes steps."""

    def __init__(self, exported: Path, row: str):
        import ctranslate2
        from sentencepiece import SentencePieceProcessor

        self.translator = ctranslate2.Translator(
            str(exported / row),
            compute_type=row.split()[1],
            inter_threads=os.cpu_count(),
            intra_threads=1,
        )
        (tokenizer,) = (exported / "model/source_tokenizer").glob("*.model")
        self.pieces = SentencePieceProcessor(model_file=str(tokenizer))
        self.steps = json.loads((exported / "steps.json").read_text("utf-8"))

    def translate_n_best(self, texts: list[str], n: int) -> list[list]:
        texts, waiting = sorted(texts, key=self.steps.get), []
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            length = round(statistics.mean(self.steps[text] for text in batch))
            words = [[f"w{i}" for i in self.pieces.encode(text)] for text in batch]
            waiting += self.translator.translate_batch(
                [[*row, "</s>"] for row in words],
                beam_size=BEAMS,
                num_hypotheses=n,
                return_end_token=True,
                min_decoding_length=length,
                max_decoding_length=length,
                asynchronous=True,
            )
        return [one.result().hypotheses for one in waiting]


def translator_of(row: str, exported: Path):
    """What has `translate_n_best(texts, n)`, and the files that hold its weights."""
    runtime, _, precision = row.partition(" ")
    folder = exported / "model"
    if runtime == "ctranslate2":
        return RandomTransformer(exported, row), [exported / row / "model.bin"]
    if runtime == "onnx":
        from keras_seqconv.runtime.onnx_model import OnnxModel
        from keras_seqconv.translation import load_ensemble

        graphs = OnnxModel(folder / "onnx", quantize=precision or None)
        files = exported / "int8" if precision else folder / "onnx"
        return load_ensemble([folder], graphs=graphs), [*files.iterdir()]
    import keras_seqconv as ks
    from keras_seqconv.devices import share_cores
    from keras_seqconv.translation.text_model import default_parallel

    ks.keep_freed_memory(default_parallel())
    share_cores(default_parallel())
    dtype = "bfloat16" if precision == "bfloat16" else "float32"
    translator = ks.load(folder, dtype)
    if precision == "int8":
        translator.model.quantize("int8")
        folder = exported / "keras_int8"
        translator.save(folder, overwrite=True)
    return translator, [folder / "model.weights.h5"]


def measure(row: str, exported: Path, lines: list[str]) -> dict:
    translator, files = translator_of(row, exported)
    translate, clock = translator.translate_n_best, time.process_time
    translate(lines[:1], 1)
    ready = clock()
    translate(lines[:BATCH], 1)  # what is traced counts in neither rate
    for line in lines[:ALONE]:
        translate([line], 1)
    begun = clock()
    for line in lines[:ALONE]:
        translate([line], 1)
    alone, start = clock(), time.perf_counter()
    translations = translate(lines, 1)
    done, end = clock(), time.perf_counter()
    n_best = translate(lines, BEAMS)
    texts = []
    if not isinstance(translator, RandomTransformer):
        texts = [best.text for (best,) in translations]
        n_best = [[[*one.tokens, "</s>"] for one in found] for found in n_best]
    return {
        "start": ready,
        "one": ALONE / (alone - begun),
        "many": len(lines) / (done - alone),
        "by_clock": len(lines) / (end - start),
        "bytes": sum(file.stat().st_size for file in files),
        "tokens": statistics.mean(len(found[0]) for found in n_best),
        "steps": [max(map(len, found)) for found in n_best],
        "hypotheses": texts,
    }


def export(model: Path, exported: Path) -> None:
    import keras_seqconv as ks
    from keras_seqconv.runtime.graph_files import quantize_graphs

    translator = ks.load(model)
    translator.search = dataclasses.replace(translator.search, num_beams=BEAMS)
    translator.save(exported / "model", onnx=True)
    (exported / "int8").mkdir()
    quantize_graphs(exported / "model/onnx", exported / "int8")
    for row in ROWS:
        if row.startswith("ctranslate2"):
            from decoding import save_ctranslate2

            (exported / row).mkdir()
            quantized = {"quantization": "int8"} if row.endswith("int8") else {}
            vocabulary = translator.model.target_vocabulary_size
            save_ctranslate2(str(exported / row), "multi30k", vocabulary, **quantized)


def main() -> None:
    import sacrebleu

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("model", "source", "reference"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    lines, turns = lines_of(options.source), {row: [] for row in ROWS}
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder)
        in_a_process(export, options.model, exported)
        for row in ROWS * TURNS:
            turns[row].append(in_a_process(measure, row, exported, lines))
            steps = dict(zip(lines, turns[ROWS[0]][0]["steps"], strict=True))
            (exported / "steps.json").write_text(json.dumps(steps))
    print(machine(), "\n")
    print(
        "| | MB | start-up, s | one by one, 1/s | batches, 1/s | by the clock, 1/s "
        "| tokens | steps | BLEU |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for row, measured in turns.items():
        best = {name: max(turn[name] for turn in measured) for name in measured[0]}
        start = min(turn["start"] for turn in measured)
        bleu = ""
        if texts := best["hypotheses"]:
            references = [lines_of(options.reference)]
            score = sacrebleu.corpus_bleu(texts, references, tokenize="none")
            bleu = f"{score.score:.2f}"
        print(
            f"| {row} | {best['bytes'] / 1e6:.1f} | {start:.2f} | {best['one']:.1f} | "
            f"{best['many']:.0f} | {best['by_clock']:.0f} | {best['tokens']:.1f} | "
            f"{statistics.mean(best['steps']):.1f} | {bleu} |"
        )


if __name__ == "__main__":
    main()
