package stream

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// fortune is something that happens to a source while it is in use.
type fortune struct {
	name string
	// befall makes it happen after events 1 to 5 were acked while 6 and 7 are in hand, and publishes three more.
	befall func(t *testing.T, r *fortuneRig)
	want   []uint64 // sequences that come then
	anew   bool     // of another stream
}

type fortuneRig struct {
	js     jetstream.JetStream
	cfg    Config
	s      *Source
	stream jetstream.StreamConfig
	held   []pipeline.Delivery
}

func (r *fortuneRig) ackHeld() {
	for _, d := range r.held {
		d.Ack()
	}
}

func (r *fortuneRig) update(t *testing.T, change func(*jetstream.StreamConfig)) {
	t.Helper()
	c := r.stream
	change(&c)
	if _, err := r.js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

var fortunes = []fortune{
	{
		name: "consumer deleted", want: []uint64{8, 9, 10},
		befall: func(t *testing.T, r *fortuneRig) {
			r.ackHeld()
			eventually(t, "acked", func() bool { return consumerInfo(t, r.js, r.cfg).AckFloor.Stream == 7 })
			eventually(t, "a look", func() bool { return r.s.floor.last().Floor == 7 })
			if err := r.js.DeleteConsumer(t.Context(), r.cfg.Stream, r.cfg.consumer()); err != nil {
				t.Fatal(err)
			}
			if r.stream.Retention == jetstream.InterestPolicy { // nothing is stored without a consumer
				eventually(t, "the consumer", func() bool {
					_, err := r.js.Consumer(t.Context(), r.cfg.Stream, r.cfg.consumer())
					return err == nil
				})
			}
			publish(t, r.js, 3)
		},
	}, {
		name: "stream purged", want: []uint64{8, 9, 10},
		befall: func(t *testing.T, r *fortuneRig) {
			s, err := r.js.Stream(t.Context(), r.cfg.Stream)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.ackHeld()
			publish(t, r.js, 3)
		},
	}, {
		name: "stream recreated", want: []uint64{1, 2, 3}, anew: true,
		befall: func(t *testing.T, r *fortuneRig) {
			if err := r.js.DeleteStream(t.Context(), r.cfg.Stream); err != nil {
				t.Fatal(err)
			}
			if _, err := r.js.CreateStream(t.Context(), r.stream); err != nil {
				t.Fatal(err)
			}
			r.ackHeld()
			eventually(t, "the consumer", func() bool {
				_, err := r.js.Consumer(t.Context(), r.cfg.Stream, r.cfg.consumer())
				return err == nil
			})
			publish(t, r.js, 3)
		},
	}, {
		name: "stream sealed", want: []uint64{8, 9, 10},
		befall: func(t *testing.T, r *fortuneRig) {
			r.ackHeld()
			r.s.Pause()
			publish(t, r.js, 3)
			r.update(t, func(c *jetstream.StreamConfig) { c.Sealed = true })
			r.s.Resume()
		},
	}, {
		name: "consumer paused", want: []uint64{8, 9, 10},
		befall: func(t *testing.T, r *fortuneRig) {
			r.ackHeld()
			if _, err := r.js.PauseConsumer(t.Context(), r.cfg.Stream, r.cfg.consumer(), time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			publish(t, r.js, 3)
		},
	},
}

func TestSourceGoesOnThroughAllThatMayBefallItsStreamAndConsumer(t *testing.T) {
	t.Parallel()
	for _, retention := range []jetstream.RetentionPolicy{jetstream.LimitsPolicy, jetstream.WorkQueuePolicy, jetstream.InterestPolicy} {
		for _, f := range fortunes {
			t.Run(fmt.Sprint(retention, " ", f.name), func(t *testing.T) {
				t.Parallel()
				r := &fortuneRig{cfg: testConfig(startServer(t, serverOptions(t)))}
				r.js = connect(t, r.cfg)
				r.stream = jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}, Retention: retention}
				if _, err := r.js.CreateStream(t.Context(), r.stream); err != nil {
					t.Fatal(err)
				}
				r.cfg.Setup = SetupOwn
				if _, err := Setup(t.Context(), r.js, r.cfg); err != nil {
					t.Fatal(err)
				}
				r.s = open(t, r.js, r.cfg, quick)
				publish(t, r.js, 7)
				was := drainFive(t, r)
				f.befall(t, r)
				for _, want := range f.want {
					d := next(t, r.s)
					for d.Redelivered() { // what was in hand when the consumer was lost
						d.Ack()
						d = next(t, r.s)
					}
					if src := d.Event().Source; src.Seq != want || (src.Created != was) != f.anew {
						t.Errorf("event %d came, of another stream: %t; want %d", src.Seq, src.Created != was, want)
					}
					d.Ack()
				}
				eventually(t, "all acked", func() bool {
					i := consumerInfo(t, r.js, r.cfg)
					return i.NumAckPending == 0 && i.NumPending == 0
				})
				nothing, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				if d, err := r.s.Next(nothing); err == nil {
					t.Errorf("event %d came, too", d.Event().Source.Seq)
				}
				if r.s.restarts > 0 {
					t.Errorf("%d sessions were taken to be lost", r.s.restarts)
				}
			})
		}
	}
}

