package httplimit_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"

	"sluice/limiter"
	"sluice/limiter/httplimit"
)

// An endpoint that takes notifications for later, at most so many of each client.
func Example() {
	limits, _ := limiter.ParseLimits("2/m")
	local, _ := limiter.NewLocal(limits) // or redisstore.NewLimiter, shared by all servers

	notify := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event struct{ User, Text string }
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			http.Error(w, "not readable", http.StatusBadRequest)
			return
		}
		// Here it is published: js.Publish(r.Context(), "events."+event.User, ...)
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintln(w, "queued")
	})
	mux := http.NewServeMux()
	mux.Handle("POST /notify", httplimit.New(local, httplimit.APIKey("X-API-Key"))(notify))

	for range 3 {
		r := httptest.NewRequest("POST", "/notify", strings.NewReader(`{"user": "alice", "text": "hello"}`))
		r.Header.Set("X-API-Key", "a-secret")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
		for _, name := range []string{"RateLimit-Policy", "RateLimit", "Retry-After"} {
			if value := w.Header().Get(name); value != "" {
				fmt.Printf("  %s: %s\n", name, value)
			}
		}
	}
	// Output:
	// 202 queued
	//   RateLimit-Policy: "default";q=2;w=60
	//   RateLimit: "default";r=1;t=30
	// 202 queued
	//   RateLimit-Policy: "default";q=2;w=60
	//   RateLimit: "default";r=0;t=30
	// 429 too many requests; try again in 30 s
	//   RateLimit-Policy: "default";q=2;w=60
	//   RateLimit: "default";r=0;t=30
	//   Retry-After: 30
}

// By key where there is one, else by the address that the load balancers report.
func ExampleFirst() {
	balancers := netip.MustParsePrefix("10.0.0.0/8")
	key := httplimit.First(httplimit.APIKey("X-API-Key"), httplimit.ClientIP(balancers))

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.1.2.3:4567"
	r.Header.Set("X-Forwarded-For", "198.51.100.1, 203.0.113.7")
	fmt.Println(key(r))
	r.Header.Set("Authorization", "Bearer a-secret")
	fmt.Println(key(r))
	// Output:
	// ip:203.0.113.7
	// key:b4d87524393b45e7793e23f192e6a85a
}
