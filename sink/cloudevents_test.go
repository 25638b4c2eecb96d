package sink

import (
	"net/http"
	"net/url"
	"testing"

	"sluice/pipeline"
)

func TestAttributesOfCloudEventsAreEncodedOnce(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"plain/a:b@c?d=e&f": "plain/a:b@c?d=e&f",
		"two words":         "two%20words",
		"Größe":             "Gr%C3%B6%C3%9Fe",
		`say "hi"`:          "say%20%22hi%22",
		"tab\there":         "tab%09here",
		"100%":              "100%25",
		"100%2":             "100%252",
		"50%zz":             "50%25zz",
		"50%25 off":         "50%2525%20off", // the space says that nobody has encoded it
		"\xff!":             "%EF%BF%BD!",    // what isn't UTF-8 would fail at the receiver
		"Gr%C3%B6%c3%9fe":   "Gr%C3%B6%c3%9fe",
		"two%20words":       "two%20words",
		"":                  "",
	} {
		h := http.Header{}
		from := pipeline.Header{"ce-subject": {raw}}
		passOn(h, from, passedOn(from))
		got := h.Get("Ce-Subject")
		if got != want {
			t.Errorf("%q is sent as %q, want %q", raw, got, want)
		}
		if _, err := url.PathUnescape(got); err != nil {
			t.Errorf("%q is sent as %q, which nobody can read: %v", raw, got, err)
		}
		if from["ce-subject"][0] != raw {
			t.Errorf("the event has %q instead of %q now", from["ce-subject"][0], raw)
		}
	}
}
