package limiter

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The range of limits. A rate of more than one token per microsecond, the unit of all stored times, can't be kept
// exactly, and a period of more than a year is a mistake in writing.
//
// What was spent has to be known until a limit is full again, from nothing. MaxRefill is the longest time for which that is kept;
// its end is a time in microseconds that a double still holds exactly.
const (
	MaxBurst  int64         = 1 << 31
	MaxPeriod time.Duration = 365 * day
	MaxRefill time.Duration = 100 * 365 * day

	day = 24 * time.Hour
)

// Limit is a rate and a burst as a person states them. Two limits that mean the same are equal (==), however they were
// written. The zero Limit pauses.
type Limit struct {
	Events    int64         // tokens of each Period; 0 pauses
	Period    time.Duration // whole microseconds; 0 if paused or unlimited
	Burst     int64         // most tokens at once: 1 if Leaky, Events if Sliding; 0, only if paused: whatever there was before
	Unlimited bool          // nothing is counted; all other fields are zero
	Kind      Kind          // Bucket if paused or unlimited
}

// Paused says that the limit lets nothing pass.
func (l Limit) Paused() bool { return !l.Unlimited && l.Events == 0 }

// limitForms ends the errors of [ParseLimits] that no better advice fits.
const limitForms = `write N/UNIT [burst B] [kind], such as "10/s burst 20" or "100/5m", "0" to pause, or "unlimited"`

// Name tells limits with separate states apart: their kind and period, such as "bucket/1s", "window/5m" or "sliding/1d".
// It stays the same when the number of events or the burst changes, so that a changed limit goes on with what was spent.
func (l Limit) Name() string {
	switch {
	case l.Unlimited:
		return "unlimited"
	case l.Paused():
		return "paused"
	}
	period := periodText(l.Period)
	switch {
	case l.Period%time.Millisecond != 0: // not from ParseLimit
		period = strconv.FormatInt(l.Period.Microseconds(), 10) + "us"
	case period[0] > '9':
		period = "1" + period
	}
	return l.Kind.String() + "/" + period
}

// ParseLimit reads one limit of the kind bucket, for callers that know no other: N/UNIT [burst B] [bucket], "0" (pause) or
// "unlimited", in any case and spacing. The burst is N unless it is stated. An error names the text and what to write
// instead, but not where the text stood: that is the caller's.
func ParseLimit(s string) (Limit, error) {
	l, err := parseBucket(s)
	if err != nil {
		return Limit{}, fmt.Errorf("limit %.80q: %w", s, err)
	}
	return l, nil
}

func parseBucket(s string) (Limit, error) {
	if strings.Contains(s, ",") {
		return Limit{}, severalLimits(s)
	}
	l, err := parseLimit(s)
	if err == nil && l.Kind != Bucket {
		bucket := l
		bucket.Kind, bucket.Burst = Bucket, max(l.Burst, l.Events)
		return Limit{}, fmt.Errorf(`the kind %q can't be used here: only one bucket limit is supported; write "%s"`, l.Kind, bucket)
	}
	return l, err
}

// parseLimit reads one limit of any kind.
func parseLimit(s string) (Limit, error) {
	words := strings.Fields(strings.ReplaceAll(strings.ToLower(s), "/", " / "))
	switch {
	case len(words) == 0:
		return Limit{}, errors.New("is empty; " + limitForms)
	case words[0] == "unlimited":
		if len(words) > 1 {
			return Limit{}, errors.New(`nothing can follow "unlimited"; write "unlimited" alone`)
		}
		return Limit{Unlimited: true}, nil
	}

	l, rest, err := parseRate(words)
	if err != nil {
		return Limit{}, err
	}
	burst, kind, err := parseTerms(l, rest)
	if err != nil {
		return Limit{}, err
	}
	if l, err = l.with(burst, kind); err != nil {
		return Limit{}, err
	}
	if _, err := l.classIfLimited(); err != nil {
		return Limit{}, err
	}
	return l, nil
}

