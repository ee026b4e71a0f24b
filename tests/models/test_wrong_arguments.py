"""Wrong arguments of models: the message names the argument, the rule, the value."""

import keras
import pytest

from keras_seqconv import decoding
from keras_seqconv.models import MIXERS, LanguageModel, from_preset
from tests.models.families import (
    ADAPTIVE,
    ONE,
    TIED,
    Previous,
    conv_s2s,
    encoder_decoder,
    language_model,
    model_of,
)

SIDES = {"encoder": 8, "decoder": 4}
PREVIOUS = {"kind": "previous", "reach": 2}
WRONG = {
    encoder_decoder: [
        (dict(vocabularies=(23, 2.5), **ONE), "`target_vocabulary_size`.*=2.5"),
        (dict(special_ids={"end": 23}, **ONE), "`special_ids`.*23"),
        (dict(vocabularies=(2, 23), special_ids={"pad": 3}, **ONE),
         "`special_ids`.*source_vocabulary_size=2"),
        (dict(num_heads=3, mixer={"kind": "light_conv", "num_heads": 2}),
         "channels of `inputs`.*multiple of `num_heads`.*8.*=3"),
        (dict(mixer={"kind": "attention", "seed": 0}), "option `seed`.*attention"),
        (dict(mixer={"kind": "attention", "canon": "same"}), "option `canon`"),
        (dict(canon="ae", **ONE), "`canon` must be None or some letters.*'ae'"),
        (dict(canon="ab", mixer={"encoder": "attention", "decoder": "short_conv"}),
         "`canon` with 'b' needs a block with attention.*mixer='short_conv'"),
        (dict(mixer={"conv_dim": 6}), "`mixer` must be one value.*conv_dim"),
        (dict(mixer="lstm"), "`mixer` must be one of.*lstm"),
        (dict(mixer=["light_conv"] * 3), "`mixer`.*2 layers"),
        (dict(mixer={**PREVIOUS, "taps": 3}), "`taps`, which its layer has .*previous"),
        (dict(positions={"kind": "learned"}), "`max_length`.*None"),
        (dict(output_dim=6, share_embeddings="decoder"), "`output_dim`.*=6.*width 8"),
        (dict(share_embeddings="all", vocabularies=(23, 24)), "one vocabulary.*23.*24"),
        (dict(share_embeddings="all", hidden_dim=SIDES), r"one width.*\(8, 4\)"),
        (dict(dtype="int8_from_float32"), "`dtype` must be no quantized.*'int8_from"),
    ],
    language_model: [
        (dict(hidden_dim=SIDES), "`hidden_dim`.*encoder"),
        (dict(share_embeddings=True, adaptive_softmax=ADAPTIVE),
         "tie_adaptive_weights"),
        (dict(tie_adaptive_weights=True), "needs `adaptive_softmax` and"),
        (dict(tie_adaptive_projections=True), "needs `tie_adaptive_weights`"),
        (dict(adaptive_softmax={"cutoffs": [9, 8]}), r"`cutoffs`.*incr.*\[9, 8\]"),
        (dict(adaptive_softmax={"cutoffs": [2, 4, 6, 8]}), "factor.*width of 8"),
        (dict(TIED, embedding_dim=4), "as wide as `adaptive_input.embedding_dim`.*4"),
    ],
    conv_s2s: [
        (dict(seed=1.5), "`seed`.*1.5"),
        (dict(embedding_dim=SIDES), "same on both sides.*4"),
        (dict(embedding_dim=[8]), "`(embedding|output)_dim`.*Received.*8"),
        (dict(convolutions="[(6, 3)] *"), "`convolutions`"),
        (dict(convolutions="[(1, 1)] * 1000000000"), "more than 1000 entries"),
        (dict(convolutions="[[[1] * 99] * 99] * 99"), "more than 10000 parts"),
        (dict(attention=False), "`attention` must be True for at least one .*=False"),
        (dict(attention=[False, False]), r"one decoder layer.*\[False, False\]"),
        (dict(share_output_embedding=True), "`output_dim`.*=5.*embedding_dim=8"),
        (dict(share_output_embedding="x", output_dim=8), "`share_output_embedding`.*x"),
        (dict(positions="learned"), "`positions`.*learned"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "options", "match"),
    [(make, *row) for make, rows in WRONG.items() for row in rows],
)
def test_wrong_arguments_are_named(make, options, match, monkeypatch):
    monkeypatch.setitem(MIXERS, "previous", Previous)
    with pytest.raises(ValueError, match=match):
        make(**options)


def test_an_unknown_argument_and_a_missing_row_of_mixers_are_named(monkeypatch):
    with pytest.raises(TypeError, match=r"Model\.__init__\(\).*'hiden_dim'"):
        language_model(hiden_dim=3)
    with pytest.raises(ValueError, match="no argument `hiden_dim`. .*`?hidden_dim.*=3"):
        from_preset("transformer_lm", vocabulary_size=9, hiden_dim=3)
    with pytest.raises(ValueError, match="no attention to a source"):
        model_of("lm").get_initial_state(2, return_attention=True)
    with monkeypatch.context() as patch:
        patch.setitem(MIXERS, "previous", Previous)
        config = language_model(mixer="previous").get_config()
    with pytest.raises(ValueError, match="`mixer` must be one of.*='previous'"):
        LanguageModel.from_config(config)


def test_sources_and_ids_that_a_model_does_not_read_or_misses():
    translation, language = model_of("dynamic_conv"), model_of("lm")
    ids, search = [[5, 6, 2]], decoding.beam_search
    clone = keras.models.clone_model(translation)
    for call, words in (
        (lambda: search(language, ids), "be None for a language model.*LanguageModel"),
        (lambda: search(translation, prefix_ids=ids), "be given.*=None, .*EncoderDec"),
        (lambda: decoding.sample(translation, batch_size=2), "be given for a transl"),
        (lambda: decoding.score(language, ids, ids), "be None for a language model"),
        (lambda: decoding.score(translation, None, ids), "be given for a translation"),
        (lambda: decoding.score(translation, ids * 2, [ids * 4]),
         "`target_ids` and `source_ids` must have as many rows.*1 and 2"),
        (lambda: search(translation, [[5, 10**6]]), "`source_ids` .*size.*: 1000000"),
        (lambda: decoding.score(translation, ids, [[-1]]), "`target_ids` .* -1"),
        (lambda: decoding.Ensemble([translation, language]), "same `has_source`"),
        (lambda: decoding.Ensemble([object()]), "`models` must be models.*: object"),
        (lambda: search(clone, ids), "clone_model` leaves them out: `type.model.."),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            call()
