package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"sluice/pipeline/freshfile"
)

// reader turns the texts of variables into values and collects what is wrong with them, so that all faults are told at
// once. Its methods take a variable's name without the prefix; after a fault they return a zero value.
type reader struct {
	faults []string
	quoted map[string]bool // variables with that fault, and so no other
}

// configError lists all faults of the settings, one a line.
type configError struct{ faults []string }

func (e *configError) Error() string {
	if len(e.faults) == 1 {
		return e.faults[0]
	}
	return fmt.Sprintf("%d wrong settings:\n  %s", len(e.faults), strings.Join(e.faults, "\n  "))
}

func (r *reader) err() error {
	if len(r.faults) == 0 {
		return nil
	}
	return &configError{faults: r.faults}
}

// fault notes what is wrong with a variable whose value isn't shown.
func (r *reader) fault(name, wrong string) {
	name = prefix + strings.TrimPrefix(name, prefix)
	if r.quoted[name] {
		return
	}
	r.faults = append(r.faults, name+": "+wrong)
}

// faultf notes what is wrong with a value.
func (r *reader) faultf(name string, value any, format string, args ...any) {
	r.fault(name, fmt.Sprintf("value %q: ", fmt.Sprint(value))+fmt.Sprintf(format, args...))
}

// text is the trimmed value, or the default.
func (r *reader) text(name, raw string) string {
	if s := strings.TrimSpace(raw); s != "" && !r.isQuoted(name, s) {
		return s
	}
	return presetOf(name)
}

// isQuoted notes a value that is in quotes: nobody means them, and what they spoil may tell of itself much later, such as a
// stream that isn't found. The value isn't shown, for it may be a secret.
func (r *reader) isQuoted(name, text string) bool {
	if len(text) < 2 || text[0] != text[len(text)-1] || text[0] != '"' && text[0] != '\'' {
		return false
	}
	r.fault(name, fmt.Sprintf("its value begins and ends with the quote %c; remove both: some readers of env files, such as docker's "+
		"--env-file, take them for a part of the value", text[0]))
	if r.quoted == nil {
		r.quoted = map[string]bool{}
	}
	r.quoted[prefix+name] = true
	return true
}

func (r *reader) list(name, raw string) []string {
	var list []string
	for item := range strings.SplitSeq(r.text(name, raw), ",") {
		if item = strings.TrimSpace(item); item != "" {
			list = append(list, item)
		}
	}
	return list
}

func (r *reader) oneOf(name, raw string, allowed ...string) string {
	text := r.text(name, raw)
	for _, a := range allowed {
		if strings.EqualFold(text, a) {
			return a
		}
	}
	r.faultf(name, text, "is not known; use %s", strings.Join(allowed, " or "))
	return ""
}

func (r *reader) integer(name, raw string, least, most int64) int64 {
	text := r.text(name, raw)
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		r.faultf(name, text, "is not a whole number; use one such as %s", presetOf(name))
		return 0
	case err != nil || n < least || n > most:
		if most == math.MaxInt64 {
			r.faultf(name, text, "is out of range; use at least %d", least)
		} else {
			r.faultf(name, text, "is out of range; use %d to %d", least, most)
		}
		return 0
	}
	return n
}

// duration reads a duration of at least least.
func (r *reader) duration(name, raw string, least time.Duration) time.Duration {
	text := r.text(name, raw)
	d, err := parseDuration(text)
	switch {
	case err != nil:
		r.faultf(name, text, "%s; use one such as %s", err, presetOf(name))
		return 0
	case d < 0:
		r.faultf(name, text, "is negative; use one such as %s", presetOf(name))
		return 0
	case d < least:
		r.faultf(name, text, "is too short; use at least %s", least)
		return 0
	}
	return d
}

// parseDuration reads Go's durations, and days before them: 1d, 1d12h.
func parseDuration(s string) (time.Duration, error) {
	daysText, rest, found := strings.Cut(s, "d")
	if !found {
		if _, err := strconv.ParseFloat(s, 64); err == nil && strings.Trim(s, "0.") != "" {
			return 0, errors.New("has no unit")
		}
		d, err := time.ParseDuration(s)
		if err != nil {
			return 0, errors.New("is not a duration")
		}
		return d, nil
	}
	const day = 24 * time.Hour
	days, err := strconv.ParseUint(daysText, 10, 63)
	if err != nil {
		return 0, errors.New("is not a duration")
	}
	if days > uint64(math.MaxInt64/day) {
		return 0, errors.New("is too long")
	}
	d := time.Duration(days) * day
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || strings.ContainsAny(rest, "+-") {
		return 0, errors.New("is not a duration")
	}
	if more > math.MaxInt64-d {
		return 0, errors.New("is too long")
	}
	return d + more, nil
}

