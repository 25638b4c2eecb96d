package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

const (
	nameWidth  = 20 // of the column of users
	leastUsers = 3  // shown on however small a terminal
)

// paint colours texts, or doesn't.
type paint bool

func (p paint) with(s string, colors ...text.Color) string {
	if !p {
		return s
	}
	return text.Escape(s, text.Colors(colors).EscapeSeq())
}

// roomFor is how many users a table of so many lines shows: all but the header, the total and the status are for users.
func roomFor(height int) int { return max(leastUsers, height-3) }

// tableLines renders s for a terminal: at most roomFor(height) users, each line cut off at width. status is the last line.
func (p paint) tableLines(s snapshot, status string, width, height int) []string {
	room := roomFor(height)
	if s.more > 0 || len(s.users) > room {
		room-- // for the line that says so
	}
	shown := s.users[:min(len(s.users), room)]
	more := s.more + len(s.users) - len(shown)

	t := newTable()
	t.AppendHeader(table.Row{
		p.with("user", text.Bold), p.with("published", text.Bold), p.with("pushed", text.Bold), p.with("waiting", text.Bold),
		p.with("pushes/s", text.Bold), p.with("p99", text.Bold),
	})
	for _, u := range shown {
		t.AppendRow(p.row(visible(u.user), u))
	}
	if more > 0 {
		t.AppendRow(table.Row{p.with(fmt.Sprintf("… and %s more", humanize.Comma(int64(more))), text.Faint)})
	}
	t.AppendRow(p.row(p.with("total", text.Bold), s.total))
	lines := append(strings.Split(t.Render(), "\n"), status)
	for i := range lines {
		lines[i] = text.Trim(strings.TrimRight(lines[i], " "), width)
	}
	return lines
}

func (p paint) row(name string, u userLine) table.Row {
	waiting := humanize.Comma(u.waiting)
	if u.waiting > 1 {
		waiting = p.with(waiting, text.FgYellow)
	}
	return table.Row{name, humanize.Comma(u.published), humanize.Comma(u.pushed), waiting, fmt.Sprintf("%.1f", u.rate), wait(u.p99)}
}

// plainTable has columns without lines around them.
func plainTable() table.Writer {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format = table.FormatOptions{} // leaves the letters as they are
	t.SetStyle(style)
	return t
}

// newTable has a name on the left and figures of an unchanging width on the right.
func newTable() table.Writer {
	t := plainTable()
	columns := []table.ColumnConfig{{Number: 1, WidthMin: nameWidth, WidthMax: nameWidth, WidthMaxEnforcer: shorten}}
	for i := range 5 {
		columns = append(columns, table.ColumnConfig{Number: i + 2, WidthMin: 9, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	return t
}

func shorten(s string, most int) string {
	if text.StringWidthWithoutEscSequences(s) <= most {
		return s
	}
	return text.Snip(s, most, "…")
}

// wait is a duration for people; "-" if there is none.
func wait(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// visible is a key as it may be shown: keys are any bytes, and some would move the cursor.
func visible(key string) string {
	for _, r := range key {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return strconv.QuoteToASCII(key)
		}
	}
	return key
}

// plainLine is s on one line, for logs and pipes.
func plainLine(s snapshot) string {
	line := fmt.Sprintf("%s  published %d, pushed %d, waiting %d, %.1f pushes/s, p99 %s",
		elapsed(s.after), s.total.published, s.total.pushed, s.total.waiting, s.total.rate, wait(s.total.p99))
	if len(s.users) > 0 && s.users[0].waiting > 1 {
		busiest := s.users[0]
		line += fmt.Sprintf("; most waiting: %s (%d, %.1f pushes/s)", visible(busiest.user), busiest.waiting, busiest.rate)
	}
	if rest := troubled(s.total); rest != "" {
		line += "; " + rest
	}
	return line
}

// troubled tells what didn't go well; "" if all did.
func troubled(u userLine) string {
	var parts []string
	add := func(n int64, one, many string) {
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, humanize.Comma(n)+" "+many)
		}
	}
	add(u.failed, "failed push", "failed pushes")
	add(u.deadLetters, "dead letter", "dead letters")
	add(u.dropped, "dropped event", "dropped events")
	return strings.Join(parts, ", ")
}

// elapsed is minutes and seconds.
func elapsed(d time.Duration) string {
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}
