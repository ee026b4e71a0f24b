// Translation in a browser: pieces, beam search and graphs of ONNX Runtime, no server.
// The search is that of examples/onnx_translate.py for one sentence.

import * as ort from "./ort/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more need headers that a plain file server does not send

// SentencePiece in WebAssembly, built for Node.js: its `load` reads a file, here bytes.
globalThis.exports = {};
globalThis.require = () => ({ readFileSync: (bytes) => bytes });
await import("./sentencepiece/index.js");
const { SentencePieceProcessor } = globalThis.exports;
delete globalThis.exports;
delete globalThis.require;

export class Tokenizer extends SentencePieceProcessor {
  // The model of a file, and the id of its unknown piece.
  static async load(url, unknown) {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
    const self = Object.assign(new Tokenizer(), { unknown });
    await self.load(new Uint8Array(await response.arrayBuffer()));
    return self;
  }

  // Without the one blank that the model puts before every text; of several, SentencePiece
  // leaves out all at the start, but none behind another piece.
  decode(ids) {
    const spelled = (ids) =>
      this.decodeIds([this.unknown, ...ids]).slice(this.decodeIds([this.unknown]).length);
    const first = ids.slice(0, 1);
    const hasBlank = spelled(first) !== this.decodeIds(first);
    return spelled(ids).slice(hasBlank ? 1 : 0);
  }
}

export class Translator {
  static async load(folder = ".") {
    const json = async (name) => (await fetch(`${folder}/${name}`)).json();
    const session = (name) => ort.InferenceSession.create(`${folder}/${name}`);
    const settings = await json("generation.json");
    const self = Object.assign(new Translator(), { settings });
    const tokenizer = (name) =>
      Tokenizer.load(`${folder}/${name}/sentencepiece.model`, settings.special_ids.unk);
    const { source, target } = settings.tokenizers;
    self.source = await tokenizer(source);
    self.target = target === source ? self.source : await tokenizer(target);
    [self.encoder, self.step] = await Promise.all([session("encoder.onnx"), session("step.onnx")]);
    if (settings.kernels.length) self.kernelGraph = await session("kernels.onnx");
    return self;
  }

  sourceIds(text) {
    const most = this.settings.max_source_length;
    // Half of a surrogate pair counts as its three bytes, none of which is UTF-8.
    text = text.replace(/\p{Surrogate}/gu, "\ufffd".repeat(3));
    const ids = /[^ \t-\r]/.test(text) ? this.source.encodeIds(text) : [];
    return [...(most ? ids.slice(0, most - 1) : ids), this.settings.special_ids.end];
  }

  async translate(text) {
    const ids = this.sourceIds(text);
    return ids.length > 1 ? this.target.decode(await this.search(ids)) : "";
  }

  // {name: {dims, data}} of the layers, and the pieces that they are for.
  async kernels(text) {
    const ids = this.sourceIds(text);
    const found = await this.kernelGraph.run({ source_ids: int32(ids, [1, ids.length]) });
    const pieces = this.source.encodePieces(text).slice(0, ids.length - 1);
    return { tokens: [...pieces, "</s>"], layers: found };
  }

  async search(source) {
    const { search: options, special_ids: special } = this.settings;
    const beams = options.num_beams;
    const state = await this.encoder.run({ source_ids: int32(source, [1, source.length]) });
    const shared = pick(state, "shared");
    let moving = taken(pick(state, "beams"), new Array(beams).fill(0));
    const most = Math.floor(options.max_length_ratio * source.length + options.max_length);
    const limit = Math.min(most, (this.settings.max_target_length ?? 1e6) - 1);
    let scores = new Array(beams).fill(-Infinity);
    scores[0] = 0;
    let tokens = scores.map(() => []);
    const ended = [];
    for (let step = 0; ended.length < beams && scores.some((s) => s > -Infinity); step++) {
      const last = tokens.map((row) => row.at(-1) ?? special.start);
      const feed = {
        ids: int32(last, [beams, 1]),
        step: int32([step], []),
        limits: int32(new Array(beams).fill(limit), [beams]),
        history: int32(history(tokens, limit + 1, special.pad), [beams, limit + 1]),
        ...shared,
        ...moving,
      };
      const known = Object.fromEntries(this.step.inputNames.map((name) => [name, feed[name]]));
      const after = await this.step.run(known);
      const { goingOn, ends } = choose(scores, after, beams);
      for (const { score, parent } of ends) {
        if (ended.length < beams) {
          ended.push({ score: score / divisor(options, step + 1), tokens: tokens[parent] });
        }
      }
      scores = goingOn.map((one) => one.score);
      tokens = goingOn.map((one) => [...tokens[one.parent], one.token]);
      const parents = goingOn.map((one) => one.parent);
      const next = pick(after, "next_beams");
      moving = taken(
        Object.fromEntries(Object.entries(next).map(([name, x]) => [name.slice(5), x])), parents,
      );
    }
    return ended.reduce((best, one) => (one.score > best.score ? one : best)).tokens;
  }
}

// The best of all continuations, and the ends that are among them.
function choose(scores, after, beams) {
  const count = after.token_ids.dims[1];
  const byScore = (a, b) => b.score - a.score; // stable, as is NumPy's
  const all = [...after.log_probs.data].map((score, i) => ({
    score: Math.fround(scores[Math.floor(i / count)] + score),
    parent: Math.floor(i / count),
    token: after.token_ids.data[i],
  }));
  const goingOn = all.sort(byScore).slice(0, beams);
  const ends = [...after.end_log_probs.data]
    .map((score, parent) => ({ score: Math.fround(scores[parent] + score), parent }))
    .sort(byScore)
    .filter(
      ({ score }, i) =>
        score > -Infinity && i + goingOn.filter((one) => one.score > score).length < beams,
    );
  return { goingOn, ends };
}

function divisor({ normalize, length_penalty_kind, length_penalty }, length) {
  if (!normalize) return 1;
  return (length_penalty_kind === "gnmt" ? (5 + length) / 6 : length) ** length_penalty;
}

const int32 = (values, dims) => new ort.Tensor("int32", Int32Array.from(values), dims);

const history = (tokens, width, pad) =>
  tokens.flatMap((row) => [...row, ...new Array(width - row.length).fill(pad)]);

const pick = (tensors, start) =>
  Object.fromEntries(Object.entries(tensors).filter(([name]) => name.startsWith(start)));

// Some rows of all tensors; a tensor without rows stays.
function taken(tensors, rows) {
  const one = (x) => {
    if (!x.dims.length) return x;
    const size = x.data.length / x.dims[0];
    const data = new x.data.constructor(rows.length * size);
    rows.forEach((row, i) => data.set(x.data.subarray(row * size, (row + 1) * size), i * size));
    return new ort.Tensor(x.type, data, [rows.length, ...x.dims.slice(1)]);
  };
  return Object.fromEntries(Object.entries(tensors).map(([name, x]) => [name, one(x)]));
}
