package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"sluice/pipeline/stream"
)

const (
	settledEvery = 100 * time.Millisecond // how often is asked whether all is settled
	countedIn    = time.Second            // an event is gone a moment before it is counted
	summaryUsers = 100                    // in the summary for people
)

// delivery is what became of a file.
type delivery struct {
	publishCounts
	Pushed      int64          `json:"pushed"`
	DeadLetters int64          `json:"dead_lettered"`
	Dropped     int64          `json:"dropped"`
	Collapsed   int64          `json:"collapsed"`
	Expired     int64          `json:"expired"`
	Unsettled   int64          `json:"unsettled"`
	Seconds     float64        `json:"seconds"`
	Users       []userDelivery `json:"users"`
	name        string
	stopped     error
	lines       []userLine
}

// userDelivery is what became of one user's events.
type userDelivery struct {
	User        string  `json:"user"`
	Published   int64   `json:"published"`
	Pushed      int64   `json:"pushed"`
	DeadLetters int64   `json:"dead_lettered"`
	Dropped     int64   `json:"dropped"`
	Collapsed   int64   `json:"collapsed"`
	MedianWait  float64 `json:"median_wait_seconds"`
	LongestWait float64 `json:"longest_wait_seconds"`
}

// deliver carries a file through everything and prints what became of it. Whatever shows meanwhile goes to standard error.
func (d *dev) deliver(ctx context.Context, cmd *cobra.Command, f *devFlags, file *publishSource) error {
	var published atomic.Int64
	published.Store(-1)
	view := newDevView(cmd.ErrOrStderr(), d.ledger, d.notices, func() string {
		if n := published.Load(); n >= 0 {
			sum := d.ledger.sums()
			return fmt.Sprintf("%d of %s settled", sum.settled(), count(n, "event"))
		}
		return "reading the file"
	})
	_, _ = fmt.Fprintf(view.lines, "Delivering %s, at most %s to each user (SLUICE_KEY=%s); metrics: http://%s/metrics\n",
		f.fileName(), d.cfg.Limit, d.cfg.Key, d.admin.Addr())
	result := delivery{name: f.fileName()}
	started := time.Now()
	running, finish := context.WithCancel(ctx)
	defer finish()
	err := d.work(running, view, func(ctx context.Context) error {
		defer finish()
		err := d.publishFile(ctx, file, view.lines, &result)
		if err != nil || result.stopped != nil {
			return err
		}
		published.Store(result.Published)
		if d.awaitSettled(ctx, result.Published) != nil {
			result.stopped = errors.New("stopped before all events were settled")
		}
		return nil
	})
	if err != nil {
		return err
	}
	result.Seconds = time.Since(started).Seconds()
	result.fill(d.ledger)
	if err := result.print(cmd.OutOrStdout(), f.json); err != nil {
		return err
	}
	return result.err()
}

func (f *devFlags) fileName() string {
	if f.file == "-" {
		return "standard input"
	}
	return f.file
}

// publishFile publishes all good lines; what is wrong with the others is written to lines.
func (d *dev) publishFile(ctx context.Context, file *publishSource, lines io.Writer, result *delivery) error {
	out := newProgress(lines, 0)
	p, err := newPublisher(ctx, d.nc, "", nil, out.report)
	if err != nil {
		return err
	}
	bad, stopped := file.each(ctx, p, out)
	p.finish()
	result.stopped = stopped
	result.publishCounts = publishCounts{
		Published: p.published.Load(), Duplicates: p.duplicates.Load(), BadLines: bad, Failed: p.failed.Load(),
	}
	return nil
}

// awaitSettled waits until no event is in the source or in a lane and all n were counted, as published and as settled; an error
// means that ctx ended.
func (d *dev) awaitSettled(ctx context.Context, n int64) error {
	var gone time.Time // since when no event is anywhere
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settledEvery):
		}
		settled, err := d.settled(ctx)
		if err != nil {
			d.log.Debug("asking whether all is settled", "err", err)
		}
		sum := d.ledger.sums()
		switch {
		case err != nil || !settled || sum.published < n || sum.inFlight > 0:
			gone = time.Time{}
		case sum.settled() >= sum.published:
			return nil
		case gone.IsZero():
			gone = time.Now()
		case time.Since(gone) > countedIn:
			return nil
		}
	}
}

