package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sluice/pipeline"
	"sluice/pipeline/stream"
)

func newDLQListCommand() *cobra.Command {
	var (
		f               letterFlags
		asJSON, summary bool
	)
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List dead letters, the oldest first",
		Long: `List dead letters, the oldest first, with what show needs to tell more. Ages and times are those of dead-lettering.

Reasons: ` + reasonNames() + `.`,
		Example: `  sluice dlq ls
  sluice dlq ls --reason rejected --newer 1d --json
  sluice dlq ls --summary`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return listLetters(cmd, f, asJSON, summary) },
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object per line")
	cmd.Flags().BoolVar(&summary, "summary", false, "only count them, per reason and key")
	return cmd
}

func listLetters(cmd *cobra.Command, f letterFlags, asJSON, summary bool) error {
	s, err := f.parse(time.Now())
	if err != nil {
		return err
	}
	b, err := openLetters(cmd.Context(), newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer b.nc.Close()
	out := cmd.OutOrStdout()
	list := newLetterList(out, asJSON, summary)
	list.now = b.now
	if err := b.each(cmd.Context(), s, list.add); err != nil {
		return err
	}
	if len(list.tally) == 0 {
		if asJSON {
			out = cmd.ErrOrStderr()
		}
		_, err := fmt.Fprintln(out, s.none())
		return err
	}
	return list.end()
}

// letterList prints dead letters as they come.
type letterList struct {
	out    io.Writer
	json   *json.Encoder // nil: for people
	sums   map[sumKey]*letterSum
	page   *letterTable // nil with --summary
	tally  letterTally
	oldest time.Time
	now    func() time.Time // by the clock that dated them
}

type sumKey struct {
	reason pipeline.DeadReason
	key    string
}

// letterSum is a line of --summary.
type letterSum struct {
	Reason pipeline.DeadReason `json:"reason"`
	keyJSON
	Count  int       `json:"count"`
	Oldest time.Time `json:"oldest"`
	Newest time.Time `json:"newest"`
}

func newLetterList(out io.Writer, asJSON, summary bool) *letterList {
	list := &letterList{out: out, tally: letterTally{}, now: time.Now}
	if asJSON {
		list.json = json.NewEncoder(out)
		list.json.SetEscapeHTML(false)
	}
	if summary {
		list.sums = map[sumKey]*letterSum{}
	} else {
		list.page = newLetterTable(out)
	}
	return list
}

func (list *letterList) add(l stream.DeadLetter) error {
	if len(list.tally) == 0 {
		list.oldest = l.Buried
	}
	list.tally[l.Reason]++
	switch {
	case list.sums != nil:
		key := sumKey{l.Reason, l.Event.Key}
		sum := list.sums[key]
		if sum == nil {
			sum = &letterSum{Reason: l.Reason, keyJSON: keyOf(l.Event.Key), Oldest: l.Buried.UTC()}
			list.sums[key] = sum
		}
		sum.Count++
		sum.Newest = l.Buried.UTC()
		return nil
	case list.json != nil:
		return list.json.Encode(letterOf(l))
	}
	return list.page.add(l)
}

func (list *letterList) end() error {
	if list.sums != nil {
		return list.printSums()
	}
	if list.json != nil {
		return nil
	}
	if err := list.page.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(list.out, "%s, the oldest %s\n", list.tally, age(list.now().Sub(list.oldest)))
	return err
}

// printSums prints what --summary is about, the most first.
func (list *letterList) printSums() error {
	keys := make([]sumKey, 0, len(list.sums))
	for key := range list.sums {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b sumKey) int {
		return cmp.Or(cmp.Compare(list.sums[b].Count, list.sums[a].Count), cmp.Compare(a.reason, b.reason), cmp.Compare(a.key, b.key))
	})
	if list.json != nil {
		for _, key := range keys {
			if err := list.json.Encode(list.sums[key]); err != nil {
				return err
			}
		}
		return nil
	}
	p := paintOn(list.out)
	t := plainTable()
	t.AppendHeader(table.Row{p.with("count", text.Bold), p.with("reason", text.Bold), p.with("key", text.Bold), p.with("oldest (UTC)", text.Bold), p.with("newest (UTC)", text.Bold)})
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 1, Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Number: 2, WidthMin: reasonWidth}, {Number: 3, WidthMax: 30, WidthMaxEnforcer: shorten},
	})
	for _, key := range keys {
		sum := list.sums[key]
		t.AppendRow(table.Row{
			humanize.Comma(int64(sum.Count)), p.with(visible(string(key.reason)), text.FgYellow), shownKey(key.key),
			sum.Oldest.Format(shortTime), sum.Newest.Format(shortTime),
		})
	}
	_, err := fmt.Fprintf(list.out, "%s\n%s\n", trimRight(t.Render()), list.tally)
	return err
}

