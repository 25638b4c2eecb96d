package stream

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	pullExpiry = 10 * time.Second // of one request
	lostBeats  = 3                // after so many heartbeats that don't come a request is lost
)

// What tells an event from a word of the server's is where it would be acknowledged: only the server chooses that. Everything
// else in a message may be a producer's, a header Status: 404 as well.
const ackPrefix = "$JS.ACK."

// session is one subscription that requests for events are answered to. A source has at most one that asks; of others what was on
// its way is still received. All but sub and inbox belongs to the source's mutex.
type session struct {
	sub      *nats.Subscription
	inbox    string
	identity int64  // creation time of the stream that its events are of
	draining bool   // asks no more
	doubtful bool   // the consumer changed under it; its events go back
	last     uint64 // consumer sequence of the last event

	// What the requests that are out may still bring: events, and bytes of them. Each event takes its own from it, and the server says what
	// is left of a request that is over.
	expected int
	bytes    int64
	asked    time.Time // when the last request was made
	sign     time.Time // when the server last gave a sign of life
}

// lost says that the requests that are out must have been lost: the server would have given a sign of life.
func (ses *session) lost(now time.Time, beat time.Duration) bool {
	return ses.expected > 0 && now.Sub(ses.sign) > lostBeats*beat
}

// expect changes what is still to come.
func (ses *session) expect(events int, bytes int64) {
	ses.expected, ses.bytes = max(0, ses.expected+events), max(0, ses.bytes+bytes)
	if ses.expected == 0 {
		ses.bytes = 0
	}
}

// room is how many events may be asked for now and how large they may be together; 0 events: none. Requests for very few would
// cost more than what they bring. The mutex is held.
func (s *Source) room() (events int, bytes int64) {
	expected, expectedBytes := 0, int64(0)
	if ses := s.session; ses != nil {
		if time.Since(ses.asked) > pullExpiry+lostBeats*s.limits.beat { // all requests are over, whatever was heard of them
			ses.expect(-ses.expected, 0)
		}
		expected, expectedBytes = ses.expected, ses.bytes
	}
	switch {
	case !s.sure, s.unfit != nil, s.closed():
		return 0, 0
	case s.eased && s.wanted && expected == 0:
		return 1, s.limits.bytes
	case s.eased:
		return 0, 0
	}
	events, bytes = s.limits.events-s.held.count-expected, s.limits.bytes-s.held.bytes-expectedBytes
	if events < max(1, s.limits.events/8) || bytes < s.limits.bytes/8 {
		return 0, 0
	}
	return events, bytes
}

// ask makes a request if there is room for more events than were asked for.
func (s *Source) ask() error {
	s.mu.Lock()
	events, bytes := s.room()
	if events == 0 {
		s.mu.Unlock()
		return nil
	}
	ses, err := s.openSession()
	if err != nil {
		s.mu.Unlock()
		return err
	}
	request := pullRequest{
		// The server ends a request with the message that is larger than what is left of its bytes: one that is larger than all
		// of them would never come.
		Batch: atMost(events, s.bound.maxBatch), MaxBytes: max(bytes, 2*s.nc.MaxPayload()),
		Expires: atMost(pullExpiry, s.bound.maxExpires),
	}
	request.Heartbeat = min(s.limits.beat, request.Expires/2)
	now := time.Now()
	if ses.expected == 0 {
		ses.sign = now
	}
	ses.asked = now
	ses.expect(request.Batch, request.MaxBytes)
	s.mu.Unlock()
	body, err := json.Marshal(request)
	if err == nil {
		err = s.nc.PublishRequest(s.cfg.api()+"CONSUMER.MSG.NEXT."+s.cfg.Stream+"."+s.cfg.consumer(), ses.inbox, body)
	}
	if err != nil {
		s.mu.Lock()
		ses.expect(-request.Batch, -request.MaxBytes)
		s.mu.Unlock()
		return fmt.Errorf("pulling from consumer %s: %w", s.cfg.consumer(), err)
	}
	return nil
}

