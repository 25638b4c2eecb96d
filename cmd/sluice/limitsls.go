package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sluice/limiter"
	"sluice/pipeline/stream"
)

// ruleSources are the sources in the order in which they are listed.
var ruleSources = []limiter.RulingSource{limiter.SourceAll, limiter.SourceDefault, limiter.SourceTier, limiter.SourcePattern, limiter.SourceKey}

func newLimitsListCommand() *cobra.Command {
	var (
		asJSON bool
		source string
	)
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List all that is said of limits",
		Long:    "List all rules with who said them, when and why, and all entries that can't be understood.",
		Example: "  sluice limits ls\n  sluice limits ls --source tier --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var sources []limiter.RulingSource
			if source != "" {
				if sources = []limiter.RulingSource{limiter.RulingSource(source)}; !slices.Contains(ruleSources, sources[0]) {
					return usagef("--source %q is not known; use all, default, tier, pattern or key", source)
				}
			}
			return listRules(cmd, asJSON, sources)
		},
	}
	cmd.Flags().StringVar(&source, "source", "", "only these: all, default, tier, pattern or key")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object per line")
	_ = cmd.RegisterFlagCompletionFunc("source", cobra.FixedCompletions([]string{"all", "default", "tier", "pattern", "key"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func listRules(cmd *cobra.Command, asJSON bool, sources []limiter.RulingSource) error {
	b, err := openRules(cmd.Context(), newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer b.nc.Close()
	rules, err := b.bucket.All(cmd.Context(), sources...)
	if err != nil {
		return err
	}
	last, err := b.bucket.Last(cmd.Context())
	if err != nil {
		return err
	}
	rules = slices.DeleteFunc(rules, func(r stream.StoredRule) bool { return r.Removed })
	slices.SortStableFunc(rules, func(a, b stream.StoredRule) int {
		return cmp.Or(cmp.Compare(slices.Index(ruleSources, a.Place.Source), slices.Index(ruleSources, b.Place.Source)), cmp.Compare(a.Place.Name, b.Place.Name))
	})
	out := cmd.OutOrStdout()
	if asJSON {
		return encodeRules(out, rules)
	}
	if len(rules) == 0 {
		_, err := fmt.Fprintln(out, "nothing is said: SLUICE_LIMIT of the workers rules")
		return err
	}
	return printRules(out, rules, last)
}

func encodeRules(out io.Writer, rules []stream.StoredRule) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for _, r := range rules {
		if err := enc.Encode(ruleOf(r)); err != nil {
			return err
		}
	}
	return nil
}

// printRules prints a table of rules and what they are in all.
func printRules(out io.Writer, rules []stream.StoredRule, last stream.LimitsVersion) error {
	rows := make([][]string, len(rules))
	for i, r := range rules {
		rows[i] = []string{placeCell(r), saysCell(r), whenCell(r.At), visible(r.By), visible(r.Comment)}
	}
	if err := printTable(out, []string{"place", "says", "since (UTC)", "by", "comment"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s, version %d\n", count(int64(len(rules)), "rule"), last.Seq)
	return err
}

func placeCell(r stream.StoredRule) string {
	if r.Place == (limiter.Place{}) {
		return visible(r.Key)
	}
	return shownPlace(r.Place)
}

func saysCell(r stream.StoredRule) string {
	switch {
	case r.Fault != nil && !r.Rule.None():
		return "not understood, so " + r.Rule.String() + " as before: " + visible(r.Fault.Error())
	case r.Fault != nil:
		return "not understood: " + visible(r.Fault.Error())
	case r.Removed:
		return "-"
	}
	return r.Rule.String()
}

func whenCell(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(shortTime)
}

// printTable prints rows no wider than the terminal, at least 80 columns: the widest columns give way.
func printTable(out io.Writer, header []string, rows [][]string) error {
	width := leastWidth
	if file, ok := out.(*os.File); ok {
		if w, _, err := term.GetSize(int(file.Fd())); err == nil {
			width = max(w, leastWidth)
		}
	}
	t := plainTable()
	p := paintOn(out)
	titles := table.Row{}
	for _, name := range header {
		titles = append(titles, p.with(name, text.Bold))
	}
	t.AppendHeader(titles)
	columns := make([]table.ColumnConfig, len(header))
	for i, w := range columnWidths(header, rows, width) {
		columns[i] = table.ColumnConfig{Number: i + 1, WidthMax: w, WidthMaxEnforcer: shorten}
	}
	t.SetColumnConfigs(columns)
	for _, row := range rows {
		cells := make(table.Row, len(row))
		for i, cell := range row {
			cells[i] = cell
		}
		t.AppendRow(cells)
	}
	_, err := fmt.Fprintln(out, trimRight(t.Render()))
	return err
}

// columnWidths are the widths of columns with two spaces between them that fit into width.
func columnWidths(header []string, rows [][]string, width int) []int {
	widths := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], text.StringWidthWithoutEscSequences(cell))
		}
	}
	total := 2 * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		widths[widest]--
	}
	return widths
}

func newLimitsHistoryCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "history PLACE",
		Short:             "Tell what was said of a place, by whom, when and why",
		Long:              "Tell what was said of a place, the last ten times, the oldest first. 'all' is the brake.",
		Example:           "  sluice limits history alice\n  sluice limits history all",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePlaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			place, err := placeArg(args[0])
			if err != nil {
				return err
			}
			b, err := openRules(cmd.Context(), newProgress(cmd.ErrOrStderr(), 0).report)
			if err != nil {
				return err
			}
			defer b.nc.Close()
			history, err := b.bucket.History(cmd.Context(), place)
			if err != nil {
				return err
			}
			return printHistory(cmd.OutOrStdout(), place, history, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object per line")
	return cmd
}

func printHistory(out io.Writer, place limiter.Place, history []stream.StoredRule, asJSON bool) error {
	if asJSON {
		return encodeRules(out, history)
	}
	if len(history) == 0 {
		_, err := fmt.Fprintf(out, "nothing was ever said of %s\n", named(place))
		return err
	}
	rows := make([][]string, len(history))
	for i, r := range history {
		by := visible(r.By)
		if by == "" {
			by = "-"
		}
		rows[i] = []string{fmt.Sprint(r.Revision), whenCell(r.At), by, saysCell(r), strings.TrimSpace(visible(r.Comment))}
	}
	return printTable(out, []string{"version", "when (UTC)", "by", "said", "comment"}, rows)
}
