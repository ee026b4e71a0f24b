"""English and German phrases about numbers, dates, times, money and quantities.

257 templates make 20,000 pairs (18,000 for training, 1,000 each for validation and
test), which `tools/make_phrases.py` writes into the package, where
`open_corpus("phrases")` finds them. `phrases(split)` yields the pairs.

    {who} called {n:guest} at {t}.
      {who} hat um {t} {n:einen guest} angerufen.

    Anna called three guests at half past three.
      Anna hat um halb vier drei Gäste angerufen.

To translate is to compute: "half past three" is "halb vier", "3:30 PM" is "15:30 Uhr",
"twenty-one" is "einundzwanzig", "a six-page letter" is "ein sechsseitiger Brief", dates
and clauses change their order, and cases and numbers agree. English and German texts
determine each other, and no text is in two splits. Half of the test split (and of
validation) has a number, time, date or amount that no training pair has; in the other
half training shows all values, but one of them never in this slot of this template.

What BLEU means here (`python benchmarks/phrases.py`, sacreBLEU, English to German, on
the test split; all pairs, those with unseen numbers, those with unseen combinations):

| a model that | BLEU | number | combination | right |
|---|---|---|---|---|
| answers with the target of the nearest training source | 46.2 | 45.5 | 46.8 | 0 % |
| knows the template, takes slots from a training pair | 46.8 | 46.3 | 47.4 | 0 % |
| gets all but the numbers right | 50.7 | 49.8 | 51.5 | 0 % |
| leaves the numbers out | 40.0 | 39.1 | 41.0 | 0 % |

So a model that memorises templates stays near 50, however well it knows them; 90 and
more need the numbers right. `CHECKSUM` is what `checksum()` gives with Babel 2.18.0
(CLDR 47) and num2words 0.5.14; other versions may write some texts differently, which
changes the checksum and nothing else. The texts are ours; month and weekday names and
formats are CLDR's, under the Unicode License.

Files: templates.py (how to write a template), words.py (nouns, names), forms.py (how
numbers, times and dates are written), generate.py (draws and splits).
"""

from tools.phrases.generate import CHECKSUM as CHECKSUM
from tools.phrases.generate import SIZES as SIZES
from tools.phrases.generate import checksum as checksum
from tools.phrases.generate import phrases as phrases
