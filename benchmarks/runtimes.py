"""One translation model in several runtimes and precisions: size, speed, BLEU.

    python benchmarks/runtimes.py MODEL SOURCE REFERENCE  # four minutes for Multi30k

MODEL is a model directory with SentencePiece tokenizers; the files have a sentence a
line. Each row is translated in a process of its own: start-up until the first sentence
is there, sentences a second one by one (the first 100) and in batches of 64 (all),
BLEU of these, and bytes of the weights on disk. "int8" of Keras is `quantize`, that of
ONNX Runtime `quantize_graphs`. The rows of CTranslate2, if it is installed, are a
Transformer of the multi30k preset with random weights, made to write as many pieces as
the hypotheses of the first row have (in a batch their mean).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from machine import lines_of, machine

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ALONE = 100
BATCH = 64
ROWS = ["float32", "bfloat16", "int8", "onnx", "onnx_int8"]
if find_spec("ctranslate2"):
    ROWS += ["ctranslate2_float32", "ctranslate2_int8"]


class RandomTransformer:
    """One of CTranslate2 that writes as much as the model in the first row."""

    def __init__(self, folder: Path, row: str):
        import ctranslate2
        from sentencepiece import SentencePieceProcessor

        # Two threads for one sentence are slower than one.
        self.translator = ctranslate2.Translator(
            str(folder / row),
            compute_type=row.partition("_")[2],
            inter_threads=os.cpu_count(),
            intra_threads=1,
        )
        (tokenizer,) = (folder / "tokenizer").glob("*.model")
        self.pieces = SentencePieceProcessor(model_file=str(tokenizer))
        hypotheses = json.loads((folder / "hypotheses.json").read_text("utf-8"))
        self.lengths = {s: len(self.pieces.encode(h)) for s, h in hypotheses.items()}

    def translate(self, texts: list[str]) -> list[str]:
        texts, waiting = sorted(texts, key=self.lengths.get), []
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            length = round(statistics.mean(self.lengths[text] for text in batch))
            words = [[f"w{i}" for i in self.pieces.encode(text)] for text in batch]
            waiting += self.translator.translate_batch(
                [[*row, "</s>"] for row in words],
                beam_size=5,
                min_decoding_length=length,
                max_decoding_length=length,
                asynchronous=True,
            )
        rows = [one.result().hypotheses[0] for one in waiting]
        ids = [[int(word[1:]) for word in row if word[0] == "w"] for row in rows]
        return [self.pieces.decode(row) for row in ids]


def translator_of(row: str, model: Path, exported: Path):
    """What has `translate(texts)`, and the files that hold its weights."""
    if row.startswith("onnx"):
        from keras_seqconv.runtime.onnx_model import OnnxModel
        from keras_seqconv.translation import load_ensemble

        translator = load_ensemble([model], graphs=OnnxModel(exported / row))
        return translator, [*(exported / row).iterdir()]
    if row.startswith("ctranslate2"):
        return RandomTransformer(exported, row), [exported / row / "model.bin"]
    import keras_seqconv as ks
    from keras_seqconv.devices import share_cores
    from keras_seqconv.translation.text_model import default_parallel

    # As `keras-seqconv translate` does.
    ks.keep_freed_memory(default_parallel())
    share_cores(default_parallel())
    translator = ks.load(model, "bfloat16" if row == "bfloat16" else None)
    if row == "int8":
        translator.model.quantize("int8")
        model = exported / "int8"
    return translator, [model / "model.weights.h5"]


def measure(row: str, model: Path, exported: Path, source: Path) -> dict:
    lines = lines_of(source)
    start = time.perf_counter()
    translator, files = translator_of(row, model, exported)
    translate = translator.translate
    translate(lines[:1])
    ready = time.perf_counter()
    translate(lines[:BATCH])  # what is compiled or traced counts in neither rate
    for line in lines[:ALONE]:
        translate([line])
    begun = time.perf_counter()
    for line in lines[:ALONE]:
        translate([line])
    alone = time.perf_counter()
    hypotheses = translate(lines)
    done = time.perf_counter()
    if row == "int8":
        translator.save(exported / row)
    return {
        "start": ready - start,
        "one": ALONE / (alone - begun),
        "many": len(lines) / (done - alone),
        "bytes": sum(file.stat().st_size for file in files),
        "hypotheses": hypotheses,
    }


def export(model: Path, exported: Path) -> None:
    import keras_seqconv as ks
    from keras_seqconv.export.onnx_graphs import write_graphs
    from keras_seqconv.runtime.graph_files import quantize_graphs

    translator = ks.load(model)
    translator.source_tokenizer.save(exported / "tokenizer")
    for row in ("onnx", "onnx_int8"):
        (exported / row).mkdir()
    write_graphs(translator.model, exported / "onnx")
    quantize_graphs(exported / "onnx", exported / "onnx_int8")
    for row in ROWS:
        if row.startswith("ctranslate2"):
            from decoding import save_ctranslate2

            (exported / row).mkdir()
            quantized = {"quantization": "int8"} if row.endswith("int8") else {}
            vocabulary = translator.model.target_vocabulary_size
            save_ctranslate2(str(exported / row), "multi30k", vocabulary, **quantized)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("model", "source", "reference"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--exported", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        found = measure(options.row, options.model, options.exported, options.source)
        print(json.dumps(found))
        return
    import sacrebleu

    print(machine(), "\n")
    print("| | MB | start-up, s | one by one, 1/s | batches of 64, 1/s | BLEU |")
    print("|---|--:|--:|--:|--:|--:|")
    references = [lines_of(options.reference)]
    with tempfile.TemporaryDirectory() as folder:
        export(options.model, Path(folder))
        for row in ROWS:
            command = [sys.executable, __file__, *sys.argv[1:4]]
            command += ["--row", row, "--exported", folder]
            found = json.loads(subprocess.check_output(command).splitlines()[-1])
            if row == ROWS[0]:
                lines = lines_of(options.source)
                hypotheses = dict(zip(lines, found["hypotheses"], strict=True))
                Path(folder, "hypotheses.json").write_text(json.dumps(hypotheses))
            bleu = "-"
            if not row.startswith("ctranslate2"):
                score = sacrebleu.corpus_bleu(
                    found["hypotheses"], references, tokenize="none"
                )
                bleu = f"{score.score:.1f}"
            print(
                f"| {row} | {found['bytes'] / 1e6:.1f} | {found['start']:.1f} | "
                f"{found['one']:.1f} | {found['many']:.0f} | {bleu} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
