package verify

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// environmentFile reads a file of NAME=value lines. Commented settings count, too, if asked: they are meant to be used.
func environmentFile(t *testing.T, path string, commented bool) map[string]string {
	t.Helper()
	settings := map[string]string{}
	for line := range strings.Lines(string(read(t, path))) {
		if commented {
			line = strings.TrimPrefix(line, "#")
		}
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(name, "SLUICE_") {
			settings[name] = value
		}
	}
	return settings
}

func TestServiceStopsAfterTheDrain(t *testing.T) {
	t.Parallel()
	unit := string(read(t, "deploy/systemd/sluice.service"))
	stop := regexp.MustCompile(`(?m)^TimeoutStopSec=(.+)$`).FindStringSubmatch(unit)
	if stop == nil {
		t.Fatal("no TimeoutStopSec")
	}
	drain := duration(t, environmentFile(t, "deploy/systemd/sluice.env", false), "DRAIN_TIMEOUT")
	if got, err := time.ParseDuration(stop[1]); err != nil || got < drain+closing {
		t.Errorf("the service is killed after %v; draining takes %v and closing up to %v", got, drain, closing)
	}
	if !strings.Contains(unit, "\nRestart=on-failure\n") {
		t.Error("a service that failed stays down, as does one whose log lost its reader")
	}
	if !strings.Contains(unit, "\nRestartPreventExitStatus=2\n") {
		t.Error("a service with wrong settings is started again and again")
	}
}

func TestServiceTakesItsSettings(t *testing.T) {
	t.Parallel()
	const path = "deploy/systemd/sluice.env"
	takes(t, environmentFile(t, path, false))
	all := environmentFile(t, path, true)
	all["SLUICE_WEBHOOK_SECRETS"] = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	takes(t, all)
}

func TestServiceIsAUnitThatMayDoLittle(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		testenv.Lacks(t, "systemd-analyze", "apt-get install systemd")
	}
	unit := strings.Replace(string(read(t, "deploy/systemd/sluice.service")), "/usr/local/bin/sluice", "/bin/true", 1)
	path := filepath.Join(t.TempDir(), "sluice.service")
	if err := os.WriteFile(path, []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command(analyze, "verify", path).CombinedOutput(); err != nil || strings.Contains(string(said), "sluice.service:") {
		t.Errorf("%v\n%s", err, said)
	}
	said, err := exec.Command(analyze, "security", "--offline=true", "--threshold=20", path).CombinedOutput()
	if err != nil {
		t.Errorf("exposed to more than 2.0 of 10: %v\n%s", err, said)
	}
}
