package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/integration/testenv"
)

// root is the top of the repository, seen from this package.
const root = ".."

// goPackage is what `go list` tells of a package; test files don't count.
type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// ownImports says which packages of this module a package may import. A name with /... stands for everything below it.
// The arrow is cmd -> {sink, JetStream side, Redis side} -> pipeline -> limiter.
var ownImports = []struct {
	pkg     string
	allowed []string
}{
	{"sluice/limiter", nil},
	{"sluice/limiter/...", []string{"sluice/pipeline", "sluice/limiter"}},
	{"sluice/pipeline", []string{"sluice/limiter"}},
	{"sluice/pipeline/freshfile", []string{}},
	{"sluice/pipeline/...", []string{"sluice/pipeline", "sluice/limiter", "sluice/pipeline/freshfile"}},
	{"sluice/sink", []string{"sluice/pipeline", "sluice/limiter"}},
	{"sluice/sink/...", []string{"sluice/sink", "sluice/pipeline", "sluice/limiter"}},
	{"sluice/cmd/...", []string{
		"sluice/cmd/...", "sluice/sink", "sluice/sink/...", "sluice/pipeline", "sluice/pipeline/...", "sluice/limiter", "sluice/limiter/...",
	}},
	{"sluice/integration", []string{"sluice/integration/..."}},
	{"sluice/integration/...", []string{"sluice/integration/..."}},
}

// foreignDeps says what a package must never need, neither itself nor through others.
var foreignDeps = []struct {
	pkg       string
	forbidden []string
}{
	{"sluice/limiter", []string{"github.com/nats-io/...", "github.com/redis/...", "net/http"}},
	{"sluice/limiter/httplimit", []string{"github.com/nats-io/...", "github.com/redis/...", "sluice/pipeline"}},
	{"sluice/pipeline", []string{"github.com/nats-io/...", "github.com/redis/...", "net/http"}},
	{"sluice/cmd/sluice", []string{ // what only tests need
		"github.com/creack/pty", "go.uber.org/goleak", "go.uber.org/goleak/...",
		"sluice/integration", "sluice/integration/...", "testing", "net/http/httptest",
	}},
}

// matches says whether path is pattern, or below it when that ends in /... .
func matches(pattern, path string) bool {
	if above, ok := strings.CutSuffix(pattern, "..."); ok {
		return strings.HasPrefix(path, above)
	}
	return path == pattern
}

func matchesAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, path) })
}

// arrowFaults returns a line for each import that the arrows forbid.
func arrowFaults(packages []goPackage) []string {
	var faults []string
	for _, p := range packages {
		ruled := false
		for _, rule := range ownImports {
			if !matches(rule.pkg, p.ImportPath) {
				continue
			}
			ruled = true
			for _, imported := range p.Imports {
				if strings.HasPrefix(imported, "sluice/") && !matchesAny(rule.allowed, imported) {
					faults = append(faults, p.ImportPath+" must not import "+imported)
				}
			}
		}
		if !ruled {
			faults = append(faults, p.ImportPath+" has no place in the house")
		}
		for _, rule := range foreignDeps {
			if !matches(rule.pkg, p.ImportPath) {
				continue
			}
			for _, dep := range p.Deps {
				if matchesAny(rule.forbidden, dep) {
					faults = append(faults, p.ImportPath+" must not need "+dep)
				}
			}
		}
	}
	return faults
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	list := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...")
	list.Dir = root
	var stderr bytes.Buffer
	list.Stderr = &stderr
	printed, err := list.Output()
	if err != nil {
		t.Fatalf("listing the packages: %v\n%s", err, &stderr)
	}
	var packages []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(printed)); ; {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatalf("reading the list of packages: %v", err)
		}
		packages = append(packages, p)
	}
}

func TestImportsFollowTheArrows(t *testing.T) {
	t.Parallel()
	packages := listPackages(t)
	for _, fault := range arrowFaults(packages) {
		t.Error(fault)
	}
	for _, want := range []string{
		"sluice/limiter", "sluice/limiter/redisstore", "sluice/limiter/httplimit", "sluice/pipeline", "sluice/pipeline/stream", "sluice/sink", "sluice/cmd/sluice",
	} {
		if !slices.ContainsFunc(packages, func(p goPackage) bool { return p.ImportPath == want }) {
			t.Errorf("%s doesn't exist: its rules hold nothing", want)
		}
	}
}

