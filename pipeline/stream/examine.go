package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pipeline"
)

// Look is [Setup] that creates and changes nothing, whatever cfg.Setup says. One step's answer goes with each action, nil
// if the object is fit; the error is that JetStream can't be asked at all.
func Look(ctx context.Context, js jetstream.JetStream, cfg Config) (actions []Action, faults []error, err error) {
	if err := checkVersion(js.Conn().ConnectedServerVersion()); err != nil {
		return nil, nil, err
	}
	cfg.Setup = SetupOff
	for _, step := range setupSteps {
		action, err := step(ctx, js, cfg)
		if err != nil && (!isFault(err) || noJetStream(err)) {
			return actions, faults, err
		}
		if action.Did != "" {
			actions, faults = append(actions, action), append(faults, err)
		}
	}
	return actions, faults, nil
}

// Level is how full a stream of sluice's own is.
type Level struct {
	Stream   string
	Variable string // sets its size
	Events   uint64
	Bytes    uint64
	Most     int64 // bytes; -1: no bound
}

// Levels tells how full sluice's own streams are; those that aren't there are left out.
func Levels(ctx context.Context, js jetstream.JetStream, cfg Config) ([]Level, error) {
	var all []Level
	for _, own := range []struct{ name, variable string }{
		{cfg.names().LanesStream(), "SLUICE_LANES_MAX_BYTES"}, {cfg.names().DLQStream(), "SLUICE_DLQ_MAX_BYTES"},
	} {
		s, err := js.Stream(ctx, own.name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return all, explain(js.Conn(), "looking for stream "+own.name, err)
		}
		info := s.CachedInfo()
		all = append(all, Level{own.name, own.variable, info.State.Msgs, info.State.Bytes, info.Config.MaxBytes})
	}
	return all, nil
}

// Backlog is what the consumer of the source has to do.
type Backlog struct {
	Waiting int // not yet delivered
	Again   int // delivered once more and not settled
	Out     int // with workers
	Pulls   int // of workers that wait for events

	reached uint64 // sequence in the stream of the last that was delivered
}

// LookAtBacklog asks the server for the consumer's figures.
func LookAtBacklog(ctx context.Context, js jetstream.JetStream, cfg Config) (Backlog, error) {
	c, err := js.Consumer(ctx, cfg.Stream, cfg.consumer())
	if err != nil {
		return Backlog{}, explain(js.Conn(), "looking for consumer "+cfg.consumer(), err)
	}
	info := c.CachedInfo()
	return Backlog{int(info.NumPending), info.NumRedelivered, info.NumAckPending, info.NumWaiting, info.Delivered.Stream}, nil
}

// Newest reads up to n of the newest events of the source that are still there, the newest first. It needs rights that a
// worker doesn't.
func Newest(ctx context.Context, js jetstream.JetStream, cfg Config, n int) ([]*pipeline.Event, error) {
	s, err := js.Stream(ctx, cfg.Stream)
	if err != nil {
		return nil, explain(js.Conn(), "looking for stream "+cfg.Stream, err)
	}
	var events []*pipeline.Event
	state := s.CachedInfo().State
	const tries = 100 // a work queue has gaps
	for seq, try := state.LastSeq, 0; seq >= max(1, state.FirstSeq) && len(events) < n && try < tries; seq, try = seq-1, try+1 {
		msg, err := getEvent(ctx, js.Conn(), cfg, s, seq, "")
		if errors.Is(err, pipeline.ErrGone) {
			continue
		}
		if err != nil {
			return events, explain(js.Conn(), "reading from stream "+cfg.Stream, err)
		}
		for _, filter := range cfg.Subjects {
			if covers(filter, msg.subject) {
				events = append(events, &pipeline.Event{
					Subject: msg.subject, Header: sourceHeader(msg.header), Data: msg.data, Time: msg.time,
				})
				break
			}
		}
	}
	return events, nil
}

// Denied lists what a worker needs and NATS doesn't permit to this user, as "publish SUBJECT" or "subscribe SUBJECT". Every
// probe is a request that the server refuses for its content, so that nothing is stored, delivered or deleted.
func Denied(ctx context.Context, js jetstream.JetStream, cfg Config) ([]string, error) {
	nc, n := js.Conn(), cfg.names()
	api := cfg.api()
	lanes, dlq, limits, consumer := n.LanesStream(), n.DLQStream(), n.limitsStream(), cfg.Stream+"."+cfg.consumer()
	oldest := api + "STREAM.MSG.GET." + cfg.Stream
	if s, err := js.Stream(ctx, cfg.Stream); err == nil && s.CachedInfo().Config.AllowDirect {
		oldest = api + "DIRECT.GET." + cfg.Stream
	}
	var denied []string
	for _, subject := range []string{
		api + "STREAM.INFO." + cfg.Stream, api + "CONSUMER.INFO." + consumer, api + "CONSUMER.MSG.NEXT." + consumer,
		oldest, "$JS.ACK." + consumer + ".1.0.0.0.0", api + "STREAM.INFO." + lanes, api + "DIRECT.GET." + lanes,
		api + "STREAM.MSG.GET." + lanes, api + "STREAM.MSG.DELETE." + lanes, api + "CONSUMER.CREATE." + lanes + ".check",
		api + "CONSUMER.MSG.NEXT." + lanes + ".check", api + "CONSUMER.DELETE." + lanes + ".check",
		api + "CONSUMER.INFO." + lanes + ".check", api + "STREAM.INFO." + dlq,
		api + "STREAM.INFO." + limits, api + "CONSUMER.CREATE." + limits + ".check", api + "CONSUMER.DELETE." + limits + ".check",
		"$JS.FC." + limits + ".check", api + "STREAM.INFO." + n.stateStream(), "$KV." + n.StateBucket() + ".check",
		n.Lane("check"), n.Dead(pipeline.NoKey, "check"), n.Cooling(), n.Worker(),
	} {
		msg := nats.NewMsg(subject)
		msg.Reply = nc.NewInbox()
		msg.Data = []byte("check: not JSON")
		if strings.HasPrefix(subject, "$JS.ACK.") {
			msg.Data = []byte("+WPI") // work in progress, for a delivery there never was
		}
		if strings.HasPrefix(subject, n.name+".") || strings.HasPrefix(subject, "$KV.") {
			msg.Header.Set(jetstream.ExpectedStreamHeader, "none") // so that no stream stores it
		}
		refused, err := refusal(ctx, nc, func() error { return nc.PublishMsg(msg) })
		if err != nil {
			return denied, err
		}
		if refused {
			denied = append(denied, "publish "+subject)
		}
	}
	for _, subject := range []string{n.Cooling(), n.Worker()} {
		refused, err := refusal(ctx, nc, func() error {
			sub, err := nc.SubscribeSync(subject)
			if err == nil {
				_ = sub.AutoUnsubscribe(1)
			}
			return err
		})
		if err != nil {
			return denied, err
		}
		if refused {
			denied = append(denied, "subscribe "+subject)
		}
	}
	return denied, nil
}

// refusal does something and says whether the server denied the permission for it. The server tells before it answers the
// ping that follows.
func refusal(ctx context.Context, nc *nats.Conn, do func() error) (bool, error) {
	before := nc.LastError()
	if err := do(); err != nil {
		return false, fmt.Errorf("asking NATS for rights: %w", err)
	}
	if err := nc.FlushWithContext(ctx); err != nil {
		return false, fmt.Errorf("asking NATS for rights: %w", err)
	}
	after := nc.LastError()
	return after != nil && after != before && errors.Is(after, nats.ErrPermissionViolation), nil
}
