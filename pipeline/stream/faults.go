package stream

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Fault is an error that lasts until somebody changes a setting of sluice or of NATS; its text says which. Other errors of
// this package may pass by themselves.
type Fault struct {
	Text string
	Err  error // what NATS said; nil when sluice found it out by itself
}

func (f *Fault) Error() string {
	if f.Err == nil {
		return f.Text
	}
	return f.Text + " (" + f.Err.Error() + ")"
}

// Unwrap returns what NATS said.
func (f *Fault) Unwrap() error { return f.Err }

func isFault(err error) bool {
	_, ok := errors.AsType[*Fault](err)
	return ok
}

// errNotConnected replaces the errors of a client that isn't connected; its own speak of buffers.
var errNotConnected = errors.New("NATS is not connected")

// Error codes of the JetStream API that nats.go has no names for.
const (
	codeResourcesExceeded jetstream.ErrorCode = 10002 // the account's limits
	codeNoPeers           jetstream.ErrorCode = 10005 // fewer servers than replicas
	codeSequenceNotFound  jetstream.ErrorCode = 10043
	codeStorageExceeded   jetstream.ErrorCode = 10047
	codeDeleteFailed      jetstream.ErrorCode = 10057
	codeSubjectOverlap    jetstream.ErrorCode = 10065
	codeReplicas          jetstream.ErrorCode = 10074
	codeStoreFailed       jetstream.ErrorCode = 10077
	codeFilterNotSubset   jetstream.ErrorCode = 10093
	codeWorkQueueTaken    jetstream.ErrorCode = 10099
	codeWorkQueueUnique   jetstream.ErrorCode = 10100
	codeStreamBytes       jetstream.ErrorCode = 10122 // the account's limit per stream
)

func codeOf(err error) jetstream.ErrorCode {
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		return e.ErrorCode
	}
	if e, ok := errors.AsType[jetstream.JetStreamError](err); ok && e.APIError() != nil {
		return e.APIError().ErrorCode
	}
	return 0
}

// violationLife is how long a permission that NATS denied explains calls that time out: JetStream calls are given 5 s.
const violationLife = 15 * time.Second

// noJetStream says whether nobody answers JetStream calls: at the start a fault of the configuration, later perhaps a server
// that is just starting.
func noJetStream(err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) ||
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount)
}

// explain says what an error of a JetStream call means. doing is what was tried: "creating stream X".
func explain(nc *nats.Conn, doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case isFault(err):
		return err
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return &Fault{doing + ": JetStream is not enabled for this account: enable it in the configuration of NATS, or use another login", err}
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		return &Fault{doing + ": NATS runs without JetStream: start nats-server with -js, or with jetstream {} in its configuration (if it has a domain: SLUICE_NATS_JS_DOMAIN)", err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		if denied := linkOf(nc).deniedSince(time.Now().Add(-violationLife)); denied != nil {
			return &Fault{"no permission: " + doing + ": allow it to the NATS user of sluice", denied}
		}
	case errors.Is(err, nats.ErrPermissionViolation):
		return &Fault{"no permission: " + doing + ": allow it to the NATS user of sluice", err}
	case notConnected(err):
		return fmt.Errorf("%s: %w", doing, errNotConnected)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func notConnected(err error) bool {
	return errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrDisconnected) ||
		errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrConnectionReconnecting)
}

// remedy makes a fault of those errors of creating a stream or a consumer that somebody must act on. quota is what asks
// for storage.
func remedy(doing, quota string, err error) error {
	text := ""
	switch codeOf(err) {
	case codeStorageExceeded, codeResourcesExceeded, codeStreamBytes:
		text = "NATS has less storage to give than " + quota + " asks for: lower it, or raise max_file_store of NATS or the account's limit"
	case codeSubjectOverlap:
		text = "another stream takes these subjects already: change that stream, or SLUICE_NAME"
	case codeReplicas, codeNoPeers:
		text = "NATS has fewer servers than SLUICE_REPLICAS asks for"
	case codeFilterNotSubset:
		text = "SLUICE_SUBJECTS has a subject that the stream doesn't take"
	case codeWorkQueueTaken, codeWorkQueueUnique:
		text = "the stream is a work queue, and another consumer takes these subjects: delete it, or change SLUICE_SUBJECTS"
	default:
		return err
	}
	return &Fault{doing + ": " + text, err}
}

// publicReason is the innermost reason of an error of connecting, without addresses, users and passwords.
func publicReason(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return strings.TrimPrefix(err.Error(), "nats: ")
		}
		err = inner
	}
}
