package httplimit

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func TestClientIPIsTheLastAddressThatNoTrustedProxyVouchesFor(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, tt := range []struct {
		name, peer, want string
		forwarded        []string
	}{
		{"no proxy", "203.0.113.7:80", "ip:203.0.113.7", nil},
		{"made up by a client without a proxy", "203.0.113.7:80", "ip:203.0.113.7", []string{"198.51.100.1"}},
		{"one proxy", "10.0.0.1:80", "ip:203.0.113.7", []string{"203.0.113.7"}},
		{"made up before a proxy", "10.0.0.1:80", "ip:203.0.113.7", []string{"198.51.100.1, 203.0.113.7"}},
		{"made up as a trusted one", "10.0.0.1:80", "ip:203.0.113.7", []string{"10.0.0.9, 203.0.113.7"}},
		{"made up, three of them", "10.0.0.1:80", "ip:203.0.113.7", []string{"198.51.100.1, 10.0.0.8, 203.0.113.7"}},
		{"made up as garbage", "10.0.0.1:80", "ip:203.0.113.7", []string{"'; drop, 203.0.113.7"}},
		{"made up in a field of its own", "10.0.0.1:80", "ip:203.0.113.7", []string{"198.51.100.1", "203.0.113.7"}},
		{"two proxies", "10.0.0.1:80", "ip:203.0.113.7", []string{"203.0.113.7,10.0.0.2"}},
		{"two proxies, two fields", "10.0.0.1:80", "ip:203.0.113.7", []string{"203.0.113.7", "10.0.0.2"}},
		{"all trusted", "10.0.0.1:80", "ip:10.0.0.3", []string{"10.0.0.3, 10.0.0.2"}},
		{"no field", "10.0.0.1:80", "ip:10.0.0.1", nil},
		{"empty field", "10.0.0.1:80", "ip:10.0.0.1", []string{""}},
		{"garbage", "10.0.0.1:80", "ip:10.0.0.1", []string{"203.0.113.7, unknown"}},
		{"garbage behind a second proxy", "10.0.0.1:80", "ip:10.0.0.1", []string{"203.0.113.999, 10.0.0.2"}},
		{"comma at the end", "10.0.0.1:80", "ip:10.0.0.1", []string{"203.0.113.7,"}},
		{"port", "10.0.0.1:80", "ip:203.0.113.7", []string{"203.0.113.7:4711"}},
		{"IPv6", "[2001:db8:1:2:3:4:5:6]:80", "ip:2001:db8:1:2::/64", nil},
		{"IPv6 neighbour", "[2001:db8:1:2:ffff::1]:80", "ip:2001:db8:1:2::/64", nil},
		{"IPv6 with a zone", "[fe80::1%eth0]:80", "ip:fe80::/64", nil},
		{"IPv6 forwarded", "[fd00::1]:80", "ip:2001:db8:1:2::/64", []string{"2001:db8:1:2:3:4:5:6"}},
		{"IPv6 in brackets", "[fd00::1]:80", "ip:2001:db8:1:2::/64", []string{"[2001:db8:1:2:3:4:5:6]"}},
		{"IPv6 with a port", "[fd00::1]:80", "ip:2001:db8:1:2::/64", []string{"[2001:db8:1:2:3:4:5:6]:4711"}},
		{"half a bracket", "[fd00::1]:80", "ip:fd00::/64", []string{"[2001:db8:1:2:3:4:5:6"}},
		{"IPv4 in IPv6", "[::ffff:203.0.113.7]:80", "ip:203.0.113.7", nil},
		{"trusted IPv4 in IPv6", "[::ffff:10.0.0.1]:80", "ip:203.0.113.7", []string{"::ffff:203.0.113.7"}},
		{"unix socket", "@", "ip:unknown", []string{"203.0.113.7"}},
		{"nothing", "", "ip:unknown", nil},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.peer
		r.Header["X-Forwarded-For"] = tt.forwarded
		r.Header.Set("Forwarded", "for=192.0.2.1")
		if got := ClientIP(trusted...)(r); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestForwardedIPReadsForwardedOnly(t *testing.T) {
	t.Parallel()
	for forwarded, want := range map[string]string{
		"for=203.0.113.7": "ip:203.0.113.7",
		`for=198.51.100.1, For="203.0.113.7:80";proto=https;by=10.0.0.1`: "ip:203.0.113.7",
		`proto=http; for="[2001:db8:1:2::9]:4711"`:                       "ip:2001:db8:1:2::/64",
		"for=203.0.113.7, for=10.0.0.2":                                  "ip:203.0.113.7",
		"for=_hidden":                                                    "ip:10.0.0.1",
		"proto=https":                                                    "ip:10.0.0.1",
		`for="198.51.100.1, for=203.0.113.7`:                             "ip:203.0.113.7",
		"":                                                               "ip:10.0.0.1",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "10.0.0.1:80"
		r.Header.Set("X-Forwarded-For", "192.0.2.1")
		r.Header.Set("Forwarded", forwarded)
		if got := ForwardedIP(netip.MustParsePrefix("10.0.0.0/8"))(r); got != want {
			t.Errorf("%s: %s, want %s", forwarded, got, want)
		}
	}
}

func TestKeysOfHeaders(t *testing.T) {
	t.Parallel()
	header := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	secret := "key:" + digest("s3cret")
	for _, tt := range []struct {
		name   string
		key    KeyFunc
		header http.Header
		want   string
	}{
		{"header", Header("X-User"), header("X-User", " alice "), "x-user:alice"},
		{"no header", Header("X-User"), header("X-User", " "), ""},
		{"header like another kind's key", Header("X-User"), header("X-User", "ip:203.0.113.7"), "x-user:ip:203.0.113.7"},
		{"API key", APIKey("X-API-Key"), header("X-Api-Key", "s3cret"), secret},
		{"bearer", APIKey("X-API-Key"), header("Authorization", "bearer  s3cret "), secret},
		{"API key before bearer", APIKey("X-API-Key"), header("Authorization", "Bearer other", "X-API-Key", "s3cret"), secret},
		{"another scheme", APIKey("X-API-Key"), header("Authorization", "Basic s3cret"), ""},
		{"no token", APIKey("X-API-Key"), header("Authorization", "Bearer"), ""},
		{"none", APIKey("X-API-Key"), header(), ""},
		{"first of two", First(Header("X-User"), APIKey("X-API-Key")), header("X-API-Key", "s3cret"), secret},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header = tt.header
		got := tt.key(r)
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if strings.Contains(got, "s3cret") {
			t.Errorf("%s: the secret is in the key %q", tt.name, got)
		}
	}
}

func FuzzClientIPNeverFailsNorGrows(f *testing.F) {
	for _, s := range []string{"203.0.113.7", "[::1]:80, 10.0.0.1", ",,", "10.0.0.1,10.0.0.1", `for="[::]";by=a`} {
		f.Add(s)
	}
	trusted := netip.MustParsePrefix("10.0.0.0/8")
	f.Fuzz(func(t *testing.T, forwarded string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "10.0.0.1:80"
		r.Header["X-Forwarded-For"], r.Header["Forwarded"] = []string{forwarded}, []string{forwarded}
		for _, key := range []KeyFunc{ClientIP(trusted), ForwardedIP(trusted)} {
			if k := key(r); !strings.HasPrefix(k, "ip:") || len(k) > 48 {
				t.Errorf("%q gives %q", forwarded, k)
			}
		}
	})
}