// settled asks first the source and then the lanes: an event is stored in its lane before the source forgets it.
func (d *dev) settled(ctx context.Context) (bool, error) {
	consumer, err := d.js.Consumer(ctx, d.cfg.Stream, d.cfg.Consumer)
	if err != nil {
		return false, err
	}
	if info := consumer.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
		return false, nil
	}
	names, err := stream.NewNames(d.cfg.Name)
	if err != nil {
		return false, err
	}
	lanes, err := d.js.Stream(ctx, names.LanesStream())
	if err != nil {
		return false, err
	}
	return lanes.CachedInfo().State.Msgs == 0, nil
}

// fill takes the counts of all users.
func (r *delivery) fill(l *ledger) {
	s := l.snapshot(time.Now(), maxUsers+1)
	r.lines = s.users
	r.Pushed, r.DeadLetters, r.Dropped = s.total.pushed, s.total.deadLetters, s.total.dropped
	r.Collapsed, r.Expired = s.total.collapsed, s.total.expired
	r.Unsettled = max(0, r.Published-r.Pushed-r.DeadLetters-r.Dropped-r.Collapsed-r.Expired)
	r.Users = make([]userDelivery, 0, len(s.users))
	for _, u := range s.users {
		r.Users = append(r.Users, userDelivery{
			User: u.user, Published: u.published, Pushed: u.pushed, DeadLetters: u.deadLetters, Dropped: u.dropped,
			Collapsed: u.collapsed, MedianWait: u.median.Seconds(), LongestWait: u.longest.Seconds(),
		})
	}
}

func (r *delivery) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	if r.Published+r.Duplicates+r.BadLines+r.Failed == 0 && r.stopped == nil {
		_, err := fmt.Fprintf(w, "%s holds no events.\n", r.name)
		return err
	}
	t := newTable()
	t.AppendHeader(table.Row{"user", "published", "pushed", "dead", "median wait", "longest"})
	for _, u := range r.lines[:min(len(r.lines), summaryUsers)] {
		t.AppendRow(table.Row{visible(u.user), humanize.Comma(u.published), humanize.Comma(u.pushed),
			humanize.Comma(u.deadLetters + u.dropped), wait(u.median), wait(u.longest)})
	}
	var b strings.Builder
	for line := range strings.Lines(t.Render() + "\n") {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	if more := len(r.lines) - summaryUsers; more > 0 {
		fmt.Fprintf(&b, "… and %s more; --json prints all\n", humanize.Comma(int64(more)))
	}
	fmt.Fprintf(&b, "%s: %s published, %s, %s; %d pushed, %d dead-lettered, %d dropped", r.name, count(r.Published, "event"),
		count(r.Duplicates, "duplicate"), count(r.BadLines, "bad line"), r.Pushed, r.DeadLetters, r.Dropped)
	if r.Collapsed > 0 {
		fmt.Fprintf(&b, ", %d collapsed", r.Collapsed)
	}
	if r.Expired > 0 {
		fmt.Fprintf(&b, ", %d expired", r.Expired)
	}
	fmt.Fprintf(&b, " in %.1f s\n", r.Seconds)
	_, err := io.WriteString(w, b.String())
	return err
}

// err says what keeps the file from having been delivered.
func (r *delivery) err() error {
	lost := r.Failed + r.DeadLetters + r.Dropped
	var faults []string
	if r.BadLines > 0 {
		faults = append(faults, count(r.BadLines, "bad line"))
	}
	if lost > 0 {
		faults = append(faults, count(lost, "event")+" not delivered")
	}
	if r.stopped != nil {
		faults = append(faults, fmt.Sprintf("%s; %s unsettled", r.stopped, count(r.Unsettled, "event")))
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, ", "))
}
