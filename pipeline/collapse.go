package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sluice/limiter"
)

const collapseHeader = "Sluice-Collapse"

// CollapseOf is the name in Sluice-Collapse, behind the identity of the source: of the events of a key that wait in its lane
// under one name only the newest is delivered, and only within one source their places say which that is. "": the event stands
// for itself. An error is final for the event: it is dead-lettered as [BadHeader].
func CollapseOf(h Header, src SourceID) (string, error) {
	if !h.has(collapseHeader) {
		return "", nil
	}
	name, err := h.only(collapseHeader)
	if err != nil {
		return "", err
	}
	if name = strings.TrimSpace(name); name == "" || len(name) > limiter.MaxKey {
		return "", fmt.Errorf("%s has %d bytes, want 1 to %d", collapseHeader, len(name), limiter.MaxKey)
	}
	return strconv.FormatInt(src.Created, 36) + "-" + name, nil
}

// collapse ends an event of a lane that a newer one has taken the place of: its body first, so that a body without a place
// always means that the index lost it. What can't be done now is left to whoever leases the lane.
func (w *Worker) collapse(hard context.Context, key string, e Entry) {
	ev, err := w.Lanes.Read(hard, key, e.BodyID)
	if err == nil {
		err = w.Lanes.Delete(hard, ev.Body)
	}
	if err != nil && !errors.Is(err, ErrGone) {
		return
	}
	if was, err := w.Index.Forget(hard, key, e); err == nil && was {
		w.Observer.Settled(Collapsed)
	}
}
