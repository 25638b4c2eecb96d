package testenv

import (
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Request is one push as the receiver saw it.
type Request struct {
	ID      string // header webhook-id
	Key     string // header Sluice-Key, decoded
	Subject string // header Sluice-Subject
	Attempt int    // header Sluice-Attempt; 0 when it isn't a number
	Path    string // of the URL, still encoded
	Body    []byte
	Header  http.Header // only for the function given to Handle: a record of each would fill the memory
	Arrived time.Time   // when its headers had been read, with the monotonic clock
	Done    time.Time   // when its answer was written or it was cut off; zero before
	Status  int         // of the answer; 0 while there is none
}

// Response says how a push is answered. The zero value is 204 at once.
type Response struct {
	Status int
	Header http.Header
	Body   string
	Delay  time.Duration // before the answer
	Hang   bool          // no answer until the client gives up
	Abort  bool          // after Delay the connection is closed without an answer
	Reset  bool          // after Delay the connection is reset (TCP RST)
	Drip   bool          // the answer comes byte by byte and has no end, until the client gives up
}

// ReceiverServer is an HTTP server that pushes go to. It shares two cores with what a drill measures, so that it only notes what
// comes; ids are counted when someone asks.
type ReceiverServer struct {
	t    testing.TB
	addr string

	mu        sync.Mutex
	server    *http.Server // nil while stopped
	handle    func(Request) Response
	requests  []*Request
	delivered []*Request // those answered 2xx, in that order
}

// Receiver starts a receiver that answers 204 to all; it ends with the test.
func Receiver(t testing.TB) *ReceiverServer {
	t.Helper()
	r := &ReceiverServer{t: t, handle: func(Request) Response { return Response{} }}
	t.Cleanup(r.Stop)
	for range 5 { // another process may take the port first
		r.addr = loopback(freePort(t))
		if r.start() == nil {
			return r
		}
	}
	t.Fatal("the receiver doesn't come up")
	return nil
}

func (r *ReceiverServer) start() error {
	listener, err := net.Listen("tcp", r.addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(r.serve)}
	r.mu.Lock()
	r.server = server
	r.mu.Unlock()
	go func() { _ = server.Serve(listener) }() // ends when Stop closes the server
	return nil
}

// URL is where to push to; it stays the same over Stop and Start.
func (r *ReceiverServer) URL() string {
	return "http://" + r.addr
}

// Stop closes the receiver and all its connections; connecting is refused from then on.
func (r *ReceiverServer) Stop() {
	r.mu.Lock()
	server := r.server
	r.server = nil
	r.mu.Unlock()
	if server != nil {
		_ = server.Close()
	}
}

// Start opens a stopped receiver again at the same address; what it has seen stays.
func (r *ReceiverServer) Start() {
	r.t.Helper()
	if err := r.start(); err != nil {
		r.t.Fatalf("opening the receiver again: %v", err)
	}
}

// Handle sets how pushes are answered from now on. f is called by many goroutines at once.
func (r *ReceiverServer) Handle(f func(Request) Response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handle = f
}

func (r *ReceiverServer) serve(w http.ResponseWriter, httpRequest *http.Request) {
	if httpRequest.Method == http.MethodHead { // a worker asks whether there is anybody: no push
		w.WriteHeader(http.StatusNoContent)
		return
	}
	request := Request{Arrived: time.Now()}
	header := httpRequest.Header
	request.ID = header.Get("webhook-id")
	request.Subject = header.Get("Sluice-Subject")
	request.Attempt, _ = strconv.Atoi(header.Get("Sluice-Attempt"))
	request.Path = httpRequest.URL.EscapedPath()
	request.Key = header.Get("Sluice-Key")
	if key, err := url.PathUnescape(request.Key); err == nil {
		request.Key = key
	}
	record := r.begin(request)
	defer r.end(record)

	request.Body = readBody(httpRequest)
	r.mu.Lock()
	record.Body = request.Body
	handle := r.handle
	r.mu.Unlock()

	request.Header = header
	response := handle(request)
	if response.Hang {
		<-httpRequest.Context().Done()
		return
	}
	if response.Delay > 0 {
		select {
		case <-time.After(response.Delay):
		case <-httpRequest.Context().Done():
			return
		}
	}
	if response.Abort {
		panic(http.ErrAbortHandler)
	}
	if response.Reset || response.Drip {
		misbehave(w, response.Drip)
		return
	}
	r.answer(w, record, response)
}

// readBody returns a body that is cut short as far as it came. A record keeps no more than it needs.
func readBody(httpRequest *http.Request) []byte {
	if httpRequest.ContentLength < 0 {
		body, _ := io.ReadAll(httpRequest.Body)
		return body
	}
	body := make([]byte, httpRequest.ContentLength)
	n, _ := io.ReadFull(httpRequest.Body, body)
	return body[:n]
}

// misbehave resets the connection of a request, after it has dripped the bytes of a header if so asked.
func misbehave(w http.ResponseWriter, drip bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // the client is gone
	}
	for text := "HTTP/1.1 200 OK\r\nSlow: "; drip && err == nil; text = "a" {
		_, err = io.WriteString(conn, text)
		time.Sleep(20 * time.Millisecond)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// begin records the start of a request.
func (r *ReceiverServer) begin(request Request) *Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, &request)
	return &request
}

