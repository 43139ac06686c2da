# `make demo` trains on three nodes of this machine; `make quick` runs the checks that take seconds,
# `make test` all of them, `make sweeps` what takes hours, `make docs` builds the documentation site.
# Each makes .venv first.

# The first Python of 3.10 or later that can make environments, or else that could with python3-venv.
PYTHON ?= $(shell for needed in ensurepip sys; do \
	for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c "import sys, $$needed; sys.exit(sys.version_info < (3, 10))" 2>/dev/null && \
	{ echo $$python; exit; }; done; done)
# Without bytecode each process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
TOOLS := ssh sshd rsync tmux zsh fish mmdebstrap gcc ip podman crun docker-registry skopeo
DEMO := $(HOME)/cloudtrain-artifacts/digits

.PHONY: demo quick units matrix sweeps test prepared coverage test-times bench-quick check audit gpu-code gpu-parts tools docs dist clean

demo: $(VENV)/.made
	@$(BIN)/cloudtrain run configs/local.yaml
	@cd "$(DEMO)" && cd "$$(ls -t | head -n 1)" && echo && echo "What came home, in $$PWD:" && \
		find . -type f -size +0 | sed 's|^\./|  |' | sort

# What one runs after each change: no process, no socket, seconds.
quick: $(VENV)/.made-dev
	@$(MAKE) --no-print-directory --output-sync -j check units

# Temporary files are in memory: a file system takes 2 s of CPU time. So do files for what tests
# print, and the log of each.
PROFILE ?= dev
units: $(VENV)/.made-dev
	@TMPDIR=$(firstword $(wildcard /dev/shm) /tmp) \
	$(BIN)/python -m pytest -q --hypothesis-profile $(PROFILE) -o tmp_path_retention_policy=failed \
	-o console_output_style=classic --capture=sys -p no:logging --parts $$(($(JOBS) + 1)) tests/unit

# The tests of `quick` on each Python that is installed, each in a .venv of its own.
matrix:
	@missing= failed=; for version in 3.10 3.11 3.12 3.13; do \
	python$$version -c 'import ensurepip' 2>/dev/null || { missing="$$missing $$version"; continue; }; \
	echo "Python $$version"; \
	$(MAKE) --no-print-directory units VENV=.venv-$$version PYTHON=python$$version || failed="$$failed $$version"; \
	done; \
	[ -z "$$missing" ] || echo "not installed here, so not tried: Python$$missing"; \
	[ -z "$$failed" ] || { echo "failed: Python$$failed"; exit 1; }

# Every case of what `make test` takes samples of, and what proves something by hours; goes on where
# it ended: make sweeps ARGUMENTS='cloud-crash any-of', ARGUMENTS=--list
sweeps: $(VENV)/.made-dev
	@$(BIN)/python tools/sweeps.py --jobs $(JOBS) $(ARGUMENTS)

# Tests that start processes wait for them: one more than there are cores leaves a tenth of these idle.
test: $(VENV)/.made-dev
	@$(call missing,$(TOOLS)) || echo "tests that need $$missing are skipped, by name; \`make tools\` installs them"
	@$(MAKE) --no-print-directory --output-sync -j prepared check units PROFILE=test
	$(BIN)/python -m pytest -n $$(($(JOBS) + 2)) --dist worksteal tests/integration tests/e2e

# What takes a minute to make, once on a machine: an environment with TensorFlow, a Debian for nodes.
prepared: $(VENV)/.made-dev
	@$(BIN)/python -m tests.support.prepared

# How much of cloudtrain/ the tests of tests/unit reach.
coverage: $(VENV)/.made-dev
	$(BIN)/python -m pytest -q --hypothesis-profile dev --cov --cov-report=term:skip-covered tests/unit

# Where the time of `make test` goes: make test-times ARGUMENTS='tests/e2e/test_idle.py --output times.md'
test-times: $(VENV)/.made-dev
	@$(BIN)/python tools/test_times.py --jobs $(JOBS) $(ARGUMENTS)

# Two minutes of ratios; fails where one is 15 % above what it was: make bench-quick ARGUMENTS=--keep-table
bench-quick: $(VENV)/.made-dev
	@$(BIN)/python bench/quick.py $(ARGUMENTS)

check: $(VENV)/.made-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Known vulnerabilities of what is installed; asks the package index, with pip-audit in an environment
# of its own. Without an answer it says so and succeeds; with a vulnerability it fails.
audit: $(VENV)/.made-dev
	@[ -x build/audit/bin/pip-audit ] || { $(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet pip-audit; } \
		|| { echo "not audited: pip-audit could not be installed"; exit 0; }; \
	$(BIN)/python tools/audit.py build/audit/bin/pip-audit

# What GPU code the wheels of each TensorFlow release have: 6 GB of downloads, some minutes.
gpu-code: $(VENV)/.made-dev
	@$(BIN)/python tools/gpu_code.py $(ARGUMENTS)

# A TensorFlow environment in parts, for a machine with a GPU and no network: docs/internals/gpu.md.
gpu-parts: $(VENV)/.made-dev
	@$(BIN)/python -m tools.gpu_parts $(ARGUMENTS)

# Not part of `make test`: on most machines, an installed openssh-server is a running one.
tools:
	@$(call missing,$(TOOLS)) || $(call apt,openssh-client openssh-server rsync tmux zsh fish mmdebstrap gcc libc6-dev iproute2 \
		podman crun docker-registry skopeo)

# The site, in build/site; make docs ARGUMENTS=--external asks the servers of external links too.
docs: $(VENV)/.made-docs
	@$(BIN)/python tools/build_site.py $(ARGUMENTS)

dist: $(VENV)/.made
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

$(VENV)/.made: pyproject.toml
	@test -n "$(PYTHON)" || { echo "cloudtrain needs Python 3.10 or later: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(call apt,python3-venv)
	@echo "installing cloudtrain into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.made-dev: $(VENV)/.made
	@echo "installing what the checks need into $(VENV)"
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # the first with --group
	@$(BIN)/python -m pip install --quiet -e '.[all]' --group dev
	@touch $@

$(VENV)/.made-docs: $(VENV)/.made
	@echo "installing what builds the documentation into $(VENV)"
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # the first with --group
	@$(BIN)/python -m pip install --quiet --group docs
	@touch $@

# $(call missing,PROGRAMS): fails, with their names in $$missing, where there are such.
missing = missing="$$(for tool in $(1); do PATH="$$PATH:/usr/sbin" command -v $$tool >/dev/null || \
	printf '%s ' $$tool; done)"; [ -z "$$missing" ]

# $(call apt,PACKAGES): installs them or says, in a line, what somebody else must install.
apt = { echo "installing $(1)"; sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	$$sudo apt-get -qq update </dev/null && $$sudo env DEBIAN_FRONTEND=noninteractive \
	apt-get -qq -o Dpkg::Use-Pty=0 install $(1) </dev/null >/dev/null; } || \
	{ echo "Please have installed what is missing here: apt-get install $(1)"; exit 1; }

clean:
	rm -rf .venv .venv-3.* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
