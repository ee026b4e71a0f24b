"""The symbols that every vocabulary begins with; fairseq's, in its order."""

SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
BOS_ID, PAD_ID, END_ID, UNK_ID = range(4)
