package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice/integration/testenv"
)

// TestMain lets this program play sluice when it is started with PLAY=sluice, so that tests run whole commands.
func TestMain(m *testing.M) {
	if os.Getenv("PLAY") == "sluice" {
		main()
	}
	os.Exit(m.Run())
}

// sluiceCommand is a command line of sluice with env and, of this process' environment, nothing but the bare necessities.
func sluiceCommand(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append([]string{"PLAY=sluice", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, env...)
	cmd.WaitDelay = time.Second
	return cmd
}

// output collects what a process writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// devProcess is a running `sluice dev` without a terminal.
type devProcess struct {
	t              *testing.T
	cmd            *exec.Cmd
	temp           string // where it keeps its data
	stdout, stderr output
	ended          chan struct{}
}

func startDev(t *testing.T, env []string, args ...string) *devProcess {
	t.Helper()
	p := &devProcess{t: t, temp: t.TempDir(), ended: make(chan struct{})}
	p.cmd = sluiceCommand(t, append(env, "TMPDIR="+p.temp), append([]string{"dev"}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended stands in ProcessState
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("standard output:\n%s\nstandard error:\n%s", &p.stdout, &p.stderr)
		}
	})
	return p
}

// await waits until what out holds matches, and returns the match.
func (p *devProcess) await(out *output, pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if match := re.FindStringSubmatch(out.String()); match != nil {
			return match
		}
		select {
		case <-p.ended:
			p.t.Fatalf("it ended before it wrote %s", pattern)
		default:
		}
	}
	p.t.Fatalf("nothing like %s within 10 s", pattern)
	return nil
}

// wait waits for the process to end and checks that it is clean: the exit code, no data left, no panic, no escapes.
func (p *devProcess) wait(code int) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		p.t.Fatal("still running after 30 s")
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("exit code %d, want %d", got, code)
	}
	if left, err := os.ReadDir(p.temp); err != nil || len(left) > 0 {
		p.t.Errorf("left behind: %v, %v", left, err)
	}
	all := p.stdout.String() + p.stderr.String()
	for _, trouble := range []string{"\x1b", "panic", "goroutine ", "DATA RACE"} {
		if strings.Contains(all, trouble) {
			p.t.Errorf("the output holds %q", trouble)
		}
	}
}

// interrupt presses Ctrl-C and checks that the process ends soon.
func (p *devProcess) interrupt(code int) {
	p.t.Helper()
	start := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		p.t.Fatal(err)
	}
	p.wait(code)
	if took := time.Since(start); took > 5*time.Second {
		p.t.Errorf("it took %s to end", took)
	}
}

// awaitOnStream waits until a line of a stream matches.
func (p *devProcess) awaitOnStream(url, pattern string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	expected, lines := regexp.MustCompile(pattern), bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	last := ""
	for lines.Scan() {
		if expected.Match(lines.Bytes()) {
			return
		}
		last = lines.Text()
	}
	p.t.Fatalf("%s ended without %s, but with %s", url, pattern, last)
}