// size reads a number of bytes, at least a mebibyte: the least that is worth a stream.
func (r *reader) size(name, raw string) int64 {
	text := r.text(name, raw)
	n, err := humanize.ParseBytes(text)
	switch {
	case err != nil:
		r.faultf(name, text, "is not a size; use one such as %s", presetOf(name))
		return 0
	case n < 1<<20 || n > math.MaxInt64:
		r.faultf(name, text, "is out of range; use 1MiB to 8EiB")
		return 0
	}
	return int64(n)
}

// secret reads a secret from the variable or from the file that <name>_FILE names.
func (r *reader) secret(name, raw, file string) Secret {
	if file = strings.TrimSpace(file); file == "" || r.isQuoted(name+"_FILE", file) {
		if text := strings.TrimSpace(raw); text == "" || r.isQuoted(name, text) { // a file can hold one that has quotes
			return Secret(presetOf(name))
		}
		return Secret(raw)
	}
	if strings.TrimSpace(raw) != "" {
		r.fault(name, "is set together with "+prefix+name+"_FILE; unset one of them")
		return ""
	}
	text, err := readSmall(file)
	if err != nil {
		r.faultf(name+"_FILE", file, "%s", fileTrouble(err))
		return ""
	}
	if text = strings.TrimSpace(text); text == "" {
		r.faultf(name+"_FILE", file, "is empty; put the value into the file")
		return ""
	}
	return Secret(text)
}

// readSmall reads a file of at most 1 MiB.
func readSmall(path string) (string, error) {
	const most = 1 << 20
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && len(text) > most {
		err = errors.New("is larger than 1 MiB")
	}
	return string(text), err
}

// fileTrouble says why a file can't be read, without repeating its path.
func fileTrouble(err error) string {
	if inner, ok := errors.AsType[*os.PathError](err); ok {
		err = inner.Err
	}
	return "can't be read: " + err.Error() + "; check path and permissions"
}

// path reads the path of a file that must be readable.
func (r *reader) path(name, raw string) string {
	path := r.text(name, raw)
	if path == "" {
		return ""
	}
	if _, err := readSmall(path); err != nil {
		r.faultf(name, path, "%s", fileTrouble(err))
		return ""
	}
	return path
}

// TLSFiles are the paths of PEM files; all may be empty.
type TLSFiles struct {
	CA, Cert, Key string
}

// tlsFiles reads <name>_CA, <name>_CERT and <name>_KEY.
func (r *reader) tlsFiles(name string, raw tlsEnvironment) TLSFiles {
	before := len(r.faults)
	files := TLSFiles{
		CA:   r.path(name+"_CA", raw.CA),
		Cert: r.path(name+"_CERT", raw.Cert),
		Key:  r.path(name+"_KEY", raw.Key),
	}
	cert, key := strings.TrimSpace(raw.Cert), strings.TrimSpace(raw.Key)
	switch {
	case cert != "" && key == "":
		r.faultf(name+"_CERT", cert, "has no key; set %s%s_KEY, too", prefix, name)
	case key != "" && cert == "":
		r.faultf(name+"_KEY", key, "has no certificate; set %s%s_CERT, too", prefix, name)
	case len(r.faults) > before: // a file is missing already
	default:
		if _, err := (TLSFiles{CA: files.CA}).open(nil, ""); err != nil {
			r.faultf(name+"_CA", files.CA, "%s; use a PEM file of CERTIFICATE blocks", err)
		}
		if _, err := (TLSFiles{Cert: files.Cert, Key: files.Key}).open(nil, ""); err != nil {
			r.faultf(name+"_CERT", files.Cert, "%s; use PEM files that belong together", err)
		}
	}
	return files
}

// open is what the files say, read again when they change; nil if no file is given. name is what log calls them.
func (f TLSFiles) open(log *slog.Logger, name string) (*freshfile.Value[*tls.Config], error) {
	if f == (TLSFiles{}) {
		return nil, nil
	}
	return freshfile.OpenTLS(log, name, f.CA, f.Cert, f.Key)
}