// drainFive acks five events and takes two more; it returns the identity of the stream.
func drainFive(t *testing.T, r *fortuneRig) int64 {
	t.Helper()
	drainAll(t, r.s, 5)
	for range 2 {
		r.held = append(r.held, next(t, r.s))
	}
	eventually(t, "acked", func() bool { return consumerInfo(t, r.js, r.cfg).AckFloor.Stream == 5 })
	return r.held[0].Event().Source.Created
}

// The retention is what a work queue's consumer may not be made with otherwise.
func TestConsumerThatWasLostWhileNoWorkerRanGoesOnFromWhereItWas(t *testing.T) {
	t.Parallel()
	for _, lose := range []struct {
		name string
		how  func(t *testing.T, js jetstream.JetStream, cfg Config)
	}{
		{"deleted", func(t *testing.T, js jetstream.JetStream, cfg Config) {
			if err := js.DeleteConsumer(t.Context(), cfg.Stream, cfg.consumer()); err != nil {
				t.Fatal(err)
			}
		}},
		{"by the stream's threshold", func(t *testing.T, js jetstream.JetStream, cfg Config) {
			_, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"},
				ConsumerLimits: jetstream.StreamConsumerLimits{InactiveThreshold: 200 * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			c, err := js.Consumer(t.Context(), cfg.Stream, cfg.consumer())
			if err != nil {
				t.Fatal(err)
			}
			config := c.CachedInfo().Config
			config.InactiveThreshold = 100 * time.Millisecond
			if _, err := js.UpdateConsumer(t.Context(), cfg.Stream, config); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the consumer to be removed", func() bool {
				_, err := js.Consumer(t.Context(), cfg.Stream, cfg.consumer())
				return err != nil
			})
		}},
	} {
		t.Run(lose.name, func(t *testing.T) {
			t.Parallel()
			js, cfg := newServer(t)
			cfg.Setup = SetupOwn
			publish(t, js, 20)
			s := open(t, js, cfg, usualLimits) // as in use: it doesn't look at the consumer between
			drainAll(t, s, 20)
			closeSource(t, s)
			lose.how(t, js, cfg)
			publish(t, js, 1)

			actions, err := Setup(t.Context(), js, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if a := actions[1]; a.Did != "created" || a.Detail == "" {
				t.Errorf("the set-up says %+v", a)
			} else {
				wantText(t, fmt.Errorf("%s", a.Detail), "it begins after event 20, up to which all was acknowledged")
			}
			s = open(t, js, cfg, usualLimits)
			d := next(t, s)
			if seq := d.Event().Source.Seq; seq != 21 {
				t.Errorf("event %d came, want only the new one", seq)
			}
			d.Ack()
			eventually(t, "all acked", func() bool { i := consumerInfo(t, js, cfg); return i.NumPending == 0 && i.NumAckPending == 0 })
		})
	}
}

func TestFloorOfAnotherStreamOrBeyondItsEndIsNotGoneBy(t *testing.T) {
	t.Parallel()
	js, cfg := newServer(t)
	publish(t, js, 5)
	stream, err := js.Stream(t.Context(), cfg.Stream)
	if err != nil {
		t.Fatal(err)
	}
	identity := created(stream.CachedInfo())
	for _, known := range []storedFloor{
		{Stream: identity + 1, Floor: 3, At: time.Now()}, {Stream: identity, Floor: 6, At: time.Now()},
		{Stream: identity, Floor: 3, At: time.Now().Add(-time.Hour)}, // the third is younger: it was stored after the stream was put back
	} {
		if err := js.DeleteConsumer(t.Context(), cfg.Stream, cfg.consumer()); err != nil {
			t.Fatal(err)
		}
		begins, err := makeConsumer(t.Context(), js, cfg, known)
		if err != nil {
			t.Fatal(err)
		}
		wantText(t, fmt.Errorf("%s", begins), "with the first of 5 events")
		if n := consumerInfo(t, js, cfg).NumPending; n != 5 {
			t.Errorf("%d events wait, want all 5", n)
		}
	}
}

