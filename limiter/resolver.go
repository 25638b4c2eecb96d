package limiter

// RulingSource says where the limits of a key come from.
type RulingSource string

// The sources.
const (
	SourceDefault RulingSource = "default"
	SourceTier    RulingSource = "tier"
	SourcePattern RulingSource = "pattern"
	SourceKey     RulingSource = "key"
)

// Ruling is the limits that rule a key, and where they come from.
type Ruling struct {
	Limits Limits
	Source RulingSource
	Name   string // of the tier, pattern or key
}

// Resolver says which limits rule a key. It answers from memory. The same *Ruling is returned for as long as the limits are the
// same, so that callers may keep what they derive from it by pointer.
type Resolver interface {
	// Resolve is asked for an event of key; tier is the one that the event names, or "".
	Resolve(key, tier string) *Ruling
}

// Fixed rules all keys by the same limits for ever.
func Fixed(limits Limits) Resolver {
	return &fixed{Ruling{Limits: limits, Source: SourceDefault}}
}

type fixed struct{ ruling Ruling }

func (f *fixed) Resolve(string, string) *Ruling { return &f.ruling }
