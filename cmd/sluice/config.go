package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"

	"sluice/limiter"
	"sluice/pipeline"
	"sluice/pipeline/stream"
	"sluice/sink"
)

// Config is what the SLUICE_ variables say. It may be printed and logged: no field shows a secret.
type Config struct {
	Name string

	NATS NATSConfig

	Stream        string
	Subjects      []string
	Consumer      string
	Setup         string // own, all or off
	Replicas      int
	LanesMaxBytes int64
	DLQMaxBytes   int64

	Redis RedisConfig

	Key           pipeline.KeySpec
	Limit         limiter.Limits
	AllowTier     bool
	MaxWait       time.Duration // 0: any
	KeyMaxWaiting int64         // 0: any number
	Overflow      string        // deadletter or drop

	KeyConcurrency int // pushes of a key in flight over all workers; 0: any number

	Outage OutageConfig

	Sink    string // webhook or log
	Webhook WebhookConfig
	Retry   RetryConfig

	Concurrency   int
	DrainTimeout  time.Duration
	AdminAddr     string
	AdminExplicit bool     // AdminAddr was set, not the default
	MetricKeys    []string // whose tokens are a metric

	LogLevel  slog.Level
	LogFormat string // text or json
}

// WebhookConfig is where and how events are pushed.
type WebhookConfig struct {
	URL      URL
	Secrets  []Secret
	Timeout  time.Duration
	ConnLife time.Duration // 0: for ever
	TLS      TLSFiles

	SecretsFile string // where Secrets come from; "": from no file
}

// RetryConfig is how failed pushes are repeated.
type RetryConfig struct {
	For       time.Duration
	Max       int // 0: any number
	Base, Cap time.Duration
}

// part reads the variables of one concern.
type part func(*reader, *environment, *Config)

// workerParts are all there are. A command names the parts it needs: only their variables can be wrong for it.
var workerParts = []part{natsPart, sourcePart, ownPart, redisPart, limitPart, outagePart, sinkPart, runPart}

// loadConfig reads the variables of the given parts, and of name and log, from the environment. The error tells all
// faults at once, among them every unknown variable with the prefix.
func loadConfig(parts ...part) (Config, error) {
	var env environment
	if err := envconfig.Process(strings.TrimSuffix(prefix, "_"), &env); err != nil {
		return Config{}, fmt.Errorf("reading the environment: %w", err) // can't be: all fields are strings
	}
	var (
		r   reader
		cfg Config
	)
	basePart(&r, &env, &cfg)
	for _, p := range parts {
		p(&r, &env, &cfg)
	}
	checkNames(&r, os.Environ())
	return cfg, r.err()
}

func basePart(r *reader, env *environment, cfg *Config) {
	cfg.Name = r.text("NAME", env.Name)
	if _, err := stream.NewNames(cfg.Name); err != nil {
		r.faultf("NAME", cfg.Name, "is not a name; use 1 to 32 of a to z, 0 to 9, - and _, a letter first")
	}
	level := r.oneOf("LOG_LEVEL", env.LogLevel, "debug", "info", "warn", "error")
	_ = cfg.LogLevel.UnmarshalText([]byte(level)) // knows all of these; "" after a fault
	cfg.LogFormat = r.oneOf("LOG_FORMAT", env.LogFormat, "text", "json")
}

// plainName is what NATS takes as the name of anything.
var plainName = regexp.MustCompile(`^[^\s.*>/\\:]{1,255}$`)

// natsName reads the name of a stream or consumer that others may have given.
func (r *reader) natsName(name, raw string) string {
	text := r.text(name, raw)
	if !plainName.MatchString(text) {
		r.faultf(name, text, "is not a name in NATS; use one without spaces, dots, colons, slashes and wildcards")
	}
	return text
}

