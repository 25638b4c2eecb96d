package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Set at link time: -ldflags "-X main.version=v1.2.3 -X main.commit=… -X main.date=…".
var (
	version string
	commit  string
	date    string
)

// build says what this binary was made from.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"`
	Go      string `json:"go"`
}

// buildInfo prefers what was set at link time and fills in what the Go tool recorded.
func buildInfo() build {
	b := build{Version: version, Commit: commit, Date: date, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.fill(info)
	}
	for _, s := range []*string{&b.Version, &b.Commit, &b.Date} {
		if *s == "" {
			*s = "unknown"
		}
	}
	return b
}

// short is the version, with the commit if that says more.
func (b build) short() string {
	if b.Version != "(devel)" && b.Version != "unknown" || b.Commit == "unknown" {
		return b.Version
	}
	hash, modified, _ := strings.Cut(b.Commit, "-")
	if modified != "" {
		modified = "+"
	}
	return hash[:min(len(hash), 9)] + modified
}

// fill sets the empty fields from info.
func (b *build) fill(info *debug.BuildInfo) {
	setting := make(map[string]string, len(info.Settings))
	for _, s := range info.Settings {
		setting[s.Key] = s.Value
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Commit == "" {
		b.Commit = setting["vcs.revision"]
		if b.Commit != "" && setting["vcs.modified"] == "true" {
			b.Commit += "-modified"
		}
	}
	if b.Date == "" {
		b.Date = setting["vcs.time"]
	}
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit, build date and Go version",
		Example: "  sluice version\n  sluice version --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := buildInfo()
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(b)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "sluice %s, commit %s, built %s, %s\n", b.Version, b.Commit, b.Date, b.Go)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
