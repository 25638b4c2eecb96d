package pipeline

import "errors"

// ErrElsewhere says that this worker can't decide on an event now while others can: the event goes back to the source.
var ErrElsewhere = errors.New("other workers take this worker's events for now")

// Away is an error of a limiter or an index that has no answer for as long as its server is away. The page asks again when
// that has changed.
type Away struct {
	Cause   error           // nil: whoever returns it has told the operator
	Changed <-chan struct{} // closed when asking again may help
}

func (a *Away) Error() string {
	if a.Cause == nil {
		return "the server is away"
	}
	return a.Cause.Error()
}

func (a *Away) Unwrap() error { return a.Cause }

// awayFrom answers what is known of err if it is an [Away].
func awayFrom(err error) (changed <-chan struct{}, told bool) {
	a, ok := errors.AsType[*Away](err)
	if !ok {
		return nil, false
	}
	return a.Changed, a.Cause == nil
}
