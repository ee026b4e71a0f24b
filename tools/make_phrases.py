"""Writes the embedded corpus that tools/phrases generates into the package.

    pip install Babel==2.18.0 num2words==0.5.14
    python tools/make_phrases.py        # seconds; changes nothing if all is equal

Other versions of the two packages may write some texts differently.
"""

import bz2
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "keras_seqconv" / "data" / "phrases"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tools.phrases import SIZES, phrases

    FOLDER.mkdir(exist_ok=True)
    for split in SIZES:
        for language, texts in zip(
            ("en", "de"), zip(*phrases(split), strict=True), strict=True
        ):
            content = "".join(f"{text}\n" for text in texts).encode()
            path = FOLDER / f"{split}.{language}.bz2"
            path.write_bytes(bz2.compress(content))


if __name__ == "__main__":
    main()
