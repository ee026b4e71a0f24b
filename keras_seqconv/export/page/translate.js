// Translation in a browser: pieces, beam search and graphs of ONNX Runtime, no server.
// The search is that of examples/onnx_translate.py for one sentence.

import * as ort from "./ort/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more need headers that a plain file server does not send

const BLANK = "\u2581";

// SentencePiece, from pieces and scores. `kinds`: 1 normal, 2 unknown, 3 control,
// 4 user-defined, 5 unused, 6 byte.
export class Pieces {
  constructor({ pieces, scores, kinds, model_type, blanks, folds_blanks, byte_fallback }) {
    Object.assign(this, { pieces, scores, kinds, foldsBlanks: folds_blanks });
    this.blanks = new Set(blanks);
    this.isUnigram = model_type === "unigram";
    this.bytesOfUnknown = byte_fallback;
    this.ids = new Map();
    pieces.forEach((piece, id) => {
      if (kinds[id] === 1 || kinds[id] === 4) this.ids.set(piece, id);
    });
    this.bytes = new Map(pieces.map((piece, id) => [piece, id]).filter((p) => kinds[p[1]] === 6));
    this.unknown = kinds.indexOf(2);
    this.longest = Math.max(...[...this.ids.keys()].map((piece) => [...piece].length));
    this.worst = Math.min(...scores.filter((_, id) => kinds[id] === 1)) - 10;
  }

  encode(text) {
    text = [...text].map((letter) => (this.blanks.has(letter) ? " " : letter)).join("");
    if (this.foldsBlanks) text = text.replace(/ +/g, " ").replace(/^ | $/g, "");
    if (!text) return [];
    const letters = [...(BLANK + text.replaceAll(" ", BLANK))];
    const found = this.isUnigram ? this.best(letters) : this.merged(letters);
    const ids = [];
    for (const piece of found) {
      const id = this.ids.get(piece);
      if (id !== undefined) ids.push(id);
      else if (this.bytesOfUnknown) {
        for (const byte of new TextEncoder().encode(piece)) {
          ids.push(this.bytes.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`));
        }
      } else if (ids.at(-1) !== this.unknown) ids.push(this.unknown);
    }
    return ids;
  }

  // Byte pairs: the neighbours whose union has the best score, until there are none.
  merged(parts) {
    for (;;) {
      let best = -Infinity;
      let place = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const id = this.ids.get(parts[i] + parts[i + 1]);
        if (id !== undefined && this.scores[id] > best) [best, place] = [this.scores[id], i];
      }
      if (place < 0) return parts;
      parts.splice(place, 2, parts[place] + parts[place + 1]);
    }
  }

  // Unigram language model: the split with the largest sum of scores.
  best(letters) {
    const sums = [0];
    const starts = [0];
    for (let end = 1; end <= letters.length; end++) {
      sums[end] = -Infinity;
      for (let start = Math.max(0, end - this.longest); start < end; start++) {
        const id = this.ids.get(letters.slice(start, end).join(""));
        if (id === undefined && end - start > 1) continue;
        const sum = Math.fround(sums[start] + (id === undefined ? this.worst : this.scores[id]));
        if (sum > sums[end]) [sums[end], starts[end]] = [sum, start];
      }
    }
    const found = [];
    for (let end = letters.length; end > 0; end = starts[end]) {
      found.unshift(letters.slice(starts[end], end).join(""));
    }
    return found;
  }

  decode(ids) {
    const bytes = [];
    for (const id of ids) {
      if (this.kinds[id] === 6) bytes.push(parseInt(this.pieces[id].slice(3, 5), 16));
      else if (this.kinds[id] !== 3) {
        bytes.push(...new TextEncoder().encode(this.pieces[id].replaceAll(BLANK, " ")));
      }
    }
    const text = new TextDecoder().decode(new Uint8Array(bytes));
    return ids.length && this.pieces[ids[0]].startsWith(BLANK) ? text.slice(1) : text;
  }
}

export class Translator {
  static async load(folder = ".") {
    const json = async (name) => (await fetch(`${folder}/${name}`)).json();
    const session = (name) => ort.InferenceSession.create(`${folder}/${name}`);
    const settings = await json("generation.json");
    const self = Object.assign(new Translator(), { settings });
    [self.source, self.target] = (
      await Promise.all([json("source_pieces.json"), json("target_pieces.json")])
    ).map((one) => new Pieces(one));
    [self.encoder, self.step] = await Promise.all([session("encoder.onnx"), session("step.onnx")]);
    if (settings.kernels.length) self.kernelGraph = await session("kernels.onnx");
    return self;
  }

  sourceIds(text) {
    const most = this.settings.max_source_length;
    const ids = text.trim() ? this.source.encode(text) : [];
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
    return { tokens: ids.map((id) => this.source.pieces[id]), layers: found };
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
