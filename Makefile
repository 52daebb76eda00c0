# Two commands matter: `make demo` and `make test`. Both install what they need
# and ask for root by sudo where root is needed.

GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
# -H: what root caches goes to root's home, not into yours with root as its owner.
ROOT    := $(if $(filter 0,$(shell id -u)),,sudo -H)
UNITS   := $(notdir $(wildcard packaging/systemd/*.service))
NFPM    := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.1
export GO

.PHONY: demo test build tools images soak performance test-kernels bpf generate install uninstall package test-package clean help

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Build everything and run the demonstration (about two minutes after the first build)
	@scripts/setup demo
	@$(MAKE) --no-print-directory build
	@mkdir -p bin/images
	@$(ROOT) bin/onpath images build --out bin/images $(addprefix functions/,firewall ids shaper cache)
	@$(ROOT) bin/onpath demo --images bin/images

test: ## Run all tests, say what was skipped and why
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=next' -o bin/onpath-next ./cmd/onpath
	@scripts/previous bin/onpath-previous >/dev/null
	@CGO_ENABLED=0 $(GO) run -trimpath ./test/runner

build: ## Build bin/onpath, one static binary
	@scripts/setup build
	@echo "building bin/onpath $(VERSION)$(if $(wildcard bin/onpath),,; the first time, this takes a minute or two)"
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/onpath ./cmd/onpath
	@ls -lh bin/onpath | awk '{print "bin/onpath: " $$5}'

tools: ## Install what README's examples run with and this machine lacks (containerd, runc, nft, ping, curl, mmdebstrap)
	@scripts/setup examples

images: build ## Build the images of the first-party functions (cached)
	@scripts/setup demo
	@mkdir -p bin/images
	@$(ROOT) bin/onpath images build --out bin/images

soak: ## Longer tests: repeated failures, twenty cycles of everything
	@scripts/setup test
	@$(MAKE) --no-print-directory images
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=next' -o bin/onpath-next ./cmd/onpath
	@scripts/previous bin/onpath-previous >/dev/null
	@CGO_ENABLED=0 $(GO) run -trimpath ./test/runner -soak

performance: build ## Measure everything and show it in docs/performance.md (30 minutes; wants an idle machine; with Open vSwitch where it is installed)
	@scripts/setup demo
	@mkdir -p docs/performance
	@scripts/previous bin/onpath-previous >/dev/null
	@$(ROOT) bin/onpath bench --images bin/images $$([ ! -e bin/onpath-previous ] || echo --previous bin/onpath-previous) --json docs/performance/results.json --markdown docs/performance.md

test-kernels: ## The data-path exam, lab and cgroup tests on Debian's own kernel under QEMU
	@scripts/setup test
	@test/kernels/run

bpf: ## Compile the eBPF objects again (needs clang)
	$(GO) generate ./datapath/ebpf ./accel/vanish ./bench ./functions/...

generate: ## Write the generated references again
	$(GO) generate ./...

install: build ## Install the binary and the systemd units
	$(if $(DESTDIR),,$(ROOT)) install -D -m 0755 bin/onpath $(DESTDIR)/usr/local/bin/onpath
	$(if $(DESTDIR),,$(ROOT)) install -D -m 0644 -t $(DESTDIR)/etc/systemd/system packaging/systemd/*.service

uninstall: ## Stop the units, take the node off and remove what install put here (see docs/removal.md for the rest)
ifeq ($(DESTDIR),)
	@for u in $(UNITS); do [ ! -d /run/systemd/system ] || [ ! -e /etc/systemd/system/$$u ] || $(ROOT) systemctl disable --now $$u; done
	@[ ! -x /usr/local/bin/onpath ] || $(ROOT) /usr/local/bin/onpath node off --all
endif
	$(if $(DESTDIR),,$(ROOT)) rm -f $(DESTDIR)/usr/local/bin/onpath $(UNITS:%=$(DESTDIR)/etc/systemd/system/%)

package: build ## Build bin/onpath_VERSION_ARCH.deb: the program, its units, completion and man pages
	@packaging/stage bin/package
	@VERSION=$(patsubst v%,%,$(if $(findstring .,$(VERSION)),$(VERSION),0.0.0-$$(git rev-list --count HEAD).$(VERSION))) ARCH=$$($(GO) env GOARCH) \
		$(GO) run $(NFPM) package --config packaging/nfpm.yaml --packager deb --target bin

test-package: ## Install, upgrade under traffic and purge the package in clean root file systems (two minutes)
	@scripts/setup test
	@$(ROOT) test/package/run

clean: ## Remove what was built here (cached images stay in root's ~/.cache/onpath)
	rm -rf bin
