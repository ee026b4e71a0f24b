# make quickstart: set up and run the main job.  make test: set up and run the tests.
PYTHON ?= python3
VENV = .venv
BIN = $(VENV)/bin
# The extras that the tests, the quickstart and the linter use.
EXTRAS = mt,tfds,jax,plot,rouge,serve,onnx,test
# For tests XLA leaves out what only makes code faster, but for the slow ones of the ops.
QUICK = XLA_FLAGS=--xla_backend_optimization_level=0
# Compiled functions stay on disk: most of JAX's time goes into compiling, often the same.
JAX = KERAS_BACKEND=jax JAX_COMPILATION_CACHE_DIR=$(abspath $(VENV))/jax-cache \
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
# Whatever is computed or trained in another way there; texts, files, data and scores are
# the same on JAX, and so is what layers are but for their sums.
JAX_TESTS = ops $(addprefix layers/test_,contract.py formulas.py) models decoding \
  callbacks training/test_backends.py test_checkpoints.py test_losses.py test_metrics.py \
  test_optimizers.py test_translator.py \
  convert/test_fairseq.py::test_golden_folder_from_arrays

.PHONY: help quickstart test test-slow test-jax test-all lint format size mutants bench torch demo \
  docs clean

help:
	@echo "make quickstart  set up .venv and train, score and use a small model"
	@echo "make test        set up .venv and run the quick tests (4 to 11 minutes on two cores)"
	@echo "make test-slow   the tests that take minutes"
	@echo "make test-jax    the tests of JAX"
	@echo "make lint        ruff check and ruff format --check"
	@echo "make size        lines, files, definitions and imports, beside their goals"
	@echo "make docs        run the pages of docs/ and build the site (minutes)"
	@echo "make demo        add what keras-seqconv demo and its test need"
	@echo "make torch       add torch, for the tests that read fairseq's checkpoints"
	@echo "make mutants     mistakes, made one by one, that the tests must notice (about an hour)"
	@echo "make bench       the benchmark tables (minutes)"
	@echo "PYTHON=python3.12 make ...  chooses the interpreter (3.11 to 3.13)"

# The stamp is younger than what it was made from, or pip runs again.
$(VENV)/stamp: setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or \
	sys.exit("keras_seqconv needs Python 3.11 to 3.13, this is %d.%d: PYTHON=python3.11 make" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $@

quickstart: $(VENV)/stamp
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/keras-seqconv quickstart

test: $(VENV)/stamp
	$(QUICK) $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-slow: $(VENV)/stamp
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow tests/ops/test_convolution.py
	$(QUICK) $(BIN)/python -m pytest -n auto --dist worksteal -m slow \
	  --ignore tests/ops/test_convolution.py

test-jax: $(VENV)/stamp
	$(QUICK) $(JAX) $(BIN)/python -m pytest -n auto --dist worksteal \
	  -m "not tensorflow and (jax or not slow)" $(addprefix tests/,$(JAX_TESTS))

test-all: test test-slow test-jax

lint: $(VENV)/stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

size:
	@$(PYTHON) tools/size.py

# For tests that are skipped without: fairseq's checkpoints, the demo page in a browser.
torch: $(VENV)/stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt torch
demo: $(VENV)/stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable ".[demo,browser]"

# Runs every page; a warning, a broken link or an error fails it.
# EXECUTE=off leaves the pages' programs out, which are minutes of it.
EXECUTE = force
docs: $(VENV)/stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable ".[docs]"
	rm -rf docs/_build
	$(BIN)/python -m sphinx -q -W --keep-going --jobs auto \
	  -D nb_execution_mode=$(EXECUTE) docs docs/_build/html
	@echo "docs/_build/html/index.html"

mutants: $(VENV)/stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable ".[mutants]"
	$(QUICK) $(JAX) $(BIN)/python tools/mutants.py

bench: $(VENV)/stamp
	$(BIN)/python benchmarks/ops.py
	$(BIN)/python benchmarks/decoding.py
	$(BIN)/python benchmarks/training.py

clean:
	rm -rf $(VENV) build dist *.egg-info docs/_build
