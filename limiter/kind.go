package limiter

// Kind is how a limit counts. The numbers stand in the arguments of the scripts.
type Kind uint8

const (
	// Bucket refills evenly up to the burst: in any time T at most burst + rate x T pass.
	Bucket Kind = iota
	// Window refills by N at the end of each period, up to the burst. Around such an end more than N may pass at once.
	Window
	// Leaky lets one pass every period/N: a bucket that holds 1.
	Leaky
	// Sliding lets at most N pass in any period, wherever it begins.
	Sliding
)

var kindNames = [...]string{Bucket: "bucket", Window: "window", Leaky: "leaky", Sliding: "sliding"}

// String is the kind's word in the grammar of limits.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// parseKind reads a kind's word in lower case.
func parseKind(word string) (Kind, bool) {
	for k, name := range kindNames {
		if word == name {
			return Kind(k), true
		}
	}
	return 0, false
}
