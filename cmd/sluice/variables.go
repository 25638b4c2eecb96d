package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"
)

const prefix = "SLUICE_"

// variable is one setting as people see it. Names are without the prefix.
type variable struct {
	name, preset, help string
}

// variables are all settings, in the order of the help. The presets are the defaults.
var variables = []variable{
	{"NAME", "sluice", "prefix of streams, buckets, Redis keys and the consumer: several pipelines side by side"},

	{"NATS_URL", "nats://127.0.0.1:4222", "list of server URLs"},
	{"NATS_URL_FILE", "", "file that holds NATS_URL"},
	{"NATS_CREDS", "", "path of a credentials file"},
	{"NATS_NKEY", "", "path of an nkey seed file"},
	{"NATS_USER", "", "user name"},
	{"NATS_PASSWORD", "", "password of NATS_USER"},
	{"NATS_PASSWORD_FILE", "", "file that holds NATS_PASSWORD"},
	{"NATS_TOKEN", "", "authentication token"},
	{"NATS_TOKEN_FILE", "", "file that holds NATS_TOKEN"},
	{"NATS_TLS_CA", "", "path of the certificate authorities, PEM"},
	{"NATS_TLS_CERT", "", "path of the client certificate, PEM"},
	{"NATS_TLS_KEY", "", "path of the client certificate's key, PEM"},
	{"NATS_INBOX_PREFIX", "", "prefix of reply subjects, for accounts that allow only some (default _INBOX)"},
	{"NATS_JS_DOMAIN", "", "JetStream domain"},

	{"STREAM", "EVENTS", "the producers' stream"},
	{"SUBJECTS", "events.>", "list of filter subjects within the stream"},
	{"CONSUMER", "", "durable consumer (default: SLUICE_NAME)"},
	{"SETUP", "own", "own: create what is missing of sluice's own; all: the producers' stream too; off: nothing"},
	{"REPLICAS", "1", "of sluice's own streams, 1 to 5"},
	{"LANES_MAX_BYTES", "8GiB", "most that waiting events may take"},
	{"DLQ_MAX_BYTES", "1GiB", "most that dead letters may take"},

	{"KEY", "subject:2", "who is limited: header:NAME, subject:N or json:path, joined by +; alternatives by comma"},

	{"REDIS_URL", "redis://127.0.0.1:6379/0", "redis://, rediss:// (TLS) or unix:// with go-redis' options"},
	{"REDIS_URL_FILE", "", "file that holds REDIS_URL"},
	{"REDIS_MODE", "single", "single, sentinel (the URL names master_name) or cluster (the URL may name more nodes by addr)"},
	{"REDIS_USERNAME", "", "user name"},
	{"REDIS_PASSWORD", "", "password"},
	{"REDIS_PASSWORD_FILE", "", "file that holds REDIS_PASSWORD"},
	{"REDIS_TLS_CA", "", "path of the certificate authorities, PEM"},
	{"REDIS_TLS_CERT", "", "path of the client certificate, PEM"},
	{"REDIS_TLS_KEY", "", "path of the client certificate's key, PEM"},

	{"LIMIT", "10/s burst 20", "limits of every key: N/UNIT [burst B] [bucket, window, leaky or sliding], several by comma; 0 (pause) or unlimited"},
	{"ALLOW_TIER", "false", "true: an event may name the tier whose limits rule it, in the header Sluice-Tier; trust your producers"},
	{"MAX_WAIT", "1h", "longest expected wait of an event before OVERFLOW applies; 0: any"},
	{"KEY_MAX_WAITING", "0", "most events of a key that wait before OVERFLOW applies; 0: any number"},
	{"OVERFLOW", "deadletter", "deadletter or drop"},
	{"KEY_CONCURRENCY", "0", "pushes of a key in flight, over all workers. 1: one by one in the order of the source; 0: no such bound"},

	{"ON_REDIS_DOWN", "local", "while Redis is away: local (each worker passes its share of the limits), closed (nothing passes) or open (all does)"},
	{"ON_REDIS_DOWN_GRACE", "0", "for how long that holds; then closed. 0: as long as Redis is away"},

	{"SINK", "webhook", "webhook or log"},
	{"WEBHOOK_URL", "", "where events are pushed; {key} in path or query stands for the escaped key"},
	{"WEBHOOK_SECRETS", "", "list of signing secrets, whsec_…; the first signs first"},
	{"WEBHOOK_SECRETS_FILE", "", "file that holds WEBHOOK_SECRETS, by lines or commas"},
	{"WEBHOOK_TLS_CA", "", "path of the certificate authorities, PEM; unset: the system's"},
	{"WEBHOOK_TLS_CERT", "", "path of the client certificate, PEM"},
	{"WEBHOOK_TLS_KEY", "", "path of the client certificate's key, PEM"},
	{"WEBHOOK_TIMEOUT", "15s", "of one push"},
	{"WEBHOOK_CONN_LIFE", "5m", "how long a connection takes pushes, so that a name that has moved is followed; 0: for ever"},
	{"RETRY_FOR", "24h", "how long an event is retried after its first attempt"},
	{"RETRY_MAX", "0", "most attempts; 0: any number"},
	{"RETRY_BASE", "1s", "longest first pause between attempts; it doubles with each"},
	{"RETRY_CAP", "1h", "longest pause between attempts"},

	{"CONCURRENCY", "256", "pushes in flight per worker, 1 to 65536"},
	{"DRAIN_TIMEOUT", "20s", "how long pushes in flight may finish after SIGTERM"},
	{"ADMIN_ADDR", "127.0.0.1:7780", "status page, metrics and probes; if taken and not set: the next free port"},
	{"METRIC_KEYS", "", "list of at most 20 keys whose tokens are the metric sluice_key_tokens{key}; a comma in a key is %2C"},
	{"LOG_LEVEL", "info", "debug, info, warn or error"},
	{"LOG_FORMAT", "text", "text or json"},
}

