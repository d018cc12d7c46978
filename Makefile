# The commands for developers. Each target installs the tools that it needs
# (scripts/install-tools.sh).

CARGO ?= cargo
export PATH := $(CURDIR)/target/tools/bin:$(PATH)
# What CI builds it builds once. What cargo keeps for a next build, and debuggers read, would take time and GBs.
ifdef CI
export CARGO_INCREMENTAL ?= 0
export CARGO_PROFILE_DEV_DEBUG ?= 0
endif

# The crates of which every test passes without root, and within seconds: found by running each
# test program under `setpriv --reuid=65534 --regid=65534 --clear-groups`.
UNIT_CRATES = switchyard-model switchyard-core api-standin
# The crates whose tests in `src` pass without root, but for those in modules called `kernel_tests`; their
# tests in `tests` make network namespaces, or take longer.
UNIT_LIBS = switchyard switchyard-agent switchyard-iptables switchyard-ipvs switchyard-kernel \
	switchyard-nft switchyard-sources switchyard-userspace packet-rig

# The crates with property tests in `src` and in `tests`.
PROPERTY_CRATES = switchyard-core switchyard-nft switchyard-iptables
# The length of a soak run in seconds, and the number of cases of each property test in the run; of damages of a
# table that `switchyard verify` is to find.
SECONDS = 600
SOAK_CASES = 4096
SOAK_DAMAGES = 10000

# The crates that are not published: the program, and what is for tests.
UNPUBLISHED = switchyard-agent switchyard-fuzz api-standin packet-rig test-netns

# The targets of `test` depend on each other's order.
.NOTPARALLEL:

.PHONY: portable static beside help demo demo-user unit unit-as-user unit-listed unit-run test tests tests-built tests-listed \
	tests-run doctests soak \
	bench conformance conformance-ipvs scale scale-ipvs release arm64 fmt clippy deny features doc package semver shell forget-skipped skipped \
	e2e e2e-restore e2e-kind fuzz ipvs-tests ipvs-machine test-ipvs test-vm test-vm-quick

help:
	@echo "make demo   see Services being proxied, without a cluster, by rules in the kernel (needs root)"
	@echo "make demo-user    the same in userspace mode, as any user; make demo without root"
	@echo "make unit   the tests that need no root; seconds, once they are built"
	@echo "make test   everything that must pass before a change lands (needs root)"
	@echo "make test-ipvs    the tests of ipvs mode on the distribution's kernel, in a virtual machine (needs root);"
	@echo "                  a part of make test; IPVS_CASES='sctp affinity::' chooses other packet cases"
	@echo "make test-vm      the packet cases on that kernel (needs root);"
	@echo "                  CASES='sctp affinity::' chooses cases by parts of their names"
	@echo "make test-vm-quick  a selection of them"
	@echo "make soak   random tests with new seeds, SECONDS=$(SECONDS) long (needs root)"
	@echo "make fuzz TARGET=objects  a fuzz target by libFuzzer, SECONDS long (needs cargo-fuzz)"
	@echo "make semver BASE=REVISION  breaking changes of the libraries' public API since the revision, or the last tag"
	@echo "make conformance  the packet cases, and docs/conformance.md of the results (needs root)"
	@echo "make conformance-ipvs  the same for ipvs mode, in a virtual machine (needs root)"
	@echo "make bench  how long syncs take, beside the floor; traffic through userspace mode (needs root)"
	@echo "make scale  memory and CPU time with up to 100,000 Services (needs root)"
	@echo "make scale-ipvs  the same of ipvs mode, in a virtual machine (needs root)"
	@echo "make picture      the moving picture of README.md (needs root)"
	@echo "make status-picture the status page, checked in headless Chromium, and its picture (needs root)"
	@echo "make release      what a release consists of, in target/release-files, without publishing it"
	@echo "make arm64        the image for arm64, whose program is emulated where this machine is another"
	@echo "make e2e KUBECONFIG=FILE IMAGE=NAME E2E_IMAGE=NAME"
	@echo "            swap an image into a cluster's kube-proxy, check with packets, and swap back"
	@echo "make e2e-restore KUBECONFIG=FILE"
	@echo "            put a cluster back after a run of make e2e that was killed"
	@echo "make e2e-kind E2E_IMAGE=NAME"
	@echo "            make e2e on a kind cluster of three nodes (needs docker, kind and kubectl)"

