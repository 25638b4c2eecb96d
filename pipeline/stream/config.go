package stream

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// SetupMode says what sluice may create in NATS: the value of SLUICE_SETUP.
type SetupMode string

// The modes. In none of them is a stream or consumer that sluice didn't make ever changed.
const (
	SetupOwn SetupMode = "own" // its lanes, its dead letters and its consumer
	SetupAll SetupMode = "all" // the source stream too
	SetupOff SetupMode = "off" // nothing
)

// Config is what this package has to know. Comments name the variable of each field.
type Config struct {
	URLs        string // SLUICE_NATS_URL, separated by commas
	Creds       string // SLUICE_NATS_CREDS, a file
	NKey        string // SLUICE_NATS_NKEY, a file with the seed
	User        string // SLUICE_NATS_USER
	Password    string // SLUICE_NATS_PASSWORD
	Token       string // SLUICE_NATS_TOKEN
	TLSCA       string // SLUICE_NATS_TLS_CA, a file
	TLSCert     string // SLUICE_NATS_TLS_CERT, a file
	TLSKey      string // SLUICE_NATS_TLS_KEY, a file
	InboxPrefix string // SLUICE_NATS_INBOX_PREFIX

	// The files that the fields of these names come from, to be read again when they change; empty: from no file.
	URLFile, PasswordFile, TokenFile string

	JSDomain string // SLUICE_NATS_JS_DOMAIN

	Name     string    // SLUICE_NAME
	Stream   string    // SLUICE_STREAM, the source
	Subjects []string  // SLUICE_SUBJECTS, which of the source's events are taken
	Consumer string    // SLUICE_CONSUMER, the durable; empty: Name
	Setup    SetupMode // SLUICE_SETUP

	Replicas      int   // SLUICE_REPLICAS, of what sluice creates
	LanesMaxBytes int64 // SLUICE_LANES_MAX_BYTES
	DLQMaxBytes   int64 // SLUICE_DLQ_MAX_BYTES
}

// Validate tells everything that is wrong at once, each with the variable to change and none with a secret.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, a ...any) { faults = append(faults, fmt.Errorf(format, a...)) }

	names, err := NewNames(c.Name)
	if err != nil {
		faults = append(faults, err)
	}
	for i, u := range c.urls() {
		// The reason a URL can't be read quotes parts of it, the password perhaps among them.
		if p, err := url.Parse(u); err != nil || p.Host == "" {
			fault("SLUICE_NATS_URL: URL %d of the list can't be read; it should be like nats://host:4222", i+1)
		}
	}
	switch {
	case c.Stream == "" || strings.ContainsAny(c.Stream, ".*> \t\r\n/\\:"):
		fault("SLUICE_STREAM: %q is not the name of a stream sluice can read (no dots, wildcards, spaces, slashes or colons)", c.Stream)
	case err == nil && (c.Stream == names.LanesStream() || c.Stream == names.DLQStream()):
		fault("SLUICE_STREAM: %s is a stream of sluice's own", c.Stream)
	}
	if strings.ContainsAny(c.consumer(), ".*> \t\r\n/\\") {
		fault("SLUICE_CONSUMER: %q is not the name of a consumer (no dots, wildcards, spaces or slashes)", c.Consumer)
	}
	if len(c.Subjects) == 0 {
		fault("SLUICE_SUBJECTS: at least one subject is needed")
	}
	for _, s := range c.Subjects {
		if !validSubject(s) {
			fault("SLUICE_SUBJECTS: %q is not a subject", s)
		}
	}
	switch c.Setup {
	case SetupOwn, SetupAll, SetupOff:
	default:
		fault("SLUICE_SETUP: %q is none of own, all, off", c.Setup)
	}
	if c.Replicas < 1 || c.Replicas > 5 {
		fault("SLUICE_REPLICAS: %d is not 1 to 5", c.Replicas)
	}
	if c.LanesMaxBytes <= 0 {
		fault("SLUICE_LANES_MAX_BYTES: must be more than 0")
	}
	if c.DLQMaxBytes <= 0 {
		fault("SLUICE_DLQ_MAX_BYTES: must be more than 0")
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		fault("SLUICE_NATS_TLS_CERT and SLUICE_NATS_TLS_KEY: one without the other")
	}
	for _, f := range []struct{ variable, path string }{
		{"SLUICE_NATS_CREDS", c.Creds}, {"SLUICE_NATS_NKEY", c.NKey}, {"SLUICE_NATS_TLS_CA", c.TLSCA},
		{"SLUICE_NATS_TLS_CERT", c.TLSCert}, {"SLUICE_NATS_TLS_KEY", c.TLSKey},
	} {
		if f.path == "" {
			continue
		}
		file, err := os.Open(f.path)
		if err != nil {
			fault("%s: %w", f.variable, err)
			continue
		}
		_ = file.Close()
	}
	return errors.Join(faults...)
}

