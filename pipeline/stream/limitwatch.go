package stream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
)

// end ends the watch.
func (l *Limits) end() {
	if l.watch == nil {
		return
	}
	endWatch(l.watch, l.unwatch)
	l.watch = nil
}

func endWatch(w jetstream.KeyWatcher, cancel context.CancelFunc) {
	_ = w.Stop() // not connected: the server forgets the watch by itself
	cancel()
	go func() { // whoever hands out entries may wait with one in hand
		for range w.Updates() {
		}
	}()
}

// begin begins a watch and reads what isn't known yet.
func (l *Limits) begin(ctx context.Context) error {
	now, err := l.look(ctx)
	if err != nil {
		return err
	}
	if l.kv, err = l.js.KeyValue(ctx, l.names.LimitsBucket()); err != nil {
		return err
	}
	var draft *limiter.Draft
	var opts []jetstream.WatchOpt
	if known := l.Version(); l.mistrust || now.Bucket != known.Bucket || now.Seq < known.Seq {
		draft = l.book.Draft()
	} else {
		opts = append(opts, jetstream.ResumeFromRevision(known.Seq+1))
	}
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it goes on when whoever waits for this has gone
	stopped := context.AfterFunc(ctx, cancel)
	defer stopped()
	silent := time.AfterFunc(l.pace.idle, cancel)
	defer silent.Stop()
	w, err := l.kv.WatchAll(watching, opts...)
	if err != nil {
		cancel()
		return err
	}
	l.watch, l.unwatch = w, cancel
	if err := l.catchUp(watching, silent, now, draft); err != nil {
		l.end()
		switch {
		case errors.Is(err, errMissed):
			l.mistrust = true
			return l.begin(ctx)
		case errors.Is(err, context.Canceled) && ctx.Err() == nil:
			return errSilent
		}
		return err
	}
	return nil
}

// look asks what the bucket counts.
func (l *Limits) look(ctx context.Context) (LimitsVersion, error) {
	s, err := l.js.Stream(ctx, l.names.limitsStream())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return LimitsVersion{}, errNoBucket
	}
	if err != nil {
		return LimitsVersion{}, err
	}
	info := s.CachedInfo()
	v := LimitsVersion{Bucket: created(info), Seq: info.State.LastSeq}
	// What was deleted out of the bucket's history shows in the number of messages only.
	if l.msgsAt == v && l.msgs != info.State.Msgs {
		l.mistrust = true
	}
	l.msgs, l.msgsAt = info.State.Msgs, v
	return v, nil
}

// catchUp reads until the watch has told all that was there when it began, at least up to now; into draft, if all is read.
func (l *Limits) catchUp(ctx context.Context, silent *time.Timer, now LimitsVersion, draft *limiter.Draft) error {
	if draft != nil {
		return l.readAll(ctx, silent, now, draft)
	}
	for {
		entries, done, err := l.next(ctx, silent)
		if err == nil {
			err = l.make(ctx, entries)
		}
		if err != nil {
			return err
		}
		if done && !l.Version().Covers(now) {
			return errMissed
		}
		if done {
			return nil
		}
	}
}

func (l *Limits) readAll(ctx context.Context, silent *time.Timer, now LimitsVersion, draft *limiter.Draft) error {
	faults := map[string]uint64{}
	for {
		entries, done, err := l.next(ctx, silent)
		if err != nil {
			return err
		}
		for _, e := range entries {
			c, ok, err := l.understand(ctx, e, faults)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			if err := draft.Set(c); err != nil {
				return err
			}
			now.Seq = max(now.Seq, e.Revision())
		}
		if done {
			break
		}
	}
	l.book.Replace(draft)
	l.mistrust = false
	l.mu.Lock()
	l.faults = faults
	l.mu.Unlock()
	l.note(now)
	return nil
}

// next waits for an entry and takes those with it that are there. done: the watch has told all that was there.
func (l *Limits) next(ctx context.Context, silent *time.Timer) (entries []jetstream.KeyValueEntry, done bool, err error) {
	select {
	case <-ctx.Done():
		return nil, false, ctx.Err()
	case e, open := <-l.watch.Updates():
		silent.Reset(l.pace.idle)
		return l.gather(e, open)
	}
}

func (l *Limits) gather(e jetstream.KeyValueEntry, open bool) (entries []jetstream.KeyValueEntry, done bool, err error) {
	for {
		switch {
		case !open:
			return nil, false, errSilent
		case e == nil:
			return entries, true, nil
		}
		entries = append(entries, e)
		if len(entries) == mostChanges {
			return entries, false, nil
		}
		select {
		case e, open = <-l.watch.Updates():
		default:
			return entries, false, nil
		}
	}
}
