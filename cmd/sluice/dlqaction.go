package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/pipeline/stream"
)

// letterAction is what the commands have in common that change dead letters: their flags, and what comes before the change.
type letterAction struct {
	letterFlags
	dryRun, yes, json bool
}

// add adds the flags. yes says what --yes is for.
func (f *letterAction) add(flags *pflag.FlagSet, yes string) {
	f.letterFlags.add(flags)
	flags.BoolVar(&f.dryRun, "dry-run", false, "only say how many there are")
	flags.BoolVar(&f.yes, "yes", false, yes)
	flags.BoolVar(&f.json, "json", false, "print the counts as JSON")
}

// letterQuestion is what a person is asked before dead letters are changed.
type letterQuestion struct {
	verb    string // what is done: "purge"
	text    string // of the question; %s stands for the letters
	needed  bool   // unless --yes or --dry-run says otherwise
	refusal string // where nobody can be asked
}

// begin selects the letters and asks whether they are meant. The box is nil when there is an error or nothing more to do;
// what there is to say is said then. Else the caller closes its connection.
func (f *letterAction) begin(cmd *cobra.Command, s letterSelection, q letterQuestion, parts ...part) (*letterBox, []stream.DeadLetter, error) {
	ask := q.needed && !f.yes && !f.dryRun
	if ask && !isTerminal(cmd.InOrStdin()) {
		return nil, nil, usagef("%s", q.refusal)
	}
	b, err := openLetters(cmd.Context(), newProgress(cmd.ErrOrStderr(), 0).report, parts...)
	if err != nil {
		return nil, nil, err
	}
	letters, tally, err := b.gather(cmd.Context(), s)
	planned := err == nil && (len(letters) == 0 && !f.json || f.dryRun)
	switch {
	case err != nil:
	case planned:
		err = printPlan(cmd.OutOrStdout(), q.verb, s, tally, len(letters), f.json)
	case ask && len(letters) > 0:
		err = confirm(cmd, fmt.Sprintf(q.text, tally))
	}
	if planned || err != nil {
		b.nc.Close()
		return nil, nil, err
	}
	return b, letters, nil
}

// printPlan says what would be done, or that there is nothing to do.
func printPlan(w io.Writer, verb string, s letterSelection, tally letterTally, selected int, asJSON bool) error {
	var err error
	switch {
	case asJSON:
		err = json.NewEncoder(w).Encode(struct {
			Selected int         `json:"selected"`
			Reasons  letterTally `json:"reasons"`
		}{selected, tally})
	case selected == 0:
		_, err = fmt.Fprintln(w, s.none())
	default:
		_, err = fmt.Fprintf(w, "would %s %s; ls with the same flags lists them\n", verb, tally)
	}
	return err
}
