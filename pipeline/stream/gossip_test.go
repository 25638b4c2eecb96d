package stream

import (
	"testing"
	"time"
)

func TestCoolingReachesOthersNotOneself(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	nc := rawConn(t, cfg.URLs)
	type heard struct {
		who, key string
		d        time.Duration
	}
	all := make(chan heard, 10)
	listen := func(who string, g *Gossip) {
		stop, err := g.Subscribe(func(key string, d time.Duration) { all <- heard{who, key, d} })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
	}
	a, b := NewGossip(nc, cfg), NewGossip(rawConn(t, cfg.URLs), cfg)
	listen("a", a)
	listen("b", b)
	if err := b.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, nonsense := range []string{"", "{}", `{"key":"a b","ms":1,"from":"x"}`, `{"key":"k","ms":-1,"from":"x"}`, `{"key":"","ms":1,"from":"x"}`} {
		if err := nc.Publish("sluice.cooling", []byte(nonsense)); err != nil {
			t.Fatal(err)
		}
	}
	a.Cooling("", time.Second)
	a.Cooling("k", 0)
	a.Cooling("a.b\x00", 1500*time.Microsecond)
	if got, want := <-all, (heard{"b", "a.b\x00", 2 * time.Millisecond}); got != want {
		t.Errorf("heard %+v, want %+v", got, want)
	}
	a.Cooling("k", 1000*time.Hour)
	if got, want := <-all, (heard{"b", "k", 24 * time.Hour}); got != want {
		t.Errorf("heard %+v, want %+v", got, want)
	}
	a.Over("k")
	if got, want := <-all, (heard{"b", "k", 0}); got != want {
		t.Errorf("heard %+v, want %+v", got, want)
	}
	a.Over("")
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-all:
		t.Errorf("heard %+v too", got)
	case <-time.After(50 * time.Millisecond):
	}
}
