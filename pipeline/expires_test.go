package pipeline

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestExpiresOf(t *testing.T) {
	t.Parallel()
	published := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		text string
		want time.Time
		bad  bool
	}{
		{"", time.Time{}, false},
		{"90s", published.Add(90 * time.Second), false},
		{" 2d ", published.Add(48 * time.Hour), false},
		{"0s", published, false},
		{"2026-12-24T18:00:00+01:00", time.Date(2026, 12, 24, 17, 0, 0, 0, time.UTC), false},
		{"-1s", time.Time{}, true},
		{"-1d", time.Time{}, true},
		{"soon", time.Time{}, true},
		{"99999999999d", time.Time{}, true},
		{"2026-12-24", time.Time{}, true},
		{"2026-12-24T18:00:00.5Z", time.Date(2026, 12, 24, 18, 0, 0, 5e8, time.UTC), false},
		{"2026-12-24T18:00:00,5Z", time.Time{}, true},
		{"2026-12-24T5:00:00Z", time.Time{}, true},
		{"2026-12-24T18:00:00+24:00", time.Time{}, true},
		{"2026-12-24T18:00:00-00:60", time.Time{}, true},
	} {
		got, err := ExpiresOf(Header{"sluice-expires": {tt.text}}, published)
		if !got.Equal(tt.want) || (err != nil) != tt.bad {
			t.Errorf("%q: %v, %v, want %v", tt.text, got, err, tt.want)
		}
	}
}

// expiring gives an event a header.
func expiring(text string) func(*delivery) {
	return func(d *delivery) {
		d.ev.Header = Header{"Sluice-Expires": {text}}
	}
}

func TestExpiredEventsLeaveTheLaneAndTheirSlotsGoToTheNext(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, r *rig) {
		r.index.limits = map[string]limit{"a": {every: time.Second, burst: 1}}
		r.mayDrop = true
		stop, begin := r.start(), time.Now()
		r.publish("a", 3) // 0s, 1s, 2s
		synctest.Wait()
		r.publish("a", 5, expiring("2s"))   // gone by then
		r.publish("a", 2, expiring("1h"))   // 3s, 4s
		r.publish("a", 1, expiring("0s"))   // gone at once
		r.publish("a", 1, expiring("soon")) // unreadable
		pass(10 * time.Second)
		wantTimes(t, "pushes", r.sink.after("a", begin), every(time.Second, 5)...)
		if n := r.count("expired"); n != 6 {
			t.Errorf("%d expired, want 6", n)
		}
		r.wantRest(t)
		_ = stop()
	})
}
