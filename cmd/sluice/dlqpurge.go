package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"sluice/pipeline/stream"
)

// purgeFlags are the flags of purge, as given.
type purgeFlags struct {
	letterFlags
	dryRun, yes, json bool
}

func newDLQPurgeCommand() *cobra.Command {
	var f purgeFlags
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Delete dead letters for good",
		Long: `Delete the selected dead letters, or all. Their events are lost for good, so that it asks first, and without a terminal
needs --yes.`,
		Example: `  sluice dlq purge --reason rejected --older 30d --dry-run
  sluice dlq purge --id order-17 --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only say how many there are")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "don't ask; needed without a terminal")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the counts as JSON")
	return cmd
}

func (f *purgeFlags) run(cmd *cobra.Command) error {
	s, err := f.parse(time.Now())
	if err != nil {
		return err
	}
	ask := !f.yes && !f.dryRun
	if ask && !isTerminal(cmd.InOrStdin()) {
		return usagef("purged events are lost for good; give --yes, or --dry-run to see how many they are")
	}
	ctx := cmd.Context()
	b, err := openLetters(ctx, newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer b.nc.Close()
	letters, tally, err := b.gather(ctx, s)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if len(letters) == 0 && !f.json || f.dryRun {
		return printPlan(out, "purge", s, tally, len(letters), f.json)
	}
	if ask && len(letters) > 0 {
		if err := confirm(cmd, fmt.Sprintf("Delete %s for good?", tally)); err != nil {
			return err
		}
	}
	bar := newCountProgress(cmd.ErrOrStderr(), "purging", len(letters))
	purged, failed := b.purge(ctx, letters, bar)
	bar.close()
	if f.json {
		err = json.NewEncoder(out).Encode(map[string]int64{"selected": int64(len(letters)), "purged": purged, "failed": failed})
	} else {
		_, err = fmt.Fprintf(out, "purged %s, %d failed\n", count(purged, "dead letter"), failed)
	}
	if left := int64(len(letters)) - purged; left > 0 {
		err = errors.Join(err, fmt.Errorf("%s not purged", count(left, "dead letter")))
		if ctx.Err() != nil {
			err = errors.Join(fmt.Errorf("stopped: %w", context.Cause(ctx)), err)
		}
	}
	return err
}

// purgers is how many deletions are on their way at a time.
const purgers = 64

// purge deletes the letters until ctx ends; what is on its way then is finished.
func (b *letterBox) purge(ctx context.Context, letters []stream.DeadLetter, out *progress) (purged, failed int64) {
	var (
		deleting        sync.WaitGroup
		deleted, undone atomic.Int64
	)
	slots := make(chan struct{}, purgers)
	for i, l := range letters {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		deleting.Go(func() {
			defer func() { <-slots }()
			if err := b.letters.Discard(context.WithoutCancel(ctx), l); err != nil {
				undone.Add(1)
				out.report(fmt.Errorf("dead letter %d: %w", l.Seq, err))
				return
			}
			deleted.Add(1)
		})
		out.set(int64(i + 1))
	}
	deleting.Wait()
	return deleted.Load(), undone.Load()
}

// confirm asks the person at the terminal. An error means no.
func confirm(cmd *cobra.Command, question string) error {
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s Type yes: ", question)
	answers := make(chan string, 1)
	go func() { // a terminal can't be told to give up a read: it outlives a command that is told to end
		line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		answers <- strings.TrimSpace(line)
	}()
	select {
	case answer := <-answers:
		if answer == "yes" {
			return nil
		}
		return errors.New("the answer isn't yes: nothing was changed")
	case <-cmd.Context().Done():
		_, _ = fmt.Fprintln(cmd.ErrOrStderr())
		return errors.New("nothing was changed")
	}
}
