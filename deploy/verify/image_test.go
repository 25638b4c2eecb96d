package verify

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// match finds what an expression's group is in a file.
func match(t *testing.T, path, expression string) string {
	t.Helper()
	found := regexp.MustCompile("(?m)" + expression).FindSubmatch(read(t, path))
	if found == nil {
		t.Fatalf("%s has nothing like %s", path, expression)
	}
	return string(found[1])
}

func TestImageIsBuiltAsTheMakefileBuilds(t *testing.T) {
	t.Parallel()
	flags := func(path string) string {
		return regexp.MustCompile(`\$\(?(\w+)\)?`).ReplaceAllString(match(t, path, `go build (?:.*\\\n\s*)?.*-ldflags "([^"]+)"`), "$1")
	}
	if image, local := flags("deploy/Dockerfile"), flags("Makefile"); image != local {
		t.Errorf("the image is linked with %s, make build with %s", image, local)
	}
	image, module := match(t, "deploy/Dockerfile", `golang:(\d+\.\d+)`), match(t, "go.mod", `^go (\d+\.\d+)`)
	if image != module {
		t.Errorf("the image is built with Go %s, go.mod says %s", image, module)
	}
}

func TestImageRunsTheProgramWithoutRights(t *testing.T) {
	t.Parallel()
	file := string(read(t, "deploy/Dockerfile"))
	_, last, _ := strings.Cut(file, "\nFROM scratch\n")
	for _, want := range []string{"\nUSER 65532:65532\n", "\nENTRYPOINT [\"/sluice\"]\n", "\nCMD [\"worker\"]\n", "/etc/ssl/certs/ca-certificates.crt"} {
		if !strings.Contains(last, want) {
			t.Errorf("the image lacks %q", want)
		}
	}
	if check := match(t, "deploy/Dockerfile", `^HEALTHCHECK .*CMD (\[.*\])$`); check != `["/sluice", "check", "--ready"]` {
		t.Errorf("the health check is %s", check)
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	environment := match(t, "deploy/Dockerfile", `^ENV (.*)$`)
	probe := exec.Command(path, "check", "--ready")
	probe.Env = append(strings.Fields(environment), "SLUICE_ADMIN_ADDR=127.0.0.1:1")
	if said, _ := probe.CombinedOutput(); probe.ProcessState.ExitCode() != 1 {
		t.Errorf("the health check ends with %d where no worker is: %s", probe.ProcessState.ExitCode(), said)
	}
}

// The builder is given only what the ignore file lets through; the program must need no more.
func TestImageIsGivenAllThatTheProgramIsBuiltFrom(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-deps", "-f", "{{if .Module}}{{if .Module.Main}}{{.Dir}}{{end}}{{end}}", "./cmd/sluice")
	list.Dir, list.Stderr = top, os.Stderr
	said, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	ignore := string(read(t, "deploy/Dockerfile.dockerignore"))
	for _, dir := range strings.Fields(string(said)) {
		below, err := filepath.Rel(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(below, "/")
		if !strings.Contains(ignore, "\n!"+first+"\n") {
			t.Errorf("the builder isn't given %s", first)
		}
	}
}
