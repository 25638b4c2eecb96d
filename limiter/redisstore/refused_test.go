package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/integration/testenv"
	"sluice/limiter"
	"sluice/pipeline"
)

// grumbler is a server that answers calls of scripts with an error: of two keys, which are the plainest, and of more.
type grumbler struct {
	net.Listener
	mu          sync.Mutex
	plain, rest string // "": the call is answered
}

func newGrumbler(t *testing.T) *grumbler {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &grumbler{Listener: listener}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { g.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait() // for clients, which are closed before
	})
	return g
}

func (g *grumbler) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for in := bufio.NewReader(conn); ; {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, g.answer(command)); err != nil {
			return
		}
	}
}

func readCommand(in *bufio.Reader) (words []string, err error) {
	number := func() (n int, err error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	for ; n > 0 && err == nil; n-- {
		var size int
		if size, err = number(); err == nil {
			word := make([]byte, size+2)
			_, err = io.ReadFull(in, word)
			words = append(words, string(word[:size]))
		}
	}
	return words, err
}

func (g *grumbler) answer(command []string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	text := g.rest
	switch strings.ToLower(command[0]) {
	case "evalsha", "eval":
		if command[2] == "2" {
			text = g.plain
		}
		if text != "" {
			return "-" + text + "\r\n"
		}
		return "*3\r\n:0\r\n:1764460800000000\r\n:1\r\n" // as park answers: one shard's calls were counted
	}
	return "-ERR unknown command\r\n" // of HELLO: older than version 6
}

// Whoever adds a text has to say whether it means that Redis is away when one call is answered so, and when all are.
func TestAnswersThatMeanThatRedisIsAway(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ one, all bool }{
		// The server can't work now, whatever it is asked.
		"LOADING Redis is loading the dataset in memory":                                                   {true, true},
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                 {true, true},
		"CLUSTERDOWN The cluster is down":                                                                  {true, true},
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":           {true, true},
		"ERR max number of clients reached":                                                                {true, true},
		"TRYAGAIN Multiple keys request during rehashing of slot":                                          {false, false}, // a slot that moves
		"READONLY You can't write against a read only replica. script: f, on @user_script:1.":              {true, true},   // takes no writes
		"OOM command not allowed when used memory > 'maxmemory'. script: f, on @user_script:1.":            {true, true},
		"NOREPLICAS Not enough good replicas to write.":                                                    {true, true},
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": {true, true},
		"WRONGPASS invalid username-password pair or user is disabled.":                                    {false, true}, // refuses
		"NOAUTH Authentication required.":                                                                  {false, true},
		"NOPERM this user has no permissions to access one of the keys used as arguments":                  {false, true},
		"NOPERM this user has no permissions to run the 'evalsha' command":                                 {false, true},
		"ERR ACL failure in script: No permissions to access a key":                                        {false, true},
		"ERR invalid password": {false, true},
		"DENIED Redis is running in protected mode because protected mode is enabled":                     {false, true},
		"ERR unknown command 'evalsha'":                                                                   {false, true},
		"ERR max daily request limit exceeded. Limit: 10000, Usage: 10001.":                               {false, true},
		"WRONGTYPE Operation against a key holding the wrong kind of value script: f, on @user_script:1.": {false, true},
		"ERR user_script:80: attempt to compare nil with number script: f, on @user_script:80.":           {false, true},
		"ERR value is not an integer or out of range script: f, on @user_script:1.":                       {false, true},
	} {
		for _, c := range []struct {
			plain string
			away  bool
		}{{"", want.one}, {text, want.all}} {
			g := newGrumbler(t)
			rdb := singleAt("redis://" + g.Addr().String())(t)
			s := newStore(t, rdb.client())
			g.plain, g.rest = c.plain, text
			for range 5 {
				if _, err := s.Reserve(t.Context(), "k", "", 1, 0); failing(err) != c.away {
					t.Errorf("%q, of all calls: %t: %v is taken for away: %t", text, c.plain != "", err, failing(err))
				}
			}
			if s.reachable() == c.away || (s.Trouble() != nil) != c.away {
				t.Errorf("%q, of all calls: %t: reachable %t, trouble %v", text, c.plain != "", s.reachable(), s.Trouble())
			}
			if err := s.Trouble(); err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%q: the reason is %q", text, err)
			}
			_ = s.rdb.Close()
		}
	}
}

