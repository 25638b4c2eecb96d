package stream

import (
	"strings"
	"testing"

	"sluice/pipeline"
)

func TestNamesOfTheDefaultPipeline(t *testing.T) {
	n, err := NewNames("sluice")
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("k", 257)
	for _, c := range []struct{ got, want string }{
		{n.LanesStream(), "SLUICE_LANES"},
		{n.LaneSubjects(), "sluice.lane.>"},
		{n.Lane("alice"), "sluice.lane.s07.alice"},
		{n.Lane("a.b >*"), "sluice.lane.s12.a%2Eb%20%3E%2A"},
		{n.DLQStream(), "SLUICE_DLQ"},
		{n.DeadSubjects(), "sluice.dlq.>"},
		{n.Dead(pipeline.Rejected, "a.b"), "sluice.dlq.rejected.a%2Eb"},
		{n.Dead(pipeline.NoKey, ""), "sluice.dlq.no_key.%"},
		{n.Dead(pipeline.BadKey, long), "sluice.dlq.bad_key.%"},
		{n.Cooling(), "sluice.cooling"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestNameRule(t *testing.T) {
	for name, good := range map[string]bool{
		"sluice": true, "a": true, "mail-2_x": true, strings.Repeat("a", 32): true,
		"": false, "A": false, "2a": false, "-a": false, "a.b": false, "a*": false, "a b": false, "a\n": false, strings.Repeat("a", 33): false,
	} {
		if _, err := NewNames(name); (err == nil) != good {
			t.Errorf("NewNames(%q) error %v, want good = %v", name, err, good)
		}
	}
}

func TestConfigTellsAllFaultsAtOnceWithoutSecrets(t *testing.T) {
	err := Config{
		URLs: "nats://u:pa/ss@host", Name: "X", Stream: "a.b", Subjects: []string{"a..b"}, Consumer: "c d", Setup: "some",
		TLSCert: "/nonexistent", Creds: "/nonexistent",
	}.Validate()
	wantText(t, err, "SLUICE_NATS_URL", "SLUICE_NAME", "SLUICE_STREAM", "SLUICE_SUBJECTS", "SLUICE_CONSUMER", "SLUICE_SETUP", "SLUICE_REPLICAS",
		"SLUICE_LANES_MAX_BYTES", "SLUICE_DLQ_MAX_BYTES", "SLUICE_NATS_TLS_KEY", "SLUICE_NATS_CREDS")
	if strings.Contains(err.Error(), ":pa") {
		t.Errorf("the error holds a part of the password: %v", err)
	}
}

func TestWhereHoldsNoSecrets(t *testing.T) {
	for urls, want := range map[string]string{
		"":                                      "nats://127.0.0.1:4222",
		"localhost":                             "nats://localhost",
		"nats://u:p@a:1, tls://token@b:2/x?y=z": "nats://a:1, tls://b:2",
		"u:p/@q@host:4222":                      "nats://host:4222",
	} {
		if got := (Config{URLs: urls}).where(); got != want {
			t.Errorf("where(%q) = %q, want %q", urls, got, want)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		pattern, filter string
		want            bool
	}{
		{"events.>", "events.>", true}, {"events.>", "events.a.*", true}, {"events.>", "events", false}, {">", "a", true},
		{"events.*", "events.a", true}, {"events.*", "events.*", true}, {"events.*", "events.>", false},
		{"events.*", "events.a.b", false}, {"events.a", "events.*", false}, {"a.b", "a", false},
	} {
		if got := covers(c.pattern, c.filter); got != c.want {
			t.Errorf("covers(%q, %q) = %v, want %v", c.pattern, c.filter, got, c.want)
		}
	}
}
