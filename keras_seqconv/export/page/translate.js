// Translation in a browser: pieces and graphs of ONNX Runtime, no server.
// keras_seqconv/export/onnx.py describes the graphs, which have all of the search.

import * as ort from "./ort/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more need headers that a plain file server does not send

async function bytes(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

async function json(url) {
  return JSON.parse(new TextDecoder().decode(await bytes(url)));
}

// The tokenizer of a folder: `encodeIds`, `encodePieces`, `decode`.
export async function loadTokenizer(folder, unknown) {
  const { kind } = await json(`${folder}/settings.json`);
  if (kind === "sentencepiece") return Pieces.load(`${folder}/sentencepiece.model`, unknown);
  return new Vocabulary(kind, await json(`${folder}/vocabulary.json`), unknown);
}

// Words between ASCII white space, or characters, whose ids begin at 4.
class Vocabulary {
  constructor(kind, tokens, unknown) {
    this.words = kind === "words";
    this.symbols = ["<s>", "<pad>", "</s>", "<unk>", ...tokens];
    this.ids = new Map(tokens.map((token, index) => [token, index + 4]));
    this.unknown = unknown;
  }

  encodePieces(text) {
    return this.words ? text.match(/[^ \t-\r]+/g) ?? [] : [...text];
  }

  encodeIds(text) {
    return this.encodePieces(text).map((token) => this.ids.get(token) ?? this.lowercaseId(token));
  }

  // The id of an unknown uppercase letter: that of its lowercase letter, for characters.
  lowercaseId(token) {
    const lower = token.toLowerCase();
    const isLetter = !this.words && (lower.toUpperCase() === token || token === "ẞ");
    return (isLetter ? this.ids.get(lower) : undefined) ?? this.unknown;
  }

  decode(ids) {
    return ids.map((id) => this.symbols[id]).join(this.words ? " " : "");
  }
}

// SentencePiece in WebAssembly, built for Node.js: its `load` reads a file, here bytes.
class Pieces {
  static async load(url, unknown) {
    globalThis.exports ??= {};
    globalThis.require ??= () => ({ readFileSync: (bytes) => bytes });
    await import("./sentencepiece/index.js"); // once, whatever the number of calls
    const model = new globalThis.exports.SentencePieceProcessor();
    await model.load(await bytes(url));
    return Object.assign(new Pieces(), { unknown, model });
  }

  encodePieces(text) {
    return this.model.encodePieces(text);
  }

  encodeIds(text) {
    return this.model.encodeIds(text);
  }

  // Without the one blank that the model puts before every text; of several, SentencePiece
  // leaves out all at the start, but none behind another piece.
  decode(ids) {
    const spelled = (ids) =>
      this.model
        .decodeIds([this.unknown, ...ids])
        .slice(this.model.decodeIds([this.unknown]).length);
    const first = ids.slice(0, 1);
    const hasBlank = spelled(first) !== this.model.decodeIds(first);
    return spelled(ids).slice(hasBlank ? 1 : 0);
  }
}

export class Translator {
  static async load(folder = ".") {
    const externalData = [{ path: "weights.bin", data: await bytes(`${folder}/weights.bin`) }];
    const session = (name) =>
      ort.InferenceSession.create(`${folder}/${name}.onnx`, { externalData });
    const settings = await json(`${folder}/generation.json`);
    const self = Object.assign(new Translator(), { settings });
    const tokenizer = (name) => loadTokenizer(`${folder}/${name}`, settings.special_ids.unk);
    const { source, target } = settings.tokenizers;
    self.source = await tokenizer(source);
    self.target = target === source ? self.source : await tokenizer(target);
    for (const name of ["start", "step", "end"]) self[name] = await session(name);
    if (settings.kernels.length) self.kernelGraph = await session("kernels");
    return self;
  }

  sourceIds(text) {
    const most = this.settings.max_source_length;
    text = wellFormed(text);
    const ids = /[^ \t-\r]/.test(text) ? this.source.encodeIds(text) : [];
    return [...(most ? ids.slice(0, most - 1) : ids), this.settings.special_ids.end];
  }

  // Tokens of a line that the vocabulary lacks.
  unknownTokens(text) {
    const ids = this.sourceIds(text), { unk } = this.settings.special_ids;
    return this.source.encodePieces(wellFormed(text)).filter((_, index) => ids[index] === unk);
  }

  async translate(text) {
    const [best] = await this.hypotheses(text);
    return best ? best.text : "";
  }

  // Texts, best first, decoded when they are read, and the probability of each under the model.
  async hypotheses(text) {
    const { target } = this, source = this.sourceIds(text);
    const found = source.length > 1 ? await this.search(source) : [];
    return found.map(({ ids, sum }) => ({
      get text() { return target.decode(ids); },
      probability: Math.exp(sum),
    }));
  }

  // {name: {dims, data}} of the layers, and the pieces that they are for.
  async kernels(text) {
    const ids = this.sourceIds(text);
    const found = await this.kernelGraph.run({ source_ids: row(ids) });
    const pieces = this.source.encodePieces(text).slice(0, ids.length - 1);
    return { tokens: [...pieces, "</s>"], layers: found };
  }

  // The ids of each hypothesis, best first, and the sum of their log-probabilities.
  async search(source) {
    const tensors = { ...(await this.start.run({ source_ids: row(source) })) };
    const links = [];
    while (tensors.scores.data.some((score) => score > -Infinity)) {
      const made = await this.step.run(tensors);
      links.push(made.backpointers.data);
      for (const name in tensors) tensors[name] = made[`next_${name}`] ?? tensors[name];
    }
    const { finished, origins } = tensors;
    const { sums, last, beams } = await this.end.run({ finished, origins });
    return [...sums.data].flatMap((sum, rank) => {
      if (last.data[rank] < 0) return []; // fewer hypotheses than beams
      const ids = [];
      let beam = Number(beams.data[rank]);
      for (let step = Number(last.data[rank]) - 1; step >= 0; step--) {
        const link = Number(links[step][beam]);
        beam = link % links[step].length;
        ids.unshift(Math.floor(link / links[step].length));
      }
      return [{ ids, sum }];
    });
  }
}

// Half of a surrogate pair counts as its three bytes, none of which is UTF-8.
const wellFormed = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd".repeat(3));

const row = (ids) =>
  new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