const (
	shortTime   = "01-02 15:04"
	seqWidth    = 7
	reasonWidth = 10
	leastWidth  = 80  // of a table
	pageRows    = 500 // that are laid out at once
)

// letterTable prints rows of a width that is known beforehand, so that it needn't have them all.
type letterTable struct {
	out   io.Writer
	paint paint
	width int
	rows  table.Writer
	count int // of rows
	begun bool
}

func newLetterTable(out io.Writer) *letterTable {
	t := &letterTable{out: out, paint: paintOn(out), width: leastWidth}
	if file, ok := out.(*os.File); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil {
			t.width = max(width, leastWidth)
		}
	}
	return t
}

func (t *letterTable) add(l stream.DeadLetter) error {
	if t.rows == nil {
		t.rows = plainTable()
		t.layOut()
	}
	t.rows.AppendRow(table.Row{
		strconv.FormatUint(l.Seq, 10), l.Buried.UTC().Format(shortTime), t.paint.with(visible(string(l.Reason)), text.FgYellow),
		shownKey(l.Event.Key), visible(l.Event.ID), l.Event.Attempt, visible(l.Cause),
	})
	if t.count++; t.count == pageRows {
		return t.flush()
	}
	return nil
}

// layOut gives each column its width: key, id and error share what is left of the line.
func (t *letterTable) layOut() {
	const fixed = seqWidth + 2 + len(shortTime) + 2 + reasonWidth + 2 + 2 + 2 + 3 + 2 // with the gaps behind key and id
	rest := t.width - fixed
	widths := []int{seqWidth, len(shortTime), reasonWidth, rest / 4, rest / 4, 3, rest - 2*(rest/4)}
	columns := make([]table.ColumnConfig, len(widths))
	for i, width := range widths {
		columns[i] = table.ColumnConfig{Number: i + 1, WidthMin: width, WidthMax: width, WidthMaxEnforcer: shorten}
	}
	columns[0] = table.ColumnConfig{Number: 1, WidthMin: widths[0], Align: text.AlignRight, AlignHeader: text.AlignRight}
	columns[5].Align, columns[5].AlignHeader = text.AlignRight, text.AlignRight
	t.rows.SetColumnConfigs(columns)
	if !t.begun {
		t.begun = true
		row := table.Row{}
		for _, name := range []string{"seq", "when (UTC)", "reason", "key", "id", "try", "error"} {
			row = append(row, t.paint.with(name, text.Bold))
		}
		t.rows.AppendHeader(row)
	}
}

func (t *letterTable) flush() error {
	if t.rows == nil {
		return nil
	}
	lines := strings.Split(t.rows.Render(), "\n")
	for i := range lines {
		lines[i] = text.Trim(strings.TrimRight(lines[i], " "), t.width)
	}
	t.rows, t.count = nil, 0
	_, err := fmt.Fprintln(t.out, strings.Join(lines, "\n"))
	return err
}

// paintOn colours what a person reads on a terminal.
func paintOn(out io.Writer) paint {
	return paint(isTerminal(out) && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == "")
}

func trimRight(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// shownKey is a key in a table; "-" where there is none.
func shownKey(key string) string {
	if key == "" {
		return "-"
	}
	return visible(key)
}

// age is a time that has passed, for people.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "a moment ago"
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

// keyJSON is a key, which may be any bytes, in JSON.
type keyJSON struct {
	Key       string `json:"key,omitempty"`
	KeyBase64 []byte `json:"key_base64,omitempty"` // instead of key where that isn't UTF-8
}

func keyOf(key string) keyJSON {
	if utf8.ValidString(key) {
		return keyJSON{Key: key}
	}
	return keyJSON{KeyBase64: []byte(key)}
}

// letterJSON is a dead letter for programs.
type letterJSON struct {
	Seq          uint64              `json:"seq"`
	DeadLettered time.Time           `json:"dead_lettered"`
	Reason       pipeline.DeadReason `json:"reason"`
	Error        string              `json:"error,omitempty"`
	keyJSON
	ID           string     `json:"id"`
	Subject      string     `json:"subject"`
	Source       string     `json:"source"`
	Time         time.Time  `json:"time"` // when the source stored it
	Attempts     int        `json:"attempts"`
	FirstAttempt *time.Time `json:"first_attempt,omitempty"`
}

func letterOf(l stream.DeadLetter) letterJSON {
	ev := l.Event
	out := letterJSON{
		Seq: l.Seq, DeadLettered: l.Buried.UTC(), Reason: l.Reason, Error: l.Cause, keyJSON: keyOf(ev.Key), ID: ev.ID, Subject: ev.Subject,
		Source: ev.Source.String(), Time: ev.Time.UTC(), Attempts: ev.Attempt,
	}
	if !ev.First.IsZero() {
		first := ev.First.UTC()
		out.FirstAttempt = &first
	}
	return out
}
