package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
)

// userReport is what is known of a key.
type userReport struct {
	explanation
	now   time.Time
	st    redisstore.Standing
	first *pipeline.Event // of those that wait; nil: none does
	dead  letterTally
}

// situation is the one thing that counts most of how a key stands.
type situation string

// The situations.
const (
	damaged    situation = "damaged"    // its state can't be read
	paused     situation = "paused"     // by a rule
	cooling    situation = "cooling"    // the receiver is left alone
	unattended situation = "unattended" // events could go, and no worker takes them
	forgotten  situation = "forgotten"  // no worker would ever look at its events
	probing    situation = "probing"    // the receiver has failed, and one event at a time is tried
	retrying   situation = "retrying"   // all that waits has failed before and has its own time
	serving    situation = "serving"    // events are on their way to their push
	throttled  situation = "throttled"  // events wait for their tokens
	ready      situation = "ready"      // events wait that could go now
	arriving   situation = "arriving"   // events are on their way into the lane
	idle       situation = "idle"       // nothing waits
	unknown    situation = "unknown"    // nothing is known
)

// unattendedAfter is how long a lane may be due before that is told: a worker looks within a quarter of a second.
const unattendedAfter = 3 * time.Second

func (r userReport) situation() situation {
	st := r.st
	waits := st.Waiting+st.Leased > 0
	switch {
	case st.Damaged:
		return damaged
	case r.ruling.Limits.Paused():
		return paused
	case st.Closed > 0:
		return cooling
	case waits && st.Overdue > unattendedAfter:
		return unattended
	case waits && st.Due < 0 && st.Overdue < 0:
		return forgotten
	case waits && st.Fails > 0:
		return probing
	case st.Leased > 0:
		return serving
	case st.Waiting > 0 && st.Retrying == st.Waiting && st.Retry > 0:
		return retrying
	case st.Waiting > 0 && st.Wait > 0:
		return throttled
	case st.Waiting > 0:
		return ready
	case st.Arriving > 0:
		return arriving
	case st.Known:
		return idle
	}
	return unknown
}

// summary is a sentence for people who have no time.
func (r userReport) summary() string {
	st, who := r.st, visible(r.key)
	waiting := count(st.Waiting, "event") + " wait"
	switch st.Waiting {
	case 0:
		waiting = "no event waits"
	case 1:
		waiting = "1 event waits"
	}
	switch r.situation() {
	case damaged:
		return fmt.Sprintf("what Redis keeps of %s is damaged, and its events wait; 'sluice user %s reset' mends its bucket, 'sluice lanes repair' its lane",
			who, who)
	case paused:
		return r.pauseText(who) + "; " + waiting
	case cooling:
		return fmt.Sprintf("%s is cooling down for %s%s; %s", who, wait(st.Closed), failed(": ", st.Failure), waiting)
	case unattended:
		return fmt.Sprintf("nobody serves %s: %s, and no worker has looked for %s; see 'sluice workers', and whether they can reach the receiver",
			who, waiting, wait(st.Overdue))
	case forgotten:
		return fmt.Sprintf("nobody serves %s: %s, and no worker would look; 'sluice lanes repair' mends it", who, waiting)
	case probing:
		return fmt.Sprintf("the receiver of %s has failed %d times in a row, and gets one event at a time%s; %s", who, st.Fails, failed(": ", st.Failure), waiting)
	case serving:
		return fmt.Sprintf("%s is being served: %s on the way, %s (%s)", who, count(st.Leased, "event"), waiting, r.limitText())
	case retrying:
		return fmt.Sprintf("%s waits for another attempt: %s, the next goes in %s%s", who, waiting, wait(max(st.Retry, st.Wait)), failed(" after ", st.Failure))
	case throttled:
		return fmt.Sprintf("%s is throttled: %s, the next goes in %s (%s)", who, waiting, wait(st.Wait), r.limitText())
	case ready:
		return fmt.Sprintf("%s is about to be served: %s, and the next may go now (%s)", who, waiting, r.limitText())
	case arriving:
		return fmt.Sprintf("%s is throttled: %s on the way into its lane (%s)", who, count(st.Arriving, "event"), r.limitText())
	case idle:
		return fmt.Sprintf("%s is not held up: no event waits%s (%s)", who, taken(st.Taken), r.limitText())
	}
	return fmt.Sprintf("nothing is known of %s: it has not been limited lately (%s)", who, r.limitText())
}