# Builds the program, makes network namespaces, proxies for the manifests in examples/, and shows where
# real connections go. Who is not root sees demo-user.
demo:
	@if [ "$$(id -u)" -ne 0 ]; then \
		echo "make demo: not root, so this is make demo-user, in userspace mode; sudo make demo shows nftables mode"; \
		$(MAKE) --no-print-directory demo-user; \
	else \
		scripts/install-tools.sh cc ip nft && \
		$(CARGO) build --quiet --release --workspace --bin switchyard --bin demo && \
		target/release/demo cluster; \
	fi

# The same with servers and clients at loopback addresses, in userspace mode: any user can run it. A user
# who is not root cannot install a compiler; cargo says what is missing then.
demo-user:
	@scripts/install-tools.sh cc || true
	@$(CARGO) build --quiet --release --workspace --bin switchyard --bin demo
	@target/release/demo user

unit:
	@scripts/install-tools.sh cc
	$(CARGO) test --no-fail-fast $(addprefix --package ,$(UNIT_CRATES))
	$(CARGO) test --no-fail-fast --package switchyard-sources --test it -- manifests::
	$(CARGO) test --no-fail-fast --lib $(addprefix --package ,$(UNIT_LIBS)) -- --skip kernel_tests::

# The same tests by the programs that root has built, run by a user who owns nothing; but for the search and the
# simulation, which take a minute or two and ask the system for nothing.
UNIT_TESTS = $(CURDIR)/target/unit-tests
# The test programs are not run when cargo runs them, but noted in a list. They wait more than they compute, so there are
# more at once than processors.
COLLECT = --config "target.'cfg(all())'.runner=['$(CURDIR)/testing/vm/tests.sh', 'collect', '$(1)']"
AT_ONCE = $$(($$(nproc) + 1))
unit-as-user: unit-listed unit-run
unit-listed: tests-built
	@scripts/install-tools.sh setpriv
	@rm -f $(UNIT_TESTS)
	TESTS_OF="$(UNIT_CRATES)" $(CARGO) $(call COLLECT,$(UNIT_TESTS)) test --quiet --workspace --tests
	TESTS_OF=switchyard-sources $(CARGO) $(call COLLECT,$(UNIT_TESTS)) test --quiet --workspace --test it -- manifests::
	TESTS_OF="$(UNIT_LIBS)" $(CARGO) $(call COLLECT,$(UNIT_TESTS)) test --quiet --workspace --lib -- \
		--skip kernel_tests:: --skip exhaustive:: --skip simulation::
unit-run:
	scripts/as-user.sh testing/vm/tests.sh run $(AT_ONCE) $(UNIT_TESTS)

# Everything that must pass: format, lints, licences, documentation, packages, and all tests, with and without network
# namespaces, and those of ipvs mode on a kernel that has IPVS; and what was skipped of all this.
test: forget-skipped fmt shell ipvs-tests tests-listed unit-listed beside skipped

# The machine of ipvs mode keeps one processor busy, and takes as long as most of the rest, so it runs beside that. The
# tests wait more than they compute, and some measure time: what only compiles gets the time that they and the machine
# leave. Only that asks cargo, which would lock the others out.
COMPILATIONS = clippy features portable deny doc package static doctests
beside:
	@scripts/beside.sh 'ipvs: ' '$(MAKE) --no-print-directory ipvs-machine' \
		"scripts/beside.sh 'compiles: ' 'nice -n 19 $(MAKE) --no-print-directory $(COMPILATIONS)' \
		'$(MAKE) --no-print-directory tests-run unit-run'"

# Each skipped test adds a line to this file (test_netns::skipped).
export SWITCHYARD_SKIPPED = $(CURDIR)/target/skipped
forget-skipped:
	@rm -f $(SWITCHYARD_SKIPPED)

# Fails if a test was skipped that testing/skipped.txt does not name.
skipped:
	@scripts/test-check-skipped.sh
	@scripts/test-vm-results.sh
	@scripts/test-vm-run.sh
	@scripts/check-skipped.sh $(SWITCHYARD_SKIPPED)

fmt:
	$(CARGO) fmt --all --check

