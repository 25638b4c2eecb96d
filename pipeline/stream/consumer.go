package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// ackWait is after how long an event whose worker died is given to another one.
	ackWait    = 30 * time.Second
	minAckWait = time.Second
	minExpires = time.Second
	maxWaiting = 4096 // pulls at a time, of all workers together
)

// binding is a consumer of the source, and whose it is.
type binding struct {
	consumer jetstream.Consumer
	stream   int64     // creation time of the stream: its identity
	made     time.Time // creation time of the consumer: its identity
	last     uint64    // consumer sequence of the last delivery
	floor    uint64    // stream sequence below which all is acknowledged

	unfit     error // why it must not be asked for events; nil: it may
	schedules bool  // the stream takes messages that NATS itself publishes later
	keeps     bool  // the stream keeps what is acknowledged

	taken []string // the subjects of the stream

	// As configured; it may be changed while it is in use.
	ackWait    time.Duration
	maxBatch   int // of a request; 0: any
	maxExpires time.Duration
}

// configured takes over what may be changed in a consumer without harm.
func (b *binding) configured(c jetstream.ConsumerConfig) {
	b.ackWait, b.maxBatch, b.maxExpires = shortestWait(c), c.MaxRequestBatch, c.MaxRequestExpires
}

func wantedConsumer(cfg Config) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:        cfg.consumer(),
		Description:    "sluice",
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        ackWait,
		MaxDeliver:     -1,
		MaxAckPending:  -1,
		MaxWaiting:     maxWaiting,
		FilterSubjects: cfg.Subjects,
	}
}

// ensureConsumer looks for the consumer of the source.
func ensureConsumer(ctx context.Context, js jetstream.JetStream, cfg Config) (Action, error) {
	action := Action{Object: fmt.Sprintf("consumer %s of stream %s", cfg.consumer(), cfg.Stream), Did: "exists"}
	b, err := bind(ctx, js, cfg)
	switch {
	case err == nil && b.unfit != nil:
		action.Did = "differs"
		return action, b.unfit
	case err == nil:
		action.Detail = differsConsumer(cfg, b.consumer.CachedInfo().Config)
		if action.Detail != "" {
			action.Did = "differs"
		}
		return action, nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return Action{}, nil // told by ensureSource
	case errors.Is(err, jetstream.ErrConsumerNotFound) && cfg.Setup != SetupOff:
		begins, err := makeConsumer(ctx, js, cfg, storedFloor{})
		action.Did, action.Detail = "created", "it begins "+begins
		return action, err
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		action.Did = "missing"
	case isFault(err):
		action.Did = "differs"
	default:
		action.Did = ""
	}
	return action, err
}

// createConsumer makes the consumer. With floor > 0 it begins after that sequence of the stream instead of with the first
// event. Another worker may have been faster; bind compares what there is.
func createConsumer(ctx context.Context, js jetstream.JetStream, cfg Config, floor uint64) error {
	want := wantedConsumer(cfg)
	if floor > 0 {
		want.DeliverPolicy, want.OptStartSeq = jetstream.DeliverByStartSequencePolicy, floor+1
	}
	_, err := js.CreateConsumer(ctx, cfg.Stream, want)
	if errors.Is(err, jetstream.ErrConsumerExists) {
		b, err := bind(ctx, js, cfg)
		if err == nil {
			err = b.unfit
		}
		return err
	}
	doing := fmt.Sprintf("creating consumer %s of stream %s", cfg.consumer(), cfg.Stream)
	return explain(js.Conn(), doing, remedy(doing, "the consumer", err))
}

// bind finds the consumer and the identity of its stream, which must be the same before and after.
func bind(ctx context.Context, js jetstream.JetStream, cfg Config) (binding, error) {
	stream, err := js.Stream(ctx, cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return binding{}, sourceMissing(cfg, err)
	}
	if err != nil {
		return binding{}, explain(js.Conn(), "looking for stream "+cfg.Stream, err)
	}
	doing := fmt.Sprintf("looking for consumer %s of stream %s", cfg.consumer(), cfg.Stream)
	before := created(stream.CachedInfo())
	consumer, err := stream.Consumer(ctx, cfg.consumer())
	switch {
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return binding{}, unfitConsumer(cfg, []string{"deliver_subject is set (a push consumer), wanted none"})
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return binding{}, &Fault{fmt.Sprintf("stream %s has no consumer %s, and SLUICE_SETUP=off: run `sluice setup` with SLUICE_SETUP=own",
			cfg.Stream, cfg.consumer()), err}
	case err != nil:
		return binding{}, explain(js.Conn(), doing, err)
	}
	after, err := stream.Info(ctx)
	if err != nil {
		return binding{}, explain(js.Conn(), doing, err)
	}
	if created(after) != before {
		return binding{}, fmt.Errorf("%s: the stream was created anew in the meantime", doing)
	}
	info := consumer.CachedInfo()
	b := binding{
		consumer: consumer, stream: before, made: info.Created, last: info.Delivered.Consumer, floor: info.AckFloor.Stream,
		taken: after.Config.Subjects, schedules: after.Config.AllowMsgSchedules, keeps: after.Config.Retention == jetstream.LimitsPolicy,
		unfit: compareConsumer(cfg, info.Config, after.Config.Subjects),
	}
	b.configured(info.Config)
	return b, nil
}