// failed quotes what a receiver said last, if anything.
func failed(before, said string) string {
	if said == "" {
		return ""
	}
	return before + visible(said)
}

func taken(ago time.Duration) string {
	switch {
	case ago < 0:
		return ""
	case ago < time.Millisecond:
		return ", a token was taken just now"
	}
	return fmt.Sprintf(", a token was last taken %s ago", wait(ago))
}

// limitText is like "limit 10/s burst 20 of the tier gold".
func (r userReport) limitText() string {
	what := "limit " + r.ruling.Limits.String()
	if r.ruling.Limits.Unlimited() {
		what = "unlimited"
	}
	from, said := r.from()
	if said != nil && (said.Place.Source == limiter.SourceTier || said.Place.Source == limiter.SourcePattern) {
		return fmt.Sprintf("%s of the %s %s", what, said.Place.Source, visible(said.Place.Name))
	}
	return what + " by " + from
}

// pauseText says who has paused the key, and when.
func (r userReport) pauseText(who string) string {
	from, said := r.from()
	if said == nil {
		return who + " is paused by " + from
	}
	text := who + " is paused by " + from
	if said.Place.Source == limiter.SourceAll {
		text = who + " is paused like everything, by the brake"
	}
	text += " since " + said.At.UTC().Format(shortTime) + " UTC"
	if by := strings.Trim(visible(said.By)+": "+visible(said.Comment), ": "); by != "" {
		text += " (" + by + ")"
	}
	return text
}

// reportLabels is how wide the first column is.
const reportLabels = 11

// print writes the sentence, and then all that is known, a thing a line of at most 80 columns.
func (r userReport) print(out io.Writer) error {
	p := paintOn(out)
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", p.with(text.WrapSoft(r.summary(), leastWidth), text.Bold))
	for _, line := range r.lines() {
		indent := "\n" + strings.Repeat(" ", reportLabels)
		fmt.Fprintf(&b, "%-*s%s\n", reportLabels, line[0], strings.ReplaceAll(trimRight(text.WrapSoft(line[1], leastWidth-reportLabels)), "\n", indent))
	}
	_, err := io.WriteString(out, trimRight(b.String()))
	return err
}

// lines are labels and what they say.
func (r userReport) lines() (lines [][2]string) {
	add := func(label, format string, args ...any) {
		lines = append(lines, [2]string{label, fmt.Sprintf(format, args...)})
	}
	from, said := r.from()
	if said != nil {
		from += fmt.Sprintf(": %s, since %s UTC", said.Rule, said.At.UTC().Format(shortTime))
	} else {
		from += ", as it is set here"
	}
	add("ruled by", "%s", from)
	for i, level := range r.st.Limits {
		add("limit", "%s: %s", r.ruling.Limits[i], levelText(r.ruling.Limits[i], level))
	}
	if r.st.Damaged {
		return lines
	}
	r.addEvents(add)
	if r.st.Fails > 0 || r.st.Failure != "" || r.st.Closed > 0 {
		add("receiver", "%s", r.receiverText())
	}
	if r.st.Holder != "" {
		add("lease", "worker %s, for %s", visible(r.st.Holder), wait(r.st.Held))
	}
	if len(r.dead) > 0 {
		add("dead", "%s; 'sluice dlq ls --key …' lists them", r.dead)
	}
	return lines
}

func (r userReport) addEvents(add func(label, format string, args ...any)) {
	st := r.st
	waiting := fmt.Sprint(st.Waiting)
	if st.Retrying > 0 {
		waiting += fmt.Sprintf(", %d of them for another attempt, the next %s", st.Retrying, soon(st.Retry))
	}
	if st.Arriving > 0 {
		waiting += fmt.Sprintf(", and %d on the way into the lane", st.Arriving)
	}
	add("waiting", "%s", waiting)
	if st.Leased > 0 {
		add("pushing", "%d, leased by a worker", st.Leased)
	}
	if r.first == nil {
		return
	}
	attempts := "not tried yet"
	if st.First.Attempt > 0 {
		attempts = fmt.Sprintf("tried %d times", st.First.Attempt)
		if st.First.Attempt == 1 {
			attempts = "tried once"
		}
	}
	add("oldest", "%s, published %s, %s", visible(r.first.ID), age(r.now.Sub(r.first.Time)), attempts)
}