# With the program of the fuzz targets; libFuzzer is neither built nor linked here. The targets themselves are
# run by `tests`, with inputs that are changed at random.
clippy: export CUSTOM_LIBFUZZER_PATH = /nonexistent/libfuzzer.a
clippy:
	@scripts/install-tools.sh cc
	$(CARGO) clippy --workspace --all-targets --test proxying --features switchyard-fuzz/libfuzzer --quiet -- -D warnings

# The lints of scripts and workflows, and whether the shells that run the scripts can read them.
SCRIPTS = .ci/run $(wildcard testing/vm/*.sh testing/vm/init deploy/*.sh deploy/kubectl-switchyard e2e/*.sh e2e/lib/*.sh e2e/checks/*.sh scripts/*.sh bin/tests/it/*.sh)
shell:
	@scripts/install-tools.sh shellcheck actionlint
	shellcheck --external-sources $(SCRIPTS)
	actionlint
	@for script in $(SCRIPTS); do \
		case $$(head -n 1 $$script) in *bash*) bash -n $$script ;; *) sh -n $$script ;; esac || exit 1; \
	done

# Each library alone, without features and with each.
features:
	@scripts/install-tools.sh cc
	@scripts/check-features.sh

# A target by libFuzzer. Instrumented code needs a nightly compiler, or a stable one that takes itself for one.
fuzz: export RUSTC_BOOTSTRAP = 1
fuzz: export TARGET ?= objects
fuzz:
	@scripts/install-tools.sh cc
	@mkdir -p target/fuzz-corpus/$(TARGET)
	$(CARGO) fuzz run --sanitizer none --features libfuzzer target target/fuzz-corpus/$(TARGET) \
		fuzz/corpus/$(TARGET) -- -max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=1024

# The documentation of the crates, and the site of docs/. Links that lead nowhere are errors.
doc: export RUSTDOCFLAGS = -D warnings
doc: export CUSTOM_LIBFUZZER_PATH = /nonexistent/libfuzzer.a
doc:
	$(CARGO) doc --workspace --no-deps --all-features --quiet
	@scripts/install-tools.sh mdbook
	@scripts/build-site.sh

# Whether the program can be linked statically, and proxies in a root file system that has nothing else, and in one
# with the programs of iptables, in every mode that these are for.
# The program is not optimized, and not as small as the image's (the profile dist).
static:
	@scripts/install-tools.sh cc ip nft iptables setcap
	@for variant in nftables iptables; do \
		PROFILE=gate LEVEL=1 deploy/build-image.sh -v $$variant -o target/image/gate.oci.tar && \
		LIMIT=$$((1 << 30)) deploy/test-image.sh target/image/gate.oci.tar || exit 1; \
	done

# The image for arm64, with the program of `static`: emulated, as far as that carries.
arm64:
	@scripts/install-tools.sh cc setcap aarch64-linux-gnu-gcc qemu-aarch64 curl
	PROFILE=gate LEVEL=1 deploy/build-image.sh -a arm64 -o target/image/gate-arm64.oci.tar
	LIMIT=$$((1 << 30)) deploy/test-image.sh target/image/gate-arm64.oci.tar

# All of a release but signatures and publication. No part of `test`, as it builds two optimized programs.
release:
	scripts/release.sh --dry-run

# Whether each library can be packaged as it is, with the packages of the others.
package:
	$(CARGO) package --workspace $(addprefix --exclude ,$(UNPUBLISHED)) --allow-dirty --no-verify --quiet

# The breaking changes of each library's public API since a revision, or the last tag of a release. No part
# of `test`: each crate is documented twice, and whether a change may break is a decision of a release.
BASE = $(shell git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null)
semver:
	@if [ -z "$(BASE)" ]; then echo "make semver: there is no release yet: name a revision, BASE=REVISION" >&2; exit 1; fi
	@scripts/install-tools.sh cc cargo-semver-checks
	cargo-semver-checks semver-checks --workspace $(addprefix --exclude ,$(UNPUBLISHED)) --baseline-rev $(BASE)

# Whether userspace mode compiles for Windows and macOS, as far as their standard libraries are installed.
portable:
	@scripts/check-portable.sh

deny:
	@scripts/install-tools.sh cargo-deny
	cargo-deny --log-level error check licenses bans sources
	@scripts/test-check-advisories.sh
	scripts/check-advisories.sh

# The packet tests run the programs that are built first, with the tests: with the features that the tests
# ask of dependencies, so that no dependency is built twice. The other capture modes of userspace mode run the packet
# cases about addresses, rules and clients: what is behind the sockets is the same with every mode of capture.
CAPTURE_CASES = addresses:: clusterip:: detect-local:: loadbalancer:: nodeport:: policies:: refused::
WITH_CAPTURES = ','env','SWITCHYARD_BACKENDS=userspace-iptables,userspace-addresses','SWITCHYARD_CASES=$(CAPTURE_CASES)
TESTS = $(CURDIR)/target/tests
tests-built:
	@scripts/install-tools.sh cc
	$(CARGO) build --workspace --bins --tests
# What takes long comes first, so that it does not run alone at the end.
tests: tests-listed tests-run doctests
tests-listed: tests-built
	@scripts/install-tools.sh ip nft iptables ipset kmod setcap setpriv curl nc helm kubectl systemd-analyze
	@rm -f $(TESTS)
	$(CARGO) $(call COLLECT,$(TESTS)) test --workspace --test proxying
	$(CARGO) $(call COLLECT,$(TESTS)$(WITH_CAPTURES)) test --workspace --test cases
	$(CARGO) $(call COLLECT,$(TESTS)) test --workspace --tests
tests-run:
	MAY_SKIP=1 testing/vm/tests.sh run $(AT_ONCE) $(TESTS)
doctests:
	$(CARGO) test --workspace --no-fail-fast --doc

# The packet cases on another kernel, Debian's 6.1 or the distribution's, which has what the kernel of this machine
# may lack: SCTP, flowtables, IPVS. testing/vm boots it, and emulates its processors where this one cannot run a
# virtual machine, which takes time. The programs are
# built here, as for `make test`, so that nothing is built twice.
CASES =
VM = $(CURDIR)/testing/vm/run.sh
test-vm test-vm-quick: export SWITCHYARD_BACKENDS ?= nftables,iptables,ipvs
test-vm test-vm-quick: export SWITCHYARD_SLOWNESS ?= 3
# More than the emulation takes: other work on the machine must not fail the gate.
ipvs-machine: export SWITCHYARD_SLOWNESS ?= 5
test-vm test-vm-quick: export VM_SECONDS ?= 7200
test-vm: export SWITCHYARD_CASES = $(CASES)
test-vm:
	@scripts/install-tools.sh cc ip nft iptables ipset kmod setcap qemu-system-x86_64 setpriv xz zstd
	$(VM) $(CURDIR)/testing/vm/capabilities.sh
	$(CARGO) build --workspace --bins --tests
	$(CARGO) --config "target.'cfg(all())'.runner=['$(VM)']" test --workspace --no-fail-fast \
		--test cases --test flowtable --test swap

# Every case with SCTP, and a case or two of each file.
QUICK_CASES = sctp addresses::mixed-families affinity::same-endpoint changes::udp-clients-follow \
	clusterip::dual-stack clusterip::hairpin conntrack::udp-flows-end conntrack::tcp-connections-stay \
	detect-local::bridge-interface endpoints::zone-hints health::local-endpoints \
	loadbalancer::source-ranges-change localhost::restart mark::another-bit nodeport::all-addresses \
	policies::policies-change refused::no-endpoints restart::changes-while-away
test-vm-quick: CASES = $(QUICK_CASES)
test-vm-quick: test-vm

# Ipvs mode on a kernel with IPVS: the tests of its crates, the kit's among them, and of the rig, and packet cases
# about what IPVS and the rules beside it do, some fifty. What is decided before any backend, about names, slices or
# hints, `tests` shows with other backends, and make test-vm with this one, which runs all cases. All is run in
# one machine, which takes less time than one for each test program. capabilities.sh comes first: it
# shows what the kernel lacks, and loads modules, which would have the first cases wait.
IPVS_CASES = $(addprefix ipvs::,addresses::mixed-families addresses::families-come-and-go \
	addresses::endpoints-with-different-ports \
	affinity::same-endpoint changes::udp-clients-follow \
	clusterip::all-endpoints-are-used clusterip::dual-stack clusterip::hairpin clusterip::host-network-endpoint \
	clusterip::masquerade-all clusterip::same-port-tcp-and-udp clusterip::sctp \
	conntrack::tcp-connections-stay conntrack::udp-flows detect-local::bridge-interface \
	endpoints::readiness endpoints::terminating health::services-change \
	lb-algorithm::algorithm-changes lb-algorithm::round-robin \
	$(addprefix loadbalancer::,address-on-the-node external-ips ip-mode-changes other-ports shared-address \
	source-ranges-change source-ranges-of-pods source-ranges-without-endpoints vip) \
	mark:: nodeport::addresses-come-and-go nodeport::chosen-networks \
	$(addprefix policies::,both-local external-local-none-here external-local-without-detector internal-local-none-here \
	policies-change) refused::no-endpoints refused::undefined-port restart::rules-outlive-the-proxy \
	weights::changes weights::local-policy weights::slow-start weights::zero-drains)
# Take-overs under load: one after the other, as the machine gets to nothing else. make test-vm runs the
# others.
IPVS_SWAPS = by_ipvs_nft_from_ipvs from_ipvs_legacy_with_ipvs
IPVS_TESTS = $(CURDIR)/target/vm-tests
COLLECT_IPVS = $(call COLLECT,$(IPVS_TESTS))
test-ipvs: ipvs-tests ipvs-machine
ipvs-machine: export SWITCHYARD_BACKENDS = ipvs
ipvs-machine: export SWITCHYARD_CASES = $(IPVS_CASES)
ipvs-tests: tests-built
	@scripts/install-tools.sh ip nft iptables ipset kmod qemu-system-x86_64 setpriv xz zstd
	@testing/vm/fetch.sh "$${VM_DIR:-target/vm}"
	@rm -f $(IPVS_TESTS)
	@testing/vm/tests.sh collect $(IPVS_TESTS) testing/vm/capabilities.sh
	@for name in $(IPVS_SWAPS); do \
		grep -rq "^    $$name: " testing/packet-rig/tests/swap || { echo "there is no swap test $$name" >&2; exit 1; }; \
	done
	TESTS_OF=packet-rig $(CARGO) $(COLLECT_IPVS) test --quiet --workspace --test cases
	TESTS_OF=packet-rig $(CARGO) $(COLLECT_IPVS) test --quiet --workspace --test it -- ipvs:: --test-threads=6
	TESTS_OF=packet-rig $(CARGO) $(COLLECT_IPVS) test --quiet --workspace --test it -- \
		lb_algorithm::changes restart::killed_under_load restart::what_changed sequences:: --test-threads=1
	TESTS_OF=packet-rig $(CARGO) $(COLLECT_IPVS) test --quiet --workspace --test swap -- \
		$(IPVS_SWAPS) --test-threads=1
	TESTS_OF=switchyard-ipvs $(CARGO) $(COLLECT_IPVS) test --quiet --workspace --test leftovers
	TESTS_OF=switchyard-ipvs $(CARGO) $(COLLECT_IPVS) test --quiet --workspace --lib -- \
		kernel_tests::conformance kernel_tests::families kernel_tests::leftovers
	TESTS_OF=switchyard-kernel $(CARGO) $(COLLECT_IPVS) test --quiet --workspace --lib --test it -- \
		gates:: generation:: ipset:: ipvs:: netlink:: route:: trace::
# Takes no lock of cargo's, so that cargo can work beside it.
ipvs-machine:
	$(VM) $(CURDIR)/testing/vm/tests.sh run 1 $(IPVS_TESTS)

# Each sequence of changes, and each failing property test, prints its seed: SWITCHYARD_SEED=N replays
# the seed. Each of the parts takes as many seconds, or one run where a run takes longer.
soak: export SWITCHYARD_SOAK = $(SECONDS)
soak:
	@scripts/install-tools.sh cc ip nft iptables ipset kmod setcap
	$(CARGO) build --workspace --bins
	$(CARGO) test --package packet-rig --test it sequences -- --nocapture
	PROPTEST_CASES=$(SOAK_CASES) $(CARGO) test --no-fail-fast $(addprefix --package ,$(PROPERTY_CRATES))
	PROPTEST_CASES=$(SOAK_CASES) $(CARGO) test --package switchyard-agent --package switchyard-userspace --lib -- \
		--skip damages_that_change
	PROPTEST_CASES=$(SOAK_DAMAGES) $(CARGO) test --package switchyard-agent --lib damages_that_change
	end=$$(($$(date +%s) + $(SECONDS))); while [ "$$(date +%s)" -lt "$$end" ]; do \
		$(CARGO) test --package switchyard-nft --package switchyard-iptables --package switchyard-ipvs --lib any_story || exit 1; \
	done
	$(CARGO) test --package switchyard-fuzz -- --nocapture
	@if $(CARGO) fuzz --version >/dev/null 2>&1; then \
		for target in $$(ls fuzz/corpus); do $(MAKE) --no-print-directory fuzz TARGET=$$target || exit 1; done; \
	else echo "libFuzzer was not run: cargo-fuzz is not installed"; fi

# All packet cases with some backends, or with genuine kube-proxy where KUBE_PROXY names the program, and the page of
# the results of all.
SCORE = target/debug/service-conformance
RESULTS = testing/packet-rig/results
RECORD = --results $(RESULTS) --page docs/conformance.md
BACKENDS = nftables,iptables,userspace,userspace-iptables,userspace-addresses
conformance:
	@scripts/install-tools.sh cc ip nft iptables
	$(CARGO) build --workspace --bins
ifdef KUBE_PROXY
	-$(SCORE) --proxy '$(KUBE_PROXY) --kubeconfig {kubeconfig} {flags}' --name kube-proxy-nftables $(RECORD)
	-$(SCORE) --proxy '$(KUBE_PROXY) --kubeconfig {kubeconfig} {flags}' --name kube-proxy-iptables $(RECORD)
else
	-$(SCORE) --backend $(BACKENDS) $(RECORD)
endif
	$(SCORE) --list $(RECORD) >/dev/null

# The same in ipvs mode, on a kernel with IPVS in a virtual machine: the page gets a column for this mode.
conformance-ipvs: export SWITCHYARD_SLOWNESS ?= 3
conformance-ipvs: export VM_SECONDS ?= 7200
conformance-ipvs:
	@scripts/install-tools.sh cc ip nft iptables ipset kmod qemu-system-x86_64 setpriv xz zstd
	$(CARGO) build --workspace --bins
	-testing/vm/results.sh $(RESULTS) $(VM) $(SCORE) --backend ipvs
	$(SCORE) --list $(RECORD) >/dev/null

bench:
	@scripts/install-tools.sh cc ip nft iptables
	$(CARGO) bench --package switchyard-nft --bench sync
	$(CARGO) bench --package switchyard-nft --bench changes
	$(CARGO) bench --package switchyard-nft --bench disturbed
	$(CARGO) bench --package switchyard-kernel --bench flows
	$(CARGO) bench --package switchyard-iptables --bench sync
	$(CARGO) bench --package switchyard-userspace --bench traffic

# Time, memory and CPU time with up to 100,000 Services: make scale SHAPES='10000x5 5000x50'; with DOC=FILE it is
# written to a page, and with KUBE_PROXY=PROGRAM for that as well.
scale:
	@scripts/install-tools.sh cc ip nft curl
	$(CARGO) build --release --bin switchyard --bin api-standin
	@scripts/scale.sh $(SHAPES)

# The same of ipvs mode, on the kernel of the virtual machine. Emulated, all takes some ten times as long.
scale-ipvs: export MODE = ipvs
scale-ipvs: export VM_SECONDS ?= 7200
scale-ipvs:
	@scripts/install-tools.sh cc ip nft curl kmod qemu-system-x86_64 setpriv xz zstd
	$(CARGO) build --release --bin switchyard --bin api-standin
	@$(VM) $(CURDIR)/scripts/scale.sh $(or $(SHAPES),10000x5 20000x5)

# A terminal in which the release binary is killed, its rules are flushed, and it is asked about a Service.
picture:
	@scripts/install-tools.sh cc ip nft curl
	$(CARGO) build --release --bin switchyard
	@scripts/picture.py docs/images/demo.svg

# The status page of the release binary, checked in a browser (some 400 MB), and its picture.
status-picture:
	@scripts/install-tools.sh cc ip nft chromium-headless-shell
	$(CARGO) build --release --bin switchyard
	@scripts/status-picture.py docs/status.png

# On a real cluster (docs/e2e.md). KUBECONFIG, IMAGE and E2E_IMAGE come from the command line or the
# environment.
e2e:
	@KUBECONFIG="$(KUBECONFIG)" IMAGE="$(IMAGE)" E2E_IMAGE="$(E2E_IMAGE)" e2e/run.sh run

e2e-restore:
	@KUBECONFIG="$(KUBECONFIG)" e2e/run.sh restore

e2e-kind:
	@E2E_IMAGE="$(E2E_IMAGE)" e2e/kind.sh
