package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"sluice/pipeline/stream"
)

// purgeFlags are the flags of purge, as given.
type purgeFlags struct{ letterAction }

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
	f.add(cmd.Flags(), "don't ask; needed without a terminal")
	return cmd
}

func (f *purgeFlags) run(cmd *cobra.Command) error {
	s, err := f.parse(time.Now())
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	b, letters, err := f.begin(cmd, s, letterQuestion{
		verb: "purge", text: "Delete %s for good?", needed: true,
		refusal: "purged events are lost for good; give --yes, or --dry-run to see how many they are",
	})
	if b == nil {
		return err
	}
	defer b.nc.Close()
	bar := newCountProgress(cmd.ErrOrStderr(), "purging", len(letters))
	purged, failed := b.purge(ctx, letters, bar)
	bar.close()
	out := cmd.OutOrStdout()
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
