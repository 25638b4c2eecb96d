# Everything is plain Go; this file only gathers the commands. `make test` is what every change has to pass.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE ?= $(shell git log -1 --format=%cI 2>/dev/null)
FUZZTIME ?= 10s

NESTED = deploy/verify integration/cloudevents integration/statuspage
HAS_BROWSER = { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null
HAS_SYSTEMD = command -v systemd-analyze >/dev/null

.PHONY: test race drills nested check reproducible tools ci-tools lint vet staticcheck beside soak bench fuzz browser build image clean

# The race detector needs cgo. SLUICE_REQUIRE_SERVERS turns the skip of a test that lacks its server into a failure; CI=true
# does so for whatever a test lacks.
test race drills soak: export CGO_ENABLED = 1
test race drills soak: export SLUICE_REQUIRE_SERVERS = 1

# Most of what a first run does is to compile. Nobody debugs these builds: without debug information they take up to a tenth less, and
# half where there are thousands of wrappers or generated methods to inline. All commands have to have the same flags, or each
# compiles everything anew.
BULKY = github.com/redis/go-redis/v9 k8s.io/... sigs.k8s.io/... github.com/google/gnostic-models/...
test: export GOFLAGS := $(GOFLAGS) -gcflags=all=-dwarf=false $(foreach p,$(BULKY),'-gcflags=$(p)=-l -dwarf=false')

# What only computes goes on beside what mostly waits, at the lowest priority so that it disturbs no measurement. vet is
# before: it compiles what both need, each would do it by itself. It has said what go test's own vet would say: -vet=off.
test: tools vet
	@$(MAKE) --no-print-directory -j2 drills beside
	@$(MAKE) --no-print-directory nested
	@$(HAS_SYSTEMD) || echo "skipped: systemd didn't verify deploy/systemd/sluice.service; apt-get install systemd"
	@$(HAS_BROWSER) || echo "skipped: nobody looked at the status page; apt-get install chromium, then make browser"

race:
	go test -race -vet=off -shuffle=on -p 4 -parallel 4 -timeout 6m $$(go list ./... | grep -v '^sluice/integration$$')

# The drills' own process holds the NATS server and the receiver; with the race detector these would be measured instead
# of sluice, so only the workers have it. Most drills wait most of the time: three at a time leave two cores half idle.
drills: race
	SLUICE_RACE=1 go test -vet=off -shuffle=on -parallel 3 -timeout 6m ./integration

beside:
	@nice -n 19 $(MAKE) --no-print-directory ci-tools staticcheck

# Modules of their own: the libraries of Compose, Kubernetes, Prometheus, CloudEvents and the browser's protocol are for these tests only. Go
# does not see when the files change that they read, which are outside of the module: hence -count=1.
nested:
	cd deploy/verify && go test -count=1 -vet=off -shuffle=on -timeout 6m ./...
	cd integration/cloudevents && go test -count=1 -vet=off -shuffle=on -timeout 3m ./...
	@if [ "$(CI)" = true ] || $(HAS_BROWSER); then $(MAKE) --no-print-directory browser; fi

# Before a release. Asks the Go vulnerability database about what the code calls; that needs the network, so it isn't part of test.
check: reproducible
	go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

# Builds once more, in another directory and without what is cached: both builds have to have the same bytes.
reproducible: build
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && mkdir "$$dir/copy" && \
		git ls-files -z | xargs -0 tar -cf - | tar -xf - -C "$$dir/copy" && \
		GOCACHE="$$dir/cache" $(MAKE) --no-print-directory -C "$$dir/copy" build VERSION=$(VERSION) COMMIT=$(COMMIT) DATE=$(DATE) && \
		cmp bin/sluice "$$dir/copy/bin/sluice" && echo "two builds from two directories are the same"

lint: vet staticcheck

vet:
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	go vet ./...

# "go tool staticcheck", but that takes no flags for how it is built.
staticcheck:
	go build -o bin/ honnef.co/go/tools/cmd/staticcheck
	bin/staticcheck ./...
	staticcheck=$$PWD/bin/staticcheck && for module in $(NESTED); do \
		(cd $$module && go vet ./... && "$$staticcheck" ./...) || exit 1; \
	done

# The drills run a real redis-server, the race detector needs a C compiler with its headers.
tools:
	@has_c() { echo '#include <stdlib.h>' | $${CC:-gcc} -x c -E - >/dev/null 2>&1; }; \
	has_redis() { command -v redis-server >/dev/null 2>&1; }; \
	if has_c && has_redis; then exit 0; fi; \
	as_root=""; [ "$$(id -u)" = 0 ] || as_root="sudo -n"; \
	if command -v apt-get >/dev/null 2>&1 && $$as_root true 2>/dev/null; then \
		echo "installing redis-server and gcc"; \
		$$as_root apt-get -qq -o Acquire::Retries=3 update && \
		$$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Acquire::Retries=3 \
			install --no-install-recommends redis-server gcc libc6-dev >/dev/null; \
	fi; \
	if has_c && has_redis; then exit 0; fi; \
	echo "The tests need redis-server (7.0 or newer) and a C compiler (gcc, or what CC names) in the PATH." >&2; \
	echo "Debian, Ubuntu: apt-get install redis-server gcc libc6-dev; macOS: brew install redis, xcode-select --install" >&2; \
	exit 1

# With CI=true nothing is skipped: what else the tests can use is installed, too.
ci-tools:
ifeq ($(CI),true)
	@missing=""; $(HAS_BROWSER) || missing=chromium; $(HAS_SYSTEMD) || missing="$$missing systemd"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	as_root=""; [ "$$(id -u)" = 0 ] || as_root="sudo -n"; \
	echo "installing $$missing"; \
	$$as_root apt-get -qq -o Acquire::Retries=3 update && \
	$$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Acquire::Retries=3 install --no-install-recommends $$missing >/dev/null
else
	@:
endif

# The long drills beside the short ones; about an hour.
soak: tools
	SLUICE_SOAK=1 SLUICE_RACE=1 go test -count=1 -timeout 90m -v ./integration/...

bench:
	go test -run '^$$' -bench . -benchmem ./...

# Each fuzz target for FUZZTIME.
fuzz:
	@set -e; for package in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

# Looks at the status page with a Chromium, if there is one.
browser:
	cd integration/statuspage && go test -count=1 -vet=off -timeout 3m ./...

build:
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)" \
		-o bin/sluice ./cmd/sluice

# For several machines at once see deploy/Dockerfile.
image:
	docker buildx build -f deploy/Dockerfile --load -t sluice:$(VERSION) \
		--build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) --build-arg DATE=$(DATE) .

clean:
	rm -rf bin