func sourcePart(r *reader, env *environment, cfg *Config) {
	cfg.Stream = r.natsName("STREAM", env.Stream)
	if own, err := stream.NewNames(cfg.Name); err == nil && (cfg.Stream == own.LanesStream() || cfg.Stream == own.DLQStream()) {
		r.faultf("STREAM", cfg.Stream, "is one of sluice's own streams; name the one that producers publish to")
	}
	cfg.Consumer = cfg.Name
	if strings.TrimSpace(env.Consumer) != "" {
		cfg.Consumer = r.natsName("CONSUMER", env.Consumer)
	}
	cfg.Subjects = r.list("SUBJECTS", env.Subjects)
	if len(cfg.Subjects) == 0 {
		r.faultf("SUBJECTS", strings.TrimSpace(env.Subjects), "names no subject; use one such as %s", presetOf("SUBJECTS"))
	}
	for _, s := range cfg.Subjects {
		if !validSubject(s) {
			r.faultf("SUBJECTS", s, "is not a subject; use one such as %s", presetOf("SUBJECTS"))
		}
	}
}

// validSubject says whether s is a subject or a filter: tokens by dots, * for one token, > for the rest.
func validSubject(s string) bool {
	tokens := strings.Split(s, ".")
	for i, token := range tokens {
		last := i == len(tokens)-1
		switch {
		case token == "" || strings.ContainsFunc(token, subjectBreaker):
			return false
		case token == "*" || token == ">" && last:
		case strings.ContainsAny(token, "*>"):
			return false
		}
	}
	return true
}

// subjectBreaker says whether c can't stand in a subject at all.
func subjectBreaker(c rune) bool { return c <= ' ' || c == 0x7f }

func ownPart(r *reader, env *environment, cfg *Config) {
	cfg.Setup = r.oneOf("SETUP", env.Setup, "own", "all", "off")
	cfg.Replicas = int(r.integer("REPLICAS", env.Replicas, 1, 5))
	cfg.LanesMaxBytes = r.size("LANES_MAX_BYTES", env.LanesMaxBytes)
	cfg.DLQMaxBytes = r.size("DLQ_MAX_BYTES", env.DLQMaxBytes)
}

func limitPart(r *reader, env *environment, cfg *Config) {
	keyText := r.text("KEY", env.Key)
	key, err := pipeline.ParseKeySpec(keyText)
	if err != nil {
		r.faultf("KEY", keyText, "%s", err)
	}
	cfg.Key = key

	limitText := r.text("LIMIT", env.Limit)
	limit, err := limiter.ParseLimits(limitText)
	if err != nil {
		if inner := errors.Unwrap(err); inner != nil {
			err = inner // the outer error repeats the value
		}
		r.faultf("LIMIT", limitText, "%s", err)
	}
	cfg.Limit = limit

	cfg.AllowTier = r.oneOf("ALLOW_TIER", env.AllowTier, "false", "true") == "true"
	cfg.MaxWait = r.duration("MAX_WAIT", env.MaxWait, 0)
	cfg.KeyMaxWaiting = r.integer("KEY_MAX_WAITING", env.KeyMaxWaiting, 0, math.MaxInt64)
	cfg.Overflow = r.oneOf("OVERFLOW", env.Overflow, "deadletter", "drop")
	cfg.KeyConcurrency = int(r.integer("KEY_CONCURRENCY", env.KeyConcurrency, 0, 65536))
}

func sinkPart(r *reader, env *environment, cfg *Config) {
	if name := r.text("SINK", env.Sink); strings.EqualFold(name, "nats") {
		r.faultf("SINK", name, "not supported by this version; use webhook or log")
	} else {
		cfg.Sink = r.oneOf("SINK", env.Sink, "webhook", "log")
	}
	r.webhook(&env.Webhook, cfg)

	cfg.Retry = RetryConfig{
		For:  r.duration("RETRY_FOR", env.Retry.For, time.Second),
		Max:  int(r.integer("RETRY_MAX", env.Retry.Max, 0, math.MaxInt32)),
		Base: r.duration("RETRY_BASE", env.Retry.Base, time.Millisecond),
		Cap:  r.duration("RETRY_CAP", env.Retry.Cap, time.Millisecond),
	}
	if c := cfg.Retry; c.Base > c.Cap && c.Cap > 0 {
		r.faultf("RETRY_BASE", r.text("RETRY_BASE", env.Retry.Base), "is longer than SLUICE_RETRY_CAP, %s; swap or adjust them",
			r.text("RETRY_CAP", env.Retry.Cap))
	}
}

