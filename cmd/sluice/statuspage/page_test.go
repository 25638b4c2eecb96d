package statuspage

import (
	"bytes"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func (r *rig) get(method, path string, header ...string) *http.Response {
	request := httptest.NewRequest(method, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, request)
	return w.Result()
}

func TestPageOnlyShowsAndIsGuarded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tests := []struct {
		method, path string
		code         int
		kind         string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"GET", "/page/page.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/page/charts.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/page/page.css", 200, "text/css; charset=utf-8"},
		{"GET", "/page/icon.svg", 200, "image/svg+xml"},
		{"HEAD", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/events", 200, "text/event-stream"},
		{"POST", "/", 405, ""},
		{"DELETE", "/events", 405, ""},
		{"GET", "/page/", 404, ""},
		{"GET", "/page/page_test.go", 404, ""},
		{"GET", "/other", 404, ""},
	}
	for _, test := range tests {
		response := r.get(test.method, test.path)
		if response.StatusCode != test.code {
			t.Errorf("%s %s: %d, want %d", test.method, test.path, response.StatusCode, test.code)
		}
		h := response.Header
		if test.kind != "" && h.Get("Content-Type") != test.kind {
			t.Errorf("%s %s is %q", test.method, test.path, h.Get("Content-Type"))
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none';", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer",
		} {
			if !strings.HasPrefix(h.Get(name), want) {
				t.Errorf("%s %s: %s is %q", test.method, test.path, name, h.Get(name))
			}
		}
		if guard := h.Get("Content-Security-Policy"); strings.Contains(guard, "unsafe") || !strings.Contains(guard, "frame-ancestors 'none'") {
			t.Errorf("the policy is %q", guard)
		}
	}
}

func TestUnchangedPageIsNotSentAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tag := r.get("GET", "/page/page.js").Header.Get("ETag")
	if response := r.get("GET", "/page/page.js", "If-None-Match", tag); tag == "" || response.StatusCode != http.StatusNotModified {
		t.Errorf("with the tag %s: %s", tag, response.Status)
	}
	if response := r.get("GET", "/page/page.js", "If-None-Match", `"other"`); response.StatusCode != http.StatusOK {
		t.Errorf("with another tag: %s", response.Status)
	}
}

// What the policy would refuse, and what would let a key become part of the document.
func TestPageHasNothingInlineAndAsksNobodyElse(t *testing.T) {
	t.Parallel()
	refused := regexp.MustCompile(`(?i)<script>|<style|\sstyle=|\son[a-z]+=|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(`)
	names, err := fs.Glob(assets, "*")
	if err != nil || len(names) != 5 {
		t.Fatalf("assets %v, %v", names, err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(assets, name)
		if err != nil {
			t.Fatal(err)
		}
		if found := refused.Find(text); found != nil {
			t.Errorf("%s has %q", name, found)
		}
		text = bytes.ReplaceAll(text, []byte("http://www.w3.org/2000/svg"), nil) // a name, not an address
		if i := bytes.Index(text, []byte("//")); i >= 0 && !strings.HasSuffix(name, ".js") || bytes.Contains(text, []byte("http:")) || bytes.Contains(text, []byte("https:")) {
			t.Errorf("%s names an address", name)
		}
	}
}
