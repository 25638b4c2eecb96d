package verify

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// top is the top of the repository, seen from this package.
const top = "../.."

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, path))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// strictly decodes YAML or JSON; a field that into doesn't have is an error.
func strictly(t *testing.T, what string, text []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(text, into, func(d *json.Decoder) *json.Decoder {
		d.DisallowUnknownFields()
		return d
	}); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// scratch is where the program is built, for as long as the tests run.
var scratch string

// binary builds the program once.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "sluice")
	build := exec.Command("go", "build", "-o", path, "./cmd/sluice")
	build.Dir, build.Stderr = top, os.Stderr
	return path, build.Run()
})

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "sluice-verify-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(scratch)
	os.Exit(code)
}

// takes starts a worker with exactly these settings. The program itself says whether it knows them and understands their
// values: it ends with 2 if not, and serves probes if so.
func takes(t *testing.T, settings map[string]string) {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	settings = maps.Clone(settings)
	settings["SLUICE_ADMIN_ADDR"] = "127.0.0.1:0"
	delete(settings, "SLUICE_LOG_FORMAT")
	for name := range settings {
		if strings.HasSuffix(name, "_FILE") || strings.HasSuffix(name, "_CREDS") { // mounted where it runs
			settings[name] = filepath.Join(t.TempDir(), "secret")
			if err := os.WriteFile(settings[name], []byte("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	worker := exec.Command(path, "worker")
	for name, value := range settings {
		worker.Env = append(worker.Env, name+"="+value)
	}
	log, err := worker.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.AfterFunc(20*time.Second, func() { _ = worker.Process.Kill() })
	defer deadline.Stop()
	var said bytes.Buffer
	fine := false
	for lines := bufio.NewScanner(log); !fine && lines.Scan(); {
		said.Write(append(lines.Bytes(), '\n'))
		fine = strings.Contains(lines.Text(), "admin server listens")
	}
	_ = worker.Process.Kill()
	_ = worker.Wait() // killed
	if !fine {
		t.Errorf("the program doesn't take these settings: %s", &said)
	}
}

// duration is the value of a setting, or the default that README.md has.
func duration(t *testing.T, settings map[string]string, name string) time.Duration {
	t.Helper()
	value, ok := settings["SLUICE_"+name]
	if !ok {
		row := regexp.MustCompile("(?m)^\\| `" + name + "` \\| `([^`]+)` \\|").FindSubmatch(read(t, "README.md"))
		if row == nil {
			t.Fatalf("README.md has no default of %s", name)
		}
		value = string(row[1])
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// closing is how long a worker may take after the drain time to give back leases and close its connections.
const closing = 20 * time.Second

// metricsOf are the names of README.md's table of metrics; a test of the program holds that to the code.
func metricsOf(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`sluice_[^|]+) \\|").FindAllSubmatch(read(t, "README.md"), -1) {
		for _, name := range regexp.MustCompile("`(sluice_[a-z_]+)").FindAllSubmatch(row[1], -1) {
			names = append(names, string(name[1]))
		}
	}
	if len(names) < 20 {
		t.Fatalf("README.md names only %q", names)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
