package main

// environment is the raw text of every variable. The names that are read follow from the names of the fields: SLUICE_,
// the words of the field, nested structs first. There are no envconfig: tags, which would make the names without the
// prefix count, too.
type environment struct {
	Name string

	NATS natsEnvironment

	Stream        string
	Subjects      string
	Consumer      string
	Setup         string
	Replicas      string
	LanesMaxBytes string `split_words:"true"`
	DLQMaxBytes   string `split_words:"true"`

	Key string

	Redis redisEnvironment

	Limit         string
	AllowTier     string `split_words:"true"`
	MaxWait       string `split_words:"true"`
	KeyMaxWaiting string `split_words:"true"`
	Overflow      string

	KeyConcurrency string `split_words:"true"`

	OnRedisDown      string `split_words:"true"`
	OnRedisDownGrace string `split_words:"true"`

	Sink    string
	Webhook webhookEnvironment
	Retry   retryEnvironment

	Concurrency  string
	DrainTimeout string `split_words:"true"`
	AdminAddr    string `split_words:"true"`
	MetricKeys   string `split_words:"true"`
	LogLevel     string `split_words:"true"`
	LogFormat    string `split_words:"true"`
}

type natsEnvironment struct {
	URL          string
	URLFile      string `split_words:"true"`
	Creds        string
	Nkey         string
	User         string
	Password     string
	PasswordFile string `split_words:"true"`
	Token        string
	TokenFile    string `split_words:"true"`
	TLS          tlsEnvironment
	InboxPrefix  string `split_words:"true"`
	JSDomain     string `split_words:"true"`
}

type redisEnvironment struct {
	URL          string
	URLFile      string `split_words:"true"`
	Mode         string
	Username     string
	Password     string
	PasswordFile string `split_words:"true"`
	TLS          tlsEnvironment
}

type webhookEnvironment struct {
	URL         string
	Secrets     string
	SecretsFile string `split_words:"true"`
	Timeout     string
	ConnLife    string `split_words:"true"`
	TLS         tlsEnvironment
}

type retryEnvironment struct {
	For  string
	Max  string
	Base string
	Cap  string
}

type tlsEnvironment struct {
	CA   string
	Cert string
	Key  string
}