// with is the rate l with the burst and the kind that were stated; a burst of 0 was not.
func (l Limit) with(burst int64, kind Kind) (Limit, error) {
	if l.Paused() {
		l.Burst = burst
		return l, nil
	}
	switch {
	case kind == Leaky && burst > 0:
		return Limit{}, fmt.Errorf(`a leaky limit has no burst, its outflow is constant; write "%s leaky", or "%[1]s burst %d" `+
			"for a bucket", l.rate(), burst)
	case kind == Sliding && burst > 0:
		return Limit{}, fmt.Errorf(`a sliding limit has no burst, its events are the most in any period; write "%s sliding", `+
			`or "%[1]s burst %d" for a bucket`, l.rate(), burst)
	case kind == Leaky:
		burst = 1
	case burst == 0:
		burst = l.Events
	}
	if burst > MaxBurst {
		if kind != Bucket {
			return Limit{}, fmt.Errorf("a %s limit of %d events is more than the most, %d; write fewer in a shorter time, or %s "+
				"burst %[3]d for a bucket", kind, burst, MaxBurst, l.rate())
		}
		return Limit{}, fmt.Errorf("the burst would be %d, more than the most, %d; state a smaller one: %s burst %[2]d",
			burst, MaxBurst, l.rate())
	}
	l.Burst, l.Kind = burst, kind
	return l, nil
}

// parseRate reads N/UNIT, or "0" with or without a unit, and returns the words behind it.
func parseRate(words []string) (Limit, []string, error) {
	events, err := parseWhole("the number of events", words[0])
	if err != nil {
		return Limit{}, nil, err
	}
	rest := words[1:]
	if len(rest) == 0 || rest[0] != "/" {
		if events == 0 {
			return Limit{}, rest, nil
		}
		return Limit{}, nil, fmt.Errorf("the unit of time is missing; write %d/s, or another of ms, s, m, h, d", events)
	}
	rest = rest[1:]
	if len(rest) == 0 {
		return Limit{}, nil, fmt.Errorf(`no unit of time follows "/"; write %d/s, or another of ms, s, m, h, d`, events)
	}
	unit, rest := rest[0], rest[1:]
	if len(rest) > 0 && strings.Trim(unit, "0123456789") == "" && rest[0] != "burst" { // "10/5 m"
		unit, rest = unit+rest[0], rest[1:]
	}
	period, err := parsePeriod(unit)
	if err != nil {
		return Limit{}, nil, err
	}
	if events == 0 {
		period = 0
	}
	return Limit{Events: events, Period: period}, rest, nil
}

// parseTerms reads what may follow a rate. A burst of 0 is none stated.
func parseTerms(l Limit, words []string) (burst int64, kind Kind, err error) {
	kindWord := ""
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		k, isKind := parseKind(word)
		switch {
		case word == "burst" && burst == 0:
			if len(words) == 0 {
				return 0, 0, fmt.Errorf(`no number follows "burst"; write %s burst 20`, l.rate())
			}
			if burst, err = parseWhole("the burst", words[0]); err != nil {
				return 0, 0, err
			}
			if burst < 1 || burst > MaxBurst {
				return 0, 0, fmt.Errorf("a burst of %d is out of range; write one from 1 to %d", burst, MaxBurst)
			}
			words = words[1:]
		case isKind && kindWord == "":
			kind, kindWord = k, word
		case isKind && word != kindWord:
			return 0, 0, fmt.Errorf("a limit is of one kind, not %s and %s; write one", kindWord, word)
		case word == "burst" || isKind:
			return 0, 0, fmt.Errorf("%q stands there twice; %s", word, limitForms)
		default:
			return 0, 0, fmt.Errorf("%.40q is not understood; %s", word, limitForms)
		}
	}
	return burst, kind, nil
}

// severalLimits answers a comma where one limit is read. Somebody may have grouped digits with it.
func severalLimits(s string) error {
	if one, err := parseLimit(strings.ReplaceAll(s, ",", "")); err == nil {
		return fmt.Errorf(`a comma can't group digits; write "%s"`, one)
	}
	for part := range strings.SplitSeq(s, ",") {
		if one, err := parseLimit(part); err == nil {
			return fmt.Errorf(`only one bucket limit is supported; write one, such as "%s"`, one)
		}
	}
	return errors.New("only one bucket limit is supported; " + limitForms)
}

