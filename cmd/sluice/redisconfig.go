package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"

	"sluice/limiter/redisstore"
)

// RedisConfig is how to reach Redis.
type RedisConfig struct {
	URL      URL
	Mode     string // single, sentinel or cluster; "" counts as single
	Username string
	Password Secret
	TLS      TLSFiles
}

func redisPart(r *reader, env *environment, cfg *Config) {
	raw := &env.Redis
	cfg.Redis = RedisConfig{
		URL:      URL(strings.TrimSpace(string(r.secret("REDIS_URL", raw.URL, raw.URLFile)))),
		Mode:     r.oneOf("REDIS_MODE", raw.Mode, "single", "sentinel", "cluster"),
		Username: r.text("REDIS_USERNAME", raw.Username),
		Password: r.secret("REDIS_PASSWORD", raw.Password, raw.PasswordFile),
		TLS:      r.tlsFiles("REDIS_TLS", raw.TLS),
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

// address is that of the URL, completed by the other variables.
func (c RedisConfig) address() (redisstore.Address, error) {
	if wrong := c.urlFault(); wrong != "" {
		return redisstore.Address{}, fmt.Errorf("SLUICE_REDIS_URL: %s", wrong)
	}
	a, err := c.parse(string(c.URL))
	if err != nil {
		return a, errors.New("SLUICE_REDIS_URL can't be read") // told by urlFault
	}
	files, err := c.TLS.Config()
	if err != nil {
		return a, fmt.Errorf("SLUICE_REDIS_TLS_…: %w", err)
	}
	switch {
	case a.Sentinel != nil: // its URL's user and password are the Sentinels' own
		c.complete(&a.Sentinel.Username, &a.Sentinel.Password, a.Sentinel.TLSConfig, files)
	case a.Cluster != nil:
		c.complete(&a.Cluster.Username, &a.Cluster.Password, a.Cluster.TLSConfig, files)
	default:
		c.complete(&a.Single.Username, &a.Single.Password, a.Single.TLSConfig, files)
	}
	return a, nil
}

// complete fills in what the URL doesn't hold. used is nil without TLS, files without files.
func (c RedisConfig) complete(username, password *string, used, files *tls.Config) {
	if c.Username != "" {
		*username = c.Username
	}
	if c.Password != "" {
		*password = string(c.Password)
	}
	if used == nil {
		return
	}
	used.MinVersion = tls.VersionTLS12
	if files != nil {
		used.RootCAs, used.Certificates = files.RootCAs, files.Certificates
	}
}
