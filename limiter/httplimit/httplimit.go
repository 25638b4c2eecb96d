// Package httplimit limits the requests of an HTTP server: what is too much gets 429 and never reaches the handler.
//
//	limits, err := limiter.ParseLimits("10/s burst 20")
//	local, err := limiter.NewLocal(limits)         // or redisstore.NewLimiter, shared by all servers
//	limited := httplimit.New(local, httplimit.APIKey("X-API-Key"))
//	http.ListenAndServe(addr, limited(handler))
//
// Responses, allowed or not, carry the fields RateLimit-Policy and RateLimit in the form of
// draft-ietf-httpapi-ratelimit-headers-11, which is that of all drafts since 08 and may still change:
//
//	RateLimit-Policy: "default";q=20;w=2     at most q requests at once, which take w seconds to come back
//	RateLimit: "default";r=7;t=1             r are left; more come in t seconds at the latest
//	Retry-After: 1                           of a 429: who waits so long is served, if no other request of the key is
//
// With several limits, each is a policy, named after its kind and period, and RateLimit tells of the one with the fewest
// left. RateLimit is missing where what is left isn't known: for a request that costs more than its limit ever allows.
//
// A request without a key counts for the address of its peer, so that leaving the key off is no way around the limit. See
// [First] for other ways, and [PassKeyless].
//
// When the limiter errs or takes longer than [Timeout] (100 ms), requests pass, uncounted: a limit protects a service, and
// should not be what stops it. That is logged, and [OnResult] counts it; see [FailClosed] for the other way. A request whose
// client is gone by then isn't handled: else hanging up at once would be a way around the limit.
package httplimit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"time"

	"sluice/limiter"
)

// Limiter is implemented by [limiter.Local] and by redisstore.Limiter.
type Limiter interface {
	// Reserve takes cost tokens of key; see [limiter.Local.Reserve]. It has to return when ctx ends.
	Reserve(ctx context.Context, key string, cost int64, horizon time.Duration) (limiter.Decision, error)
	// Limits are those of the key now.
	Limits(key string) limiter.Limits
}

// defaultTimeout of a call to the limiter: far longer than one takes, far shorter than a client's patience.
const defaultTimeout = 100 * time.Millisecond

// unknownWait is the Retry-After where nobody knows how long: while a limit is 0.
const unknownWait = time.Minute

type middleware struct {
	limiter     Limiter
	key         KeyFunc
	peer        KeyFunc
	cost        func(*http.Request) int64
	name        string
	timeout     time.Duration
	failClosed  bool
	passKeyless bool
	onError     func(*http.Request, error)
	onResult    func(*http.Request, Result)
}

// Option changes what [New] does by default.
type Option func(*middleware)

// Cost says how many tokens a request takes; less than 1 is 1. By default each takes 1.
func Cost(cost func(*http.Request) int64) Option { return func(m *middleware) { m.cost = cost } }

// Name is what the policy is called in the header fields; "default" unless stated. Where one such middleware is within
// another, each needs its own.
func Name(name string) Option { return func(m *middleware) { m.name = name } }

// Timeout is how long the limiter may take before that counts as an error; 100 ms unless stated.
func Timeout(timeout time.Duration) Option { return func(m *middleware) { m.timeout = timeout } }

// FailClosed answers 503 with Retry-After: 1 while the limiter errs, instead of letting requests pass.
func FailClosed() Option { return func(m *middleware) { m.failClosed = true } }

// PassKeyless lets requests without a key pass, uncounted.
func PassKeyless() Option { return func(m *middleware) { m.passKeyless = true } }

// OnError is called with each error of the limiter, to log it in another way than by slog's default logger, once in ten
// seconds. See [OnResult] to count them.
func OnError(f func(*http.Request, error)) Option { return func(m *middleware) { m.onError = f } }

// New returns a middleware that takes the tokens of each request from l, by its key. The handler is called as if it stood
// alone, with the request as it came, or, for a 429 or 503, not at all.
func New(l Limiter, key KeyFunc, options ...Option) func(http.Handler) http.Handler {
	m := &middleware{
		limiter: l, key: key, peer: ClientIP(), name: "default", timeout: defaultTimeout,
		cost:     func(*http.Request) int64 { return 1 },
		onError:  new(errorLog).note,
		onResult: func(*http.Request, Result) {},
	}
	for _, option := range options {
		option(m)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if m.admit(w, r) {
				next.ServeHTTP(w, r)
			}
		})
	}
}

// admit says whether the request may be handled. If not, it has answered it.
func (m *middleware) admit(w http.ResponseWriter, r *http.Request) bool {
	result := m.decide(w.Header(), r)
	m.onResult(r, result.Result)
	switch result.Result {
	case Refused:
		refuse(w, result.decision)
		return false
	case Unavailable:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the rate limiter is away", http.StatusServiceUnavailable)
		return false
	}
	return true
}

// decided is a result, with the limiter's decision if there is one.
type decided struct {
	Result
	decision limiter.Decision
}

// decide says what becomes of a request, and tells it in the header of its answer.
func (m *middleware) decide(h http.Header, r *http.Request) decided {
	key := m.key(r)
	if key == "" {
		if m.passKeyless {
			return decided{Result: Keyless}
		}
		key = m.peer(r)
	}
	if len(key) > limiter.MaxKey {
		key = "long:" + digest(key)
	}
	ctx, cancel := context.WithTimeout(r.Context(), m.timeout)
	d, err := m.limiter.Reserve(ctx, key, max(1, m.cost(r)), 0)
	cancel()
	if err != nil {
		m.onError(r, err)
		if !m.failClosed && r.Context().Err() == nil {
			return decided{Result: Uncounted}
		}
		return decided{Result: Unavailable}
	}
	tell(h, m.name, m.limiter.Limits(key), d)
	if d.Verdict == limiter.Go {
		return decided{Allowed, d}
	}
	return decided{Refused, d}
}

func refuse(w http.ResponseWriter, d limiter.Decision) {
	if d.Verdict == limiter.Never { // no wait helps
		http.Error(w, "the request costs more than its limit ever allows", http.StatusTooManyRequests)
		return
	}
	wait := strconv.FormatInt(retryAfter(d), 10)
	w.Header().Set("Retry-After", wait)
	http.Error(w, "too many requests; try again in "+wait+" s", http.StatusTooManyRequests)
}

// retryAfter is the wait of a refused request in whole seconds, at least 1.
func retryAfter(d limiter.Decision) int64 {
	if d.Wait <= 0 {
		return seconds(unknownWait)
	}
	return seconds(d.Wait)
}

// seconds rounds up, to at least 1.
func seconds(d time.Duration) int64 {
	whole := int64(d / time.Second)
	if d%time.Second > 0 {
		whole++
	}
	return max(1, whole)
}

// digest stands for a text that is too long, or a secret.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}
