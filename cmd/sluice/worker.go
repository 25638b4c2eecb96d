package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"sluice/cmd/sluice/statuspage"
	"sluice/limiter"
	"sluice/limiter/redisstore"
	"sluice/pipeline"
	"sluice/pipeline/metrics"
	"sluice/pipeline/stream"
	"sluice/sink"
)

func newWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "worker",
		Short: "Pull events, take their tokens, push them",
		Long: `Run a worker until SIGINT or SIGTERM: pull events from the source stream, take a token from the bucket of each event's
key, push what may go and let the rest wait in its lane. Any number of workers share the work. When nobody reads its log, or
what SLUICE_SINK=log writes, it ends in an orderly way, too, and exits with 1.

` + configHelp(),
		Example: `  SLUICE_WEBHOOK_URL=http://127.0.0.1:8080/hook sluice worker
  SLUICE_SINK=log SLUICE_SETUP=all SLUICE_LIMIT='5/s burst 5' sluice worker`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(workerParts...)
			if err != nil {
				return err
			}
			collectLess(300)
			ctx, end := untilUnread(cmd)
			defer end()
			w := &worker{cfg: cfg, log: newLogger(cfg, cmd.ErrOrStderr()), reg: newRegistry(), out: cmd.OutOrStdout()}
			defer captureLibraries(w.log)()
			return unread(ctx, w.run(ctx))
		},
	}
}

