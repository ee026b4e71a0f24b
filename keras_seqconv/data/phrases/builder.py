"""The phrases as a TFDS builder; imports tensorflow_datasets."""

from collections.abc import Iterator

from keras_seqconv.data.phrases.generate import SIZES, phrases
from keras_seqconv.extras import require

tfds = require("tensorflow_datasets", "mt")


class Phrases(tfds.core.GeneratorBasedBuilder):
    """English and German phrases, see `keras_seqconv.data.phrases`.

    One configuration, "en-de"; splits train, validation and test, in the order of the
    generator; features {"en": text, "de": text}, supervised as (en, de). Nothing is
    downloaded: `download_and_prepare` takes seconds.

    ```py
    builder = Phrases(data_dir="data")
    builder.download_and_prepare()
    train = builder.as_dataset("train", as_supervised=True)
    ```
    """

    name = "phrases"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "257 templates, 20,000 pairs."}
    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name="en-de", description="English and German.")
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=(
                "English and German phrases about numbers, ordinals, dates, times, "
                "money and quantities, generated from templates with Babel and "
                "num2words."
            ),
            features=tfds.features.Translation(languages=("en", "de")),
            supervised_keys=("en", "de"),
            disable_shuffling=True,  # the generator has shuffled
            license="Apache-2.0",
        )

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        return {split: self._generate_examples(split) for split in SIZES}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        for index, (english, german) in enumerate(phrases(split)):
            yield index, {"en": english, "de": german}
