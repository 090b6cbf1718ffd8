# Two commands set up everything they need: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_EXTRAS := cli,local,server
TAPE := $(VENV)/run.tape
ALL_EXTRAS := all

# Tests start hundreds of Python processes, which would compile everything anew without bytecode files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-slow test-postgresql fuzz chaos cover cover-core mutants test-adapters test-agents test-mcp test-kits bench agentdojo debian dist docs clean

# $(call quietly,TEXT,COMMAND) prints TEXT with the elapsed seconds while COMMAND runs, and its output only if it fails.
define quietly
@log=$$(mktemp); start=$$(date +%s); ($(2)) >$$log 2>&1 & pid=$$!; trap 'kill $$pid; rm -f $$log; exit 130' INT TERM; \
if ! test -t 1; then echo "$(1) ..."; fi; \
while kill -0 $$pid 2>/dev/null; do \
	if test -t 1; then printf '\r%s ... %d s ' "$(1)" $$(($$(date +%s) - start)); fi; sleep 0.5; \
done; \
if test -t 1; then echo; fi; \
if wait $$pid; then rm -f $$log; else cat $$log; rm -f $$log; echo "$(1) failed: see above."; exit 1; fi
endef

run: $(VENV)/.run
	@echo "A language model with 135 million parameters, on your CPU, under rules that you"
	@echo "can change: examples/tour/rules.py. Each tool call is a line, and rules are gates."
	@echo
	@cd examples/tour && ../../$(BIN)/hookline run --trust --hooks visitor.py --tape ../../$(TAPE) "Read a note: doctor."
	@echo; echo "What happened, and what the rule in examples/tour/stricter.py would have done:"
	@cd examples/tour && ../../$(BIN)/python outcomes.py ../../$(TAPE)
	@echo; echo "Things to try:"
	@echo "  change a rule in examples/tour/rules.py    make run"
	@echo "  see every decision of this run             $(BIN)/hookline explain $(TAPE)"
	@echo "  start runs in the console, in a browser    cd examples/tour && ../../$(BIN)/hookline serve"

# The checks and tests that take seconds; `make test-slow` has the rest.
test: $(VENV)/.dev debian
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@# Types are checked beside the tests, which saves a minute on a busy machine. Tests wait now and then: four processes.
	@# The tests of a fresh clone are compiled once beforehand, which takes 15 s, instead of in each of these processes.
	@$(BIN)/mypy >$(VENV)/mypy.log 2>&1 & types=$$!; \
	test -d tests/kernel/__pycache__ || $(BIN)/pytest --collect-only -m "not slow" >/dev/null; \
	$(BIN)/pytest -n 4 -m "not slow"; status=$$?; \
	wait $$types || status=1; cat $(VENV)/mypy.log; exit $$status

test-slow: $(VENV)/.dev debian
	@# The variable: no hint at newer versions. The profile: `make test` tries a quarter of the examples. One test at a time is
	@# given out, because some take a minute. On a busy machine that is several, and the limit is for tests that hang.
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python >$(VENV)/pyright.log 2>&1 & types=$$!; \
	$(BIN)/pytest -n 3 --maxschedchunk 1 --timeout 600 -m "slow or hypothesis" --hypothesis-profile=all; status=$$?; \
	$(MAKE) --no-print-directory test-postgresql || status=1; \
	wait $$types || status=1; cat $(VENV)/pyright.log; exit $$status

# The tests of everything that has a store, on PostgreSQL instead of SQLite files. They wait for the server: three processes.
# SLOW=1 takes the slow ones; `make test-slow` runs those that use PostgreSQL always.
test-postgresql: $(VENV)/.dev debian
	@$(BIN)/pytest -n 3 --database postgresql -m $(if $(SLOW),slow,"not slow") tests/stores tests/server tests/channels

# The adapters with the oldest and the newest version of their frameworks, each in an environment of its own: about 10 minutes the
# first time. The last lines say which frameworks have a newer release, and which versions cannot be installed from this index.
# ONLY=langchain takes one of them; RESULTS=1 writes what the suite finds, for the table in the documentation.
test-adapters: $(VENV)/.dev
	@$(BIN)/python tests/adapters/run.py $(ONLY) $(if $(RESULTS),--write-results)

