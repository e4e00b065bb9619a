# Needs Python 3.11 or newer and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
# The version that figures are of. Named in each command, so that pip never takes a newer build, of several gigabytes.
TORCH := torch==2.13.0
BIN := $(VENV)/bin

.PHONY: demo test lint types pytest docs coverage soak bench paper-smoke tables browser clean

demo: $(VENV)/installed
	$(BIN)/nestling demo

# Types are checked while tests wait for the processes that they start.
test: lint
	$(MAKE) --no-print-directory -j2 types pytest docs

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

pytest: $(VENV)/installed
	$(BIN)/pytest -n auto --dist worksteal

# The site, in build/site; a broken link is an error. The variable silences an advertisement of the theme.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The lines and branches that tests run, of every file: a table, and pages in build/coverage. TESTS=tests/cascade for some.
coverage: $(VENV)/installed
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n auto --dist worksteal $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report

# Faults and damages that tests draw, several times as many of them.
soak: $(VENV)/installed
	NESTLING_SOAK=1 $(BIN)/pytest -n auto --dist worksteal

# A browser for the tests of pages, on Debian as root; elsewhere, and where it can't be had, they are skipped.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
	  echo "browser: $$(chromium --version --no-sandbox 2>/dev/null) is there"; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "browser: NO CHROMIUM, and it is installed only on Debian as root. THE TESTS OF PAGES WILL BE SKIPPED."; \
	elif apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; then \
	  echo "browser: chromium was installed"; \
	else \
	  echo "browser: APT COULD NOT INSTALL CHROMIUM. THE TESTS OF PAGES WILL BE SKIPPED."; \
	fi

# Beside other libraries, without what they ask for beside torch: some of it would replace torch.
bench: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps bayesian-torch torchbnn blitz-bayesian-pytorch
	$(BIN)/python benchmarks/all.py --out bench.json

# What is missing of a paper's rows, run by run, and then the tables; stopped, it goes on. The data are in $NESTLING_DATA.
# paper-bn3, paper-fn3, paper-sparse-vd, paper-vbd, paper-bb (beta-Bernoulli dropout).
PAPER_bb := beta_bernoulli
paper-%: $(VENV)/installed
	$(BIN)/python experiments/papers.py run $(or $(PAPER_$*),$(subst -,_,$*))
	$(BIN)/python experiments/pages.py write
	$(BIN)/python experiments/pictures.py

# A step of every experiment, on small files of the official layouts.
paper-smoke: $(VENV)/installed
	$(BIN)/pytest -n auto tests/experiments

# The tables and pictures of the pages again, from the rows.
tables: $(VENV)/installed
	$(BIN)/python experiments/pages.py write
	$(BIN)/python experiments/pictures.py

# Installed again whenever pyproject.toml changes.
$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]" "$(TORCH)"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* build dist