// newStore is a store that believes to know the state.
func newStore(t *testing.T, rdb redis.UniversalClient) *Store {
	t.Helper()
	s, err := New(rdb, Options{Name: "sluice", Worker: "w", Limits: fixed(t, "10/s"), Bodies: &bodies{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, sh := range s.shards {
		sh.epoch = "id"
	}
	return s
}

// locked is a Redis of one user, whose client has the password from a variable of the test.
type locked struct {
	place
	t        *testing.T
	mu       sync.Mutex
	password string
}

func newLocked(t *testing.T) *locked {
	t.Helper()
	server := testenv.Redis(t)
	return locks(t, place{singleAt(server.URL()), only(server)})
}

func locks(t *testing.T, p place) *locked {
	t.Helper()
	l := &locked{place: p, t: t, password: "first"}
	l.do("acl", "setuser", "sluice", "on", ">first", "~*", "&*", "+@all")
	return l
}

func (l *locked) do(args ...any) {
	l.t.Helper()
	for _, admin := range l.servers() {
		if err := admin.Do(l.t.Context(), args...).Err(); err != nil {
			l.t.Fatalf("%v: %v", args, err)
		}
	}
}

func (l *locked) client() redis.UniversalClient {
	address := l.address(l.t)
	address.Login = func(context.Context) (string, string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return "sluice", l.password
	}
	return address.client()
}

func (l *locked) knows(password string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.password = password
}

// connections is how many the servers have taken.
func (l *locked) connections() (all int) {
	for _, admin := range l.servers() {
		n, _ := strconv.Atoi(field(admin.Info(l.t.Context(), "stats").Val(), "total_connections_received"))
		all += n
	}
	return all
}

// A rotated password, or a user whose rights are gone: the outage's policy rules, with few connections, and when all is put
// right it goes on.
func TestRedisThatRefusesAllCallsIsAway(t *testing.T) {
	t.Parallel()
	exchange := refusal{func(l *locked) {
		l.do("acl", "setuser", "sluice", "resetpass", ">second")
		l.do("client", "kill", "user", "sluice")
	}, func(l *locked) { l.knows("second") }, "WRONGPASS"}
	t.Run("another password in a Cluster", func(t *testing.T) {
		t.Parallel()
		exchange.isAway(t, locks(t, clusterPlace(testenv.RedisCluster(t))))
	})
	t.Run("another password behind Sentinels", func(t *testing.T) {
		t.Parallel()
		sentinel := testenv.RedisSentinel(t)
		exchange.isAway(t, locks(t, place{sentinelAt(sentinel.URL()), only(sentinel.Master())}))
	})
	for name, c := range map[string]refusal{
		"another password": exchange,
		"user disabled": {func(l *locked) {
			l.do("acl", "setuser", "sluice", "off")
			l.do("client", "kill", "user", "sluice")
		}, func(l *locked) { l.do("acl", "setuser", "sluice", "on") }, "WRONGPASS"},
		"user deleted": {func(l *locked) { l.do("acl", "deluser", "sluice") }, func(l *locked) {
			l.do("acl", "setuser", "sluice", "on", ">first", "~*", "+@all")
		}, "WRONGPASS"},
		"no scripts": {func(l *locked) { l.do("acl", "setuser", "sluice", "-evalsha", "-eval") }, func(l *locked) {
			l.do("acl", "setuser", "sluice", "+evalsha", "+eval")
		}, "NOPERM"},
		"no counting": {func(l *locked) { l.do("acl", "setuser", "sluice", "-hincrby") }, func(l *locked) {
			l.do("acl", "setuser", "sluice", "+hincrby")
		}, "can't run this command"},
		"no keys": {func(l *locked) { l.do("acl", "setuser", "sluice", "resetkeys") }, func(l *locked) {
			l.do("acl", "setuser", "sluice", "~*")
		}, "NOPERM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.isAway(t, newLocked(t))
		})
	}
}

// refusal is a reason why Redis refuses all.
type refusal struct {
	begin, end func(*locked)
	reason     string
}

func (c refusal) isAway(t *testing.T, l *locked) {
	w := newOutcast(t, l.client())
	w.wait("before", func() bool { return w.goes() == nil })

	c.begin(l)
	w.wait("refused", func() bool { return w.f.decided() > 3 })
	if err := w.store.Trouble(); err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(c.reason)) {
		t.Errorf("the trouble is %v, want %s", err, c.reason)
	}
	if said := w.said.String(); strings.Count(said, "Redis is away") != 1 || !strings.Contains(strings.ToLower(said), strings.ToLower(c.reason)) {
		t.Errorf("said %q, want once that Redis is away, with %s", said, c.reason)
	}
	before := l.connections()
	time.Sleep(time.Second)
	if n := l.connections() - before; n > 10 {
		t.Errorf("%d connections within a second of an outage that no try ends", n)
	}

	c.end(l)
	w.wait("back", func() bool { return strings.Contains(w.said.String(), "Redis is back") && w.goes() == nil })
	if w.store.Trouble() != nil {
		t.Errorf("after the end: %v", w.store.Trouble())
	}
}

// outcast is the one worker of a Redis, with events of many keys.
type outcast struct {
	t     *testing.T
	store *Store
	f     *Fallback
	said  *lines
	ctx   context.Context
	n     int
}

func newOutcast(t *testing.T, rdb redis.UniversalClient) *outcast {
	t.Helper()
	w := &outcast{t: t, said: &lines{}}
	var stop context.CancelFunc
	w.ctx, stop = context.WithCancel(t.Context())
	store, err := New(rdb, Options{Name: "sluice", Worker: "w", Limits: fixed(t, "1000/s"), Bodies: &bodies{created: 7}, Log: w.said.logger()})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Start(w.ctx); err != nil {
		t.Fatal(err)
	}
	crew := &crew{away: map[string]bool{}}
	w.store, w.f = store, NewFallback(store, FallbackOptions{Policy: Local, Fleet: crew.member("w"), Pause: func() {}, Resume: func() {}})
	var running sync.WaitGroup
	running.Go(func() { w.f.Run(w.ctx) })
	running.Go(func() { store.Run(w.ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		_ = rdb.Close()
	})
	return w
}

// goes asks for a token of one of many keys.
func (w *outcast) goes() error {
	w.n++
	_, err := w.f.Reserve(w.ctx, fmt.Sprint("k", w.n%100), "", 1, 0)
	return err
}

// wait asks on and on until ok, as the page does.
func (w *outcast) wait(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(15 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		_ = w.goes()
		if time.Now().After(end) {
			w.t.Fatalf("not %s: %v\n%s", what, w.goes(), w.said)
		}
	}
}

func (f *Fallback) decided() int64 {
	f.parking.Lock()
	defer f.parking.Unlock()
	return f.seen.decisions
}

// A user that lacks the right to one kind of keys or one command, and a shard whose state is no such: that is told as it is, and
// all else goes on.
func TestRefusalOfOneCallIsNoOutage(t *testing.T) {
	t.Parallel()
	l := newLocked(t)
	w := newOutcast(t, l.client())
	w.wait("before", func() bool { return w.goes() == nil })
	const hurt = "a"
	park := func() error {
		_, err := w.f.Park(w.ctx, pipeline.ParkRequest{Key: hurt, Entry: pipeline.Entry{BodyID: pipeline.BodyID{Seq: 1}, Order: 1, Cost: 1}})
		return err
	}
	epoch := w.store.shard(hurt).epochKey
	for _, rights := range [][]any{
		{"acl", "setuser", "sluice", "resetkeys", "~ratelimit:*", "~due:*", "~epoch:*"}, // lanes are forgotten
		{"acl", "setuser", "sluice", "~*", "-zadd"},
		{"set", epoch, "hello"},
	} {
		l.do(rights...)
		from := w.store.tries.Load()
		calls := func() int {
			stats := l.servers()[0].Info(t.Context(), "commandstats").Val()
			n, _, _ := strings.Cut(strings.TrimPrefix(field(stats, "cmdstat_evalsha"), "calls="), ",")
			k, _ := strconv.Atoi(n)
			return k
		}
		before := calls()
		for range 50 {
			err := park()
			if _, away := errors.AsType[*pipeline.Away](err); err == nil || away {
				t.Fatalf("%v: parked: %v, want its refusal", rights, err)
			}
			key := fmt.Sprint("k", w.n)
			if w.n++; w.store.shard(key) != w.store.shard(hurt) {
				if d, err := w.f.Reserve(w.ctx, key, "", 1, 0); err != nil || d.Verdict != limiter.Go {
					t.Fatalf("%v: reserved: %+v, %v", rights, d, err)
				}
			}
		}
		if n := calls() - before; n > 130 {
			t.Errorf("%v: %d calls for 50 of each", rights, n)
		}
		if !w.store.reachable() || w.store.Trouble() != nil || !w.f.present() || w.store.tries.Load() != from {
			t.Errorf("%v: taken for away: %v", rights, w.store.Trouble())
		}
	}
}

// One node of a Cluster refuses the login: what it holds waits, with few connections, and all else goes on.
func TestNodeThatRefusesTheLoginIsNotFlooded(t *testing.T) {
	t.Parallel()
	cluster := testenv.RedisCluster(t)
	l := locks(t, clusterPlace(cluster))
	w := newOutcast(t, l.client())
	w.wait("before", func() bool { return w.goes() == nil })
	node := l.servers()[1]
	for _, args := range [][]any{{"acl", "setuser", "sluice", "resetpass", ">second"}, {"client", "kill", "user", "sluice"}} {
		if err := node.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	held := func(sh *shard) bool { return node.Exists(t.Context(), sh.epochKey).Val() == 1 }
	var asking sync.WaitGroup
	before := l.connections()
	for i := range 16 {
		key := keyOf(i)
		at := held(w.store.shard(key))
		asking.Go(func() {
			for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
				_, err := w.f.Reserve(w.ctx, key, "", 1, 0)
				if at && !redis.IsAuthError(err) || !at && err != nil {
					t.Errorf("of the node that refuses: %t: %v", at, err)
					return
				}
			}
		})
	}
	asking.Wait()
	if n := l.connections() - before; n > 20 {
		t.Errorf("%d connections within a second", n)
	}
	l.knows("second")
	w.wait("put right", func() bool {
		for i := range 16 {
			if _, err := w.f.Reserve(w.ctx, keyOf(i), "", 1, 0); held(w.store.shard(keyOf(i))) && err != nil {
				return false
			}
		}
		return true
	})
}

func TestTriesOfARedisThatRefusesBecomeRare(t *testing.T) {
	inOutage(t, Closed, 0, func(o *outage) {
		o.because(refusedAll{errors.New("WRONGPASS")})
		o.lose(true)
		pass(20 * time.Second)
		if o.tries > 13 {
			t.Errorf("%d tries in 20 s", o.tries)
		}
		o.lose(false)
		pass(longestTrial + time.Second)
		o.wants("k", "go")
	})
}

func TestOutageTellsItsReasonAndWhenThatChanges(t *testing.T) {
	inOutage(t, Closed, 0, func(o *outage) {
		o.because(io.EOF)
		o.lose(true)
		pass(time.Second)
		o.because(refusedAll{redis.ErrCrossSlot})
		pass(5 * time.Second)
		for _, want := range []string{`msg="Redis is away"`, "reason=EOF", `msg="Redis is still away" reason="CROSSSLOT`} {
			if n := strings.Count(o.said.String(), want); n != 1 {
				t.Errorf("%q was said %d times in\n%s", want, n, o.said)
			}
		}
	})
}