// collectLess sets GOGC unless the person has. A worker keeps little and makes much garbage: under a flood a sixth of its time went
// into collecting it; at 300 it takes up to 30 MiB more.
func collectLess(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// worker is a process of sluice worker: everything that is opened, in the order of opening.
type worker struct {
	cfg Config
	log *slog.Logger
	reg *prometheus.Registry
	out io.Writer // of the log sink

	admin net.Listener          // of metrics and probes; nil: run opens it
	watch func(*pipeline.Ports) // looks on, by wrapping ports before the pipeline begins; nil: nobody does

	status   *statuspage.Page // made by run
	book     atomic.Pointer[limiter.Book]
	nc       atomic.Pointer[nats.Conn]
	store    atomic.Pointer[redisstore.Store]
	page     atomic.Pointer[pipeline.Worker]
	started  atomic.Bool // was ready once
	draining atomic.Bool
}

// closeTimeout bounds each step of the end that talks to a server.
const closeTimeout = 5 * time.Second

// run works until ctx ends. What is opened last is closed first: the pipeline ends before NATS, NATS before Redis.
func (w *worker) run(ctx context.Context) error {
	admin := w.admin
	if admin == nil {
		var err error
		if admin, err = listenAdmin(w.cfg.AdminAddr, w.cfg.AdminExplicit, w.log); err != nil {
			return err
		}
	}
	w.log.Info("admin server listens", "addr", admin.Addr().String())
	w.registerUp()
	adminCtx, stopAdmin := context.WithCancel(context.WithoutCancel(ctx))
	w.status = statuspage.New(w.statusConfig())
	var serving sync.WaitGroup
	serving.Go(func() { w.status.Run(adminCtx) })
	serving.Go(func() { w.serve(adminCtx, admin) })
	defer func() {
		stopAdmin()
		serving.Wait()
	}()

	nc, rdb, err := w.connect(ctx)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { _ = rdb.Close() }()
	defer closeNATS(nc)
	return unlessStopped(ctx, w.work(ctx, nc, rdb))
}

// serve serves the admin address. A worker goes on without it: what it does matters more than that it can be seen.
func (w *worker) serve(ctx context.Context, admin net.Listener) {
	if err := serveAdmin(ctx, admin, newAdmin(w.reg, w.ready, w.status)); err != nil {
		w.log.Error("metrics, probes and the status page are gone", "err", err)
	}
}

// unlessStopped is err, but nil when all that happened is that the worker was asked to stop.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// connect waits for both servers at once, so that one run tells of both what is in the way.
func (w *worker) connect(ctx context.Context) (nc *nats.Conn, rdb redis.UniversalClient, err error) {
	address, err := w.cfg.Redis.address(w.log)
	if err != nil {
		return nil, nil, err
	}
	var g errgroup.Group
	g.Go(func() (err error) {
		nc, err = stream.Connect(ctx, w.cfg.stream(), w.log)
		return err
	})
	g.Go(func() (err error) {
		rdb, err = redisstore.Connect(ctx, address, w.cfg.Redis.URL.String(), w.log)
		return err
	})
	if err := g.Wait(); err != nil {
		if nc != nil {
			nc.Close()
		}
		if rdb != nil {
			_ = rdb.Close()
		}
		return nil, nil, err
	}
	w.nc.Store(nc)
	return nc, rdb, nil
}

// closeNATS sends what is still to be sent.
func closeNATS(nc *nats.Conn) {
	_ = nc.FlushTimeout(closeTimeout) // not connected: whatever wasn't told is told again by the source
	nc.Close()
}

// work opens the parts, from the inside out, and runs the pipeline.
func (w *worker) work(ctx context.Context, nc *nats.Conn, rdb redis.UniversalClient) error {
	sc := w.cfg.stream()
	js, err := sc.JetStream(nc)
	if err != nil {
		return err
	}
	if err := w.setup(ctx, js, sc); err != nil {
		return err
	}
	lanes, err := stream.OpenLanes(ctx, js, sc)
	if err != nil {
		return err
	}
	dead, err := stream.OpenDeadLetters(ctx, js, sc)
	if err != nil {
		return err
	}
	pusher, err := w.sink()
	if err != nil {
		return err
	}
	id := workerID()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer func() {
		stop()
		background.Wait()
	}()
	fleet, err := stream.JoinFleet(nc, sc, w.info(id))
	if err != nil {
		return err
	}
	book := limiter.NewBook(w.cfg.Limit)
	w.book.Store(book)
	live, err := stream.OpenLimits(ctx, js, sc, book, w.log, fleet.RunsLimits)
	if err != nil {
		return err
	}
	w.registerLimits(live)
	background.Go(func() { live.Run(running) })
	store, err := redisstore.New(rdb, redisstore.Options{
		Name: w.cfg.Name, Worker: id, Limits: book, Tiers: w.cfg.AllowTier,
		MaxWait: w.cfg.MaxWait, KeyMaxWaiting: w.cfg.KeyMaxWaiting, KeyConcurrency: w.cfg.KeyConcurrency,
		Bodies: lanes, Log: w.log, Registry: w.reg,
	})
	if err != nil {
		return err
	}
	if err := store.Start(ctx); err != nil {
		return err
	}
	w.store.Store(store)
	w.registerKeyTokens(store)
	waiting := newRearmer(store.Rearm, w.log)
	book.Subscribe(waiting.changed)
	waiting.changed(func(string) bool { return true }) // limits may have changed while no worker ran
	background.Go(func() { waiting.run(running) })
	background.Go(func() { store.Run(running) })
	keeper := stream.NewKeeper(js, sc, lanes, dead, w.log, store.Follow)
	background.Go(func() { keeper.Run(running) })
	background.Go(func() { fleet.Run(running) })

	source, err := stream.OpenSource(ctx, js, sc, w.log)
	if err != nil {
		return err
	}
	limits := redisstore.NewFallback(store, redisstore.FallbackOptions{
		Policy: w.cfg.Outage.Policy, Grace: w.cfg.Outage.Grace, Fleet: fleet, Pause: source.Pause, Resume: source.Resume,
	})
	background.Go(func() { limits.Run(running) })
	w.registerSource(source)
	look := &fleetLook{metrics.NewFleet(w.reg, fleetFresh), source, lanes, dead, store, fleet, w.log}
	background.Go(func() { look.run(running) })
	gossip := stream.NewGossip(nc, sc)
	observer := metrics.New(w.reg, book, pusher.Name(), sink.Classes, sink.Class)
	ports := pipeline.Ports{
		Source: source, Limiter: limits, Index: limits, Lanes: lanes, DeadLetters: dead, Sink: pusher, Gossip: gossip,
		Observer: observer, Log: w.log,
	}
	if hook, ok := pusher.(*sink.Webhook); ok {
		ports.Reach = func(ctx context.Context) error {
			_, err := hook.Reach(ctx)
			return err
		}
	}
	if w.watch != nil {
		w.watch(&ports)
	}
	p := pipeline.New(w.pipeline(), ports)
	w.page.Store(p)
	book.Subscribe(func(func(string) bool) { p.LimitsChanged() })
	unsubscribe, err := gossip.Subscribe(p.Cooling)
	if err != nil {
		return errors.Join(err, source.Close(ctx))
	}
	defer unsubscribe()
	w.status.Begin(statuspage.Parts{Worker: id, HotKeys: observer.HotKeys(), Levels: store.Levels, Workers: fleet.Workers})
	w.started.Store(true)
	w.log.Info("working", "limit", w.cfg.Limit.String(), "key", w.cfg.Key.String(), "sink", pusher.Name(), "concurrency", w.cfg.Concurrency)
	return w.pump(ctx, p, source)
}

// pump runs the pipeline and closes the source. When ctx ends, what the source holds goes back at once, before the pushes
// in flight have ended.
func (w *worker) pump(ctx context.Context, p *pipeline.Worker, source *stream.Source) error {
	stopped := context.AfterFunc(ctx, func() {
		w.draining.Store(true)
		w.log.Info("stopping; pushes in flight may finish", "cause", context.Cause(ctx).Error(), "within", w.cfg.DrainTimeout.String())
		source.Stop()
	})
	defer stopped()
	start := time.Now()
	err := p.Run(ctx)
	if ctx.Err() != nil {
		start = time.Now()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err = errors.Join(err, source.Close(closing))
	w.log.Info("stopped", "closed_in", time.Since(start).Round(time.Millisecond).String())
	return err
}

func (w *worker) setup(ctx context.Context, js jetstream.JetStream, sc stream.Config) error {
	actions, err := stream.Setup(ctx, js, sc)
	for _, a := range actions {
		level := slog.LevelDebug
		if a.Did == "created" || a.Did == "updated" {
			level = slog.LevelInfo
		} else if a.Did == "differs" {
			level = slog.LevelWarn
		}
		w.log.Log(ctx, level, "set-up", "object", a.Object, "did", a.Did, "detail", a.Detail)
	}
	return err
}

func (w *worker) sink() (pipeline.Sink, error) {
	if w.cfg.Sink == "log" {
		return sink.NewLog(w.out), nil
	}
	return w.cfg.webhook(w.log)
}

func (w *worker) pipeline() pipeline.Config {
	r := w.cfg.Retry
	return pipeline.Config{
		Key: w.cfg.Key, Tiers: w.cfg.AllowTier, Concurrency: w.cfg.Concurrency, Drain: w.cfg.DrainTimeout,
		MaxWait: w.cfg.MaxWait, KeyMaxWaiting: w.cfg.KeyMaxWaiting, Drop: w.cfg.Overflow == "drop",
		KeyConcurrency: w.cfg.KeyConcurrency,
		Retry:          pipeline.Retry{For: r.For, Max: r.Max, Base: r.Base, Cap: r.Cap},
	}
}

// ready is true when the worker was connected once and isn't draining. What is degraded shows in the details only: taking
// a worker away from work because a server is away would help nobody.
func (w *worker) ready() (bool, map[string]string) {
	details := map[string]string{"nats": "not connected", "redis": "not connected"}
	if nc := w.nc.Load(); nc != nil {
		details["nats"] = strings.ToLower(nc.Status().String())
		if why := stream.Trouble(nc); why != "" {
			details["nats"] += ": " + why
		}
	}
	if store := w.store.Load(); store != nil {
		details["redis"] = "connected"
		if err := store.Trouble(); err != nil {
			details["redis"] = "away: " + err.Error()
		}
	}
	if p := w.page.Load(); p != nil {
		details["destination"] = "answers"
		if since, away := p.DestinationAway(); away {
			details["destination"] = "away for " + time.Since(since).Round(time.Second).String()
		}
	}
	if w.draining.Load() {
		details["worker"] = "draining"
	}
	return w.started.Load() && !w.draining.Load(), details
}

func (w *worker) redisUp() bool {
	store := w.store.Load()
	return store != nil && store.Trouble() == nil
}

func (w *worker) natsUp() bool {
	nc := w.nc.Load()
	return nc != nil && nc.IsConnected()
}

// registerUp registers what is known of the connections.
func (w *worker) registerUp() {
	up := func(name, help string, is func() bool) {
		w.gauge(name, help, func() float64 {
			if is() {
				return 1
			}
			return 0
		})
	}
	up("sluice_nats_up", "Whether NATS is connected.", w.natsUp)
	up("sluice_redis_up", "Whether Redis can be worked with: it answers, takes writes and refuses not every call.", w.redisUp)
}

// registerLimits registers what is known of the limits that rule.
func (w *worker) registerLimits(live *stream.Limits) {
	w.gauge("sluice_limits_version", "The last change of limits that rules in this worker.", func() float64 { return float64(live.Version().Seq) })
	w.gauge("sluice_limits_faults", "Entries in the bucket of limits that can't be understood and are ignored.", func() float64 { return float64(live.Faults()) })
}

func (w *worker) registerSource(source *stream.Source) {
	metrics.Skipped(w.reg, "marker", func() float64 { return float64(source.Skipped().Markers) })
	metrics.Skipped(w.reg, "schedule", func() float64 { return float64(source.Skipped().Schedules) })
}

func (w *worker) gauge(name, help string, value func() float64) {
	w.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
}

// info is what the worker tells of itself when it starts.
func (w *worker) info(id string) stream.WorkerInfo {
	return stream.WorkerInfo{ID: id, Settings: w.cfg.fingerprint(), Build: buildInfo().short(), Since: time.Now().UTC()}
}

// workerID is unique among all workers, and tells a person where to look.
func workerID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), rand.Text()[:8])
}
