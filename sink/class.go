package sink

import "errors"

// The classes of [Class].
const (
	classDelivered   = "2xx"
	classRedirect    = "3xx"
	classRefused     = "4xx"
	classServer      = "5xx"
	classTooMany     = "429"
	classTimeout     = "timeout"
	classNetwork     = "network"
	classCancelled   = "cancelled"
	classUnspecified = "other"
)

// Classes lists everything that [Class] returns: the values of the label class of sluice_push_attempts_total.
var Classes = []string{
	classDelivered, classRedirect, classRefused, classServer, classTooMany,
	classTimeout, classNetwork, classCancelled, classUnspecified,
}

// Class sorts what a push returned into one of [Classes]; nil is delivered.
func Class(err error) string {
	if err == nil {
		return classDelivered
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f.class
	}
	return classUnspecified
}

// classOf is the class of an answer by its status.
func classOf(status int) string {
	switch {
	case status == 429:
		return classTooMany
	case status >= 300 && status < 400:
		return classRedirect
	case status >= 400 && status < 500:
		return classRefused
	case status >= 500 && status < 600:
		return classServer
	default:
		return classUnspecified
	}
}

// failure is a push that didn't deliver. Its text is fit for logs; what it wraps may not be.
type failure struct {
	class string
	text  string
	err   error // nil when the receiver answered
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.err }
