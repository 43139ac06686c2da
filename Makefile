# `make demo` trains on three nodes of this machine; `make test` runs every check. Both make .venv first.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$p; break; }; done)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
BIN := .venv/bin
JOBS ?= 2

.PHONY: demo test check bench clean

demo: .venv/.made
	$(BIN)/cloudtrain run configs/local.yaml

test: .venv/.made-dev check
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

check: .venv/.made-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/.made: pyproject.toml
	@test -n "$(PYTHON)" || { echo "cloudtrain needs Python 3.10 or later: apt-get install python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "installing python3-venv"; \
		$(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq python3-venv; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

.venv/.made-dev: .venv/.made
	$(BIN)/python -m pip install --quiet --group dev
	@test -x /usr/sbin/sshd -a -n "$$(command -v tmux)" || { echo "installing what the tests start"; \
		$(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq openssh-server rsync tmux; }
	@touch $@

clean:
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
