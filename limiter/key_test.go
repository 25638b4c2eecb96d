package limiter

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// awkwardKeys are user ids that broke other systems: they mean something to NATS subjects, Redis Cluster or HTTP.
var awkwardKeys = []string{
	"a.b", "*", ">", "a b", "\t", "\r\n", "\x00", "\xff\xfe", "🙂", "é", "e\u0301", "{x}", "{s00}", "}{", "%", "%41", "%2F", "A",
	"%00", "a/b", "a:b", "a+b", "a,b", "-", "_", "$SYS", "$JS.API", ".", "..", "a|b", "\"", "'", "\\", "user-1_X",
	strings.Repeat("x", 300), strings.Repeat(".", MaxKey), strings.Repeat("🙂", 75),
}

func TestEveryKeyHasItsOwnSafeToken(t *testing.T) {
	t.Parallel()
	owner := map[string]string{}
	for _, key := range append(awkwardKeys, "") {
		token := EncodeKey(key)
		if other, taken := owner[token]; taken {
			t.Errorf("%q and %q have the same token %q", key, other, token)
		}
		owner[token] = key
		checkKey(t, key)
	}
	for c := range 256 {
		checkKey(t, string([]byte{byte(c)}))
	}
}

// checkKey says that a key's token is safe, as short as can be, and gives the key back.
func checkKey(t *testing.T, key string) {
	t.Helper()
	token := EncodeKey(key)
	if rest := strings.Trim(token, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_%"); rest != "" {
		t.Fatalf("the token %q of %q holds unsafe bytes: %q", token, key, rest)
	}
	if len(token) > 3*len(key) || (token == "") != (key == "") {
		t.Fatalf("the token %q of %q has a wrong length", token, key)
	}
	back, err := DecodeKey(token)
	if err != nil || back != key {
		t.Fatalf("%q comes back from %q as %q, %v", key, token, back, err)
	}
}

func TestPlainKeysStayReadable(t *testing.T) {
	t.Parallel()
	tests := []struct{ key, token string }{
		{"user-1_X", "user-1_X"},
		{"a.b", "a%2Eb"},
		{"%41", "%2541"},
		{"{x}", "%7Bx%7D"},
		{"é", "%C3%A9"},
		{"a b>", "a%20b%3E"},
	}
	for _, tt := range tests {
		if got := EncodeKey(tt.key); got != tt.token {
			t.Errorf("EncodeKey(%q) = %q, want %q", tt.key, got, tt.token)
		}
	}
}

func TestTextOfAKeyShowsWhatItHoldsAndIsItsOwn(t *testing.T) {
	t.Parallel()
	owner := map[string]string{}
	for _, key := range awkwardKeys {
		text := KeyText(key)
		if other, taken := owner[text]; taken {
			t.Errorf("%q and %q have the same text %q", key, other, text)
		}
		owner[text] = key
		if back, err := url.PathUnescape(text); err != nil || back != key {
			t.Errorf("%q comes back from %q as %q, %v", key, text, back, err)
		}
	}
	tests := []struct{ key, text string }{
		{"alice@example.com/a b", "alice@example.com/a b"},
		{"né 🙂", "né 🙂"},
		{"100%", "100%25"},
		{"\xff\xfe", "%FF%FE"},
		{"a\n\x00", "a%0A%00"},
		{"a\u202eb\u200b\u00a0", "a%E2%80%AEb%E2%80%8B%C2%A0"}, // turns what follows around; has no width; looks like a space
		{"\ufffd", "\ufffd"},
	}
	for _, tt := range tests {
		if got := KeyText(tt.key); got != tt.text {
			t.Errorf("KeyText(%q) = %q, want %q", tt.key, got, tt.text)
		}
	}
}

func TestDecodeKeyRefusesWhatEncodeKeyDoesNotMake(t *testing.T) {
	t.Parallel()
	for _, token := range []string{
		"a.b", "a b", "*", ">", "é", "\x00", "%", "%4", "a%", "a%2", "%2e", "%2f", "%GG", "%41", "%2D", "%5F", "%%", "%2E.", "%-1",
	} {
		if key, err := DecodeKey(token); err == nil {
			t.Errorf("DecodeKey(%q) = %q, want an error", token, key)
		}
	}
}

func FuzzKeyRoundTrip(f *testing.F) {
	for _, key := range awkwardKeys {
		f.Add(key)
	}
	f.Fuzz(checkKey)
}

// Whatever token is accepted is the one that its key has: no two tokens stand for one key.
func FuzzDecodeKey(f *testing.F) {
	for _, key := range awkwardKeys {
		f.Add(key)
		f.Add(EncodeKey(key))
	}
	f.Fuzz(func(t *testing.T, token string) {
		key, err := DecodeKey(token)
		if err == nil && EncodeKey(key) != token {
			t.Fatalf("DecodeKey(%q) = %q, whose token is %q", token, key, EncodeKey(key))
		}
	})
}

// The shard of a key is part of the stored format: a release that computed it differently would lose the lanes.
func TestShardOfAKeyNeverChanges(t *testing.T) {
	t.Parallel()
	tests := []struct {
		key string
		tag string
	}{{"", "s05"}, {"a", "s12"}, {"user-1", "s04"}, {"é", "s01"}, {"{x}", "s01"}}
	for _, tt := range tests {
		if got := Tag(Shard(tt.key)); got != tt.tag {
			t.Errorf("tag of %q = %s, want %s", tt.key, got, tt.tag)
		}
	}
}

func TestShardsAreUsedEvenly(t *testing.T) {
	t.Parallel()
	var keys [Shards]int
	for i := range 16_000 {
		shard := Shard(fmt.Sprintf("user-%d", i))
		if shard < 0 || shard >= Shards {
			t.Fatalf("shard %d is out of range", shard)
		}
		keys[shard]++
	}
	for shard, n := range keys {
		if n < 700 || n > 1300 {
			t.Errorf("%s has %d of 16000 keys, want about 1000", Tag(shard), n)
		}
	}
}