// parseWhole reads a whole number without sign, point or exponent.
func parseWhole(what, s string) (int64, error) {
	if strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%s, %.40q, is not a whole number; %s", what, s, limitForms)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s, %.40q, is too large; %s", what, s, limitForms)
	}
	return n, nil
}

// units are the names of the units of time, and what each is.
var units = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "sec": time.Second, "m": time.Minute, "min": time.Minute,
	"h": time.Hour, "d": day,
}

// meantUnits are the units that people write instead, and the remedy.
var meantUnits = map[string]string{
	"msec": "ms", "milli": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms",
	"secs": "s", "second": "s", "seconds": "s", "mins": "m", "minute": "m", "minutes": "m",
	"hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d",
	"w": "7d", "wk": "7d", "week": "7d", "mo": "30d", "month": "30d", "y": "365d", "yr": "365d", "year": "365d",
}

// parsePeriod reads a unit, or a whole number with one.
func parsePeriod(s string) (time.Duration, error) {
	name := strings.TrimLeft(s, "0123456789")
	count := int64(1)
	if digits := s[:len(s)-len(name)]; digits != "" {
		n, err := parseWhole("the number before the unit", digits)
		if err != nil {
			return 0, err
		}
		count = n
	}
	unit, ok := units[name]
	switch {
	case name == "":
		return 0, fmt.Errorf("the time %.40q has no unit; write %.40ss, or another of ms, m, h, d", s, s)
	case !ok:
		return 0, unknownUnit(s, name)
	case count == 0:
		return 0, fmt.Errorf("the time %q is 0; write %s", s, periodText(unit))
	case count > int64(MaxPeriod/unit):
		return 0, fmt.Errorf("the time %.40q is longer than the longest, %s; write a shorter one", s, periodText(MaxPeriod))
	}
	return time.Duration(count) * unit, nil
}

// unknownUnit finds out what was meant.
func unknownUnit(s, name string) error {
	if d, err := time.ParseDuration(s); err == nil && d > 0 { // 1.5s, 1h30m, 500us
		if d%time.Millisecond != 0 {
			return fmt.Errorf("the time %.40q is not a whole number of ms, the shortest unit; write more events in a "+
				"longer time: 2/ms is one every 500us", s)
		}
		return fmt.Errorf("the time %.40q is not one whole number with one unit; write %s", s, periodText(d))
	}
	switch name {
	case "us", "µs", "μs", "ns":
		return fmt.Errorf("the unit %q is too short: the shortest is ms; write more events in a longer time: 2/ms is one "+
			"every 500us", name)
	}
	if meant, ok := meantUnits[name]; ok {
		return fmt.Errorf("the unit %q is unknown; write %s", name, meant)
	}
	return fmt.Errorf("the unit %.40q is unknown; write ms, s (sec), m (min), h or d, or a number with one, such as 5m", name)
}

// String is the shortest text that [ParseLimits] reads as the same limit.
func (l Limit) String() string {
	if l.Unlimited {
		return "unlimited"
	}
	text := l.rate()
	if l.Burst != l.Events && l.Kind != Leaky {
		text += " burst " + strconv.FormatInt(l.Burst, 10)
	}
	if l.Kind != Bucket {
		text += " " + l.Kind.String()
	}
	return text
}

// rate is the limit without its burst.
func (l Limit) rate() string {
	if l.Paused() {
		return "0"
	}
	return strconv.FormatInt(l.Events, 10) + "/" + periodText(l.Period)
}

// periodText writes a period in the largest unit that it is a whole number of.
func periodText(d time.Duration) string {
	for _, unit := range []string{"d", "h", "m", "s", "ms"} {
		size := units[unit]
		switch {
		case d == size:
			return unit
		case d > 0 && d%size == 0:
			return strconv.FormatInt(int64(d/size), 10) + unit
		}
	}
	return d.String()
}
