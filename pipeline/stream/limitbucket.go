package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/limiter"
)

// limitsHistory is how many values of a place the bucket remembers.
const limitsHistory = 10

// ErrConflict says that somebody else has changed the same rule meanwhile. Nothing was written.
var ErrConflict = errors.New("somebody else has changed it meanwhile")

// LimitBucket is the KV bucket sluice_limits, for those who look at rules and change them.
type LimitBucket struct {
	nc      *nats.Conn
	kv      jetstream.KeyValue
	name    string
	created int64
}

// OpenLimitBucket opens the bucket that [Setup] has made.
func OpenLimitBucket(ctx context.Context, js jetstream.JetStream, cfg Config) (*LimitBucket, error) {
	b := &LimitBucket{nc: js.Conn(), name: cfg.names().LimitsBucket()}
	s, err := js.Stream(ctx, cfg.names().limitsStream())
	if err == nil {
		b.created = created(s.CachedInfo())
		b.kv, err = js.KeyValue(ctx, b.name)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, &Fault{fmt.Sprintf("there is no KV bucket %s: run `sluice setup`, or start a worker with SLUICE_SETUP=own", b.name), err}
	}
	if err != nil {
		return nil, explain(b.nc, "looking for KV bucket "+b.name, err)
	}
	return b, nil
}

// Version is that of the change with this revision.
func (b *LimitBucket) Version(revision uint64) LimitsVersion {
	return LimitsVersion{Bucket: b.created, Seq: revision}
}

// Last is the version of the last change.
func (b *LimitBucket) Last(ctx context.Context) (LimitsVersion, error) {
	status, err := b.kv.Status(ctx)
	if err != nil {
		return LimitsVersion{}, explain(b.nc, "looking for KV bucket "+b.name, err)
	}
	if s, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		return b.Version(s.StreamInfo().State.LastSeq), nil
	}
	return LimitsVersion{}, fmt.Errorf("KV bucket %s tells no sequence", b.name)
}

// Put stores a rule at the place of r, by r.By and with r.Comment; one that says nothing is marked as removed. r.Revision is that of
// what it replaces, 0 if the bucket has never heard of the place; if that isn't so any more it returns [ErrConflict].
func (b *LimitBucket) Put(ctx context.Context, r StoredRule) (revision uint64, err error) {
	if err := (limiter.Change{Place: r.Place, Rule: r.Rule}).Validate(); err != nil {
		return 0, err
	}
	value, err := encodeRule(r.Rule, r.By, r.Comment)
	if err != nil {
		return 0, err
	}
	revision, err = b.kv.Update(ctx, limitKey(r.Place), value, r.Revision)
	switch {
	case errors.Is(err, jetstream.ErrKeyRevisionMismatch):
		return 0, fmt.Errorf("%s: %w", r.Place, ErrConflict)
	case err != nil:
		return 0, explain(b.nc, fmt.Sprintf("storing %s in KV bucket %s", r.Place, b.name), err)
	}
	return revision, nil
}

// Get is what the bucket says of a place; removed, with revision 0, if it has never heard of it.
func (b *LimitBucket) Get(ctx context.Context, place limiter.Place) (StoredRule, error) {
	history, err := b.History(ctx, place)
	if err != nil || len(history) == 0 {
		return StoredRule{Place: place, Removed: true}, err
	}
	return history[len(history)-1], nil
}

// History is what the bucket has said of a place, the oldest first: at most the last ten times.
func (b *LimitBucket) History(ctx context.Context, place limiter.Place) ([]StoredRule, error) {
	history, err := keyHistory(ctx, b.kv, limitKey(place))
	if err != nil {
		return nil, explain(b.nc, fmt.Sprintf("reading %s in KV bucket %s", place, b.name), err)
	}
	return history, nil
}

// Ruling is the rule that rules at the place of s: what it says, or, where that can't be understood, what was said last before.
func (b *LimitBucket) Ruling(ctx context.Context, s StoredRule) (limiter.Rule, error) {
	if s.Fault == nil || s.Place == (limiter.Place{}) {
		return s.Rule, nil
	}
	history, err := b.History(ctx, s.Place)
	return lastGood(history, s.Revision), err
}

// editTries is how often a change is tried that others make impossible.
const editTries = 5

// Edit changes what is said of a place to what fn makes of it, and repeats that if somebody else changes it at the same time. If fn
// returns the same rule nothing is written. It returns what was there, and the version with the change.
func (b *LimitBucket) Edit(ctx context.Context, place limiter.Place, by, comment string, fn func(limiter.Rule) (limiter.Rule, error)) (was, is StoredRule, err error) {
	for range editTries {
		if was, err = b.Get(ctx, place); err != nil {
			return was, is, err
		}
		is = StoredRule{Place: place, By: by, Comment: comment, Revision: was.Revision}
		if was.Rule, err = b.Ruling(ctx, was); err != nil {
			return was, is, err
		}
		if is.Rule, err = fn(was.Rule); err != nil {
			return was, is, err
		}
		if was.Fault == nil && is.Rule.Equal(was.Rule) {
			return was, was, nil
		}
		is.Removed = is.Rule.None()
		var revision uint64
		if revision, err = b.Put(ctx, is); err == nil {
			is.Revision = revision
			return was, is, nil
		}
		if !errors.Is(err, ErrConflict) {
			return was, is, err
		}
		sleep(ctx, 20*time.Millisecond) // a replica that lags behind may have answered
	}
	return was, is, err
}

// All is what the bucket says of the places of these sources, removed ones too, in the order of their keys; no source stands for all
// entries, also those that can't be understood.
func (b *LimitBucket) All(ctx context.Context, sources ...limiter.RulingSource) ([]StoredRule, error) {
	var filters []string
	for _, s := range sources {
		switch s {
		case limiter.SourceAll, limiter.SourceDefault:
			filters = append(filters, string(s))
		default:
			filters = append(filters, string(s)+".>")
		}
	}
	return b.read(ctx, filters)
}

// Concerning is what the bucket says of a key, and of all places but keys, in one look.
func (b *LimitBucket) Concerning(ctx context.Context, key string) ([]StoredRule, error) {
	return b.read(ctx, []string{
		string(limiter.SourceAll), string(limiter.SourceDefault), string(limiter.SourceTier) + ".>", string(limiter.SourcePattern) + ".>",
		limitKey(limiter.Place{Source: limiter.SourceKey, Name: key}),
	})
}

func (b *LimitBucket) read(ctx context.Context, filters []string) ([]StoredRule, error) {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(usualPace.idle, cancel)
	defer silent.Stop()
	w, err := b.kv.WatchFiltered(watching, filters)
	if err != nil {
		return nil, explain(b.nc, "reading KV bucket "+b.name, err)
	}
	defer endWatch(w, cancel)
	var all []StoredRule
	for {
		select {
		case <-watching.Done():
			return nil, explain(b.nc, "reading KV bucket "+b.name, errors.Join(errSilent, context.Cause(ctx)))
		case e, open := <-w.Updates():
			silent.Reset(usualPace.idle)
			switch {
			case !open:
				return nil, explain(b.nc, "reading KV bucket "+b.name, errSilent)
			case e == nil:
				slices.SortFunc(all, func(a, b StoredRule) int { return strings.Compare(a.Key, b.Key) })
				return all, nil
			}
			all = append(all, storedRule(e))
		}
	}
}