# hookline agent-hook in the real coding agents, with a model of ours: installed from npm in .venv/agents, then about 4 minutes.
# ONLY=gemini takes one of them. RECORD=1 writes the events that they send to tests/adapters/coding_agents/payloads, for make test; it
# does so in make test-adapters ONLY=claude_real too.
test-agents: $(VENV)/.dev
	@$(BIN)/python -m tests.agents.run $(ONLY)

# hookline mcp-gateway in front of MCP servers that others wrote: installed from npm and PyPI in .venv/mcp.
test-mcp: $(VENV)/.dev
	@$(BIN)/python tests/adapters/mcp_gateway/install.py
	@$(BIN)/python -m pytest tests/adapters/mcp_gateway

# Programs that others wrote, against a real server: installed from PyPI and npm, each in an environment of its own.
# ONLY=llm takes one of them; RESULTS=1 writes what they find, for the table in the documentation.
test-kits: $(VENV)/.dev
	@$(BIN)/python tests/kits/run.py $(ONLY) $(if $(RESULTS),--write-results)

# Random exploration: the tests that use hypothesis, with new examples in each round; says how to reproduce a finding.
ROUNDS ?= 10

fuzz: $(VENV)/.dev
	@$(BIN)/python tests/fuzz.py --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# Two servers, two workers and PostgreSQL under constant faults; SEED=1234 repeats a trial (tests/chaos.py).
MINUTES ?= 10

chaos: $(VENV)/.dev debian
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# The same tests, with the lines that none of them reaches: half as slow again.
cover: $(VENV)/.dev debian
	@$(BIN)/pytest -n 2 --cov=hookline

# The lines and branches of kernel and loop that their own tests reach: at least 95 % of each.
cover-core: $(VENV)/.dev
	@CI=1 $(BIN)/pytest -n 2 --hypothesis-profile=all --cov=hookline._kernel --cov=hookline._run --cov-report= tests/kernel tests/run tests/invariants
	@$(BIN)/python tests/mutation/covered.py

# Changes the code in every small way and sees whether a test notices: PART=kernel or PART=loop (tests/mutation).
PART ?= kernel

mutants: $(VENV)/.dev
	@$(BIN)/pip install -q -c constraints.txt --group mutation
	@nice -n 19 $(BIN)/python tests/mutation/run.py $(PART)

# The tests of MQTT and of the web page need a broker and a browser; without them they are skipped.
debian:
	@bash tests/debian.sh

# All benchmarks: about 25 minutes, and twice that for the small model. Or only some: make bench SECTIONS=dispatch,loops
bench: $(VENV)/.dev
	@$(BIN)/python bench/run.py --sections "$(SECTIONS)"

# Attacks on agents with and without the guards: AgentDojo's tasks, in an environment of their own; about 15 minutes.
agentdojo: $(VENV)/.dev
	@$(BIN)/python bench/run.py --sections agentdojo

# The packages of a release in dist/, from the last commit: built, checked, installed from nothing and used (docs/releasing.md).
dist: $(VENV)/.dev
	@$(BIN)/pip install -qq -c constraints.txt --group release
	@$(BIN)/python tests/release/dist.py

# The generated pages, and the site of all pages; a warning is a failure.
docs: $(VENV)/.dev
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/draw.py
	@$(BIN)/sphinx-build -q -W --keep-going -j auto -c docs -d build/doctrees . build/docs
	@echo "Open build/docs/index.html"

clean:
	rm -rf $(VENV) bench/venvs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .mutants .import_linter_cache

$(VENV)/.run: pyproject.toml constraints.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(call quietly,Installing Hookline into $(VENV),$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[$(RUN_EXTRAS)]')
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(call quietly,Installing Hookline and its test tools into $(VENV),$(BIN)/pip install -U pip && \
		$(BIN)/pip install -c constraints.txt -e '.[$(ALL_EXTRAS)]' --group dev)
	@touch $@ $(VENV)/.run
