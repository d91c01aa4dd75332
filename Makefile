# Works from a bare clone: needs python3 (3.11 or later, with venv and pip), make and git.
PYTHON ?= python3
SWEEP  ?= tile_size
KERNEL ?= matmul

VENV  := .venv
BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH := torch==2.13.0
comma := ,

# Triton has wheels for Linux only. torch's CUDA build pins one minor version of it; beside the CPU
# build pip takes the newest in this range. The tests run on both ends of the range.
ifeq ($(shell uname -s),Linux)
TRITON := 'triton>=3.6$(comma)<3.10'
OLDEST := 3.6.0
NEWEST := 3.9.0
endif

.PHONY: help install sweep test test-all lint site mutants stress clean

help:
	@echo "make sweep   find the best tile size of matmul; KERNEL=rms_norm, SWEEP=... for others"
	@echo "make test    lint, and the tests that every change must pass"
	@echo "make test-all lint, and every test that this machine can run (hours)"
	@echo "make lint    ruff, mypy and the budget of lines"
	@echo "make site    the documentation as a site, in build/site"
	@echo "make mutants plant known bugs and say which no test sees (an hour); MUTANTS='kernels softmax'; SEED=1 N=150 draws them"
	@echo "make stress  malformed command lines, hostile files, kills and stops (an hour and a half); STRESS='--seed 7 lines'"
	@echo "make clean   remove $(VENV) and all caches"

install: $(VENV)/.installed

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; name another: make PYTHON=python3.12"; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make a venv; on Debian: apt-get install python3-venv"; exit 1; }

# A line every ten seconds for as long as a shell lives, also where no terminal is
TICK := (while sleep 10 > /dev/null 2>&1; do echo "  $$(du -sm $(VENV) | cut -f1) MB so far"; done) & trap "kill $$!" EXIT;

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing the workbench, torch and Triton into $(VENV) (minutes, the first time)"
	@$(TICK) $(PIP) -c constraints.txt $(TORCH) $(TRITON) -e .
	@touch $@

# All in one run of pip: each run builds the workbench and solves the constraints again
$(VENV)/.installed-tests: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing the workbench, torch, Triton and what the tests need into $(VENV) (minutes)"
	@$(TICK) $(PIP) -c constraints.txt $(TORCH) $(TRITON) -e '.[test,metal-test,workload-test]' || { \
		$(PIP) -c constraints.txt $(TORCH) $(TRITON) -e '.[test]' || exit 1; \
		$(PIP) -c constraints.txt -e '.[metal-test]' || \
			echo "mlx could not be installed; its tests beside the Metal kernels will say so"; \
		$(PIP) -c constraints.txt $(TORCH) $(TRITON) -e '.[workload-test]' || \
			echo "liger-kernel and fla-core could not be installed; their tests will say so"; }
	@touch $(VENV)/.installed
	@for end in $(OLDEST) $(NEWEST); do \
		own=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("triton"))'); \
		if [ "$${own%.*}" = "$${end%.*}" ] || [ -d $(VENV)/triton-$$end/triton ]; then continue; fi; \
		echo "installing Triton $$end beside Triton $$own"; \
		$(PIP) --no-deps --target $(VENV)/triton-$$end triton==$$end || exit 1; \
	done
	@touch $@

sweep: $(VENV)/.installed
	@$(BIN)/python -m workbench.sweep $(SWEEP) --kernel $(KERNEL)

lint: $(VENV)/.installed-tests
	@$(BIN)/python tests/run.py lint

test: $(VENV)/.installed-tests
	@$(BIN)/python tests/run.py

test-all: $(VENV)/.installed-tests
	@$(BIN)/python tests/run.py --all

site: $(VENV)/.installed-tests
	@$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees -c docs . build/site
	@echo "build/site/index.html"

mutants: $(VENV)/.installed-tests
	@$(BIN)/python tests/mutants/$(if $(SEED),seeds.py --seed $(SEED) --count $(or $(N),150),run.py $(MUTANTS))

stress: $(VENV)/.installed-tests
	@$(BIN)/python tests/stress/run.py $(STRESS)

clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
