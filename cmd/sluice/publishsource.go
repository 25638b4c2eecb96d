package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/nats-io/nats.go"

	"sluice/pipeline"
)

// publishSource is where the events come from: one message, or the lines of a file.
type publishSource struct {
	one      *nats.Msg
	file     io.Reader
	close    func()
	size     int64 // of the file in bytes; 0 if unknown
	header   nats.Header
	subjects subjectTemplate
	strict   bool
}

func (f *publishFlags) open(stdin io.Reader, args []string, cfg Config, header nats.Header) (*publishSource, error) {
	s := &publishSource{close: func() {}, header: header, strict: f.strict}
	if f.file == "" {
		msg, err := f.oneEvent(stdin, args, header)
		s.one = msg
		return s, err
	}
	s.subjects = defaultTemplate(cfg.Subjects)
	if f.subject != "" {
		s.subjects = subjectTemplate(f.subject)
		if err := s.subjects.check(); err != nil {
			return nil, usagef("--subject: %s", err)
		}
	}
	if f.file == "-" {
		s.file = stdin
		return s, nil
	}
	file, err := os.Open(f.file)
	if err != nil {
		return nil, fmt.Errorf("reading events: %w", err)
	}
	s.file, s.close = file, func() { _ = file.Close() }
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		s.size = info.Size()
	}
	return s, nil
}

// oneEvent makes the message of SUBJECT and DATA.
func (f *publishFlags) oneEvent(stdin io.Reader, args []string, header nats.Header) (*nats.Msg, error) {
	if err := checkSubject(args[0]); err != nil {
		return nil, usagef("SUBJECT %s", err)
	}
	if err := setID(header, f.id); err != nil {
		return nil, usagef("--id: %s", err)
	}
	if err := pipeline.CheckHeader(pipeline.Header(header)); err != nil {
		return nil, usagef("--header: %s", err)
	}
	msg := &nats.Msg{Subject: args[0], Header: header}
	switch {
	case len(args) == 2 && args[1] != "-":
		msg.Data = []byte(args[1])
		return msg, nil
	case len(args) == 1 && isTerminal(stdin):
		return nil, usagef("DATA is missing; give it, or - to type it in")
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxEvent+1))
	if err != nil {
		return nil, fmt.Errorf("reading standard input: %w", err)
	}
	if len(data) > maxEvent {
		return nil, fmt.Errorf("standard input has more than %d MiB", maxEvent>>20)
	}
	msg.Data = data
	return msg, nil
}

// each publishes all events. It returns the number of bad lines and why it stopped before the end, if it did.
func (s *publishSource) each(ctx context.Context, p *publisher, out *progress) (bad int64, stopped error) {
	if s.one != nil {
		return 0, p.publish(ctx, "", s.one)
	}
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := readLines(reading, s.file)
	for {
		var line numberedLine
		open := false
		select {
		case line, open = <-lines:
		case <-ctx.Done():
		}
		if !open || line.final {
			return bad, s.whyEnded(ctx, line)
		}
		name := fmt.Sprintf("line %d", line.number)
		msg, err := s.decode(line)
		if err != nil {
			bad++
			out.report(fmt.Errorf("%s: %w", name, err))
			if s.strict {
				return bad, fmt.Errorf("stopped at %s, since --strict is set", name)
			}
		} else if err := p.publish(ctx, name, msg); err != nil {
			return bad, fmt.Errorf("stopped at %s: %w", name, err)
		}
		out.set(line.offset)
	}
}

// whyEnded is nil at the end of the file.
func (s *publishSource) whyEnded(ctx context.Context, line numberedLine) error {
	switch {
	case line.final:
		return fmt.Errorf("reading events after line %d: %w", line.number, line.err)
	case ctx.Err() != nil:
		return fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	return nil
}

func (s *publishSource) decode(line numberedLine) (*nats.Msg, error) {
	if line.err != nil {
		return nil, line.err
	}
	msg, err := decodeLine(line.text, s.subjects)
	if err != nil {
		return nil, err
	}
	for name, values := range s.header {
		if !hasHeader(msg.Header, name) {
			msg.Header[name] = values
		}
	}
	if err := pipeline.CheckHeader(pipeline.Header(msg.Header)); err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	return msg, nil
}

// numberedLine is one line of a file, or why there is none.
type numberedLine struct {
	text   []byte
	err    error
	final  bool // err ends the file
	number int
	offset int64
}

// readLines reads ahead until ctx ends. Its goroutine outlives ctx while a read blocks: a terminal can't be told to give
// up a read, and the command is to end all the same.
func readLines(ctx context.Context, in io.Reader) <-chan numberedLine {
	lines := make(chan numberedLine, 64)
	go func() {
		defer close(lines)
		reader := newLineReader(in)
		for {
			text, err := reader.next()
			if errors.Is(err, io.EOF) {
				return
			}
			final := err != nil && !errors.Is(err, errLineTooLong)
			select {
			case lines <- numberedLine{text: text, err: err, final: final, number: reader.number, offset: reader.offset}:
			case <-ctx.Done():
				return
			}
			if final {
				return
			}
		}
	}()
	return lines
}
