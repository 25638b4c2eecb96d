package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pipeline"
)

// demoUsers behave; demoFlooder doesn't. The hints tell people to publish as alice, who is none of them.
var demoUsers = []string{"amara", "bjorn", "chiyo", "diego", "elif", "farid", "greta", "hugo", "ines", "jonas", "kemal", "lucia"}

const (
	demoFlooder = "mallory"
	floodTick   = 50 * time.Millisecond
	// floodMost is how many events of the flooder wait before it pauses: a demo that is forgotten must not fill the disk.
	floodMost = 5_000
)

// demo publishes events of a dozen ordinary users and of one that floods.
type demo struct {
	nc       *nats.Conn
	subjects subjectTemplate
	ledger   *ledger
	keys     map[string]string // of the users
	gentle   float64           // events a second of an ordinary user, at most
	flood    float64           // events a second of the flooder
}

// newDemo returns an error if SLUICE_SUBJECTS or SLUICE_KEY are such that no events can be made up.
func newDemo(cfg Config, nc *nats.Conn, l *ledger) (*demo, error) {
	perSecond := 10.0
	if !cfg.Limit.Paused() && !cfg.Limit.Unlimited() {
		perSecond = 500
		for _, l := range cfg.Limit {
			perSecond = min(perSecond, max(1, float64(l.Events)/l.Period.Seconds()))
		}
	}
	d := &demo{
		nc: nc, subjects: defaultTemplate(cfg.Subjects), ledger: l, keys: map[string]string{},
		gentle: max(0.2, 0.15*perSecond), flood: 6 * perSecond,
	}
	seen := map[string]bool{}
	for _, user := range append([]string{demoFlooder}, demoUsers...) {
		msg, err := d.event(user, 0)
		if err != nil {
			return nil, err
		}
		key, err := cfg.Key.Key(&pipeline.Event{Subject: msg.Subject, Header: pipeline.Header(msg.Header), Data: msg.Data})
		if err != nil || seen[key] {
			return nil, fmt.Errorf("SLUICE_KEY=%s tells no users apart in them", cfg.Key)
		}
		seen[key], d.keys[user] = true, key
		l.demo[key] = user != demoFlooder
	}
	return d, nil
}

// event is the n-th event of a user. Wherever one would look for a user, there is one.
func (d *demo) event(user string, n int) (*nats.Msg, error) {
	subject, err := d.subjects.of(user)
	if err != nil {
		return nil, err
	}
	return &nats.Msg{
		Subject: subject,
		Header:  nats.Header{"Content-Type": {"application/json"}, "User": {user}},
		Data:    fmt.Appendf(nil, `{"user":%q,"event":"signed in","n":%d}`, user, n),
	}, nil
}

// run publishes until ctx ends.
func (d *demo) run(ctx context.Context) {
	var users sync.WaitGroup
	for _, user := range demoUsers {
		users.Go(func() { d.behave(ctx, user) })
	}
	d.misbehave(ctx)
	users.Wait()
}

// behave publishes now and then, at random, as people do.
func (d *demo) behave(ctx context.Context, user string) {
	perSecond := d.gentle * (0.2 + 0.8*rand.Float64())
	wait := rand.N(500 * time.Millisecond)
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		d.publish(user, n)
		wait = time.Duration(rand.ExpFloat64() / perSecond * float64(time.Second))
	}
}

// misbehave publishes far more than the limit lets pass.
func (d *demo) misbehave(ctx context.Context) {
	tick := time.NewTicker(floodTick)
	defer tick.Stop()
	due := 0.0
	for n := 1; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if d.ledger.waiting(d.keys[demoFlooder]) >= floodMost {
			continue
		}
		for due += d.flood * floodTick.Seconds(); due >= 1; due-- {
			d.publish(demoFlooder, n)
			n++
		}
	}
}

func (d *demo) publish(user string, n int) {
	msg, err := d.event(user, n)
	if err == nil {
		_ = d.nc.PublishMsg(msg) // whatever is lost is only missing in a demo
	}
}
