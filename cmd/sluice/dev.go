package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"sluice/pipeline"
	"sluice/pipeline/stream"
	"sluice/sink"
)

// devDrain is the longest that pushes in flight may take at the end: a person waits.
const devDrain = 500 * time.Millisecond

// devFlags are the flags of dev, as given.
type devFlags struct {
	noDemo bool
	sink   string
	file   string
	json   bool
}

func newDevCommand() *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process and watch it: NATS, Redis, a worker, a receiver, users",
		Long: `Run a worker with all that it needs in one process: a NATS server on 127.0.0.1:4222 and a Redis on 127.0.0.1:6379 (or
the next free ports), a receiver that takes every event, a dozen users who publish now and then, and one, mallory, who
floods. A table shows what becomes of each user's events; without a terminal it is a line a second. Anybody may publish
to the server. Ctrl-C ends it and removes all data.

With -f the events of an NDJSON file are delivered instead of those of the demo, and a summary per user is printed. A line
is as for 'sluice publish'. A bad line is told with its number and field and doesn't stop the others. Exits with 1 if a
line was bad, an event was dead-lettered or dropped, or the command was ended before all events were settled. An empty file
is no error.

The worker's SLUICE_ variables count: SLUICE_LIMIT, SLUICE_KEY, SLUICE_RETRY_…, SLUICE_WEBHOOK_SECRETS and so on, but not
those that say where NATS, Redis and the receiver are.`,
		Example: `  sluice dev
  SLUICE_LIMIT='50/s burst 50' sluice dev
  sluice dev --no-demo --sink http://127.0.0.1:8080/hook
  sluice dev -f events.ndjson`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.noDemo, "no-demo", false, "publish nothing: only what others publish is delivered")
	flags.StringVar(&f.sink, "sink", "", "URL that events are pushed to, instead of a receiver that takes all")
	flags.StringVarP(&f.file, "file", "f", "", "deliver the events of an NDJSON file and end; - is standard input")
	flags.BoolVar(&f.json, "json", false, "with -f: print the summary as JSON")
	return cmd
}

// dev is a run of the command.
type dev struct {
	cfg     Config
	servers *devServers
	nc      *nats.Conn
	js      jetstream.JetStream
	ledger  *ledger
	notices *notices
	log     *slog.Logger
	logPath string
	admin   net.Listener
}

func (f *devFlags) run(cmd *cobra.Command) (err error) {
	cfg, err := f.config()
	if err != nil {
		return err
	}
	ctx, end := untilUnread(cmd)
	defer end()
	defer func() { err = unread(ctx, err) }()
	var file *publishSource
	keep := recentWaits
	if f.file != "" {
		keep = 0
		if file, err = (&publishFlags{file: f.file}).open(cmd.InOrStdin(), nil, cfg, nil); err != nil {
			return err
		}
		defer file.close()
	}
	d := &dev{cfg: cfg, ledger: newLedger(keep), notices: &notices{}}
	if d.servers, err = startServers(f.sink == ""); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.servers.close()) }()
	closeAll, err := d.open(ctx)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer closeAll()
	if file != nil {
		return d.deliver(ctx, cmd, f, file)
	}
	return d.show(ctx, cmd, f)
}

// config reads the worker's variables, but takes dev's own servers.
func (f *devFlags) config() (Config, error) {
	if f.json && f.file == "" {
		return Config{}, usagef("--json needs -f")
	}
	if f.sink != "" {
		check := sink.WebhookConfig{URL: f.sink, Timeout: time.Second}
		if err := check.Validate(); err != nil {
			return Config{}, usagef("%s", strings.ReplaceAll(err.Error(), "SLUICE_WEBHOOK_URL", "--sink"))
		}
	}
	pushes := func(r *reader, env *environment, cfg *Config) {
		env.Sink, env.Webhook.URL = "webhook", cmp.Or(f.sink, "http://127.0.0.1/") // the receiver's comes when it listens
		sinkPart(r, env, cfg)
	}
	cfg, err := loadConfig(sourcePart, ownPart, limitPart, pushes, runPart)
	if err != nil {
		return cfg, err
	}
	if f.file != "" && cfg.Limit.Paused() {
		return cfg, usagef("SLUICE_LIMIT is 0: nothing would ever be delivered")
	}
	cfg.Setup, cfg.Replicas = "all", 1
	cfg.DrainTimeout = min(cfg.DrainTimeout, devDrain)
	return cfg, nil
}

