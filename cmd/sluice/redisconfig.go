package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"

	"sluice/limiter/redisstore"
	"sluice/pipeline/freshfile"
)

// RedisConfig is how to reach Redis.
type RedisConfig struct {
	URL      URL
	Mode     string // single, sentinel or cluster; "" counts as single
	Username string
	Password Secret
	TLS      TLSFiles

	URLFile, PasswordFile string // where these come from; "": from no file
}

func redisPart(r *reader, env *environment, cfg *Config) {
	raw := &env.Redis
	cfg.Redis = RedisConfig{
		URL:      URL(strings.TrimSpace(string(r.secret("REDIS_URL", raw.URL, raw.URLFile)))),
		Mode:     r.oneOf("REDIS_MODE", raw.Mode, "single", "sentinel", "cluster"),
		Username: r.text("REDIS_USERNAME", raw.Username),
		Password: r.secret("REDIS_PASSWORD", raw.Password, raw.PasswordFile),
		TLS:      r.tlsFiles("REDIS_TLS", raw.TLS),

		URLFile: strings.TrimSpace(raw.URLFile), PasswordFile: strings.TrimSpace(raw.PasswordFile),
	}
	c := cfg.Redis
	if c.URL == "" || c.Mode == "" {
		return // told already: its file is missing, or the URL can't be judged
	}
	if wrong := c.urlFault(); wrong != "" {
		r.faultf("REDIS_URL", c.URL, "%s", wrong)
	}
	if c.URL.hasUser() && c.Mode != "sentinel" && (c.Username != "" || c.Password != "") {
		r.faultf("REDIS_URL", c.URL, "holds a user or password beside SLUICE_REDIS_USERNAME or SLUICE_REDIS_PASSWORD; give them once")
	}
	if q := c.query(); c.Mode == "sentinel" && (q.Has("username") && c.Username != "" || q.Has("password") && c.Password != "") {
		r.faultf("REDIS_URL", c.URL, "holds username or password beside SLUICE_REDIS_USERNAME or SLUICE_REDIS_PASSWORD; give them once")
	}
	if c.TLS != (TLSFiles{}) && !strings.HasPrefix(string(c.URL), "rediss://") {
		r.faultf("REDIS_URL", c.URL, "doesn't use the files of SLUICE_REDIS_TLS_…; use rediss://, or unset them")
	}
}

// query is that of the URL; empty if it has none that can be read.
func (c RedisConfig) query() url.Values {
	u, err := url.Parse(string(c.URL))
	if err != nil {
		return nil
	}
	return u.Query()
}

// example of a URL in the mode.
func (c RedisConfig) example() string {
	switch c.Mode {
	case "sentinel":
		return "redis://127.0.0.1:26379/0?master_name=mymaster"
	case "cluster":
		return "redis://127.0.0.1:6379?addr=127.0.0.1:6380"
	}
	return presetOf("REDIS_URL")
}

// urlFault says what is wrong with the URL, without any of its user and password.
func (c RedisConfig) urlFault() string {
	if wrong := c.modeFault(); wrong != "" {
		return wrong
	}
	_, err := c.parse(string(c.URL))
	if err == nil {
		return ""
	}
	if _, rest := c.parse(c.URL.withoutUser()); rest != nil {
		if inner, ok := errors.AsType[*url.Error](rest); ok {
			rest = inner.Err
		}
		return strings.TrimPrefix(rest.Error(), "redis: ") + "; use one such as " + c.example()
	}
	return "has a user or password that is not percent-encoded; encode it or use SLUICE_REDIS_PASSWORD"
}