// answer records the answer before it is sent: an event may leave its stream as soon as the worker has read the answer,
// and must be known as delivered by then.
func (r *ReceiverServer) answer(w http.ResponseWriter, record *Request, response Response) {
	status := response.Status
	if status == 0 {
		status = http.StatusNoContent
	}
	r.mu.Lock()
	record.Status = status
	if status >= 200 && status < 300 {
		r.delivered = append(r.delivered, record)
	}
	r.mu.Unlock()
	maps.Copy(w.Header(), response.Header)
	w.WriteHeader(status)
	if response.Body != "" {
		_, _ = io.WriteString(w, response.Body)
	}
}

func (r *ReceiverServer) end(record *Request) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	record.Done = now
}

// Requests returns all pushes seen so far, in the order of their arrival.
func (r *ReceiverServer) Requests() []Request {
	r.mu.Lock()
	requests := make([]Request, len(r.requests))
	for i, request := range r.requests {
		requests[i] = *request
	}
	r.mu.Unlock()
	slices.SortStableFunc(requests, func(a, b Request) int { return a.Arrived.Compare(b.Arrived) })
	return requests
}

// Count is the number of pushes seen so far, repeated ones included.
func (r *ReceiverServer) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.requests)
}

// IDs counts the pushes seen so far by event id, however they were answered.
func (r *ReceiverServer) IDs() map[string]int {
	r.mu.Lock()
	requests := r.requests
	r.mu.Unlock()
	return countIDs(requests)
}

// Delivered counts the pushes answered 2xx so far by event id.
func (r *ReceiverServer) Delivered() map[string]int {
	return countIDs(r.deliveries())
}

func (r *ReceiverServer) deliveries() []*Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.delivered
}

// countIDs needs no lock: ids don't change, and what is appended later isn't seen.
func countIDs(requests []*Request) map[string]int {
	ids := make(map[string]int, len(requests))
	for _, request := range requests {
		ids[request.ID]++
	}
	return ids
}

// WaitFor waits until n pushes have been seen, repeated ones included.
func (r *ReceiverServer) WaitFor(n int, timeout time.Duration) {
	r.t.Helper()
	if !eventually(timeout, func() bool { return r.Count() >= n }) {
		r.t.Fatalf("the receiver has seen %d pushes after %v, not %d", r.Count(), timeout, n)
	}
}

// WaitForDelivered waits until n different events have been answered 2xx.
func (r *ReceiverServer) WaitForDelivered(n int, timeout time.Duration) {
	r.t.Helper()
	events, counted := map[string]bool{}, 0
	enough := func() bool {
		all := r.deliveries()
		if len(all) < n {
			return false // whatever their ids
		}
		for _, request := range all[counted:] {
			events[request.ID] = true
		}
		counted = len(all)
		return len(events) >= n
	}
	if !eventually(timeout, enough) {
		r.t.Fatalf("%d events are delivered after %v, not %d", len(r.Delivered()), timeout, n)
	}
}
