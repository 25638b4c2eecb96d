package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"sluice/pipeline"
	"sluice/pipeline/stream"
)

// replayFlags are the flags of replay, as given.
type replayFlags struct {
	letterAction
	rate string
}

func newDLQReplayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Publish dead letters again, under their ids and with all attempts ahead",
		Long: `Publish the events of dead letters again, the oldest first, each to its subject in SLUICE_STREAM, and delete the dead
letters once the stream has confirmed them. To workers they are new events: their keys' limits hold, attempts count
from 1. Receivers see the same ids as before. Replaying a dead letter twice within the stream's duplicate window, say
after a crash, publishes it once.

One whose subject the stream doesn't take any more, or none of SLUICE_SUBJECTS matches, stays, and is told. One that became
too large for the stream with its id goes into its key's lane instead, where a worker finds it within 30 s; if it was stored
without a key, SLUICE_KEY as it is set here gives it one. What a worker would refuse at once stays, and is told.`,
		Example: `  sluice dlq replay --key alice
  sluice dlq replay --reason exhausted --newer 1d --rate 100/s
  sluice dlq replay --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.add(cmd.Flags(), "don't ask; needed to replay all without a terminal")
	cmd.Flags().StringVar(&f.rate, "rate", "", "publish no faster, such as 100/s")
	return cmd
}

func (f *replayFlags) run(cmd *cobra.Command) error {
	s, err := f.parse(time.Now())
	if err != nil {
		return err
	}
	var pace *rate.Limiter
	if f.rate != "" {
		if pace, err = parsePace(f.rate); err != nil {
			return usagef("--rate: %s", err)
		}
	}
	ctx := cmd.Context()
	b, letters, err := f.begin(cmd, s, letterQuestion{
		verb: "replay", text: "Replay %s?", needed: !s.narrow,
		refusal: "nothing narrows the selection; give --yes to replay all dead letters",
	}, sourcePart, limitPart)
	if b == nil {
		return err
	}
	defer b.nc.Close()
	bar := newCountProgress(cmd.ErrOrStderr(), "replaying", len(letters))
	r, err := newReplay(ctx, b, pace, bar)
	if err != nil {
		return err
	}
	started := time.Now()
	stopped := r.all(ctx, letters)
	bar.close()
	counts := r.counts(len(letters))
	if err := counts.print(cmd.OutOrStdout(), time.Since(started), f.json); err != nil {
		return err
	}
	return counts.err(stopped)
}

// replay publishes dead letters again.
type replay struct {
	*letterBox
	*publisher
	rate   *rate.Limiter // nil: none
	lanes  *stream.Lanes
	source jetstream.StreamConfig
	most   int // bytes of headers and data that the source takes
	out    *progress

	parked, gone, kept atomic.Int64
}

func newReplay(ctx context.Context, b *letterBox, pace *rate.Limiter, out *progress) (*replay, error) {
	source, err := b.js.Stream(ctx, b.cfg.Stream)
	if err != nil {
		return nil, fmt.Errorf("looking for stream %s: %w", b.cfg.Stream, err)
	}
	lanes, err := stream.OpenLanes(ctx, b.js, b.cfg.stream())
	if err != nil {
		return nil, err
	}
	p, err := newPublisher(ctx, b.nc, b.cfg.NATS.JSDomain, nil, out.report)
	if err != nil {
		return nil, err
	}
	r := &replay{letterBox: b, publisher: p, rate: pace, lanes: lanes, source: source.CachedInfo().Config, most: int(b.nc.MaxPayload()), out: out}
	if limit := r.source.MaxMsgSize; limit > 0 {
		r.most = min(r.most, int(limit))
	}
	return r, nil
}

const (
	readAhead  = 32          // dead letters that are read at a time
	readWithin = time.Second // before they are published: somebody else may replay or purge them meanwhile
)

// readLetter is a dead letter that was read, or why not.
type readLetter struct {
	id     pipeline.BodyID
	at     time.Time // when it was asked for
	letter stream.DeadLetter
	err    error
}

// read reads dead letters, many at a time, and gives them in their order until ctx ends.
func (r *replay) read(ctx context.Context, letters []stream.DeadLetter) <-chan chan readLetter {
	reads := make(chan chan readLetter, readAhead)
	go func() {
		defer close(reads)
		for _, l := range letters {
			read := make(chan readLetter, 1)
			select {
			case reads <- read:
			case <-ctx.Done():
				return
			}
			go func() {
				read <- r.readOne(ctx, l.BodyID)
			}()
		}
	}()
	return reads
}

func (r *replay) readOne(ctx context.Context, id pipeline.BodyID) readLetter {
	now := time.Now()
	letter, err := r.letters.Read(ctx, id)
	return readLetter{id, now, letter, err}
}

// turn waits until one more may be published, and reads the letter again if that took long.
func (r *replay) turn(ctx context.Context, read readLetter) readLetter {
	if r.rate == nil || read.err != nil || r.rate.Wait(ctx) != nil || time.Since(read.at) < readWithin {
		return read
	}
	return r.readOne(ctx, read.id)
}

// all replays the letters in their order and waits for all confirmations. The error says why it ended early.
func (r *replay) all(ctx context.Context, letters []stream.DeadLetter) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	defer r.finish()
	done := int64(0)
	for read := range r.read(reading, letters) {
		if err := r.one(ctx, r.turn(ctx, <-read)); err != nil {
			return fmt.Errorf("stopped: %w", err)
		}
		done++
		r.out.set(done)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	return nil
}

// one replays one letter. An error means that no further one can be.
func (r *replay) one(ctx context.Context, read readLetter) error {
	name := fmt.Sprintf("dead letter %d", read.id.Seq)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(read.err, pipeline.ErrGone):
		r.gone.Add(1)
		return nil
	case read.err != nil:
		r.failed.Add(1)
		r.out.report(fmt.Errorf("%s: %w", name, read.err))
		return nil
	}
	if subject := read.letter.Event.Subject; !stream.Takes(r.source, subject) {
		r.failed.Add(1)
		r.out.report(fmt.Errorf("%s: stream %s doesn't take its subject %q any more", name, r.cfg.Stream, subject))
		return nil
	}
	msg := r.letters.Replay(read.letter, r.cfg.Stream)
	if !stream.Fits(msg, r.most) {
		r.park(ctx, name, read.letter)
		return nil
	}
	if !stream.Matches(r.cfg.Subjects, msg.Subject) {
		r.failed.Add(1)
		r.out.report(fmt.Errorf("%s: no worker would take its subject %q from the stream: none of SLUICE_SUBJECTS matches it", name, msg.Subject))
		return nil
	}
	return r.publishThen(ctx, name, msg, func() { r.forget(name, read.letter) })
}

// park puts the event of a letter into its lane: the source doesn't take what it grew to.
func (r *replay) park(ctx context.Context, name string, l stream.DeadLetter) {
	source, err := r.letterBox.js.Stream(ctx, r.cfg.Stream)
	if err != nil {
		r.failed.Add(1)
		r.out.report(fmt.Errorf("%s: looking for stream %s, whose last event it goes behind: %w", name, r.cfg.Stream, err))
		return
	}
	ev := r.letters.ReplayInLane(l, source.CachedInfo().State.LastSeq)
	ev.Time = r.now() // as the source would date it
	if err := r.admit(ev); err != nil {
		r.failed.Add(1)
		r.out.report(fmt.Errorf("%s is too large for stream %s with its id, and no worker would take it from a lane: %w", name, r.cfg.Stream, err))
		return
	}
	if _, err := r.lanes.Append(ctx, ev); err != nil {
		r.failed.Add(1)
		r.out.report(fmt.Errorf("%s is too large for stream %s with its id, and for its lane: %w", name, r.cfg.Stream, err))
		return
	}
	r.parked.Add(1)
	r.forget(name, l)
}

// admit does for an event on its way into a lane what a worker does with one of the source.
func (r *replay) admit(ev *pipeline.Event) (err error) {
	if ev.Key == "" {
		if ev.Key, err = r.cfg.Key.Key(ev); err != nil {
			return err
		}
	}
	return pipeline.CheckHeader(ev.Header)
}

// forget deletes a dead letter that is replayed.
func (r *replay) forget(name string, l stream.DeadLetter) {
	if err := r.letters.Delete(r.abandon, l.Event.Body); err != nil {
		r.kept.Add(1)
		r.out.report(fmt.Errorf("%s is replayed but not deleted; replay it again at once, which does no more than that: %w", name, err))
	}
}

// replayCounts is what replay prints at its end.
type replayCounts struct {
	Selected   int   `json:"selected"`
	Replayed   int64 `json:"replayed"`
	Duplicates int64 `json:"duplicates"` // replayed before
	Gone       int64 `json:"gone"`
	Failed     int64 `json:"failed"`
	Kept       int64 `json:"not_deleted"` // of those that were replayed
}

func (r *replay) counts(selected int) replayCounts {
	return replayCounts{
		Selected: selected, Replayed: r.published.Load() + r.parked.Load(), Duplicates: r.duplicates.Load(), Gone: r.gone.Load(),
		Failed: r.failed.Load(), Kept: r.kept.Load(),
	}
}

func (c replayCounts) print(w io.Writer, took time.Duration, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(struct {
			replayCounts
			Seconds float64 `json:"seconds"`
		}{c, took.Seconds()})
	}
	_, err := fmt.Fprintf(w, "replayed %s, %s, %d gone, %d failed in %.1f s (%.0f/s)\n", count(c.Replayed, "dead letter"),
		count(c.Duplicates, "duplicate"), c.Gone, c.Failed, took.Seconds(), float64(c.Replayed+c.Duplicates)/max(took.Seconds(), 1e-6))
	return err
}

// err says what keeps the command from having succeeded.
func (c replayCounts) err(stopped error) error {
	var errs []error
	if left := int64(c.Selected) - c.Replayed - c.Duplicates - c.Gone; left > 0 {
		errs = append(errs, fmt.Errorf("%s not replayed", count(left, "dead letter")))
	}
	if c.Kept > 0 {
		errs = append(errs, fmt.Errorf("%s replayed but not deleted", count(c.Kept, "dead letter")))
	}
	return errors.Join(append([]error{stopped}, errs...)...)
}