func (c Config) consumer() string {
	if c.Consumer == "" {
		return c.Name
	}
	return c.Consumer
}

// names of a config that was validated.
func (c Config) names() Names { return Names{name: c.Name} }

// urls are the servers, each with a scheme.
func (c Config) urls() []string {
	var all []string
	for u := range strings.SplitSeq(c.URLs, ",") {
		if u = strings.TrimSpace(u); u == "" {
			continue
		}
		if !strings.Contains(u, "://") {
			u = "nats://" + u
		}
		all = append(all, u)
	}
	if len(all) == 0 {
		all = []string{"nats://127.0.0.1:4222"}
	}
	return all
}

// where is the list of servers as it may be logged: without users, passwords, tokens and paths.
func (c Config) where() string {
	var all []string
	for _, u := range c.urls() {
		scheme, rest, _ := strings.Cut(u, "://")
		rest = rest[strings.LastIndexByte(rest, '@')+1:]
		if i := strings.IndexAny(rest, "/?#"); i >= 0 {
			rest = rest[:i]
		}
		all = append(all, scheme+"://"+rest)
	}
	return strings.Join(all, ", ")
}

// login names the variables that say who we are to NATS.
func (c Config) login() string {
	var set []string
	for _, v := range []struct{ name, value string }{
		{"SLUICE_NATS_CREDS", c.Creds}, {"SLUICE_NATS_NKEY", c.NKey}, {"SLUICE_NATS_USER", c.User},
		{"SLUICE_NATS_PASSWORD", c.Password}, {"SLUICE_NATS_TOKEN", c.Token}, {"SLUICE_NATS_TLS_CERT", c.TLSCert},
	} {
		if v.value != "" {
			set = append(set, v.name)
		}
	}
	if strings.Contains(c.URLs, "@") {
		set = append(set, "SLUICE_NATS_URL")
	}
	if len(set) == 0 {
		return "none of SLUICE_NATS_CREDS, _NKEY, _USER and _PASSWORD, _TOKEN is set"
	}
	return "set by " + strings.Join(set, ", ")
}

// JetStream is the JetStream that the config means, over nc.
func (c Config) JetStream(nc *nats.Conn, opts ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
	if c.JSDomain != "" {
		return jetstream.NewWithDomain(nc, c.JSDomain, opts...)
	}
	return jetstream.New(nc, opts...)
}

// api is the prefix of the JetStream API, with the last dot.
func (c Config) api() string {
	if c.JSDomain != "" {
		return "$JS." + c.JSDomain + ".API."
	}
	return jetstream.DefaultAPIPrefix
}

// validSubject says whether s may stand in a consumer's filter.
func validSubject(s string) bool {
	if s == "" || strings.ContainsAny(s, " \t\r\n") {
		return false
	}
	tokens := strings.Split(s, ".")
	for i, t := range tokens {
		if t == "" || t == ">" && i < len(tokens)-1 {
			return false
		}
	}
	return true
}
