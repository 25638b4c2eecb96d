package main

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	// maxUsers bounds the users that are told apart; all further ones share one account.
	maxUsers = 10_000
	// recentWaits is how many deliveries of a user the 99th percentile is taken from.
	recentWaits = 128

	otherUsers = "(others)"
	noUser     = "(no key)" // of events in which SLUICE_KEY finds nothing
)

// ledger counts what becomes of each user's events. Methods may be called from many goroutines.
type ledger struct {
	mu     sync.Mutex
	start  time.Time
	keep   int // waits kept per user; 0: all
	users  map[string]*account
	demo   map[string]bool // users of the demo, who stand below those that the person publishes for
	others *account
	total  *account
}

// account is one user's line.
type account struct {
	published int64 // events stored in the source
	delivered int64
	failed    int64 // attempts
	dead      int64 // events dead-lettered
	dropped   int64 // events dropped by SLUICE_OVERFLOW
	collapsed int64 // events that a newer one took the place of
	expired   int64 // events whose time was over; of the total only
	inFlight  int64 // pushes going on
	rate      rateWindow
	waits     waits
}

// newLedger keeps the last waits of each user, or all of them if keep is 0: eight bytes an event.
func newLedger(keep int) *ledger {
	l := &ledger{start: time.Now(), keep: keep, users: map[string]*account{}, demo: map[string]bool{}}
	l.total = &account{waits: waits{most: 8 * keep}}
	return l
}

// note changes the account of user and the total in the same way.
func (l *ledger) note(user string, change func(*account)) {
	if user == "" {
		user = noUser
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l.account(user))
	change(l.total)
}

func (l *ledger) account(user string) *account {
	if a := l.users[user]; a != nil {
		return a
	}
	if len(l.users) >= maxUsers {
		if l.others == nil {
			l.others = &account{waits: waits{most: l.keep}}
		}
		return l.others
	}
	a := &account{waits: waits{most: l.keep}}
	l.users[user] = a
	return a
}

func (l *ledger) published(user string) { l.note(user, func(a *account) { a.published++ }) }
func (l *ledger) began(user string)     { l.note(user, func(a *account) { a.inFlight++ }) }
func (l *ledger) buried(user string)    { l.note(user, func(a *account) { a.dead++ }) }
func (l *ledger) dropped(user string)   { l.note(user, func(a *account) { a.dropped++ }) }
func (l *ledger) collapsed(user string) { l.note(user, func(a *account) { a.collapsed++ }) }

func (l *ledger) expired() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.expired++
}

// ended counts a push that began; waited is from the event's arrival in the source to now.
func (l *ledger) ended(user string, err error, waited time.Duration) {
	now := time.Now()
	l.note(user, func(a *account) {
		a.inFlight--
		a.rate.add(now)
		if err != nil {
			a.failed++
			return
		}
		a.delivered++
		a.waits.add(waited)
	})
}

// waiting are the events that are neither on their way nor settled. The counts come from several places, so that for a
// moment a push may be known before its event is.
func (a *account) waiting() int64 {
	return max(0, a.published-a.settled()-a.inFlight)
}

// settled are the events that ended, in whatever way.
func (a *account) settled() int64 { return a.delivered + a.dead + a.dropped + a.collapsed + a.expired }

// waiting of one user.
func (l *ledger) waiting(user string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.users[user]; a != nil {
		return a.waiting()
	}
	return 0
}

// sums returns the totals.
func (l *ledger) sums() account {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := *l.total
	sum.waits = waits{}
	return sum
}

// userLine is an account as it is shown.
type userLine struct {
	user                                                     string
	published, pushed, waiting, failed, deadLetters, dropped int64
	collapsed, expired                                       int64
	rate                                                     float64       // pushes a second, lately
	median, p99, longest                                     time.Duration // of the waits kept
	demo                                                     bool
}

// snapshot is the ledger at one moment.
type snapshot struct {
	after time.Duration // since the start
	users []userLine    // the busiest first
	more  int           // users that are not among them
	total userLine
}

// snapshot shows at most the busiest most users.
func (l *ledger) snapshot(now time.Time, most int) snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := make([]userLine, 0, len(l.users)+1)
	for user, a := range l.users {
		lines = append(lines, a.line(user, now, l.demo[user]))
	}
	slices.SortFunc(lines, busier)
	if l.others != nil {
		lines = append(lines, l.others.line(otherUsers, now, false))
	}
	s := snapshot{after: now.Sub(l.start), more: max(0, len(lines)-most)}
	s.users = lines[:len(lines)-s.more]
	for i := range s.users {
		// Percentiles are only worked out for those that are shown.
		line := &s.users[i]
		a := l.users[line.user]
		if a == nil {
			a = l.others
		}
		a.waits.summarise(line)
	}
	s.total = l.total.line("", now, false)
	l.total.waits.summarise(&s.total)
	return s
}

func (a *account) line(user string, now time.Time, demo bool) userLine {
	return userLine{
		user: user, published: a.published, pushed: a.delivered, waiting: a.waiting(), failed: a.failed, deadLetters: a.dead,
		dropped: a.dropped, collapsed: a.collapsed, expired: a.expired, rate: a.rate.perSecond(now), demo: demo,
	}
}

// busier orders lines by what waits, then by what was published. One event that is just on its way moves no line.
func busier(a, b userLine) int {
	demo := func(l userLine) int {
		if l.demo {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(max(1, b.waiting), max(1, a.waiting)),
		cmp.Compare(demo(a), demo(b)),
		cmp.Compare(b.published, a.published),
		cmp.Compare(a.user, b.user),
	)
}
