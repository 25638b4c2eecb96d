package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sluice/pipeline"
	"sluice/pipeline/stream"
)

func newDLQShowCommand() *cobra.Command {
	var asJSON, body bool
	cmd := &cobra.Command{
		Use:   "show SEQ",
		Short: "Show a dead letter with its headers and its body",
		Long: `Show the dead letter with the number that ls gives it: what became of the event, its headers as the producer sent
them, and its body, in base64 unless it is text.`,
		Example: `  sluice dlq show 17
  sluice dlq show 17 --json
  sluice dlq show 17 --body > body.bin`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil || seq == 0 {
				return usagef("%q is not the number of a dead letter; 'sluice dlq ls' lists them", args[0])
			}
			if asJSON && body {
				return usagef("--json and --body exclude each other")
			}
			return showLetter(cmd, seq, asJSON, body)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	cmd.Flags().BoolVar(&body, "body", false, "print the body only, byte for byte")
	return cmd
}

func showLetter(cmd *cobra.Command, seq uint64, asJSON, body bool) error {
	b, err := openLetters(cmd.Context(), newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer b.nc.Close()
	l, err := b.letters.Read(cmd.Context(), pipeline.BodyID{Created: b.letters.Created(), Seq: seq})
	if errors.Is(err, pipeline.ErrGone) {
		return fmt.Errorf("there is no dead letter %d", seq)
	}
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case body:
		_, err = out.Write(l.Event.Data)
		return err
	case asJSON:
		return encodeLetter(out, l)
	}
	return printLetter(out, l)
}

// fullTime is a time for people.
const fullTime = "2006-01-02 15:04:05.000 UTC"

func printLetter(out io.Writer, l stream.DeadLetter) error {
	ev := l.Event
	attempts := strconv.Itoa(ev.Attempt)
	if !ev.First.IsZero() {
		attempts += ", the first at " + ev.First.UTC().Format(fullTime)
	}
	var b strings.Builder
	tab := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, line := range [][2]string{
		{"dead letter", strconv.FormatUint(l.Seq, 10)},
		{"since", l.Buried.UTC().Format(fullTime)},
		{"reason", visible(string(l.Reason))},
		{"error", visible(l.Cause)},
		{"key", shownKey(ev.Key)},
		{"id", visible(ev.ID)},
		{"attempts", attempts},
		{"subject", visible(ev.Subject)},
		{"source", visible(ev.Source.String())},
		{"published", ev.Time.UTC().Format(fullTime)},
	} {
		if line[1] != "" {
			_, _ = fmt.Fprintf(tab, "%s\t%s\n", line[0], line[1]) // a strings.Builder takes everything
		}
	}
	_ = tab.Flush()
	b.WriteString("\n")
	for _, name := range slices.Sorted(maps.Keys(ev.Header)) {
		for _, value := range ev.Header[name] {
			fmt.Fprintf(&b, "%s: %s\n", visible(name), visible(value))
		}
	}
	if len(ev.Header) > 0 {
		b.WriteString("\n")
	}
	text, kind := string(ev.Data), ""
	if !printableText(ev.Data) {
		text, kind = base64.StdEncoding.EncodeToString(ev.Data), ", in base64"
	}
	fmt.Fprintf(&b, "%s%s\n%s", count(int64(len(ev.Data)), "byte"), kind, text)
	if text != "" && !strings.HasSuffix(text, "\n") {
		b.WriteString("\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// printableText says whether data can be shown as they are.
func printableText(data []byte) bool {
	if !utf8.Valid(data) {
		return false
	}
	for _, r := range string(data) {
		if !unicode.IsPrint(r) && r != '\n' && r != '\r' && r != '\t' {
			return false
		}
	}
	return true
}

func encodeLetter(out io.Writer, l stream.DeadLetter) error {
	whole := struct {
		letterJSON
		Headers    pipeline.Header `json:"headers"`
		Data       *string         `json:"data,omitempty"`
		DataBase64 []byte          `json:"data_base64,omitempty"`
	}{letterJSON: letterOf(l), Headers: l.Event.Header}
	if utf8.Valid(l.Event.Data) {
		text := string(l.Event.Data)
		whole.Data = &text
	} else {
		whole.DataBase64 = l.Event.Data
	}
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(whole)
}
