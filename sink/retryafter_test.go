package sink

import (
	"net/http"
	"testing"
	"time"
)

var testNow = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestRetryAfterIsReadAsSecondsOrDate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		value string
		want  time.Duration // 0: no pause is asked for
	}{
		{"1", time.Second},
		{"120", 2 * time.Minute},
		{" 120\t", 2 * time.Minute},
		{"007", 7 * time.Second},
		{"86400", 24 * time.Hour},
		{"86401", 24 * time.Hour},
		{"9223372036854775807", 24 * time.Hour},
		{"99999999999999999999999999", 24 * time.Hour},
		{"10.0", 10 * time.Second},
		{"2.0", 2 * time.Second},
		{"1.5", 2 * time.Second},
		{"0.07", time.Second},
		{".5", time.Second},
		{"3.", 3 * time.Second},
		{"86399.0000000000000000000001", 24 * time.Hour},
		{"99999999999999999999999999.9", 24 * time.Hour},
		{"Mon, 30 Nov 2026 12:01:30 GMT", 90 * time.Second},
		{"Monday, 30-Nov-26 12:01:30 GMT", 90 * time.Second},
		{"Mon Nov 30 12:01:30 2026", 90 * time.Second},
		{"Fri, 31 Dec 9999 23:59:59 GMT", 24 * time.Hour},
		{"Mon, 30 Nov 2026 12:00:00 GMT", 0},
		{"Mon, 30 Nov 2026 11:59:59 GMT", 0},
		{"Mon, 01 Jan 0001 00:00:00 GMT", 0},
		{"", 0}, {"0", 0}, {"000", 0}, {"0.0", 0}, {".", 0}, {"-5", 0}, {"+5", 0}, {"1.2.3", 0}, {"1e300", 0}, {"abc", 0}, {"inf", 0}, {"NaN", 0},
		{"0x10", 0}, {"5 6", 0}, {"5s", 0}, {"٣", 0}, {"2026-11-30T12:01:30Z", 0},
	}
	for _, tt := range tests {
		got, ok := parseRetryAfter([]string{tt.value}, testNow)
		if got != tt.want || ok != (tt.want > 0) {
			t.Errorf("parseRetryAfter(%q) = %v, %v, want %v, %v", tt.value, got, ok, tt.want, tt.want > 0)
		}
	}
}

// Proxies add a line of their own or join lines, and a receiver means the longest pause that it named.
func TestLongestOfSeveralRetryAftersRules(t *testing.T) {
	t.Parallel()
	const inMinute = "Mon, 30 Nov 2026 12:01:00 GMT"
	tests := []struct {
		values []string
		want   time.Duration
	}{
		{nil, 0},
		{[]string{"2", "120"}, 2 * time.Minute},
		{[]string{"120", "2"}, 2 * time.Minute},
		{[]string{"2, 120"}, 2 * time.Minute},
		{[]string{"120,2"}, 2 * time.Minute},
		{[]string{"abc", "", "5"}, 5 * time.Second},
		{[]string{"abc, 5, -7"}, 5 * time.Second},
		{[]string{"0", "soon"}, 0},
		{[]string{inMinute, "5"}, time.Minute},
		{[]string{"5, " + inMinute}, time.Minute},
		{[]string{inMinute + ", 90"}, 90 * time.Second},
		{[]string{inMinute + ", Mon, 30 Nov 2026 12:02:00 GMT,5"}, 2 * time.Minute},
		{[]string{"Monday, 30-Nov-26 12:01:00 GMT, 5"}, time.Minute},
		{[]string{"5, Mon Nov 30 12:01:00 2026"}, time.Minute},
	}
	for _, tt := range tests {
		if got, ok := parseRetryAfter(tt.values, testNow); got != tt.want || ok != (tt.want > 0) {
			t.Errorf("parseRetryAfter(%q) = %v, %v, want %v", tt.values, got, ok, tt.want)
		}
	}
}

func FuzzRetryAfterStaysInBounds(f *testing.F) {
	for _, seed := range []string{"120", "-5", "1e300", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT", testNow.Format(http.TimeFormat)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		d, ok := parseRetryAfter([]string{value}, testNow)
		if ok != (d > 0) || d < 0 || d > maxRetryAfter {
			t.Errorf("parseRetryAfter(%q) = %v, %v", value, d, ok)
		}
		if more, _ := parseRetryAfter([]string{"7", value}, testNow); more != max(d, 7*time.Second) {
			t.Errorf("parseRetryAfter(7 and %q) = %v", value, more)
		}
	})
}
