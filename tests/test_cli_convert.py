"""`keras-seqconv convert-fairseq`: directories from checkpoints, and clear refusals."""

import shutil

import pytest

import keras_seqconv as ks
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
from tests.cli.commands import call, refused
from tests.convert.reference import TARGET_VOCABULARY, drawn, write_checkpoint

CODES = "#version: 0.2\nt 1\nt1 2</w>\n"
pytestmark = pytest.mark.tensorflow


@pytest.fixture
def convert(capsys, tmp_path):
    """Converts into `tmp_path / "my model"`: the translator, output and errors."""

    def convert(*arguments):
        output = tmp_path / "my model"
        done = call(
            capsys, "convert-fairseq", *arguments, "--output", output, "--overwrite"
        )
        assert done.status == 0, done.errors
        return ks.load(output), done.output, done.errors

    return convert


@pytest.fixture
def archive(golden, tmp_path):
    """A folder as fairseq's archives are, but with arrays for the checkpoint."""
    folder = tmp_path / "archive"
    folder.mkdir()
    for name in ("weights.npz", "args.json", "dict.s.txt", "dict.t.txt"):
        shutil.copy(golden / "dynamicconv_2019" / name, folder)
    return folder


@pytest.mark.filterwarnings("default::UserWarning")
def test_folder_names_its_files(archive, convert, capsys, tmp_path):
    """Languages from the options of the checkpoint; byte-pair codes, if there are."""
    translator, printed, errors = convert(archive)
    assert "source 37, target 41" in printed and not errors
    assert (translator.source_language, translator.target_language) == ("s", "t")
    by_hand = ks.convert.from_fairseq(archive)
    for mine, theirs in zip(translator.model.weights, by_hand.weights, strict=True):
        assert (mine.numpy() == theirs.numpy()).all()
    source = translator.source_tokenizer
    assert source.dictionary == Dictionary.read(archive / "dict.s.txt")
    assert translator.target_tokenizer.vocabulary_size == 41
    assert source.bpe_codes is None
    error = refused(
        capsys, "convert-fairseq", archive, "--output", tmp_path / "my model"
    )
    assert "overwrite" in error
    for side in "st":
        dictionary = archive / f"dict.{side}.txt"
        dictionary.write_text(dictionary.read_text().replace("t5 ", "t5@@ ", 1))
    (warning,) = convert(archive)[2].splitlines()
    assert warning.startswith("warning: ") and "such as 't5@@'" in warning
    assert warning.endswith("Give --source-bpe-codes and --target-bpe-codes")
    (archive / "codes.32000").write_text(CODES)
    translator, _, errors = convert(archive)
    assert translator.source_tokenizer.bpe_codes == CODES and errors == ""
    (archive / "codes.32000").unlink()
    for name in ("bpecodes", "codes.de"):
        (archive / name).write_text(CODES)
    error = refused(capsys, "convert-fairseq", archive, "--output", tmp_path / "x")
    assert "archive holds bpecodes, codes.de. Give --source-bpe-codes" in error


def test_text_front_end(archive, convert, capsys, tmp_path):
    (archive / "bpecodes").write_text(CODES)
    for side, language in (("s", "de"), ("t", "en")):
        (archive / f"dict.{side}.txt").rename(archive / f"dict.{language}.txt")
    arguments = (
        archive, "--source-language", "de", "--target-language", "en", "--moses",
        "--normalize", "--no-dash-splits", "--lowercase",
    )  # fmt: skip
    (archive / "mine").write_text("#version: 0.2\nt 2\n")
    translator, *_ = convert(*arguments, "--target-bpe-codes", archive / "mine")
    source, target = translator.source_tokenizer, translator.target_tokenizer
    expected = DictionaryTokenizer(
        Dictionary.read(archive / "dict.de.txt"), language="de", moses=True,
        normalize=True, aggressive_dash_splits=False, lowercase=True, bpe_codes=CODES,
    )  # fmt: skip
    text = "T12 t1-t2, „t12“!"
    assert source.split(text) == expected.split(text)
    assert (source.language, target.language) == ("de", "en")
    assert source.bpe_codes == CODES
    assert target.bpe_codes == "#version: 0.2\nt 2\n"
    (archive / "bad").write_bytes(b"\xff\xfe")
    arguments += ("--bpe-codes", archive / "bad", "--output", tmp_path / "x")
    assert "bad must be valid UTF-8" in refused(capsys, "convert-fairseq", *arguments)


def test_language_model(archive, convert, capsys, tmp_path):
    folder = tmp_path / "language"
    folder.mkdir()
    options = dict(arch="fconv_lm", decoder_embed_dim=6, decoder_layers="[(6, 3)]")
    write_checkpoint(folder, drawn(options).weights, options)
    words = TARGET_VOCABULARY - 4
    dictionary = Dictionary((f"w{i}", 1) for i in range(words))
    (folder / "dict.txt").write_text(dictionary.to_text())
    generator, printed, _ = convert(folder)
    assert "ConvLanguageModel" in printed and "keras-seqconv generate" in printed
    assert isinstance(generator, ks.LanguageGenerator)
    assert generator.generate(["w1"], max_length=4)[0].startswith("w1")
    for path, flag, words in (
        (folder, "--source-dictionary", "is a language model: --dictionary must be"),
        (archive, "--dictionary", "is a translation model: --source-dictionary and"),
    ):
        arguments = (path, flag, folder / "dict.txt", "--output", tmp_path / "x")
        assert words in refused(capsys, "convert-fairseq", *arguments)


def test_wrong_inputs(archive, capsys, tmp_path):
    """One line that starts with error, status 2, nothing written."""
    source, target = archive / "dict.s.txt", archive / "dict.t.txt"
    dictionaries = ("--source-dictionary", target, "--target-dictionary", source)
    for words, *arguments in [
        ("source dictionary has 41 symbols, the embedding 37", archive, *dictionaries),
        ("it holds dict.s.txt, dict.t.txt", archive, "--source-language", "de"),
        ("nothing.pt: No such file", archive / "nothing.pt", *dictionaries),
        ("unknown option --beam. (", archive, "--beam", "3"),
    ]:
        error = refused(
            capsys, "convert-fairseq", *arguments, "--output", tmp_path / "x"
        )
        assert words in error
        assert not (tmp_path / "x").exists() and not list(tmp_path.glob(".*.part"))
