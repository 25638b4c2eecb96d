package main

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"golang.org/x/time/rate"
	"sluice/pipeline/stream"
)

// maxEvent is more than any server can be told to take.
const maxEvent = 64 << 20

// publishFlags are the flags of publish, as given.
type publishFlags struct {
	headers []string
	id      string
	file    string
	subject string
	rate    string
	strict  bool
	json    bool
}

func newPublishCommand() *cobra.Command {
	var f publishFlags
	cmd := &cobra.Command{
		Use:   "publish SUBJECT [DATA]",
		Short: "Publish one event, or the events of an NDJSON file",
		Long: `Publish one event: DATA, or standard input if DATA is "-" or missing.

With -f publish one event per line of a file ("-": standard input). A line is a JSON object:
  key or subject       who the event is about, or where it is published as it is
  id                   copies with the same id within the stream's window are dropped; receivers get it, too
  headers              an object of strings or lists of strings
  data or data_base64  the body: the text of a string, the JSON text of anything else, or decoded bytes
  time                 RFC 3339, becomes the header ce-time
or a CloudEvent in JSON, whose key is the extension "key", else its subject, else its source.
A key becomes the token {key} of the subject; one that can't stand there is percent-encoded. A bad line is told with its
number and field and doesn't stop the others. Each event is confirmed by the stream.

Reads SLUICE_NATS_…, SLUICE_STREAM and SLUICE_SUBJECTS. Exits with 1 if any event was not stored.`,
		Example: `  sluice publish events.alice '{"amount": 3}' --id order-17
  echo hello | sluice publish events.alice --header 'Content-Type: text/plain'
  sluice publish -f events.ndjson --rate 500/s`,
		Args: func(_ *cobra.Command, args []string) error { return f.checkArgs(args) },
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.headers, "header", nil, "header 'Name: value' of the event, or of each that doesn't have it; may be repeated")
	flags.StringVar(&f.id, "id", "", "id of the event: copies with the same id are dropped")
	flags.StringVarP(&f.file, "file", "f", "", "publish the events of an NDJSON file; - is standard input")
	flags.StringVar(&f.subject, "subject", "", "with -f: subject of events with a key, {key} in it (default from SLUICE_SUBJECTS)")
	flags.StringVar(&f.rate, "rate", "", "publish no faster, such as 500/s")
	flags.BoolVar(&f.strict, "strict", false, "with -f: stop at the first bad line")
	flags.BoolVar(&f.json, "json", false, "print the counts as JSON")
	return cmd
}

func (f *publishFlags) checkArgs(args []string) error {
	switch {
	case f.file != "" && len(args) > 0:
		return usagef("with -f there is no SUBJECT and no DATA; remove %q", args[0])
	case f.file != "" && f.id != "":
		return usagef("--id is for one event; write an id into each line")
	case f.file != "":
		return nil
	case f.subject != "" || f.strict:
		return usagef("--subject and --strict need -f")
	case len(args) == 0:
		return usagef("SUBJECT is missing, or -f with a file")
	case len(args) > 2:
		return usagef("there are %d arguments, SUBJECT and DATA are expected; quote DATA with spaces", len(args))
	}
	return nil
}

func (f *publishFlags) run(cmd *cobra.Command, args []string) error {
	header, pace, err := f.parse()
	if err != nil {
		return err
	}
	cfg, err := loadConfig(natsPart, sourcePart)
	if err != nil {
		return err
	}
	source, err := f.open(cmd.InOrStdin(), args, cfg, header)
	if err != nil {
		return err
	}
	defer source.close()

	ctx := cmd.Context()
	out := newProgress(cmd.ErrOrStderr(), source.size)
	nc, err := stream.Dial(ctx, cfg.stream(), out.report)
	if err != nil {
		return err
	}
	defer nc.Close()
	p, err := newPublisher(ctx, nc, cfg.NATS.JSDomain, pace, out.report)
	if err != nil {
		return err
	}
	started := time.Now()
	bad, stopped := source.each(ctx, p, out)
	p.finish()
	out.close()
	counts := publishCounts{
		Published: p.published.Load(), Duplicates: p.duplicates.Load(), BadLines: bad, Failed: p.failed.Load(),
	}
	if err := counts.print(cmd.OutOrStdout(), time.Since(started), f.json); err != nil {
		return err
	}
	return counts.err(stopped)
}

// parse reads the values of the flags.
func (f *publishFlags) parse() (nats.Header, *rate.Limiter, error) {
	header := nats.Header{}
	for _, text := range f.headers {
		name, value, found := strings.Cut(text, ":")
		if !found {
			return nil, nil, usagef("--header %q: write 'Name: value'", text)
		}
		if err := addHeader(header, strings.TrimSpace(name), strings.TrimSpace(value)); err != nil {
			return nil, nil, usagef("--header: %s", err)
		}
	}
	var pace *rate.Limiter
	if f.rate != "" {
		var err error
		if pace, err = parsePace(f.rate); err != nil {
			return nil, nil, usagef("--rate: %s", err)
		}
	}
	return header, pace, nil
}
