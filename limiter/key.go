package limiter

import (
	"fmt"
	"hash/fnv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Shards is the number of shard tags the keys are spread over in Redis. It is part of the stored format: a tag is a
// Redis Cluster hash tag, so that all state of a key lies on one node and one script call may touch many keys.
const Shards = 16

// MaxKey is the greatest length of a key in bytes.
const MaxKey = 256

// Shard says which of the [Shards] a key belongs to.
func Shard(key string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return int(h.Sum32() % Shards)
}

// Tag is the name of a shard as it stands in Redis keys (between braces) and in lane subjects: s00 to s15.
func Tag(shard int) string { return tags[shard] }

var tags = func() (all [Shards]string) {
	for i := range all {
		all[i] = fmt.Sprintf("s%02d", i)
	}
	return all
}()

const hexDigits = "0123456789ABCDEF"

// EncodeKey maps any bytes one-to-one to a token of letters, digits, "-", "_" and percent escapes. The result is safe as
// one token of a NATS subject, as part of a Redis key and in an HTTP header.
func EncodeKey(key string) string {
	plain := 0
	for plain < len(key) && plainByte(key[plain]) {
		plain++
	}
	if plain == len(key) {
		return key
	}
	var b strings.Builder
	b.Grow(len(key) + 16)
	b.WriteString(key[:plain])
	for i := plain; i < len(key); i++ {
		c := key[i]
		if plainByte(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hexDigits[c>>4])
		b.WriteByte(hexDigits[c&15])
	}
	return b.String()
}

// DecodeKey is the inverse of [EncodeKey]. It refuses whatever EncodeKey doesn't make, so that no two tokens stand for
// one key.
func DecodeKey(token string) (string, error) {
	if !strings.Contains(token, "%") {
		for i := range len(token) {
			if !plainByte(token[i]) {
				return "", fmt.Errorf("limiter: %q is not an encoded key", token)
			}
		}
		return token, nil
	}
	b := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		if plainByte(token[i]) {
			b = append(b, token[i])
			continue
		}
		if token[i] != '%' || i+2 >= len(token) {
			return "", fmt.Errorf("limiter: %q is not an encoded key", token)
		}
		hi, lo := strings.IndexByte(hexDigits, token[i+1]), strings.IndexByte(hexDigits, token[i+2])
		if hi < 0 || lo < 0 || plainByte(byte(hi<<4|lo)) {
			return "", fmt.Errorf("limiter: %q is not an encoded key", token)
		}
		b = append(b, byte(hi<<4|lo))
		i += 2
	}
	return string(b), nil
}

// KeyText is a key as people may see it: as it is, but with percent escapes for "%", for bytes that aren't UTF-8, and for
// characters that don't show or would change how others show. No two keys have one text.
func KeyText(key string) string {
	var b strings.Builder
	for i := 0; i < len(key); {
		r, size := utf8.DecodeRuneInString(key[i:])
		if r != '%' && unicode.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			b.WriteString(key[i : i+size])
		} else {
			for _, c := range []byte(key[i : i+size]) {
				b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
			}
		}
		i += size
	}
	return b.String()
}

func plainByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}
