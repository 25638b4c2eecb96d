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

// dedupeWindow is for how long the lanes and the dead letters remember what they stored. It costs the server 100 to 150
// bytes of memory per event.
const dedupeWindow = time.Minute

// Action is what Setup found or did, for people to read.
type Action struct {
	Object string // "stream SLUICE_LANES"
	Did    string // created, exists, updated, differs or missing
	Detail string // what was updated, or differs; may be empty
}

var setupSteps = []func(context.Context, jetstream.JetStream, Config) (Action, error){
	ensureSource, ensureConsumer, ensureLanes, ensureDLQ, ensureLimits, ensureState,
}

// Setup makes sure that the streams and the consumer are there and fit, and says what it found and did. It creates what
// cfg.Setup permits. It never changes a stream or a consumer that exists, except the size and the replicas of the lanes
// and dead letters; it may be called any number of times, by any number of workers at once. An error holds all that is
// wrong, mostly as [Fault]s.
func Setup(ctx context.Context, js jetstream.JetStream, cfg Config) ([]Action, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := checkVersion(js.Conn().ConnectedServerVersion()); err != nil {
		return nil, err
	}
	var actions []Action
	var faults []error
	for _, step := range setupSteps {
		action, err := step(ctx, js, cfg)
		if action.Did != "" {
			actions = append(actions, action)
		}
		if err != nil {
			faults = append(faults, err)
		}
		if err != nil && (!isFault(err) || noJetStream(err)) {
			break // the other steps would only fail in the same way
		}
	}
	return actions, errors.Join(faults...)
}

// ensureSource looks for the source stream.
func ensureSource(ctx context.Context, js jetstream.JetStream, cfg Config) (Action, error) {
	action := Action{Object: "stream " + cfg.Stream}
	s, err := js.Stream(ctx, cfg.Stream)
	switch {
	case err == nil:
		action.Did = "exists"
		if differs := differsSource(cfg, s.CachedInfo().Config); len(differs) > 0 {
			action.Did, action.Detail = "differs", strings.Join(differs, "; ")
		}
		return action, nil
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return action, explain(js.Conn(), "looking for stream "+cfg.Stream, err)
	case cfg.Setup != SetupAll:
		action.Did = "missing"
		return action, sourceMissing(cfg, err)
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name:     cfg.Stream,
		Subjects: cfg.Subjects,
		Storage:  jetstream.FileStorage,
		Replicas: cfg.Replicas,
	})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another worker was faster
		doing := "creating stream " + cfg.Stream
		return action, explain(js.Conn(), doing, remedy(doing, "the stream", err))
	}
	action.Did = "created"
	return action, nil
}

// differsSource says what in a source stream keeps events from coming, or puts messages into it that are no events.
func differsSource(cfg Config, is jetstream.StreamConfig) []string {
	var differs []string
	if missing := notTaken(cfg.Subjects, is); len(missing) > 0 {
		differs = append(differs, "it doesn't take "+strings.Join(missing, ", ")+" of SLUICE_SUBJECTS")
	}
	if is.AllowMsgSchedules {
		text := "it takes schedules (allow_msg_schedules): what NATS publishes at their time is pushed, they themselves are not"
		if is.Retention != jetstream.LimitsPolicy {
			text += ", and until then they stay unacknowledged, which holds up all keys with SLUICE_KEY_CONCURRENCY=1: " +
				"keep their subjects out of SLUICE_SUBJECTS"
		}
		differs = append(differs, text)
	}
	if is.SubjectDeleteMarkerTTL > 0 || strings.HasPrefix(is.Name, "KV_") {
		differs = append(differs, "it holds delete markers (subject_delete_marker_ttl, or a KV bucket's): they are acknowledged and not pushed")
	}
	return differs
}

func sourceMissing(cfg Config, err error) error {
	return &Fault{fmt.Sprintf("there is no stream %s: create it, or let sluice do so (SLUICE_SETUP=all), or name another (SLUICE_STREAM)",
		cfg.Stream), err}
}