func unfitConsumer(cfg Config, unfit []string) error {
	if len(unfit) == 0 {
		return nil
	}
	return &Fault{Text: fmt.Sprintf("consumer %s of stream %s can't be used: %s: name another one (SLUICE_CONSUMER), which sluice creates, "+
		"or delete this one", cfg.consumer(), cfg.Stream, strings.Join(unfit, "; "))}
}

// compareConsumer says what in a consumer would lose events, withhold them or deliver others; nil: nothing does. taken are the
// subjects of the stream.
func compareConsumer(cfg Config, is jetstream.ConsumerConfig, taken []string) error {
	var unfit []string
	check := func(ok bool, field string, isValue, wantValue any) {
		if !ok {
			unfit = append(unfit, fmt.Sprintf("%s is %v, wanted %v", field, isValue, wantValue))
		}
	}
	filters := filtersOf(is, taken)
	check(sameSet(filters, cfg.Subjects), "filter_subjects", filters, cfg.Subjects)
	check(is.AckPolicy == jetstream.AckExplicitPolicy, "ack_policy", is.AckPolicy, jetstream.AckExplicitPolicy)
	check(is.MaxDeliver <= 0, "max_deliver", is.MaxDeliver, -1)
	check(is.MaxAckPending <= 0, "max_ack_pending", is.MaxAckPending, -1)
	check(shortestWait(is) >= minAckWait, "ack_wait", shortestWait(is), "at least 1s")
	check(!is.HeadersOnly, "headers_only", is.HeadersOnly, false)
	check(len(is.PriorityGroups) == 0, "priority_groups", is.PriorityGroups, "none")
	check(is.MaxRequestExpires <= 0 || is.MaxRequestExpires >= minExpires, "max_expires", is.MaxRequestExpires, "at least "+minExpires.String())
	check(is.MaxRequestMaxBytes <= 0, "max_bytes", is.MaxRequestMaxBytes, "none")
	check(is.DeliverPolicy != jetstream.DeliverLastPerSubjectPolicy, "deliver_policy", is.DeliverPolicy, jetstream.DeliverAllPolicy)
	check(is.ReplayPolicy == jetstream.ReplayInstantPolicy, "replay_policy", is.ReplayPolicy, jetstream.ReplayInstantPolicy)
	return unfitConsumer(cfg, unfit)
}

// differsConsumer says what in a usable consumer isn't as sluice would have made it.
func differsConsumer(cfg Config, is jetstream.ConsumerConfig) string {
	var differs []string
	want := wantedConsumer(cfg)
	if is.AckWait != want.AckWait {
		differs = append(differs, fmt.Sprintf("ack_wait is %v, usual %v", is.AckWait, want.AckWait))
	}
	if is.MaxWaiting != want.MaxWaiting {
		differs = append(differs, fmt.Sprintf("max_waiting is %d, usual %d: it bounds the number of workers", is.MaxWaiting, want.MaxWaiting))
	}
	if is.InactiveThreshold > 0 {
		differs = append(differs, fmt.Sprintf("inactive_threshold is %v: NATS deletes it, and its memory of what was delivered, "+
			"when no worker ran for so long", is.InactiveThreshold))
	}
	if is.MemoryStorage {
		differs = append(differs, "mem_storage is set: its memory of what was delivered is lost when NATS restarts")
	}
	if is.MaxRequestBatch > 0 && is.MaxRequestBatch < usualLimits.events/8 {
		differs = append(differs, fmt.Sprintf("max_batch is %d: small requests make it slow", is.MaxRequestBatch))
	}
	return strings.Join(differs, "; ")
}

// filtersOf is the filter of a consumer in either form; none means all that the stream takes.
func filtersOf(c jetstream.ConsumerConfig, taken []string) []string {
	switch {
	case len(c.FilterSubjects) > 0:
		return c.FilterSubjects
	case c.FilterSubject != "":
		return []string{c.FilterSubject}
	}
	if len(taken) == 0 { // a mirror
		return []string{">"}
	}
	return taken
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

// shortestWait is when the consumer redelivers at the earliest: a consumer with a backoff doesn't keep to its ack_wait.
func shortestWait(c jetstream.ConsumerConfig) time.Duration {
	wait := c.AckWait
	for _, d := range c.BackOff {
		wait = min(wait, d)
	}
	return wait
}
