"""Translate with an exported model: ONNX Runtime, NumPy and SentencePiece, no Keras.

    keras-seqconv export MODEL --format onnx --output DIR
    python examples/onnx_translate.py DIR < source.txt > hypotheses.txt

Prints the hypotheses of `keras-seqconv translate` in float32; 1,000 sentences take ten
seconds of two cores. Graphs: keras_seqconv/export/onnx.py. B sentences, G beams each.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import sentencepiece

# Ends of lines to some programs: the output has a line for each line of the input.
BREAKS = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0"), " ")


class Translator:
    """The graphs, tokenizers and search options of an exported folder."""

    def __init__(self, folder):
        folder = Path(folder)
        settings = json.loads((folder / "generation.json").read_text("utf-8"))
        self.options, self.special = settings["search"], settings["special_ids"]
        if self.options["num_groups"] > 1 or self.options["stopping"] != "first":
            sys.exit(f"{folder}: neither diverse beams nor `stopping` 'optimal'.")
        self.longest_source = settings["max_source_length"] or 10**6
        self.longest_target = settings["max_target_length"] or 10**6
        session = onnxruntime.SessionOptions()
        # Spinning threads take the cores from threads that compute.
        session.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.encoder, self.step = (
            onnxruntime.InferenceSession(folder / f"{name}.onnx", session)
            for name in ("encoder", "step")
        )
        sides = settings["tokenizers"]
        self.source, self.target = (
            sentencepiece.SentencePieceProcessor(
                model_file=str(folder / sides[side] / "sentencepiece.model")
            )
            for side in ("source", "target")
        )

    def translate(self, texts, batch_size=64):
        """The best translation of each text."""
        rows = [
            self.source.encode(text) if text.strip(" \t\n\v\f\r") else []
            for text in texts
        ]
        rows = [row[: self.longest_source - 1] for row in rows]
        order = [n for n, row in enumerate(rows) if row]
        order.sort(key=lambda n: len(rows[n]))
        found = [""] * len(rows)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            sources = [[*rows[n], self.special["end"]] for n in batch]
            for n, tokens in zip(batch, self.search(sources), strict=True):
                found[n] = self.target.decode(tokens)
        return found

    def search(self, sources):
        """The best hypothesis of each source, without its end token: beam search."""
        beams, ended = self.options["num_beams"], [[] for _ in sources]
        width = max(map(len, sources))
        ids = [row + [self.special["pad"]] * (width - len(row)) for row in sources]
        state = run(self.encoder, {"source_ids": np.array(ids, "int32")})
        shared = {name: x for name, x in state.items() if name.startswith("shared")}
        state = {name: x for name, x in state.items() if name.startswith("beams")}
        state = taken(state, np.repeat(np.arange(len(sources)), beams))
        limits = np.array([self.limit(len(row)) for row in sources], "int32")
        sentences = np.arange(len(sources))  # unfinished sentences
        scores = np.full((len(sources), beams), -np.inf, "float32")
        scores[:, 0] = 0
        tokens = np.full((len(sources), beams, limits.max() + 1), self.special["pad"])
        last, step = np.full(scores.shape, self.special["start"]), 0
        while len(sentences):
            feed = {
                "ids": last.reshape(-1, 1).astype("int32"),
                "step": np.array(step, "int32"),
                "limits": np.repeat(limits, beams),
                "history": tokens.reshape(-1, tokens.shape[-1]).astype("int32"),
            }
            after = run(self.step, {**feed, **shared, **state})
            scores, parents, last, ends, end_parents = self.choose(scores, after)
            for n, sentence in enumerate(sentences):
                for score, parent in zip(ends[n], end_parents[n], strict=True):
                    if score > -np.inf and len(ended[sentence]) < beams:
                        divided = score / self.divisor(step + 1)
                        ended[sentence].append((divided, tokens[n, parent, :step]))
            full = np.array([len(ended[n]) == beams for n in sentences])
            left = np.flatnonzero((scores > -np.inf).any(axis=1) & ~full)
            rows = (np.arange(len(sentences))[:, None] * beams + parents)[left].ravel()
            after = {n[5:]: x for n, x in after.items() if n.startswith("next_")}
            state = taken(after, rows)
            if len(left) < len(sentences):
                shared = taken(shared, left)
            tokens = np.take_along_axis(tokens[left], parents[left, :, None], axis=1)
            tokens[:, :, step] = last = last[left]
            sentences, limits, scores = sentences[left], limits[left], scores[left]
            step += 1
        none = 0, np.zeros(0, int)
        best = [max(f, key=lambda one: one[0], default=none)[1] for f in ended]
        return [tokens.tolist() for tokens in best]

    def choose(self, scores, after):
        """Continued scores (B, G), parents, tokens; ended scores, parents."""
        batch, beams = scores.shape
        count = after["token_ids"].shape[1]
        totals = scores[:, :, None] + after["log_probs"].reshape(batch, beams, count)
        totals = totals.reshape(batch, -1)
        places = np.argsort(-totals, axis=1, kind="stable")[:, :beams]
        going_on = np.take_along_axis(totals, places, axis=1)
        ends = scores + after["end_log_probs"].reshape(batch, beams)
        end_parents = np.argsort(-ends, axis=1, kind="stable")
        ends = np.take_along_axis(ends, end_parents, axis=1)
        better = (going_on[:, None, :] > ends[:, :, None]).sum(axis=-1)
        ends[np.arange(beams) + better >= beams] = -np.inf  # not among the best
        tokens = after["token_ids"].reshape(batch, -1)
        tokens = np.take_along_axis(tokens, places, axis=1)
        return going_on, places // count, tokens, ends, end_parents

    def limit(self, length):
        """Tokens of the longest hypothesis of a source, its end not counted."""
        ratio, offset = (self.options[n] for n in ("max_length_ratio", "max_length"))
        return min(int(ratio * length + offset), self.longest_target - 1)

    def divisor(self, length):
        if not self.options["normalize"]:
            return 1
        if self.options["length_penalty_kind"] == "gnmt":
            length = (5 + length) / 6
        return np.float32(length) ** np.float32(self.options["length_penalty"])


def run(session, tensors):
    """The outputs by name; tensors that the graph does not have are left out."""
    names = [output.name for output in session.get_outputs()]
    known = {one.name: tensors[one.name] for one in session.get_inputs()}
    return dict(zip(names, session.run(names, known), strict=True))


def taken(state, rows):
    return {name: x[rows] if x.ndim else x for name, x in state.items()}


def texts_of(stream):
    r"""Lines of UTF-8 that "\n" alone ends; a "\r" before it is dropped."""
    for number, line in enumerate(stream, 1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            sys.exit(f"error: the input must be UTF-8; line {number}: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder")
    folder, texts = parser.parse_args().folder, [*texts_of(sys.stdin.buffer)]
    for text in Translator(folder).translate(texts):
        print(text.translate(BREAKS))


if __name__ == "__main__":
    main()
