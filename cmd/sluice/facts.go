package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/cmd/sluice/statuspage"
)

// statusConfig is what the status page shows of a worker before it is connected.
func (w *worker) statusConfig() statuspage.Config {
	subject, err := defaultTemplate(w.cfg.Subjects).of("alice")
	if err != nil {
		subject = "SUBJECT"
	}
	return statuspage.Config{
		Name: w.cfg.Name, Version: buildInfo().Version, Metrics: w.reg, Ready: w.ready, Facts: w.facts,
		Hint: "sluice publish " + subject + ` '{"hello":1}'`,
	}
}

// facts are the settings that explain what a worker does, as they could be set again. Addresses aren't among them: they
// may hold secrets.
func (w *worker) facts() []statuspage.Fact {
	c := w.cfg
	facts := []statuspage.Fact{
		{Name: "LIMIT", Value: w.limitInForce()},
		{Name: "KEY", Value: c.Key.String()},
		{Name: "ALLOW_TIER", Value: strconv.FormatBool(c.AllowTier)},
		{Name: "KEY_CONCURRENCY", Value: strconv.Itoa(c.KeyConcurrency)},
		{Name: "MAX_WAIT", Value: briefly(c.MaxWait)},
		{Name: "KEY_MAX_WAITING", Value: strconv.FormatInt(c.KeyMaxWaiting, 10)},
		{Name: "OVERFLOW", Value: c.Overflow},
		{Name: "ON_REDIS_DOWN", Value: string(c.Outage.Policy)},
		{Name: "STREAM", Value: c.Stream},
		{Name: "SUBJECTS", Value: strings.Join(c.Subjects, ",")},
		{Name: "CONSUMER", Value: c.Consumer},
		{Name: "SINK", Value: c.Sink},
		{Name: "RETRY_FOR", Value: briefly(c.Retry.For)},
		{Name: "RETRY_MAX", Value: strconv.Itoa(c.Retry.Max)},
		{Name: "CONCURRENCY", Value: strconv.Itoa(c.Concurrency)},
	}
	return slices.DeleteFunc(facts, func(f statuspage.Fact) bool { return f.Value == "" }) // those that the command doesn't read
}

// limitInForce is the limit of keys that no rule is about, and where it comes from if that isn't SLUICE_LIMIT.
func (w *worker) limitInForce() string {
	book := w.book.Load()
	if book == nil {
		return w.cfg.Limit.String()
	}
	ruling := book.Resolve("", "")
	if ruling.Limits.Equal(w.cfg.Limit) {
		return w.cfg.Limit.String()
	}
	return fmt.Sprintf("%s (by the rule for %s; SLUICE_LIMIT is %s)", ruling.Limits, ruling.Source, w.cfg.Limit)
}

// briefly is d without the zeros at its end.
func briefly(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
