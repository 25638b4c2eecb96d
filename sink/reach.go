package sink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Reached is what [Webhook.Reach] met.
type Reached struct {
	Status int       // of the answer
	Expiry time.Time // when the receiver's certificate ends; zero without TLS
}

// Reach asks the receiver's host for its root by HEAD, over a new connection by the same proxy and TLS as pushes: any answer will
// do. Nothing is pushed.
func (w *Webhook) Reach(ctx context.Context) (Reached, error) {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	to := *w.address.forKey("check")
	to.Path, to.RawPath, to.RawQuery, to.User = "/", "", "", nil
	request := (&http.Request{Method: http.MethodHead, URL: &to, Header: http.Header{"User-Agent": {w.userAgent}}}).WithContext(ctx)
	connection, response, err := w.connections.sendNew(request, nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return Reached{}, fmt.Errorf("no answer within %s", w.timeout)
	}
	if err != nil {
		return Reached{}, err // of the transport: it holds no URL
	}
	_ = connection.Close()
	r := Reached{Status: response.StatusCode}
	if t := response.TLS; t != nil && len(t.PeerCertificates) > 0 {
		r.Expiry = t.PeerCertificates[0].NotAfter
	}
	return r, nil
}