// notTaken lists the filters that no subject of the stream covers. A stream with sources or a mirror takes what those hold.
func notTaken(filters []string, stream jetstream.StreamConfig) []string {
	if stream.Mirror != nil || len(stream.Sources) > 0 || stream.SubjectTransform != nil {
		return nil
	}
	var missing []string
	for _, f := range filters {
		if !slices.ContainsFunc(stream.Subjects, func(s string) bool { return covers(s, f) }) {
			missing = append(missing, f)
		}
	}
	return missing
}

// covers says whether every subject that matches filter matches pattern.
func covers(pattern, filter string) bool {
	p, f := strings.Split(pattern, "."), strings.Split(filter, ".")
	for i, token := range p {
		if token == ">" {
			return len(f) > i
		}
		if i >= len(f) || f[i] == ">" || token != "*" && token != f[i] {
			return false
		}
	}
	return len(p) == len(f)
}

// The variables that say how large the streams of sluice's own may become.
const (
	lanesQuota = "SLUICE_LANES_MAX_BYTES"
	deadQuota  = "SLUICE_DLQ_MAX_BYTES"
)

// ensureLanes creates the lanes so that they begin behind whatever was there before: nobody can tell whether they are the
// first of that name, and a worker may yet delete by a sequence of the last.
func ensureLanes(ctx context.Context, js jetstream.JetStream, cfg Config) (Action, error) {
	want := lanesStream(cfg)
	want.FirstSeq = timeSequence(ctx, js, cfg)
	return ensureOwn(ctx, js, cfg, lanesQuota, want)
}

// timeSequence is the time in microseconds, which no count of messages reaches, by the clock of NATS if it tells that: the
// machines of those who create streams may have others.
func timeSequence(ctx context.Context, js jetstream.JetStream, cfg Config) uint64 {
	now := time.Now()
	if s, err := js.Stream(ctx, cfg.Stream); err == nil {
		if told := s.CachedInfo().TimeStamp; !told.IsZero() {
			now = told
		}
	}
	return uint64(now.UnixMicro())
}

func lanesStream(cfg Config) jetstream.StreamConfig {
	n := cfg.names()
	return ownStream(n.LanesStream(), "Events that wait for their turn", n.LaneSubjects(), cfg.LanesMaxBytes, cfg.Replicas)
}

func ensureDLQ(ctx context.Context, js jetstream.JetStream, cfg Config) (Action, error) {
	return ensureOwn(ctx, js, cfg, deadQuota, dlqStream(cfg))
}

func dlqStream(cfg Config) jetstream.StreamConfig {
	n := cfg.names()
	return ownStream(n.DLQStream(), "Events that couldn't be delivered", n.DeadSubjects(), cfg.DLQMaxBytes, cfg.Replicas)
}

// ownStream keeps every message until it is deleted: a full stream refuses new ones instead of dropping old ones.
func ownStream(name, description, subjects string, maxBytes int64, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        name,
		Description: "sluice: " + description,
		Subjects:    []string{subjects},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Discard:     jetstream.DiscardNew,
		MaxBytes:    maxBytes,
		Replicas:    replicas,
		Duplicates:  dedupeWindow,
		AllowDirect: true,
	}
}

// ensureOwn creates or compares a stream of sluice's own. quota is the variable that says its size.
func ensureOwn(ctx context.Context, js jetstream.JetStream, cfg Config, quota string, want jetstream.StreamConfig) (Action, error) {
	action := Action{Object: "stream " + want.Name}
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if cfg.Setup == SetupOff {
			action.Did = "missing"
			return action, &Fault{fmt.Sprintf("there is no stream %s, and SLUICE_SETUP=off: run `sluice setup` with SLUICE_SETUP=own, "+
				"by a user who may create streams", want.Name), err}
		}
		doing := "creating stream " + want.Name
		s, err = js.CreateStream(ctx, want)
		if err == nil {
			action.Did = "created"
			if first := s.CachedInfo().State.FirstSeq; want.FirstSeq > 0 && first != want.FirstSeq {
				action.Did = "exists" // another worker was faster, by microseconds: the server gave both the stream
			}
			return action, nil
		}
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return action, explain(js.Conn(), doing, remedy(doing, quota, err))
		}
		s, err = js.Stream(ctx, want.Name) // another worker was faster
	}
	if err != nil {
		return action, explain(js.Conn(), "looking for stream "+want.Name, err)
	}
	return fitOwn(ctx, js, cfg, quota, want, s.CachedInfo().Config)
}