func TestDevDeliversWhatOthersPublish(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:4222")
	if err == nil { // else another process has taken it
		defer taken.Close()
	}
	p := startDev(t, []string{"SLUICE_REDIS_URL=redis://nowhere", "SLUICE_METRIC_KEYS=alice"}, "--no-demo")
	hint := p.await(&p.stdout, `publish  (SLUICE_NATS_URL=nats://127\.0\.0\.1:(\d+)) (go run \./cmd/sluice|\S+) publish events\.alice '\{"hello":1\}'`)
	if hint[2] == "4222" {
		t.Error("the port that is taken is the one in the hint")
	}
	p.await(&p.stdout, `nats -s nats://127\.0\.0\.1:`+hint[2]+` pub events\.alice hello`)
	p.await(&p.stdout, `Not used here: SLUICE_REDIS_URL `)
	status := p.await(&p.stdout, `status   (http://\S+/) `)[1]
	p.await(&p.stdout, `published 0, pushed 0`)

	publish := sluiceCommand(t, []string{hint[1]}, "publish", "events.alice", `{"hello":1}`)
	if printed, err := publish.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	p.await(&p.stdout, `published 1, pushed 1, waiting 0, 0\.5 pushes/s`)
	response, err := http.Get(status + "metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	for _, want := range []string{`\nsluice_events_settled_total\{outcome="delivered"\} 1\n`, `\nsluice_key_tokens\{key="alice"\} (19|20)\n`} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	p.awaitOnStream(status+"events", `"keys":\[\{"key":"alice","received":.*"known":true,"left":(19|20),"burst":20,"limits":"10/s burst 20"`)
	p.interrupt(0)
}

func TestDevWithoutTerminalTellsALineASecond(t *testing.T) {
	t.Parallel()
	start := time.Now()
	p := startDev(t, nil)
	p.await(&p.stdout, `most waiting: mallory \(`)
	p.await(&p.stdout, `(?m)^0:02  published \d+`)
	p.interrupt(0)
	lines := strings.Count(p.stdout.String(), "published ")
	if most := int(time.Since(start).Seconds()) + 1; lines > most {
		t.Errorf("%d lines, want at most %d", lines, most)
	}
}

func TestDevPushesToAnEndpointSigned(t *testing.T) {
	t.Parallel()
	var got output
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(&got, "%s %s %s %.3s\n", r.URL.Path, r.Header.Get("Sluice-Key"), body, r.Header.Get("Webhook-Signature"))
	}))
	defer receiver.Close()
	file := writeFile(t, "one.ndjson", `{"key":"alice","data":"hello"}`)
	p := startDev(t, []string{"SLUICE_WEBHOOK_SECRETS=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, "-f", file, "--sink", receiver.URL+"/hook")
	p.wait(0)
	if want := "/hook alice hello v1,\n"; got.String() != want {
		t.Errorf("received %q, want %q", got.String(), want)
	}
}

func TestDevEndsSoonThoughTheEndpointHangs(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 1000), make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-release
	}))
	defer receiver.Close()
	defer close(release)
	p := startDev(t, nil, "--sink", receiver.URL)
	select {
	case <-asked:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is pushed")
	}
	p.interrupt(0)
}

func TestDevFileDeliversAllButTheBadLines(t *testing.T) {
	t.Parallel()
	lines := `{"key":"alice","data":"1"}` + "\n" + `{"key":"alice","body":"2"}` + "\n" + `{"key":"bob","data":"3"}` + "\n" +
		`{"key":"carol","headers":{"Sluice-Cost":"2"}}` + "\n" + strings.Repeat(`{"key":"alice","data":"more"}`+"\n", 4)
	p := startDev(t, []string{"SLUICE_LIMIT=10/s burst 1"}, "-f", writeFile(t, "mixed.ndjson", lines))
	p.wait(1)
	for _, want := range []string{
		"line 2: body: unknown field", `key=carol reason=cost`, "sluice: 1 bad line, 1 event not delivered", "7 of 7 events settled",
	} {
		if !strings.Contains(p.stderr.String(), want) {
			t.Errorf("standard error lacks %q", want)
		}
	}
	for _, want := range []string{
		`(?m)^alice +5 +5 +0 +\S+ m?s +([4-9]\d\d ms|\d+\.\d s)$`, `(?m)^bob +1 +1 +0 `, `(?m)^carol +1 +0 +1 +- +-$`,
		`mixed\.ndjson: 7 events published, 0 duplicates, 1 bad line; 6 pushed, 1 dead-lettered, 0 dropped in `,
	} {
		if !regexp.MustCompile(want).MatchString(p.stdout.String()) {
			t.Errorf("standard output lacks %s", want)
		}
	}
}

func TestDevFileCountsWhatCollapsesAndExpiresAsSettled(t *testing.T) {
	t.Parallel()
	position := strings.Repeat(`{"key":"alice","headers":{"Sluice-Collapse":"position"},"data":"1"}`+"\n", 6)
	brief := strings.Repeat(`{"key":"bob","headers":{"Sluice-Expires":"300ms"},"data":"2"}`+"\n", 4)
	p := startDev(t, []string{"SLUICE_LIMIT=1/s burst 1"}, "-f", writeFile(t, "newest.ndjson", position+brief), "--json")
	p.wait(0)
	var got delivery
	if err := json.Unmarshal([]byte(p.stdout.String()), &got); err != nil {
		t.Fatal(err)
	}
	if got.Published != 10 || got.Collapsed == 0 || got.Expired == 0 || got.Pushed+got.Collapsed+got.Expired != 10 || got.Unsettled != 0 {
		t.Errorf("got %+v", got)
	}
	for _, u := range got.Users {
		if u.User == "alice" && (u.Collapsed != got.Collapsed || u.Pushed+u.Collapsed != 6) {
			t.Errorf("alice: %+v, want all her events pushed or collapsed", u)
		}
	}
	if !strings.Contains(p.stderr.String(), "10 of 10 events settled") {
		t.Errorf("standard error doesn't tell that all is settled:\n%s", p.stderr.String())
	}
}