// pullRequest is the body of a request for messages, as JetStream has it. Times are in nanoseconds.
type pullRequest struct {
	Batch     int           `json:"batch"`
	MaxBytes  int64         `json:"max_bytes"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

// atMost is n, or what a consumer allows, if it bounds that.
func atMost[T int | time.Duration](n, allowed T) T {
	if allowed > 0 {
		return min(n, allowed)
	}
	return n
}

// openSession is the session that asks; it begins one if there is none. The mutex is held.
func (s *Source) openSession() (*session, error) {
	if s.session != nil {
		return s.session, nil
	}
	ses := &session{inbox: s.nc.NewInbox(), identity: s.bound.stream, last: s.bound.last}
	sub, err := s.nc.Subscribe(ses.inbox, func(msg *nats.Msg) { s.receive(ses, msg) })
	if err != nil {
		return nil, fmt.Errorf("pulling from consumer %s: %w", s.cfg.consumer(), err)
	}
	_ = sub.SetPendingLimits(-1, -1) // nothing is dropped: what may come is bounded by the requests
	s.sessions.Add(1)
	sub.SetClosedHandler(func(string) { s.sessions.Done() })
	ses.sub, s.session = sub, ses
	return ses, nil
}

// drain ends the asking of a session; what the server has sent is still received. The mutex is held.
func (s *Source) drain(ses *session) {
	if ses.draining {
		return
	}
	ses.draining = true
	if s.session == ses {
		s.session = nil
	}
	if err := ses.sub.Drain(); err != nil { // the connection is closed or lost, and the server has forgotten the session
		_ = ses.sub.Unsubscribe()
	}
}

// doubt is called when the consumer may be another one than before. The mutex is held.
func (s *Source) doubt() {
	s.sure = false
	if s.session != nil {
		s.drain(s.session)
	}
	signal(s.kick)
}

// receive takes in what the server sends to a session, one message at a time.
func (s *Source) receive(ses *session, msg *nats.Msg) {
	if !strings.HasPrefix(msg.Reply, ackPrefix) {
		s.answered(ses, msg)
		return
	}
	meta, err := msg.Metadata()
	if err != nil {
		s.log.Error("a message came whose place can't be read", "subject", msg.Subject, "err", err)
		return
	}
	d := s.newDelivery(ses, msg, meta)
	s.mu.Lock()
	if meta.Sequence.Consumer <= ses.last {
		// The consumer counts anew: it, and perhaps its stream, is another one. Whose event this is has to be found out.
		ses.doubtful = true
		s.doubt()
	}
	ses.last, ses.sign = meta.Sequence.Consumer, d.sign
	if ses.expect(-1, -d.size-int64(len(msg.Reply))); ses.expected == 0 {
		signal(s.kick)
	}
	s.last = d.sign
	if d.again && !s.suspect { // perhaps the consumer gives events less time than it did
		s.suspect = true
		signal(s.kick)
	}
	if s.closed() || ses.doubtful || s.eased && !s.wanted {
		s.mu.Unlock()
		_ = d.tell(handedBack)
		return
	}
	if kind := foreignOf(d.event.Header, d.event.Data, s.bound.schedules); kind != noneForeign {
		s.skip(d, kind)
		s.mu.Unlock()
		return
	}
	s.wanted = false
	s.held.push(d)
	s.queue = append(s.queue, d)
	s.mu.Unlock()
	signal(s.arrived)
}

// answered takes in what the server says of a request: that it still waits for events, or that it is over. One that has run its
// course says what is left of it. Any other end (the consumer was deleted, has another leader, nobody answers for it, it
// bounds requests now) means that the consumer has to be looked for.
func (s *Source) answered(ses *session, msg *nats.Msg) {
	status := msg.Header.Get("Status")
	s.mu.Lock()
	defer s.mu.Unlock()
	ses.sign = time.Now()
	if ses.draining || status == "100" {
		return
	}
	events, err := strconv.Atoi(msg.Header.Get("Nats-Pending-Messages"))
	bytes, _ := strconv.ParseInt(msg.Header.Get("Nats-Pending-Bytes"), 10, 64)
	if err != nil {
		s.log.Debug("a request for events has failed", "status", status, "description", msg.Header.Get("Description"))
		s.doubt()
		return
	}
	ses.expect(-events, -bytes)
	signal(s.kick)
}