func TestThresholdsThatRemoveTheConsumerAreTold(t *testing.T) {
	t.Parallel()
	cfg := testConfig(startServer(t, serverOptions(t)))
	js := connect(t, cfg)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"},
		ConsumerLimits: jetstream.StreamConsumerLimits{InactiveThreshold: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Setup(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	actions, _, err := Look(t.Context(), js, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if actions[1].Did != "differs" {
		t.Errorf("the look says %+v", actions[1])
	}
	wantText(t, fmt.Errorf("%s", actions[1].Detail), "inactive_threshold is 1h0m0s")
}

func TestConsumerChangedWhileInUse(t *testing.T) {
	t.Parallel()
	change := func(t *testing.T, js jetstream.JetStream, cfg Config, how func(*jetstream.ConsumerConfig)) {
		t.Helper()
		c := consumerInfo(t, js, cfg).Config
		how(&c)
		if _, err := js.UpdateConsumer(t.Context(), cfg.Stream, c); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("a shorter ack wait is kept to", func(t *testing.T) {
		t.Parallel()
		js, cfg := newServer(t)
		s := open(t, js, cfg, quick)
		publish(t, js, 1)
		d := next(t, s)
		change(t, js, cfg, func(c *jetstream.ConsumerConfig) { c.AckWait = time.Second })
		eventually(t, "noticed", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.bound.ackWait == time.Second
		})
		time.Sleep(3 * time.Second) // several of the new ones
		d.Ack()
		eventually(t, "acked", func() bool { return consumerInfo(t, js, cfg).NumAckPending == 0 })
		if i := consumerInfo(t, js, cfg); i.Delivered.Consumer > 2 { // once before it was noticed
			t.Errorf("%d deliveries", i.Delivered.Consumer)
		}
	})
	for _, c := range []struct {
		name        string
		spoil, mend func(*jetstream.ConsumerConfig)
		says        string
	}{
		{"max_deliver", func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 2 }, func(c *jetstream.ConsumerConfig) { c.MaxDeliver = -1 }, "max_deliver is 2"},
		{"max_ack_pending", func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 5 }, func(c *jetstream.ConsumerConfig) { c.MaxAckPending = -1 }, "max_ack_pending is 5"},
		{"filter", func(c *jetstream.ConsumerConfig) { c.FilterSubjects = []string{"events.1"} },
			func(c *jetstream.ConsumerConfig) { c.FilterSubjects = []string{"events.>"} }, "filter_subjects"},
	} {
		t.Run(c.name+" ends pulling until it is changed back", func(t *testing.T) {
			t.Parallel()
			js, cfg := newServer(t)
			var log logged
			s, err := openSource(t.Context(), js, cfg, log.log(), quick)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { closeSource(t, s) })
			publish(t, js, 2)
			held := take(t, s, 2)
			unfit := func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.unfit != nil
			}
			change(t, js, cfg, c.spoil)
			eventually(t, "noticed", unfit)
			wantText(t, fmt.Errorf("%s", log.String()), "the consumer was changed", c.says)
			publish(t, js, 3)
			for range 3 { // as often as max_deliver would lose it
				held[0].HandBack()
				if held[0] = next(t, s); held[0].Event().Source.Seq != 1 || !held[0].Redelivered() {
					t.Fatalf("event %d came", held[0].Event().Source.Seq)
				}
			}
			nothing, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if d, err := s.Next(nothing); err == nil {
				t.Errorf("event %d came from a consumer that is unfit", d.Event().Source.Seq)
			}
			held[1].Ack()
			change(t, js, cfg, c.mend)
			eventually(t, "noticed again", func() bool { return !unfit() })
			held[0].Ack()
			drainAll(t, s, 3)
			eventually(t, "all acked", func() bool { return consumerInfo(t, js, cfg).AckFloor.Stream == 5 })
		})
	}
}