// laterVariables are part of the contract but not of this version: setting one must not be silently without effect.
var laterVariables = []string{
	"WEBHOOK_ALLOW_CIDRS",
}

// presetOf is the default of a variable.
func presetOf(name string) string {
	for _, v := range variables {
		if v.name == name {
			return v.preset
		}
	}
	panic("no variable " + name) // a misspelt name in this package; every one is read in every test of the defaults
}

// writeVariables writes the table of all settings, for help texts.
func writeVariables(w io.Writer) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, v := range variables {
		preset := v.preset
		if preset == "" {
			preset = "-"
		}
		if _, err := fmt.Fprintf(tab, "  %s%s\t%s\t%s\n", prefix, v.name, preset, v.help); err != nil {
			return err
		}
	}
	return tab.Flush()
}

// configHelp is the table of all settings with the rules that hold for all of them.
func configHelp() string {
	var b strings.Builder
	b.WriteString("Settings (variable, default, meaning):\n")
	_ = writeVariables(&b) // a strings.Builder takes everything
	b.WriteString("\nAn empty variable counts as unset. Lists are separated by commas. Durations: 500ms, 15s, 1h30m, 1d12h.\n" +
		"Sizes: 500MB, 8GiB or bytes. An unknown variable with the prefix SLUICE_ is an error.\n")
	return b.String()
}

// Kubernetes tells every pod about the services of its namespace. Those of services called "sluice" or "sluice-…" have
// our prefix.
var (
	serviceVariable = regexp.MustCompile(`^SLUICE_(?:[A-Z0-9_]+_)?SERVICE_(?:HOST|PORT(?:_[A-Z0-9_]+)?)$`)
	portVariable    = regexp.MustCompile(`^SLUICE_(?:[A-Z0-9_]+_)?PORT(?:_[0-9]+_(?:TCP|UDP|SCTP))?$`)
	portPart        = regexp.MustCompile(`^SLUICE_(?:[A-Z0-9_]+_)?PORT_[0-9]+_(?:TCP|UDP|SCTP)_(?:PROTO|PORT|ADDR)$`)
	portValue       = regexp.MustCompile(`^(?:tcp|udp|sctp)://`)
)

// injected says whether Kubernetes set the variable. The plain …_PORT is taken for Kubernetes' only with such a value as
// Kubernetes gives it, since SLUICE_ADMIN_PORT=7780 is more likely meant for us.
func injected(name, value string) bool {
	if serviceVariable.MatchString(name) || portPart.MatchString(name) {
		return true
	}
	return portVariable.MatchString(name) && portValue.MatchString(value)
}

// checkNames reports variables of environ (NAME=value) that look like settings and are none.
func checkNames(r *reader, environ []string) {
	known := make(map[string]bool, len(variables))
	for _, v := range variables {
		known[prefix+v.name] = true
	}
	later := make(map[string]bool, len(laterVariables))
	for _, name := range laterVariables {
		later[prefix+name] = true
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case !strings.HasPrefix(name, prefix) || known[name] || strings.TrimSpace(value) == "" || injected(name, value):
		case later[name]:
			r.fault(name, "not supported by this version; unset it")
		default:
			// The value isn't shown: a misspelt name may hold a secret.
			r.fault(name, "unknown variable; "+suggestion(name))
		}
	}
}

// suggestion names the variable that name was probably meant to be.
func suggestion(name string) string {
	best, least := "", len(name)
	for _, v := range variables {
		if d := editDistance(name, prefix+v.name); d < least {
			best, least = prefix+v.name, d
		}
	}
	if least > 1+(len(name)-len(prefix))/3 {
		return "unset it, or see 'sluice worker --help'"
	}
	return "did you mean " + best + "?"
}

// editDistance counts the letters to be added, removed or changed to make a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
