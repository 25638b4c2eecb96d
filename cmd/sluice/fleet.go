package main

import (
	"context"
	"log/slog"
	"time"

	"sluice/limiter/redisstore"
	"sluice/pipeline/metrics"
	"sluice/pipeline/stream"
)

const (
	// fleetEvery is how often a worker looks at the whole pipeline.
	fleetEvery = 5 * time.Second
	// fleetFresh is how long what it saw is shown: one look may fail.
	fleetFresh = 2*fleetEvery + 2*time.Second
)

// fleetLook finds out the figures of the whole pipeline.
type fleetLook struct {
	shown  *metrics.Fleet
	source *stream.Source
	lanes  *stream.Lanes
	dead   *stream.DeadLetters
	index  *redisstore.Store
	fleet  *stream.Fleet
	log    *slog.Logger
}

// run looks every few seconds until ctx ends.
func (l *fleetLook) run(ctx context.Context) {
	looks := time.NewTicker(fleetEvery)
	defer looks.Stop()
	for {
		if err := l.look(ctx); err != nil && ctx.Err() == nil {
			l.log.Debug("the backlog can't be measured now", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-looks.C:
		}
	}
}

// look sets what it can find out. What is eligible in the lanes is stored there, too; the rest of what is stored is throttled.
func (l *fleetLook) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fleetEvery)
	defer cancel()
	if ids, _ := l.fleet.Workers(); len(ids) > 0 {
		l.shown.Set(metrics.Workers, float64(len(ids)))
	}
	dead, err := l.dead.Stored(ctx)
	if err != nil {
		return err
	}
	l.shown.Set(metrics.DeadLetters, float64(dead))
	lanes, err := l.index.Backlog()
	if err != nil {
		return err
	}
	stored, err := l.lanes.Stored(ctx)
	if err != nil {
		return err
	}
	l.shown.Set(metrics.Throttled, max(0, float64(stored)-float64(lanes.Eligible)))
	l.shown.Set(metrics.LanesInUse, float64(lanes.Lanes))
	events, since, err := l.source.Behind(ctx)
	if err == nil || events > 0 { // else this user may not read from the source
		l.shown.Set(metrics.Eligible, float64(events)+float64(lanes.Eligible))
	}
	if err != nil {
		return err
	}
	oldest := lanes.Overdue
	if !since.IsZero() {
		oldest = max(oldest, l.index.Now().Sub(since))
	}
	l.shown.Set(metrics.OldestEligible, oldest.Seconds())
	return nil
}