func (r userReport) receiverText() string {
	var parts []string
	if r.st.Closed > 0 {
		parts = append(parts, fmt.Sprintf("left alone for %s", wait(r.st.Closed)))
	}
	if r.st.Fails > 0 {
		parts = append(parts, fmt.Sprintf("away %s in a row", count(r.st.Fails, "time")))
	}
	if r.st.Failure != "" {
		parts = append(parts, "said last: "+visible(r.st.Failure))
	}
	return strings.Join(parts, ", ")
}

func soon(d time.Duration) string {
	if d <= 0 {
		return "now"
	}
	return "in " + wait(d)
}

// levelText is like "0 of 20 tokens, 3 of later ones promised, the next event in 1.2 s".
func levelText(l limiter.Limit, level redisstore.LimitLevel) string {
	s := fmt.Sprintf("%d of %d tokens", max(0, level.Tokens), cmp.Or(l.Burst, l.Events))
	if level.Tokens < 0 {
		s += fmt.Sprintf(", %d of later ones promised", -level.Tokens)
	}
	if level.Wait > 0 {
		s += ", enough for the next event in " + wait(level.Wait)
	}
	return s
}

// userJSON is what is known of a key, for programs. Times until something are in milliseconds.
type userJSON struct {
	keyJSON
	Summary   string      `json:"summary"`
	Situation situation   `json:"situation"`
	Limits    string      `json:"limits"`
	Paused    bool        `json:"paused"`
	From      string      `json:"from"`
	Tier      string      `json:"tier,omitempty"`
	Rules     []ruleJSON  `json:"rules"`
	Levels    []levelJSON `json:"levels"`

	Waiting  int64      `json:"waiting"`
	Retrying int64      `json:"retrying"`
	Leased   int64      `json:"leased"`
	Arriving int64      `json:"arriving"`
	Next     *float64   `json:"next_ms"` // until the limits let an event go; null: never
	Retry    float64    `json:"retry_ms,omitempty"`
	Oldest   *oldestOne `json:"oldest,omitempty"`

	Cooling     float64     `json:"cooling_ms,omitempty"`
	Fails       int64       `json:"fails,omitempty"`
	Failure     string      `json:"failure,omitempty"`
	Holder      string      `json:"holder,omitempty"`
	Held        float64     `json:"held_ms,omitempty"`
	DeadLetters letterTally `json:"dead_letters"`
}

type levelJSON struct {
	Limit  string  `json:"limit"`
	Tokens int64   `json:"tokens"` // below 0: promised
	Burst  int64   `json:"burst"`
	Next   float64 `json:"next_ms"`
}

type oldestOne struct {
	ID       string    `json:"id"`
	Time     time.Time `json:"time"`
	Attempts int       `json:"attempts"`
}

func (r userReport) encode(out io.Writer) error {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	st, key := r.st, keyOf(r.key)
	from, _ := r.from()
	u := userJSON{
		keyJSON: key, Summary: r.summary(), Situation: r.situation(), Limits: r.ruling.Limits.String(), Paused: r.ruling.Limits.Paused(),
		From: strings.ToValidUTF8(from, "?"), Tier: st.Tier, Rules: make([]ruleJSON, len(r.rules)), Levels: make([]levelJSON, len(st.Limits)),
		Waiting: st.Waiting, Retrying: st.Retrying, Leased: st.Leased, Arriving: st.Arriving, Retry: ms(st.Retry), Cooling: ms(st.Closed),
		Fails: st.Fails, Failure: st.Failure, Holder: st.Holder, Held: ms(st.Held), DeadLetters: r.dead,
	}
	if st.Wait >= 0 && !st.Damaged {
		next := ms(st.Wait)
		u.Next = &next
	}
	for i, said := range r.rules {
		u.Rules[i] = ruleOf(said)
	}
	for i, level := range st.Limits {
		l := r.ruling.Limits[i]
		u.Levels[i] = levelJSON{l.String(), level.Tokens, cmp.Or(l.Burst, l.Events), ms(level.Wait)}
	}
	if r.first != nil {
		u.Oldest = &oldestOne{r.first.ID, r.first.Time.UTC(), st.First.Attempt}
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return enc.Encode(u)
}
