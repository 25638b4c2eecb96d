package sink

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/pipeline"
)

// What a push costs over a connection that is kept, with the events of a typical producer: the receiver does next to
// nothing, so that what is measured is the push.
func BenchmarkPush(b *testing.B) {
	body := `{"type":"invoice.paid","data":{"id":"in_1","amount":1250,"note":"` + strings.Repeat("x", 200) + `"}}`
	cases := []struct {
		name, path, answer, data string
		secrets                  []string
		header                   pipeline.Header
	}{
		{"plain", "/in", "HTTP/1.1 204 No Content\r\n\r\n", "1", nil, nil},
		{"signed", "/in", "HTTP/1.1 204 No Content\r\n\r\n", body, []string{secretOf(32)}, nil},
		{"answered", "/{key}/in", "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok", body, []string{secretOf(32)},
			pipeline.Header{"ce-type": {"invoice.paid"}, "ce-source": {"/billing"}, "traceparent": {"00-1-2-01"}}},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			url := benchReceiver(b, c.answer)
			w, err := NewWebhook(WebhookConfig{URL: url + c.path, Secrets: c.secrets, Timeout: 15 * time.Second, Concurrency: 256}, "sluice/bench")
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			b.SetParallelism(16) // pushes in flight for each core
			b.RunParallel(func(pb *testing.PB) {
				ev := testEvent()
				ev.Data, ev.Header = []byte(c.data), c.header
				for pb.Next() {
					if err := w.Push(ctx, ev); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// benchReceiver answers every request by the same bytes and allocates nothing for it.
func benchReceiver(b *testing.B, answer string) string {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerAll(conn, []byte(answer))
		}
	}()
	return "http://" + listener.Addr().String()
}

func answerAll(conn net.Conn, answer []byte) {
	defer conn.Close()
	from := bufio.NewReader(conn)
	length := 0
	for {
		line, err := from.ReadSlice('\n')
		if err != nil {
			return
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
		}
		if len(line) > len("\r\n") {
			continue
		}
		if _, err := from.Discard(length); err != nil {
			return
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}