// fitOwn compares a stream of sluice's own with what it should be, and brings its size and replicas in line.
func fitOwn(ctx context.Context, js jetstream.JetStream, cfg Config, quota string, want, is jetstream.StreamConfig) (Action, error) {
	action := Action{Object: "stream " + want.Name, Did: "exists"}
	if unfit := unfitOwn(want, is); len(unfit) > 0 {
		action.Did, action.Detail = "differs", strings.Join(unfit, "; ")
		return action, &Fault{Text: fmt.Sprintf("stream %s can't keep what sluice promises: %s: change it, or set another SLUICE_NAME",
			want.Name, action.Detail)}
	}
	var changes []string
	if is.MaxBytes != want.MaxBytes {
		changes = append(changes, fmt.Sprintf("max_bytes %d -> %d", is.MaxBytes, want.MaxBytes))
	}
	if is.Replicas != want.Replicas {
		changes = append(changes, fmt.Sprintf("num_replicas %d -> %d", is.Replicas, want.Replicas))
	}
	if len(changes) == 0 {
		return action, nil
	}
	action.Did, action.Detail = "differs", strings.Join(changes, ", ")
	if cfg.Setup == SetupOff {
		return action, nil
	}
	is.MaxBytes, is.Replicas = want.MaxBytes, want.Replicas
	if _, err := js.UpdateStream(ctx, is); err != nil {
		doing := fmt.Sprintf("changing stream %s (%s)", want.Name, action.Detail)
		return action, explain(js.Conn(), doing, remedy(doing, quota, err))
	}
	action.Did = "updated"
	return action, nil
}

// unfitOwn lists what in a stream would lose events or take them from others.
func unfitOwn(want, is jetstream.StreamConfig) []string {
	var unfit []string
	check := func(ok bool, field string, isValue, wantValue any) {
		if !ok {
			unfit = append(unfit, fmt.Sprintf("%s is %v, wanted %v", field, isValue, wantValue))
		}
	}
	check(slices.Equal(is.Subjects, want.Subjects), "subjects", is.Subjects, want.Subjects)
	check(is.Retention == want.Retention, "retention", is.Retention, want.Retention)
	check(is.Storage == want.Storage, "storage", is.Storage, want.Storage)
	check(is.Discard == want.Discard, "discard", is.Discard, want.Discard)
	check(is.MaxAge == 0, "max_age", is.MaxAge, "none")
	check(is.MaxMsgs <= 0, "max_msgs", is.MaxMsgs, "none")
	check(is.MaxMsgsPerSubject <= 0, "max_msgs_per_subject", is.MaxMsgsPerSubject, "none")
	check(is.MaxMsgSize <= 0, "max_msg_size", is.MaxMsgSize, "none")
	check(is.Duplicates >= want.Duplicates, "duplicate_window", is.Duplicates, want.Duplicates)
	check(is.AllowDirect, "allow_direct", is.AllowDirect, true)
	check(!is.DenyDelete, "deny_delete", is.DenyDelete, false)
	check(!is.Sealed, "sealed", is.Sealed, false)
	check(!is.NoAck, "no_ack", is.NoAck, false)
	check(is.Mirror == nil && len(is.Sources) == 0, "mirror or sources", "set", "none")
	check(is.SubjectTransform == nil, "subject_transform", "set", "none")
	return unfit
}

// checkVersion refuses servers too old to have what the streams need. Versions it can't read are let through.
func checkVersion(version string) error {
	if olderThan(version, oldestMajor, oldestMinor) {
		return &Fault{Text: fmt.Sprintf("NATS is version %s; sluice needs %d.%d or later: upgrade nats-server", version, oldestMajor, oldestMinor)}
	}
	return nil
}

const oldestMajor, oldestMinor = 2, 10

func olderThan(version string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a < major || a == major && b < minor
}

// created is when a stream was created, as it goes into [pipeline.SourceID].
func created(info *jetstream.StreamInfo) int64 { return info.Created.UnixNano() }
