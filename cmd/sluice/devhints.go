package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// elsewhere are the variables that dev doesn't use, as it brings all of this.
var elsewhere = []string{"NATS_", "REDIS_", "SINK", "WEBHOOK_URL", "SETUP", "REPLICAS"}

// hints tell a person what there is and what can be done with it.
func (d *dev) hints(sink string) string {
	var b strings.Builder
	to := ""
	if sink != "" {
		to = ", pushed to " + URL(sink).String()
	}
	program := programName()
	at, server := "", ""
	if d.servers.natsPort != devNATSPort {
		at, server = "SLUICE_NATS_URL="+d.servers.natsURL()+" ", "-s "+d.servers.natsURL()+" "
	}
	subject, err := defaultTemplate(d.cfg.Subjects).of("alice")
	if err != nil {
		subject = "SUBJECT"
	}
	fmt.Fprintf(&b, "At most %s for each user (SLUICE_KEY=%s)%s.\n", d.cfg.Limit, d.cfg.Key, to)
	fmt.Fprintf(&b, "  publish  %s%s publish %s '{\"hello\":1}'\n", at, program, subject)
	fmt.Fprintf(&b, "           nats %spub %s hello   (or any client of NATS)\n", server, subject)
	fmt.Fprintf(&b, "  limit    %s%s limits set default '50/s burst 50'   (at once)\n", at, program)
	fmt.Fprintf(&b, "  status   http://%s/   (and /metrics)\n", d.admin.Addr())
	fmt.Fprintf(&b, "  log      %s   (Redis: port %d)\n", d.logPath, d.servers.redisPort)
	b.WriteString(unusedVariables(os.Environ()))
	b.WriteString("Ctrl-C ends it and removes all data.\n")
	return b.String()
}

// unusedVariables is a line that names the variables of environ that dev doesn't use; "" if there are none.
func unusedVariables(environ []string) string {
	var names []string
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		rest, ours := strings.CutPrefix(name, prefix)
		if !ours || strings.TrimSpace(value) == "" {
			continue
		}
		for _, other := range elsewhere {
			if rest == other || strings.HasSuffix(other, "_") && strings.HasPrefix(rest, other) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("Not used here: %s (dev runs servers of its own; --sink names another receiver).\n", strings.Join(names, ", "))
}

// programName is how the person started this program.
func programName() string {
	if path, err := os.Executable(); err == nil && strings.Contains(path, "go-build") {
		return "go run ./cmd/sluice"
	}
	return filepath.Base(os.Args[0])
}
