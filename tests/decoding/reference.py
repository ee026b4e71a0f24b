"""fairseq's search (spec/fairseq.md, section 9.2), one sentence, in plain Python.

Written from the description, with lists and dictionaries, and without any of the
shortcuts of the package: whole distributions, all candidates sorted.
"""

import math

import numpy as np

from tests.backends import to_numpy
from tests.convert.reference import log_softmax

PAD, START, END, UNK = 1, 2, 2, 3
NEVER = -math.inf


def length_divisor(length, exponent=1.0, kind="power", normalize=True):
    if not normalize:
        return 1.0
    return length**exponent if kind == "power" else ((5 + length) / 6) ** exponent


def distribution(
    logits, tokens, *, limit, min_length=1, unk_penalty=0.0, temperature=1.0,
    suppressed=(), ngram=0, prefix=(), first_beam=True, collapse=True,
):  # fmt: skip
    """Log-probabilities of what may follow `tokens`."""
    log_probs = log_softmax(np.asarray(logits, "float64") / temperature)
    step, end = len(tokens), log_probs[END]
    log_probs[PAD] = NEVER
    log_probs[UNK] -= unk_penalty
    only = np.full(len(log_probs), NEVER)
    if step >= limit:
        only[END] = end
        return only
    if step < len(prefix) and prefix[step] != PAD:
        if prefix[step] != END or first_beam or not collapse:
            only[prefix[step]] = log_probs[prefix[step]]
        return only
    if step < min_length:
        log_probs[END] = NEVER
    for token in suppressed:
        log_probs[token] = NEVER
    if ngram:
        history = ([START] if ngram > 1 else []) + list(tokens)
        starts = range(len(history) - ngram + 1)
        seen = {tuple(history[i : i + ngram]) for i in starts}
        for token in range(len(log_probs)):
            if len(history) >= ngram - 1 and token != END:
                last = history[len(history) - ngram + 1 :]
                if (*last, token) in seen:
                    log_probs[token] = NEVER
    return log_probs


def beam_search(
    logits_of, *, beams, limit, groups=1, strength=0.5, exponent=1.0, kind="power",
    normalize=True, stopping="first", **rules,
):  # fmt: skip
    """[(tokens with END, score, positional scores)], best first.

    With stopping="optimal" nothing is ever stopped: all that ends is collected.
    """
    size = len(logits_of(()))
    living = [((), (), 0.0 if slot < groups else NEVER) for slot in range(beams)]
    finals = []
    for step in range(limit + 1):
        scored = []
        for slot, (tokens, _, _) in enumerate(living):
            row = distribution(
                logits_of(tokens), tokens, limit=limit, first_beam=slot == 0, **rules
            )
            scored.append(row)
        lists, taken = [], []
        for group in range(groups):
            found = []
            for slot in range(group, beams, groups):
                for token in range(size):
                    total = living[slot][2] + scored[slot][token]
                    total -= strength * taken.count(token) if group else 0.0
                    found.append((total, slot, token))
            # Stable: equal scores in the order of beams and tokens.
            found.sort(key=lambda one: -one[0])
            best = found[: 2 * beams // groups]
            taken += [token for total, _, token in best if total > NEVER]
            lists.append(best)
        candidates = [one for rank in zip(*lists, strict=True) for one in rank]
        following = []
        for rank, (total, slot, token) in enumerate(candidates):
            tokens, sums, _ = living[slot]
            extended = ((*tokens, token), (*sums, total), total)
            if token != END:
                following.append(extended)
            elif total > NEVER and stopping == "first":
                if rank < beams and len(finals) < beams:
                    finals.append(extended)
            elif total > NEVER and groups > 1:
                finals.append(extended)
        if stopping == "optimal" and groups == 1:
            for slot, (tokens, sums, before) in enumerate(living):
                total = before + scored[slot][END]
                if total > NEVER:
                    finals.append(((*tokens, END), (*sums, total), total))
        living = following[:beams]
        living += [((*(0,) * (step + 1),), (), NEVER)] * (beams - len(living))
        if stopping == "first" and len(finals) == beams:
            break
    results = []
    for tokens, sums, total in finals:
        positional = np.diff(np.array([0.0, *sums]))
        score = total / length_divisor(len(tokens), exponent, kind, normalize)
        results.append((list(tokens), score, positional))
    results.sort(key=lambda one: -one[1])
    return results[:beams]


def assert_same(hypotheses, sentence, expected):
    """Row `sentence` of the `Hypotheses` is the list of a reference."""
    ids, scores, positional, lengths = (
        to_numpy(part)[sentence] for part in hypotheses[:4]
    )
    for rank in range(len(ids)):
        if rank >= len(expected):
            assert (ids[rank] == PAD).all() and lengths[rank] == 0
            assert scores[rank] == -np.inf and (positional[rank] == 0).all()
            continue
        tokens, score, parts = expected[rank]
        rest = ids.shape[1] - len(tokens)
        assert ids[rank].tolist() == tokens + [PAD] * rest
        np.testing.assert_allclose(scores[rank], score, rtol=1e-4, atol=1e-4)
        padded = np.pad(parts, (0, rest))
        np.testing.assert_allclose(positional[rank], padded, rtol=1e-4, atol=1e-4)
        assert lengths[rank] == len(tokens)
