package redisstore

import (
	"context"
	"sync"
	"time"

	"sluice/limiter"
	"sluice/pipeline"
)

// Run watches over Redis until ctx ends.
func (f *Fallback) Run(ctx context.Context) {
	var trying sync.WaitGroup
	defer trying.Wait()
	looks := time.NewTicker(decideEvery)
	defer looks.Stop()
	answers := make(chan struct{}, 1)
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.store.turns():
		case <-looks.C:
			if f.present() {
				continue
			}
		case <-answers:
			f.comeBack(ctx)
		}
		switch {
		case !f.present():
			f.rule()
		case !f.store.reachable():
			f.leave()
			trying.Go(func() { f.try(ctx, answers) })
		}
	}
}

// try waits until Redis answers and its state is known, each time that it is asked to, and tells that; until the fallback
// needs no more tries.
func (f *Fallback) try(ctx context.Context, answers chan<- struct{}) {
	told, refused := f.store.Trouble(), 0
	for !f.present() && ctx.Err() == nil {
		wait := trialLook
		switch err := f.store.try(ctx); {
		case err == nil && f.store.reachable():
			if f.store.Open(ctx) == nil {
				select {
				case answers <- struct{}{}:
				default:
				}
			} else { // another worker rebuilds the index, as a rule
				wait = 4 * trialLook
			}
		case refusesAll(err): // a person has to mend that; each try is a line in the server's log
			wait = min(trialEvery<<refused, longestTrial)
			refused = min(refused+1, 10)
		}
		if err := f.store.Trouble(); err != nil && told != nil && errorKind(err) != errorKind(told) {
			told = err
			f.log.Warn("Redis is still away", "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// leave begins an outage.
func (f *Fallback) leave() {
	f.mu.Lock()
	f.since, f.apart, f.lost, f.shares = time.Now(), time.Time{}, time.Time{}, nil
	f.parking.Lock()
	f.seen.decisions, f.seen.parked, f.seen.spent = 0, 0, 0
	f.parking.Unlock()
	f.mu.Unlock()
	f.opt.Fleet.Tell(true)
	means := map[Policy]string{
		Local:  "each worker lets pass its share of every limit, and events beyond it wait in their lanes",
		Closed: "events stay in the source and nothing is pushed",
		Open:   "all events pass, whatever their limits",
	}[f.opt.Policy]
	about := []any{"policy", f.opt.Policy, "meaning", means}
	if f.opt.Grace > 0 {
		about = append(about, "for_at_most", f.opt.Grace)
	}
	if err := f.store.Trouble(); err != nil {
		about = append(about, "reason", err)
	}
	f.log.Warn("Redis is away", about...)
	f.set(byNobody)
	f.rule()
}

// rule decides who decides while Redis is away.
func (f *Fallback) rule() {
	workers, away := f.opt.Fleet.Workers()
	others := away < len(workers)
	now := time.Now()
	if !others {
		f.apart = time.Time{}
	} else if f.apart.IsZero() {
		f.apart = now
	}
	if others || len(workers) == 0 {
		f.lost = time.Time{}
	} else if f.lost.IsZero() {
		f.lost = now
	}
	f.store.passed(!f.lost.IsZero() && now.Sub(f.lost) > limiter.MaxHorizon)
	policy := f.opt.Policy
	if f.opt.Grace > 0 && now.Sub(f.since) >= f.opt.Grace {
		policy = Closed
	}
	switch {
	case policy == Open:
		f.set(byPolicy)
	case others && now.Sub(f.apart) >= othersPatience:
		f.set(elsewhere)
	case policy == Local && !others && len(workers) > 0:
		f.share(workers)
	default:
		f.set(byNobody)
	}
}

// share lets the shares among workers rule.
func (f *Fallback) share(workers []string) {
	now := time.Now()
	if f.shares == nil {
		f.mu.Lock()
		f.shares = newShares(f.limits, minAllowance, f.worker, now, f.promised.after(now))
		f.mu.Unlock()
	}
	if f.mode != byShares {
		f.shares.goOn(now, workers)
	} else {
		f.shares.share(now, workers)
	}
	f.set(byShares)
}

// set changes the mode, and tells all who wait for that. It is called by Run only.
func (f *Fallback) set(m mode) {
	was := f.mode
	if m == was {
		return
	}
	if was == byShares {
		f.shares.rest(time.Now())
	}
	f.mu.Lock()
	f.mode = m
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
	switch {
	case m == elsewhere:
		f.log.Warn("other workers see Redis: this one hands its events back to them until it sees it, too")
		f.opt.Pause()
	case was == elsewhere:
		f.opt.Resume()
	}
}

// comeBack lets Redis rule again: nothing is decided on until what was spent is charged, the others had the time to do the
// same, and what has to wait is indexed. If Redis goes away once more meanwhile, the outage goes on.
func (f *Fallback) comeBack(ctx context.Context) {
	if f.present() {
		return
	}
	if f.mode != elsewhere {
		f.set(byNobody)
	}
	if f.shares != nil {
		debts, spent := f.shares.owed()
		if f.store.charge(debts) != nil {
			return
		}
		f.shares.paid()
		f.seen.spent += spent
	}
	f.opt.Fleet.Tell(false)
	if !f.awaitOthers(ctx) || !f.indexParked() {
		f.opt.Fleet.Tell(true)
		return
	}
	f.store.passed(false)
	f.log.Info("Redis is back", "after", time.Since(f.since).Round(time.Millisecond), "decided", f.seen.decisions,
		"charged", f.seen.spent, "parked", f.seen.parked)
}

// awaitOthers gives those workers that have been without Redis a moment to charge what they spent. It answers false when
// Redis has gone away again.
func (f *Fallback) awaitOthers(ctx context.Context) bool {
	for end := time.Now().Add(returnPatience); ctx.Err() == nil && f.store.reachable(); {
		if _, away := f.opt.Fleet.Workers(); away == 0 || !time.Now().Before(end) {
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(decideEvery / 5):
		}
	}
	return false
}

// indexParked indexes what was parked meanwhile, and then lets Redis rule: the last event is indexed before the first is
// decided on. It answers false when Redis has gone away again.
func (f *Fallback) indexParked() bool {
	for {
		f.mu.Lock()
		f.parking.Lock()
		waiting := f.parked
		f.parked = nil
		f.parking.Unlock()
		if len(waiting) == 0 {
			was := f.mode
			f.mode = byRedis
			close(f.changed)
			f.changed = make(chan struct{})
			f.mu.Unlock()
			if was == elsewhere {
				f.opt.Resume()
			}
			return true
		}
		f.mu.Unlock()
		requests := make([]pipeline.ParkRequest, len(waiting))
		for i, p := range waiting {
			passed := time.Since(p.at)
			requests[i] = p.ParkRequest
			requests[i].After, requests[i].Sleep = max(0, p.After-passed), max(0, p.Sleep-passed)
		}
		left, err := f.store.index(requests)
		if err == nil {
			continue
		}
		f.parking.Lock()
		for _, r := range left {
			f.parked = append(f.parked, parked{r, time.Now()})
		}
		f.parking.Unlock()
		return false
	}
}