// webhook reads WEBHOOK_…; they are checked only if events are pushed there.
func (r *reader) webhook(raw *webhookEnvironment, cfg *Config) {
	cfg.Webhook.URL = URL(r.text("WEBHOOK_URL", raw.URL))
	plain := hookSecrets(string(r.secret("WEBHOOK_SECRETS", raw.Secrets, raw.SecretsFile)))
	for _, s := range plain {
		cfg.Webhook.Secrets = append(cfg.Webhook.Secrets, Secret(s))
	}
	cfg.Webhook.SecretsFile = strings.TrimSpace(raw.SecretsFile)
	cfg.Webhook.TLS = r.tlsFiles("WEBHOOK_TLS", raw.TLS)
	cfg.Webhook.Timeout = r.duration("WEBHOOK_TIMEOUT", raw.Timeout, time.Millisecond)
	cfg.Webhook.ConnLife = r.duration("WEBHOOK_CONN_LIFE", raw.ConnLife, 0)
	if cfg.Sink != "webhook" {
		return
	}
	if u := cfg.Webhook.URL; cfg.Webhook.TLS != (TLSFiles{}) && u != "" && !strings.HasPrefix(strings.ToLower(string(u)), "https://") {
		r.faultf("WEBHOOK_URL", u, "doesn't use the files of SLUICE_WEBHOOK_TLS_…; use https://, or unset them")
	}
	// The secrets are to be checked even where the URL is refused here.
	check := sink.WebhookConfig{URL: "http://127.0.0.1/", Secrets: plain, Timeout: time.Second}
	switch u := cfg.Webhook.URL; {
	case u == "":
		r.fault("WEBHOOK_URL", "is not set; set it to where events are pushed, or SLUICE_SINK=log to write them to the log")
	case strings.Contains(string(u), "#"):
		// Refused before anyone takes what stands before it for the whole: it may be the first half of a password.
		r.faultf("WEBHOOK_URL", u, "holds a #, and what follows that is never sent; write it as %%23, or remove it")
	default:
		check.URL = string(u)
	}
	if err := check.Validate(); err != nil {
		r.faults = append(r.faults, strings.Split(err.Error(), "\n")...)
	}
}

// hookSecrets are those of a list, by commas or lines.
func hookSecrets(list string) (secrets []string) {
	for _, s := range strings.FieldsFunc(list, func(c rune) bool { return c == ',' || c == '\n' }) {
		if s = strings.TrimSpace(s); s != "" {
			secrets = append(secrets, s)
		}
	}
	return secrets
}

func runPart(r *reader, env *environment, cfg *Config) {
	cfg.Concurrency = int(r.integer("CONCURRENCY", env.Concurrency, 1, 65536))
	cfg.DrainTimeout = r.duration("DRAIN_TIMEOUT", env.DrainTimeout, time.Millisecond)
	cfg.AdminAddr = r.text("ADMIN_ADDR", env.AdminAddr)
	cfg.AdminExplicit = strings.TrimSpace(env.AdminAddr) != ""
	cfg.MetricKeys = r.metricKeys(env.MetricKeys)
	_, port, err := net.SplitHostPort(cfg.AdminAddr)
	if n, portErr := strconv.Atoi(port); err != nil || portErr != nil || n < 0 || n > 65535 {
		r.faultf("ADMIN_ADDR", cfg.AdminAddr, "is not host:port; use one such as %s", presetOf("ADMIN_ADDR"))
	}
}

// fingerprint is the same for equal settings, and most likely another for others. Secrets, and what may differ between workers that
// do the same, don't count.
func (cfg Config) fingerprint() string {
	cfg.AdminAddr, cfg.AdminExplicit, cfg.MetricKeys, cfg.LogLevel, cfg.LogFormat = "", false, nil, 0, ""
	if cfg.Webhook.SecretsFile != "" { // how many there are changes while it runs
		cfg.Webhook.Secrets = nil
	}
	cfg.NATS.URLFile, cfg.NATS.PasswordFile, cfg.NATS.TokenFile = "", "", ""
	cfg.Redis.URLFile, cfg.Redis.PasswordFile, cfg.Webhook.SecretsFile = "", "", ""
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v", cfg))
	return hex.EncodeToString(sum[:4])
}

// newLogger logs to w as LOG_LEVEL and LOG_FORMAT say.
func newLogger(cfg Config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.LogLevel}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
