package limiter

import (
	"strings"
	"testing"
)

func TestPlacesAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Place{
		"default": {Source: SourceDefault}, "all": {Source: SourceAll},
		"alice": {SourceKey, "alice"}, "key:alice": {SourceKey, "alice"}, "key:default": {SourceKey, "default"},
		"urn:x:1": {SourceKey, "urn:x:1"}, "key:tier:x": {SourceKey, "tier:x"}, "key:a*": {SourceKey, "a*"}, "tier": {SourceKey, "tier"},
		"tier:gold": {SourceTier, "gold"}, "pattern:team-*": {SourcePattern, "team-*"}, "pattern:a:*": {SourcePattern, "a:*"},
	} {
		got, err := ParsePlace(text)
		if err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", text, got, err, want)
		}
		if again, err := ParsePlace(got.String()); err != nil || again != got {
			t.Errorf("%+v writes itself as %q, and that is %+v, %v", got, got.String(), again, err)
		}
	}
	for text, want := range map[string]string{
		"": "can't be empty", "key:": "keys have 1 to 256", "tier:": "not the name of a tier", "tier:a b": "not the name of a tier",
		"pattern:x": "holds no *", "team-*": "write pattern:team-*", strings.Repeat("k", 257): "keys have 1 to 256", "pattern:a**": "means the same",
	} {
		if _, err := ParsePlace(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one that says %q", text, err, want)
		}
	}
}
