package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"sluice/pipeline/stream"
)

func newSetupCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Create the streams and the consumer that are missing, and say what there is",
		Long: `Create what is missing in JetStream, as SLUICE_SETUP permits: own (sluice's lanes, dead letters, limits and consumer), all
(the source stream too) or off (only look). It may be run any number of times. A source stream or consumer that exists
is never changed; of sluice's own streams only size and replicas are. Exits with 1 if something is missing or unfit.`,
		Example: `  sluice setup
  SLUICE_SETUP=all sluice setup --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runSetup(cmd, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a list of JSON objects")
	return cmd
}

func runSetup(cmd *cobra.Command, asJSON bool) error {
	cfg, err := loadConfig(natsPart, sourcePart, ownPart)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 30*time.Second)
	defer cancel()
	warn := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelError}))
	nc, err := stream.Dial(ctx, cfg.stream(), func(err error) { warn.Error(err.Error()) })
	if err != nil {
		return err
	}
	defer nc.Close()
	sc := cfg.stream()
	js, err := sc.JetStream(nc)
	if err != nil {
		return err
	}
	actions, err := stream.Setup(ctx, js, sc)
	if printErr := printActions(cmd.OutOrStdout(), actions, asJSON); printErr != nil {
		return errors.Join(err, printErr)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) && len(actions) == 0 {
		return fmt.Errorf("nothing was set up: %w", err)
	}
	return err
}

func printActions(w io.Writer, actions []stream.Action, asJSON bool) error {
	if asJSON {
		type action struct {
			Object string `json:"object"`
			Did    string `json:"did"`
			Detail string `json:"detail,omitempty"`
		}
		list := make([]action, 0, len(actions))
		for _, a := range actions {
			list = append(list, action(a))
		}
		return json.NewEncoder(w).Encode(list)
	}
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, a := range actions {
		if _, err := fmt.Fprintf(tab, "%s\t%s\t%s\n", a.Object, a.Did, a.Detail); err != nil {
			return err
		}
	}
	return tab.Flush()
}

// stream is the part of the configuration that concerns NATS.
func (cfg Config) stream() stream.Config {
	n := cfg.NATS
	return stream.Config{
		URLs: n.servers(), Creds: n.Creds, NKey: n.Nkey, User: n.User, Password: string(n.Password), Token: string(n.Token),
		TLSCA: n.TLS.CA, TLSCert: n.TLS.Cert, TLSKey: n.TLS.Key, InboxPrefix: n.InboxPrefix, JSDomain: n.JSDomain,
		URLFile: n.URLFile, PasswordFile: n.PasswordFile, TokenFile: n.TokenFile,
		Name: cfg.Name, Stream: cfg.Stream, Subjects: cfg.Subjects, Consumer: cfg.Consumer, Setup: stream.SetupMode(cfg.Setup),
		Replicas: cfg.Replicas, LanesMaxBytes: cfg.LanesMaxBytes, DLQMaxBytes: cfg.DLQMaxBytes,
	}
}
