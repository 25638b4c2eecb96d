package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// push sends one event as a worker would and returns the answer's status, 0 without one.
func push(t *testing.T, receiver *ReceiverServer, id string, header http.Header) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	status, err := pushWithin(ctx, receiver, id, header)
	if err != nil {
		t.Logf("push %s: %v", id, err)
	}
	return status
}

func pushWithin(ctx context.Context, receiver *ReceiverServer, id string, header http.Header) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, receiver.URL()+"/a%2Fb", strings.NewReader("body of "+id))
	if err != nil {
		return 0, err
	}
	request.Header.Set("webhook-id", id)
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

func TestReceiverRecordsPushes(t *testing.T) {
	t.Parallel()
	receiver := Receiver(t)
	header := http.Header{"Sluice-Key": {"50%25 %C3%A4"}, "Sluice-Subject": {"events.u"}, "Sluice-Attempt": {"3"}}
	before := time.Now()
	if status := push(t, receiver, "one", header); status != http.StatusNoContent {
		t.Errorf("answered %d, want 204", status)
	}
	receiver.Handle(func(r Request) Response {
		if r.Header.Get("Sluice-Key") == "" || string(r.Body) != "body of one" {
			t.Errorf("asked about %+v", r)
		}
		return Response{Status: 503, Header: http.Header{"Retry-After": {"1"}}, Body: "later"}
	})
	if status := push(t, receiver, "one", header); status != 503 {
		t.Errorf("answered %d, want 503", status)
	}

	receiver.WaitFor(2, 5*time.Second)
	receiver.WaitForDelivered(1, 5*time.Second)
	done := func() bool { return !receiver.Requests()[0].Done.IsZero() }
	if !eventually(5*time.Second, done) {
		t.Fatal("the first push never ends")
	}
	first := receiver.Requests()[0]
	if first.ID != "one" || first.Key != "50% ä" || first.Subject != "events.u" || first.Attempt != 3 ||
		first.Path != "/a%2Fb" || string(first.Body) != "body of one" || first.Status != 204 || first.Header != nil {
		t.Errorf("recorded %+v", first)
	}
	if first.Arrived.Before(before) || first.Done.Before(first.Arrived) {
		t.Errorf("arrived %v, done %v", first.Arrived, first.Done)
	}
	if n, ids, delivered := receiver.Count(), receiver.IDs()["one"], receiver.Delivered()["one"]; n != 2 || ids != 2 || delivered != 1 {
		t.Errorf("count %d, of the id %d, delivered %d; want 2, 2, 1", n, ids, delivered)
	}
}

func TestReceiverMisbehavesAsTold(t *testing.T) {
	t.Parallel()
	receiver := Receiver(t)
	receiver.Handle(func(r Request) Response {
		switch r.ID {
		case "slow":
			return Response{Delay: 50 * time.Millisecond}
		case "cut":
			return Response{Abort: true}
		case "reset":
			return Response{Reset: true}
		case "drip":
			return Response{Drip: true}
		default:
			return Response{Hang: true}
		}
	})
	start := time.Now()
	if status := push(t, receiver, "slow", nil); status != 204 || time.Since(start) < 50*time.Millisecond {
		t.Errorf("slow: answered %d after %v", status, time.Since(start))
	}
	if status := push(t, receiver, "cut", nil); status != 0 {
		t.Errorf("cut: answered %d", status)
	}
	if _, err := pushWithin(t.Context(), receiver, "reset", nil); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset: %v", err)
	}
	for _, id := range []string{"hang", "drip"} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := pushWithin(ctx, receiver, id, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", id, err)
		}
		cancel()
	}
	ended := func() bool {
		for _, r := range receiver.Requests() {
			if r.Done.IsZero() {
				return false
			}
		}
		return receiver.Count() == 5
	}
	if !eventually(5*time.Second, ended) {
		t.Errorf("not all pushes have ended: %+v", receiver.Requests())
	}
	if n := len(receiver.Delivered()); n != 1 {
		t.Errorf("%d delivered, want 1", n)
	}
}

func TestReceiverStopsAndComesBack(t *testing.T) {
	t.Parallel()
	receiver := Receiver(t)
	push(t, receiver, "before", nil)
	receiver.Stop()
	if status := push(t, receiver, "while", nil); status != 0 {
		t.Errorf("a stopped receiver answers %d", status)
	}
	receiver.Start()
	push(t, receiver, "after", nil)
	if got, want := fmt.Sprint(receiver.IDs()), "map[after:1 before:1]"; got != want {
		t.Errorf("seen %s, want %s", got, want)
	}
}

func TestReceiverKeepsCountUnderConcurrency(t *testing.T) {
	t.Parallel()
	receiver := Receiver(t)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 100 {
				push(t, receiver, fmt.Sprintf("%d-%d", worker, i), nil)
			}
		})
	}
	group.Wait()
	if n, ids := receiver.Count(), len(receiver.Delivered()); n != 800 || ids != 800 {
		t.Errorf("%d pushes of %d events, want 800 of 800", n, ids)
	}
	requests := receiver.Requests()
	for i := 1; i < len(requests); i++ {
		if requests[i].Arrived.Before(requests[i-1].Arrived) {
			t.Fatal("not in the order of arrival")
		}
	}
}
