package redisstore

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestClockTellsWhenAScriptRan(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	base := time.Now()
	redis := int64(1_764_460_800_000_000) // its clock at base
	type call struct{ sent, ran, received time.Duration }
	var c clock
	at := func(r call, jump time.Duration) time.Duration {
		now := redis + (r.ran + jump).Microseconds()
		return c.at(base.Add(r.sent), base.Add(r.received), now).Sub(base).Round(ms / 10)
	}
	for _, s := range []struct {
		name string
		call call
		jump time.Duration // of Redis' clock
		want time.Duration
	}{
		{"the first call is taken for as old as its reply", call{0, 1 * ms, 9 * ms}, 0, 9 * ms},
		{"a quick one sets the clock", call{20 * ms, 21 * ms, 22 * ms}, 0, 22 * ms},
		{"a reply that was held up is as old as it is", call{30 * ms, 31 * ms, 500 * ms}, 0, 32 * ms},
		{"a script that was held up is young", call{600 * ms, 1500 * ms, 1501 * ms}, 0, 1501 * ms},
		{"a clock that went back: as old as the call", call{2000 * ms, 2001 * ms, 2002 * ms}, -time.Hour, 2000 * ms},
		{"a clock that went ahead: as old as the reply", call{2100 * ms, 2101 * ms, 2102 * ms}, time.Hour, 2102 * ms},
		{"long after a step all is as before", call{20 * time.Second, 20*time.Second + ms, 20*time.Second + 2*ms}, time.Minute, 20*time.Second + 2*ms},
		{"and a late reply is old", call{21 * time.Second, 21*time.Second + ms, 22 * time.Second}, time.Minute, 21*time.Second + 2*ms},
	} {
		if got := at(s.call, s.jump); got != s.want {
			t.Errorf("%s: ran at %s, want %s", s.name, got, s.want)
		}
	}
}

func TestNowGoesByRedisClock(t *testing.T) {
	t.Parallel()
	r := newRig(t, "10/s")
	near := func(want time.Time) {
		t.Helper()
		if off := r.Now().Sub(want.Round(0)); off.Abs() > time.Second {
			t.Errorf("now is %s beside Redis' time", off)
		}
	}
	near(time.Now()) // the store was opened, and nothing else was asked
	for _, later := range []time.Duration{0, time.Hour, -time.Hour} {
		r.at(later.Microseconds())
		r.ask("k", 1, 0)
		near(time.UnixMicro(start).Add(later))
	}
}

func TestClocksThatDifferAreTold(t *testing.T) {
	t.Parallel()
	var told bytes.Buffer
	s := &Store{opt: Options{Log: slog.New(slog.NewTextHandler(&told, nil))}}
	if off := time.Until(s.Now()); off.Abs() > time.Second {
		t.Errorf("before Redis has answered now is %s beside this machine's time", off)
	}
	for _, step := range []struct {
		ahead time.Duration
		want  string
	}{
		{0, ""}, {4 * time.Second, ""}, {time.Hour, "level=WARN"}, {time.Hour, ""}, {-time.Hour, ""}, {time.Second, "level=INFO"},
		{-6 * time.Second, "redis_ahead="}, {0, "level=INFO"}, {0, ""},
	} {
		told.Reset()
		s.wall.see(time.Now(), time.Now().Add(step.ahead).UnixMicro())
		s.compareClocks()
		if got := told.String(); (got == "") != (step.want == "") || !strings.Contains(got, step.want) {
			t.Errorf("Redis' clock is %s ahead, told: %q, want %q", step.ahead, got, step.want)
		}
		if off := s.ahead() - step.ahead; off.Abs() > time.Second {
			t.Errorf("%s ahead, want %s", s.ahead(), step.ahead)
		}
	}
}
