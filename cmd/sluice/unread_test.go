package main

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
)

// The data of its servers has to go, too.
func TestDevWhoseOutputNobodyReadsEnds(t *testing.T) {
	t.Parallel()
	reads, writes, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &devProcess{t: t, temp: t.TempDir(), ended: make(chan struct{})}
	p.cmd = sluiceCommand(t, []string{"TMPDIR=" + p.temp}, "dev")
	p.cmd.Stdout, p.cmd.Stderr = writes, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	_ = writes.Close()
	if _, err := bufio.NewReader(reads).ReadString('\n'); err != nil {
		t.Error(err)
	}
	_ = reads.Close()
	p.wait(1)
	if want := "sluice: nobody reads the output any more\n"; !strings.HasSuffix(p.stderr.String(), want) {
		t.Errorf("it ended with %q, want %q", p.stderr.String(), want)
	}
}

func TestDevShowsWhatLibrariesPrintAsItsOwnWarnings(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				from := bufio.NewReader(conn)
				for {
					request, err := http.ReadRequest(from)
					if err != nil {
						return
					}
					_, _ = request.Body.Read(make([]byte, 100))
					if _, err := conn.Write([]byte("HTTP/1.1 204 No Content\r\n\r\nhunter2")); err != nil {
						return
					}
				}
			}()
		}
	}()
	file := writeFile(t, "many.ndjson", strings.Repeat(`{"key":"alice","data":"x"}`+"\n", 200))
	p := startDev(t, []string{"SLUICE_LIMIT=unlimited"}, "-f", file, "--sink", "http://"+listener.Addr().String())
	p.wait(0)
	all := p.stdout.String() + p.stderr.String()
	if n := strings.Count(all, "Unsolicited"); n < 1 || n > 3 || !strings.Contains(all, "warning: ") || strings.Contains(all, "hunter2") {
		t.Errorf("%d lines of a library, want one or two, as warnings:\n%s", n, all)
	}
}
