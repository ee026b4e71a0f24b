"""Text in, text out: translators, their files, and the folder a model is kept in."""