func TestArrowsTellForbiddenImports(t *testing.T) {
	t.Parallel()
	tests := []struct {
		pkg     string
		imports []string
		deps    []string
		faults  int
	}{
		{"sluice/limiter", []string{"time"}, []string{"time"}, 0},
		{"sluice/limiter", []string{"sluice/pipeline"}, nil, 1},
		{"sluice/limiter", nil, []string{"net/http"}, 1},
		{"sluice/limiter/redisstore", []string{"sluice/limiter", "sluice/pipeline"}, []string{"github.com/redis/go-redis/v9", "net/http"}, 0},
		{"sluice/limiter/redisstore", []string{"sluice/pipeline/stream"}, nil, 1},
		{"sluice/limiter/httplimit", []string{"sluice/limiter"}, []string{"net/http", "sluice/limiter"}, 0},
		{"sluice/limiter/httplimit", []string{"sluice/limiter/redisstore"}, []string{"github.com/redis/go-redis/v9"}, 2},
		{"sluice/pipeline", []string{"sluice/limiter"}, []string{"net"}, 0},
		{"sluice/pipeline", []string{"sluice/limiter/redisstore"}, []string{"github.com/redis/go-redis/v9"}, 2},
		{"sluice/pipeline", nil, []string{"github.com/nats-io/nuid"}, 1},
		{"sluice/pipeline/stream", []string{"sluice/sink"}, nil, 1},
		{"sluice/pipeline/stream", []string{"sluice/pipeline/freshfile"}, nil, 0},
		{"sluice/sink", []string{"sluice/pipeline/stream", "sluice/cmd/sluice"}, nil, 2},
		{"sluice/cmd/sluice", []string{"sluice/sink", "sluice/pipeline/stream"}, []string{"github.com/nats-io/nats.go"}, 0},
		{"sluice/cmd/sluice", []string{"sluice/sink"}, []string{"github.com/nats-io/nats-server/v2/server", "github.com/alicebob/miniredis/v2"}, 0},
		{"sluice/cmd/sluice", []string{"sluice/integration/testenv"}, []string{"github.com/creack/pty", "sluice/integration/testenv"}, 3},
		{"sluice/integration/testenv", []string{"sluice/cmd/sluice"}, nil, 1},
		{"sluice/util", nil, nil, 1},
	}
	for _, test := range tests {
		faults := arrowFaults([]goPackage{{ImportPath: test.pkg, Imports: test.imports, Deps: test.deps}})
		if len(faults) != test.faults {
			t.Errorf("%s importing %v, needing %v: %q, want %d faults", test.pkg, test.imports, test.deps, faults, test.faults)
		}
	}
}

// topLevel is what the repository may hold besides dot-files.
var topLevel = []string{
	"cmd", "pipeline", "limiter", "sink", "deploy", "integration", "go.mod", "go.sum", "docker-compose.yml", "README.md", "Makefile",
	"CHANGELOG.md", "SECURITY.md",
}

// repositoryFiles lists the files that are tracked, or would be by `git add .`; paths are relative to the top.
func repositoryFiles(t *testing.T) []string {
	t.Helper()
	// The tree may belong to another user than the one who tests, as in a container.
	git := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	git.Dir = root
	printed, err := git.Output()
	if err != nil {
		if _, statErr := os.Stat(filepath.Join(root, ".git")); errors.Is(statErr, os.ErrNotExist) {
			testenv.Lacks(t, "the git repository of these sources", "clone it")
		}
		t.Fatalf("listing the files: %v", err)
	}
	var files []string
	for _, file := range strings.Split(strings.TrimRight(string(printed), "\x00"), "\x00") {
		if _, err := os.Lstat(filepath.Join(root, file)); err == nil { // a deleted file is tracked until the commit
			files = append(files, file)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(files)))
}

func TestRepositoryHoldsNothingElse(t *testing.T) {
	t.Parallel()
	for _, file := range repositoryFiles(t) {
		top, _, _ := strings.Cut(file, "/")
		if !strings.HasPrefix(top, ".") && !slices.Contains(topLevel, top) {
			t.Errorf("%s has no place at the top of the repository", file)
		}
	}
}

// Lengths of a source file in lines.
const (
	longFile    = 400 // think of splitting it
	tooLongFile = 500
)

func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	counted := 0
	for _, file := range repositoryFiles(t) {
		if !slices.Contains([]string{".go", ".lua", ".sh"}, filepath.Ext(file)) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		counted++
		switch lines := bytes.Count(text, []byte("\n")); {
		case lines > tooLongFile:
			t.Errorf("%s has %d lines, more than %d", file, lines, tooLongFile)
		case lines > longFile:
			t.Logf("%s has %d lines, more than %d", file, lines, longFile)
		}
	}
	if counted == 0 {
		t.Error("no source files found")
	}
}
