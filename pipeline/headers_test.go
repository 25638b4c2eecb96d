package pipeline

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestCostIsAWholeNumberOfTokens(t *testing.T) {
	t.Parallel()
	tests := []struct {
		header Header
		want   int64
	}{
		{nil, 1},
		{Header{"Other": {"7"}}, 1},
		{Header{"Sluice-Cost": {""}}, 1},
		{Header{"Sluice-Cost": {}}, 1},
		{Header{"Sluice-Cost": {"1"}}, 1},
		{Header{"sluice-cost": {"25"}}, 25},
		{Header{"Sluice-Cost": {" 25\t"}}, 25},
		{Header{"Sluice-Cost": {"3", "3"}}, 3},
		{Header{"Sluice-Cost": {"2147483648"}}, 1 << 31},
	}
	for _, tt := range tests {
		if got, err := CostOf(tt.header); err != nil || got != tt.want {
			t.Errorf("CostOf(%v) = %d, %v; want %d", tt.header, got, err, tt.want)
		}
	}
}

func TestBadCostIsAnError(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"0", "-1", "2147483649", "99999999999999999999", "1.5", "1e3", "NaN", "inf", "0x10", "1_000", "1,000", "one", "5 tokens",
		strings.Repeat("9", 1e5),
	} {
		cost, err := CostOf(Header{"Sluice-Cost": {text}})
		if err == nil {
			t.Errorf("a cost of %q is read as %d, want an error", text, cost)
			continue
		}
		for _, part := range []string{"Sluice-Cost", text[:1], "from 1 to 2147483648"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the error %q of cost %.40q does not say %q", err, text, part)
			}
		}
		if len(err.Error()) > 200 {
			t.Errorf("the error of cost %.40q... has %d bytes", text, len(err.Error()))
		}
	}
}

func TestEventIDIsTheProducersIfThereIsOne(t *testing.T) {
	t.Parallel()
	src := SourceID{Stream: "EVENTS", Created: 17, Seq: 42}
	tests := []struct {
		name   string
		header Header
		want   string
	}{
		{"no headers", nil, "EVENTS:42"},
		{"message id", Header{"Nats-Msg-Id": {"order/7:a_b-c"}}, "order/7:a_b-c"},
		{"message id in another spelling", Header{"nats-msg-id": {"a"}}, "a"},
		{"message id before CloudEvents", Header{"Nats-Msg-Id": {"a"}, "ce-id": {"b"}, "ce-source": {"c"}}, "a"},
		{"empty message id", Header{"Nats-Msg-Id": {""}}, "EVENTS:42"},
		{"CloudEvents", Header{"ce-id": {"A-1"}, "ce-source": {"/shop/eu"}}, "/shop/eu/A-1"},
		{"CloudEvents in another spelling", Header{"Ce-Id": {"1"}, "CE-Source": {"s"}}, "s/1"},
		{"slash in a CloudEvents id", Header{"ce-id": {"a/1"}, "ce-source": {"s"}}, "s/a%2F1"},
		{"CloudEvents without a source", Header{"ce-id": {"1"}}, "EVENTS:42"},
		{"CloudEvents without an id", Header{"ce-source": {"s"}}, "EVENTS:42"},
		{"other bytes", Header{"Nats-Msg-Id": {"a.b c%\x00é\r\n"}}, "a%2Eb%20c%25%00%C3%A9%0D%0A"},
		{"encoded by the producer", Header{"Nats-Msg-Id": {"a%2Eb"}}, "a%252Eb"},
		{"200 bytes", Header{"Nats-Msg-Id": {strings.Repeat("x", 200)}}, strings.Repeat("x", 200)},
		{"201 bytes", Header{"Nats-Msg-Id": {strings.Repeat("x", 201)}},
			"sha256:84a0678c90937f5dcf9994d5866668da6b995109c8ad845410559b48a4ecafed"},
		{"201 bytes once encoded", Header{"Nats-Msg-Id": {strings.Repeat(".", 67)}},
			"sha256:f794c81dc3c1794d8ac9b3fc48fe70c8d43c392513fb7afecb23cd664503c24e"},
		{"replayed", Header{"Nats-Msg-Id": {"dlq:1:2"}, "Sluice-Id": {"a%2Fb:1"}}, "a%2Fb:1"},
		{"replayed, before CloudEvents", Header{"nats-msg-id": {"dlq:1:2"}, "sluice-id": {"a"}, "ce-id": {"b"}, "ce-source": {"c"}}, "a"},
		{"Sluice-Id of a producer", Header{"Nats-Msg-Id": {"a"}, "Sluice-Id": {"b"}}, "a"},
		{"Sluice-Id alone", Header{"Sluice-Id": {"b"}}, "EVENTS:42"},
		{"replayed without an id", Header{"Nats-Msg-Id": {"dlq:1:2"}}, "dlq:1:2"},
		{"replayed with an unsafe id", Header{"Nats-Msg-Id": {"dlq:1:2"}, "Sluice-Id": {"a b"}}, "dlq:1:2"},
		{"replayed with a long id", Header{"Nats-Msg-Id": {"dlq:1:2"}, "Sluice-Id": {strings.Repeat("x", 201)}}, "dlq:1:2"},
	}
	for _, tt := range tests {
		if got := EventID(tt.header, src); got != tt.want {
			t.Errorf("%s: EventID(%v) = %q, want %q", tt.name, tt.header, got, tt.want)
		}
	}
	if got := EventID(nil, SourceID{Stream: "a.b", Seq: 1}); got != "a%2Eb:1" {
		t.Errorf("id of an event from a stream with a point = %q, want it encoded", got)
	}
}

