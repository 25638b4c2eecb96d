package sink_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"sluice/pipeline"
	"sluice/sink"
)

func ExampleNewWebhook() {
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Printf("%s %s %s %s\n", r.Method, r.RequestURI, r.Header.Get("webhook-id"), body)
	}))
	defer receiver.Close()

	hook, err := sink.NewWebhook(sink.WebhookConfig{
		URL:         receiver.URL + "/users/{key}",
		Timeout:     15 * time.Second,
		Concurrency: 256,
	}, "sluice/1.0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hook.Close()
	err = hook.Push(context.Background(), &pipeline.Event{ID: "EVENTS:7", Key: "a b", Data: []byte(`{"n":1}`), Attempt: 1})
	fmt.Println(err, sink.Class(err))
	// Output:
	// POST /users/a%20b EVENTS:7 {"n":1}
	// <nil> 2xx
}

// A receiver verifies each request before it believes a word of it, with any Standard Webhooks library. Here the
// receiver knows only the second of two secrets, as in the midst of going from one to the other.
func ExampleWebhook_verify() {
	const oldSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	const newSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"

	verifier, err := standardwebhooks.NewWebhook(newSecret)
	if err != nil {
		fmt.Println(err)
		return
	}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // the bytes as they came: the signature is over them
		if err != nil {
			return
		}
		if err := verifier.Verify(body, r.Header); err != nil {
			http.Error(w, "not signed by us", http.StatusUnauthorized)
			return
		}
		fmt.Printf("verified %s: %s\n", r.Header.Get("webhook-id"), body)
	}))
	defer receiver.Close()

	hook, err := sink.NewWebhook(sink.WebhookConfig{
		URL:     receiver.URL,
		Secrets: []string{oldSecret, newSecret},
		Timeout: 15 * time.Second,
	}, "sluice/1.0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hook.Close()
	err = hook.Push(context.Background(), &pipeline.Event{ID: "EVENTS:7", Key: "u", Data: []byte(`{"n":1}`), Attempt: 1})
	fmt.Println(err)
	// Output:
	// verified EVENTS:7: {"n":1}
	// <nil>
}

func ExampleNewLog() {
	log := sink.NewLog(os.Stdout)
	_ = log.Push(context.Background(), &pipeline.Event{
		ID: "EVENTS:7", Key: "u", Subject: "events.u", Data: []byte(`{"n": 1}`), Attempt: 1,
		Time: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
	})
	// Output:
	// {"time":"2026-11-30T12:00:00Z","id":"EVENTS:7","key":"u","subject":"events.u","attempt":1,"data":{"n":1}}
}