// It isn't parallel: a slow machine would have to do all at once.
func TestDevFileOfTwentyThousandLines(t *testing.T) {
	perUser := int64(100)
	if testenv.RaceEnabled {
		perUser = 20 // the detector makes Redis' scripts ten times slower
	}
	const users = 200
	var file strings.Builder
	for i := range users * perUser {
		_, _ = fmt.Fprintf(&file, `{"key":"user-%d","id":"e%d","data":{"n":%d}}`+"\n", i%users, i, i)
	}
	p := startDev(t, []string{"SLUICE_LIMIT=unlimited"}, "-f", writeFile(t, "huge.ndjson", file.String()), "--json")
	p.wait(0)
	var got delivery
	if err := json.Unmarshal([]byte(p.stdout.String()), &got); err != nil {
		t.Fatal(err)
	}
	if n := users * perUser; got.Published != n || got.Pushed != n || got.Unsettled != 0 || len(got.Users) != users {
		t.Errorf("published %d, pushed %d, unsettled %d, %d users", got.Published, got.Pushed, got.Unsettled, len(got.Users))
	}
	for _, u := range got.Users {
		if u.Published != perUser || u.Pushed != perUser || u.MedianWait <= 0 || u.LongestWait < u.MedianWait {
			t.Fatalf("got %+v", u)
		}
	}
}

func TestDevFileWithoutEvents(t *testing.T) {
	t.Parallel()
	path := writeFile(t, "empty.ndjson", "\n")
	p := startDev(t, nil, "-f", path)
	p.wait(0)
	if want := path + " holds no events.\n"; p.stdout.String() != want {
		t.Errorf("got %q, want %q", p.stdout.String(), want)
	}
}

func TestDevFileInterruptedTellsWhatIsUnsettled(t *testing.T) {
	t.Parallel()
	lines := strings.Repeat(`{"key":"alice","data":"x"}`+"\n", 100)
	p := startDev(t, []string{"SLUICE_LIMIT=1/s"}, "-f", writeFile(t, "slow.ndjson", lines))
	p.await(&p.stderr, `[1-9]\d* of 100 events settled`)
	p.interrupt(1)
	if !regexp.MustCompile(`sluice: stopped before all events were settled; 9\d events unsettled`).MatchString(p.stderr.String()) {
		t.Error("what is unsettled isn't told")
	}
	if !strings.Contains(p.stdout.String(), "slow.ndjson: 100 events published") {
		t.Error("there is no summary")
	}
}

func TestDevRefusesBeforeItStartsAnything(t *testing.T) {
	for _, c := range []struct {
		env, args []string
		code      int
		says      string
	}{
		{nil, []string{"--json"}, 2, "--json needs -f"},
		{nil, []string{"--sink", "ftp://h"}, 2, `--sink is "ftp://h": it must start with https:// or http://`},
		{nil, []string{"-f", filepath.Join(t.TempDir(), "none")}, 1, "no such file"},
		{[]string{"SLUICE_LIMIT=0"}, []string{"-f", "-"}, 2, "SLUICE_LIMIT is 0: nothing would ever be delivered"},
		{[]string{"SLUICE_LIMIT=fast", "SLUICE_LIMITS=1/s"}, nil, 2, "2 wrong settings"},
	} {
		setEnvironment(t, c.env...)
		code, stdout, stderr := execute(t, t.Context(), "", append([]string{"dev"}, c.args...)...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.says) {
			t.Errorf("%v %v: exit %d, %q, %q", c.env, c.args, code, stdout, stderr)
		}
		for _, pair := range c.env {
			name, _, _ := strings.Cut(pair, "=")
			t.Setenv(name, "")
		}
	}
}