// open connects to the servers, makes the streams and opens all that the worker is given. The function returned closes it.
func (d *dev) open(ctx context.Context) (closeAll func(), err error) {
	var closers []func()
	closeAll = func() {
		for i := len(closers) - 1; i >= 0; i-- {
			closers[i]()
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	d.cfg.NATS.URLs, d.cfg.Redis.URL = []URL{URL(d.servers.natsURL())}, URL(d.servers.redisURL())
	if d.servers.hookURL != "" {
		d.cfg.Webhook.URL = URL(d.servers.hookURL)
	}
	d.logPath = filepath.Join(d.servers.dir, "worker.log")
	file, err := os.Create(d.logPath)
	if err != nil {
		return nil, fmt.Errorf("making the log: %w", err)
	}
	closers = append(closers, func() { _ = file.Close() })
	d.log = d.newLogger(file)
	closers = append(closers, captureLibraries(d.log))
	if d.admin, err = listenAdmin(d.cfg.AdminAddr, d.cfg.AdminExplicit, d.log); err != nil {
		return nil, err
	}
	closers = append(closers, func() { _ = d.admin.Close() }) // the worker has closed it, if it began

	d.nc, err = stream.Dial(ctx, d.cfg.stream(), func(err error) { d.log.Warn(err.Error()) })
	if err != nil {
		return nil, err
	}
	closers = append(closers, d.nc.Close)
	sc := d.cfg.stream()
	if d.js, err = sc.JetStream(d.nc); err != nil {
		return nil, err
	}
	if _, err = stream.Setup(ctx, d.js, sc); err != nil {
		return nil, err
	}
	unfollow, err := d.ledger.follow(ctx, d.js, d.cfg)
	if err != nil {
		return nil, err
	}
	closers = append(closers, unfollow)
	return closeAll, nil
}

// newLogger logs to w, and to the notices what needs attention.
func (d *dev) newLogger(w io.Writer) *slog.Logger {
	brief := &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}}
	return slog.New(slog.NewMultiHandler(newLogger(d.cfg, w).Handler(), slog.NewTextHandler(d.notices, brief)))
}

// work runs the worker, the view, and beside them what is given, until ctx ends or one of them fails.
func (d *dev) work(ctx context.Context, view *devView, beside ...func(context.Context) error) error {
	w := &worker{cfg: d.cfg, log: d.log, reg: newRegistry(), out: io.Discard, admin: d.admin, watch: func(ports *pipeline.Ports) {
		d.ledger.watch(ports, d.cfg.Overflow == "drop")
	}}
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return w.run(running) })
	g.Go(func() error {
		view.run(running)
		return nil
	})
	for _, run := range beside {
		g.Go(func() error { return run(running) })
	}
	return g.Wait()
}

// show runs until it is told to end.
func (d *dev) show(ctx context.Context, cmd *cobra.Command, f *devFlags) error {
	view := newDevView(cmd.OutOrStdout(), d.ledger, d.notices, nil)
	var beside []func(context.Context) error
	hints := d.hints(f.sink)
	if !f.noDemo {
		users, err := newDemo(d.cfg, d.nc, d.ledger)
		if err != nil {
			hints += fmt.Sprintf("There are no events of a demo: %s.\n", err)
		} else {
			beside = append(beside, func(ctx context.Context) error {
				users.run(ctx)
				return nil
			})
		}
	}
	if _, err := io.WriteString(view.lines, hints); err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return d.work(ctx, view, beside...)
}
