package stream

import (
	"fmt"
	"regexp"
	"strings"

	"sluice/limiter"
	"sluice/pipeline"
)

var nameRule = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// noKey stands in a subject for the key of an event that has none, or none that can be used. [limiter.EncodeKey] never
// makes it.
const noKey = "%"

// Names holds the names of everything that a pipeline has in NATS. All begin with SLUICE_NAME, so that several pipelines
// can share an account.
type Names struct {
	name string
}

// NewNames checks the value of SLUICE_NAME.
func NewNames(name string) (Names, error) {
	if !nameRule.MatchString(name) {
		return Names{}, fmt.Errorf("SLUICE_NAME: %q is not a name: a to z, 0 to 9, _ and -, at most 32, a letter first", name)
	}
	return Names{name: name}, nil
}

// LanesStream is the stream of the lanes: SLUICE_LANES.
func (n Names) LanesStream() string { return strings.ToUpper(n.name) + "_LANES" }

// LaneSubjects covers the subjects of all lanes.
func (n Names) LaneSubjects() string { return n.name + ".lane.>" }

// Lane is the subject of one key's lane: sluice.lane.<tag>.<key>.
func (n Names) Lane(key string) string {
	return n.name + ".lane." + limiter.Tag(limiter.Shard(key)) + "." + keyToken(key)
}

// DLQStream is the stream of the dead letters: SLUICE_DLQ.
func (n Names) DLQStream() string { return strings.ToUpper(n.name) + "_DLQ" }

// DeadSubjects covers the subjects of all dead letters.
func (n Names) DeadSubjects() string { return n.name + ".dlq.>" }

// Dead is the subject of a dead letter: sluice.dlq.<reason>.<key>.
func (n Names) Dead(reason pipeline.DeadReason, key string) string {
	return n.dead(reason, keyToken(key))
}

// dead takes a key that is encoded, or wildcards.
func (n Names) dead(reason pipeline.DeadReason, token string) string {
	return n.name + ".dlq." + string(reason) + "." + token
}

// Cooling is the core NATS subject on which workers tell each other that a key has to wait.
func (n Names) Cooling() string { return n.name + ".cooling" }

func usableKey(key string) bool { return key != "" && len(key) <= limiter.MaxKey }

func keyToken(key string) string {
	if !usableKey(key) {
		return noKey
	}
	return limiter.EncodeKey(key)
}

// lastToken is the part of a subject that holds the key.
func lastToken(subject string) string {
	return subject[strings.LastIndexByte(subject, '.')+1:]
}
