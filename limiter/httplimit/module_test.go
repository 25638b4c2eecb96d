package httplimit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const otherProgram = `package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"sluice/limiter"
	"sluice/limiter/httplimit"
	"sluice/limiter/redisstore"
)

var _ httplimit.Limiter = (*redisstore.Limiter)(nil)

func main() {
	limits, err := limiter.ParseLimits("1/h")
	if err != nil {
		panic(err)
	}
	local, err := limiter.NewLocal(limits)
	if err != nil {
		panic(err)
	}
	d, err := local.Reserve(context.Background(), "ip:192.0.2.1", 1, 0)
	fmt.Println(d.Verdict == limiter.Go, err)
	w := httptest.NewRecorder()
	httplimit.New(local, httplimit.ClientIP())(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Code)
}
`

// The limiter is for other modules, too; this one's path is no address that could be fetched.
func TestAnotherModuleUsesTheLimiterByReplace(t *testing.T) {
	t.Parallel()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(top, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.com/other\n\ngo 1.26.0\n\nrequire sluice v0.0.0\n\nreplace sluice => " + top + "\n",
		"go.sum":  string(sums),
		"main.go": otherProgram,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	run := exec.CommandContext(t.Context(), "go", "run", "-mod=mod", ".")
	run.Dir = dir
	run.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off")
	out, err := run.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "true <nil>\n429" {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("took %v", time.Since(start).Round(time.Millisecond))
}