func TestDifferentCloudEventsHaveDifferentIDs(t *testing.T) {
	t.Parallel()
	// All pairs of short texts of the bytes that could be taken for a part of the joining.
	var texts []string
	for _, a := range []string{"", "/", "%", "2", "F", "a"} {
		for _, b := range []string{"", "/", "%", "2", "F", "a"} {
			for _, c := range []string{"/", "%", "2", "F", "a"} {
				texts = append(texts, a+b+c)
			}
		}
	}
	seen := map[string][2]string{}
	for _, source := range texts {
		for _, id := range texts {
			pair := [2]string{source, id}
			got := EventID(Header{"ce-source": {source}, "ce-id": {id}}, SourceID{})
			if other, taken := seen[got]; taken && other != pair {
				t.Fatalf("%q and %q have the same id %q", pair, other, got)
			}
			seen[got] = pair
		}
	}
}

// checkID says that an id is safe in a header and short.
func checkID(t *testing.T, id string) {
	t.Helper()
	rest := strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:/-%")
	if id == "" || rest != "" || len(id) > 200 {
		t.Fatalf("the id %q has %d bytes, or unsafe ones: %q", id, len(id), rest)
	}
}

func FuzzEventID(f *testing.F) {
	f.Add("a", "b")
	f.Add("a%2Eb", "a.b")
	f.Add(strings.Repeat("x", 201), strings.Repeat("x", 202))
	f.Fuzz(func(t *testing.T, a, b string) {
		idA, idB := EventID(Header{"Nats-Msg-Id": {a}}, SourceID{Stream: "S"}), EventID(Header{"Nats-Msg-Id": {b}}, SourceID{Stream: "S"})
		checkID(t, idA)
		checkID(t, idB)
		if (idA == idB) != (a == b) {
			t.Fatalf("%q and %q have the ids %q and %q", a, b, idA, idB)
		}
		checkID(t, EventID(Header{"ce-source": {a}, "ce-id": {b}}, SourceID{Stream: "S"}))
		checkID(t, EventID(nil, SourceID{Stream: a, Seq: 1}))
		checkID(t, EventID(Header{"Nats-Msg-Id": {"dlq:" + a}, "Sluice-Id": {b}}, SourceID{}))
	})
}

func TestEventIDOfAnyBytesIsSafe(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		raw := make([]byte, 1+r.IntN(80))
		for i := range raw {
			raw[i] = byte(r.Uint32())
		}
		checkID(t, EventID(Header{"Nats-Msg-Id": {string(raw)}}, SourceID{Stream: "S"}))
	}
}