// modeFault says what of the URL belongs to another mode.
func (c RedisConfig) modeFault() string {
	u, err := url.Parse(string(c.URL))
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" {
		return "" // parse tells, or it is a socket, which only single has
	}
	q := u.Query()
	switch database := strings.Trim(u.Path, "/"); {
	case c.Mode == "sentinel":
		if q.Get("master_name") == "" {
			return "names no master; add the name that the Sentinels watch, as in " + c.example()
		}
	case q.Has("master_name"):
		return "names a master, which is for Sentinels; set SLUICE_REDIS_MODE=sentinel, or remove master_name"
	case c.Mode != "cluster":
		if q.Has("addr") {
			return "names more than one server; set SLUICE_REDIS_MODE=cluster or sentinel, or remove addr"
		}
	case database != "" && database != "0" || q.Has("db"):
		return "names a database, and a Cluster has only number 0; remove it, as in " + c.example()
	}
	return ""
}

// parse reads a URL in go-redis' own syntax, which differs by mode.
func (c RedisConfig) parse(text string) (a redisstore.Address, err error) {
	switch c.Mode {
	case "sentinel":
		a.Sentinel, err = redis.ParseFailoverURL(text)
	case "cluster":
		a.Cluster, err = redis.ParseClusterURL(text)
	default:
		a.Single, err = redis.ParseURL(text)
	}
	return a, err
}

// address is that of the URL, completed by the other variables. What comes from files is read again when they change, which log
// is told.
func (c RedisConfig) address(log *slog.Logger) (redisstore.Address, error) {
	if wrong := c.urlFault(); wrong != "" {
		return redisstore.Address{}, fmt.Errorf("SLUICE_REDIS_URL: %s", wrong)
	}
	a, err := c.parse(string(c.URL))
	if err != nil {
		return a, errors.New("SLUICE_REDIS_URL can't be read") // told by urlFault
	}
	username, password, used := credentialsOf(a)
	if c.Username != "" {
		*username = c.Username
	}
	if c.Password != "" {
		*password = string(c.Password)
	}
	c.follow(&a, log)
	if used != nil {
		used.MinVersion = tls.VersionTLS12
	}
	files, err := c.TLS.open(log, "SLUICE_REDIS_TLS_…")
	if err != nil {
		return a, fmt.Errorf("SLUICE_REDIS_TLS_…: %w", err)
	}
	if files != nil {
		a.TLS = files.Await
	}
	return a, nil
}

// credentialsOf are user and password for the servers that hold keys, and what is used of TLS, nil without. A Sentinel URL's user
// and password are the Sentinels' own.
func credentialsOf(a redisstore.Address) (username, password *string, used *tls.Config) {
	switch {
	case a.Sentinel != nil:
		return &a.Sentinel.Username, &a.Sentinel.Password, a.Sentinel.TLSConfig
	case a.Cluster != nil:
		return &a.Cluster.Username, &a.Cluster.Password, a.Cluster.TLSConfig
	}
	return &a.Single.Username, &a.Single.Password, a.Single.TLSConfig
}

// follow has user and password read again if they come from a file. Another address in the file of the URL doesn't count.
func (c RedisConfig) follow(a *redisstore.Address, log *slog.Logger) {
	type login struct{ username, password string }
	username, password, _ := credentialsOf(*a)
	first := login{*username, *password}
	var v *freshfile.Value[login]
	switch {
	case c.PasswordFile != "":
		v = freshfile.New(first, log, "SLUICE_REDIS_PASSWORD_FILE", func(texts []string) (login, error) {
			password, err := freshfile.Secret(texts)
			return login{first.username, password}, err
		}, c.PasswordFile)
	case c.URLFile != "" && c.Password == "" && (c.URL.hasUser() || c.Mode == "sentinel"):
		v = freshfile.New(first, log, "SLUICE_REDIS_URL_FILE", func(texts []string) (login, error) {
			u := RedisConfig{URL: URL(strings.TrimSpace(texts[0])), Mode: c.Mode}
			if wrong := u.urlFault(); wrong != "" {
				return login{}, errors.New(wrong)
			}
			now, err := u.parse(string(u.URL))
			if err != nil {
				return login{}, errors.New("can't be read") // told by urlFault
			}
			username, password, _ := credentialsOf(now)
			return login{*username, *password}, nil
		}, c.URLFile)
	default:
		return
	}
	a.Login = func(ctx context.Context) (string, string) {
		now := v.Await(ctx)
		return now.username, now.password
	}
}
