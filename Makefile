# What people type. Each target installs what it needs (scripts/install-tools.sh).

CARGO ?= cargo
export PATH := $(CURDIR)/target/tools/bin:$(PATH)

.PHONY: help demo test bench fmt clippy deny unit

help:
	@echo "make demo   see Services being proxied, without a cluster (needs root)"
	@echo "make test   everything that must pass before a change lands (needs root)"
	@echo "make bench  how long syncs take, beside the floor (needs root)"

# Builds, makes network namespaces, proxies the manifests in examples/, and shows where real
# connections go.
demo:
	@scripts/install-tools.sh cc ip nft
	@$(CARGO) build --quiet --release --package switchyard --package demo
	@target/release/demo

# Format, lints, licences, then all tests: unit tests, and those that make network namespaces.
test: fmt clippy deny unit

fmt:
	$(CARGO) fmt --all --check

clippy:
	@scripts/install-tools.sh cc
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

# Advisories need a database from the network; where there is none, the rest still counts.
deny:
	@scripts/install-tools.sh cc cargo-deny
	cargo-deny --log-level error check licenses bans sources
	@cargo-deny --log-level off fetch db 2>/dev/null \
		&& cargo-deny --log-level error check advisories \
		|| echo "advisories: not checked, the database cannot be fetched from here"

unit:
	@scripts/install-tools.sh cc ip nft iptables ipset kmod setcap
	$(CARGO) build --workspace --bins
	$(CARGO) test --workspace --no-fail-fast
	SWITCHYARD_BACKEND=iptables $(CARGO) test --package packet-rig --test sequences --test restart

bench:
	@scripts/install-tools.sh cc ip nft iptables
	$(CARGO) bench --package backend-nft --bench sync
	$(CARGO) bench --package backend-iptables --bench sync
