package sink

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"sluice/pipeline"
)

// How much of an answer's body is read, so that its connection can be used again, and for how long. A receiver that
// sends more, or slower, loses the connection instead of holding a push slot.
const (
	maxBodyBytes = 64 << 10
	maxBodyTime  = time.Second
)

// maxHeaderBytes bounds the headers of an answer; the default of net/http is ten megabytes a push.
const maxHeaderBytes = 64 << 10

// WebhookConfig says where and how events are posted.
type WebhookConfig struct {
	// URL takes the events. {key} in its path or query stands for the event's key, escaped. A user and password in it
	// are sent as basic authentication.
	URL string
	// Secrets sign each push, in this order; none leaves pushes unsigned.
	Secrets []string
	// SecretsNow is asked for the secrets at each push, and has to be quick; nil: they are Secrets. Faulty ones don't count.
	SecretsNow func() []string
	// TLS is asked for authorities and certificates at each connection; nil: the system's authorities, and no certificate.
	TLS func(context.Context) *tls.Config
	// Timeout bounds a whole push, from connecting to the end of the answer.
	Timeout time.Duration
	// ConnLife is for how long a connection takes pushes, at most, so that a name that has moved is followed; 0 is for ever.
	ConnLife time.Duration
	// Concurrency is the number of the worker's push slots: as many idle connections are kept. Whoever owns the slots
	// checks it.
	Concurrency int
}

// Validate tells all faults at once, each with the variable to mend.
func (c WebhookConfig) Validate() error {
	_, addressFaults := parseAddress(c.URL)
	_, secretFaults := newSigner(c.Secrets)
	var timeoutFault, lifeFault error
	if c.Timeout <= 0 {
		timeoutFault = fmt.Errorf("SLUICE_WEBHOOK_TIMEOUT is %v: set a time above 0, such as 15s", c.Timeout)
	}
	if c.ConnLife < 0 {
		lifeFault = fmt.Errorf("SLUICE_WEBHOOK_CONN_LIFE is %v: set a time such as 5m, or 0 for ever", c.ConnLife)
	}
	return errors.Join(addressFaults, secretFaults, timeoutFault, lifeFault)
}

// Webhook is a sink that posts events to an HTTP endpoint.
type Webhook struct {
	address       *address
	signer        func() signer
	timeout       time.Duration
	userAgent     string
	authorization string   // the header's value, or ""
	credentials   []string // what of the URL's user must not show
	connections   *connections
}

// NewWebhook returns the sink of a valid config. userAgent is the value of the User-Agent header.
func NewWebhook(cfg WebhookConfig, userAgent string) (*Webhook, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	w := &Webhook{timeout: cfg.Timeout, userAgent: userAgent}
	w.address, _ = parseAddress(cfg.URL)
	w.signer = signerOf(cfg)
	if user := w.address.user; user != nil {
		password, _ := user.Password()
		basic := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		w.authorization = "Basic " + basic
		w.credentials = []string{basic, user.Username(), password}
	}
	// The proxy is looked up once: the host is the same for all events, and a proxy's faulty URL shows before the first
	// push. Its text is not told, as it may hold a password.
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: w.address.forKey("")})
	if err != nil {
		return nil, errors.New("HTTP_PROXY or HTTPS_PROXY is not a URL: write one such as http://proxy.example.com:3128, or unset it")
	}
	w.connections = &connections{
		transport: newTransport(cfg, proxy),
		scheme:    w.address.scheme,
		address:   w.address.hostPort(),
		life:      cfg.ConnLife,
		most:      cfg.Concurrency,
	}
	return w, nil
}

func newTransport(cfg WebhookConfig, proxy *url.URL) *http.Transport {
	// HTTP/1.1 only: a connection that stalls holds up one push, with HTTP/2 it would be all of them.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  http.ProxyURL(proxy),
		Protocols:              &protocols,
		DialContext:            (&net.Dialer{Timeout: cfg.Timeout}).DialContext,
		TLSHandshakeTimeout:    cfg.Timeout,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		TLSClientConfig:        clientTLS(cfg, proxy),
	}
}

// Name is the value of the metrics' label sink.
func (w *Webhook) Name() string { return "webhook" }

// Close gives idle connections back. Pushes in flight go on.
func (w *Webhook) Close() { w.connections.close() }

// Push posts ev once, and once more at once when a connection that was kept from earlier pushes ends before an answer begins. A
// status of 2xx is delivered. 408, 425 and 5xx are retried, 429, 503 and all trouble without an answer concern the receiver, and
// every other status is permanent; redirects are not followed. If ctx ends before there is an answer the error wraps ctx.Err().
func (w *Webhook) Push(ctx context.Context, ev *pipeline.Event) error {
	if !isLegalValue(ev.ID) {
		return pipeline.Undeliverable(pipeline.Rejected, &failure{class: classUnspecified, text: "the event's id can't be sent as a header"})
	}
	if err := w.address.checkKey(ev.Key); err != nil {
		return pipeline.Undeliverable(pipeline.BadKey, &failure{class: classUnspecified, text: err.Error()})
	}
	now := time.Now()
	header, err := w.headers(ev, now)
	if err != nil {
		return fmt.Errorf("preparing the push: %w", err)
	}
	exchange, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(w.timeout, cancel) // in place of a context's, which could not be set anew for the body
	defer timer.Stop()

	// There is no client: nothing here redirects, and the errors hold no URL.
	request := (&http.Request{
		Method:        http.MethodPost,
		URL:           w.address.forKey(ev.Key),
		Header:        header,
		ContentLength: int64(len(ev.Data)),
	}).WithContext(exchange)
	connection, response, err := w.connections.send(request, ev.Data)
	if err != nil {
		return w.unanswered(ctx, exchange, ev, request.URL, err)
	}
	var body []byte
	if response.Body != http.NoBody {
		timer.Reset(min(maxBodyTime, time.Until(now.Add(w.timeout))))
		body = readBody(response)
	}
	w.connections.keep(exchange, connection, response)
	return w.judge(response, body, ev, request.URL)
}

// readBody reads the start of an answer's body and is done with it. The caller's timer ends the exchange of an answer that
// takes its time; by then the status has said what became of the event.
func readBody(response *http.Response) []byte {
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil // the body is the bare connection, which the end of the exchange doesn't end
	}
	if response.StatusCode/100 == 2 {
		_, _ = io.CopyN(io.Discard, response.Body, maxBodyBytes)
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxBodyBytes))
	return body
}
