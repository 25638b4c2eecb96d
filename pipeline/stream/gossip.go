package stream

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"sluice/limiter"
	"sluice/pipeline"
)

// maxCooling is the longest pause that is believed: the longest Retry-After that is honoured.
const maxCooling = 24 * time.Hour

// Gossip tells other workers, by plain NATS messages that may be lost, what they would otherwise learn too late.
type Gossip struct {
	nc      *nats.Conn
	subject string
	self    string // tells own messages from those of others
}

var _ pipeline.Gossip = (*Gossip)(nil)

// coolingNote is the payload of a message on sluice.cooling.
type coolingNote struct {
	Key  string `json:"key"` // encoded
	Ms   int64  `json:"ms"`
	Over bool   `json:"over,omitempty"` // it needn't wait any more
	From string `json:"from"`
}

// NewGossip speaks and listens over nc.
func NewGossip(nc *nats.Conn, cfg Config) *Gossip {
	return &Gossip{nc: nc, subject: cfg.names().Cooling(), self: nuid.Next()}
}

// Cooling says that nothing of key may be pushed for d.
func (g *Gossip) Cooling(key string, d time.Duration) {
	if !usableKey(key) || d <= 0 {
		return
	}
	g.tell(coolingNote{Key: limiter.EncodeKey(key), Ms: (d + time.Millisecond - 1).Milliseconds()}) // never shorter than d
}

// Over says that key needn't wait any more, whatever was said before.
func (g *Gossip) Over(key string) {
	if usableKey(key) {
		g.tell(coolingNote{Key: limiter.EncodeKey(key), Over: true})
	}
}

func (g *Gossip) tell(note coolingNote) {
	note.From = g.self
	text, err := json.Marshal(note)
	if err != nil {
		return
	}
	_ = g.nc.Publish(g.subject, text) // a hint may be lost: others learn it from Redis
}

// Subscribe calls fn, one call at a time, with what others say; a d of 0 says that key needn't wait any more. fn must not block.
// stop ends it.
func (g *Gossip) Subscribe(fn func(key string, d time.Duration)) (stop func(), err error) {
	sub, err := g.nc.Subscribe(g.subject, func(msg *nats.Msg) {
		var note coolingNote
		if json.Unmarshal(msg.Data, &note) != nil || note.From == g.self || note.Ms <= 0 && !note.Over {
			return
		}
		key, err := limiter.DecodeKey(note.Key)
		if err != nil || !usableKey(key) {
			return
		}
		if note.Over {
			note.Ms = 0
		}
		fn(key, time.Duration(min(note.Ms, maxCooling.Milliseconds()))*time.Millisecond)
	})
	if err != nil {
		return nil, explain(g.nc, fmt.Sprintf("listening on %s", g.subject), err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}
