package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sluice/pipeline"
	"sluice/pipeline/stream"
)

// mayAsk refuses to do what can't be undone when nobody can be asked.
func (f *userFlags) mayAsk(cmd *cobra.Command, refusal string) error {
	if f.yes || f.dryRun || isTerminal(cmd.InOrStdin()) {
		return nil
	}
	return usagef("%s", refusal)
}

// purgedJSON is what purge has done, for programs.
type purgedJSON struct {
	keyJSON
	Waiting int64 `json:"waiting"` // before
	Purged  int64 `json:"purged"`
}

func (f *userFlags) purge(cmd *cobra.Command, key string) error {
	err := f.mayAsk(cmd, "purged events are lost for good; give --yes, or --dry-run to see how many they are")
	if err != nil {
		return err
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	b, err := openUser(ctx, key, newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer b.close()
	st, err := b.store.Standing(ctx, key, "")
	if err != nil {
		return stateless("look at the key", err)
	}
	waiting := st.Waiting + st.Leased
	who, events := visible(key), count(waiting, "waiting event")
	var purged int64
	if !f.dryRun && waiting > 0 {
		if !f.yes {
			if err := confirm(cmd, fmt.Sprintf("Delete %s of %s for good?", events, who)); err != nil {
				return err
			}
		}
		purged, err = b.store.Purge(ctx, key, b.remove)
		if err != nil {
			err = stateless("purge", err)
		}
	}
	switch {
	case f.json:
		return errors.Join(json.NewEncoder(out).Encode(purgedJSON{keyOf(key), waiting, purged}), err)
	case f.dryRun:
		_, _ = fmt.Fprintf(out, "would delete %s of %s\n", events, who)
	case waiting == 0:
		_, _ = fmt.Fprintf(out, "no event of %s waits\n", who)
	default:
		_, _ = fmt.Fprintf(out, "deleted %d of %s of %s\n", purged, events, who)
	}
	return err
}

// remove deletes a waiting event's body, once it was read.
func (b *userBox) remove(ctx context.Context, e pipeline.Entry) error {
	ev, err := b.lanes.Read(ctx, b.key, e.BodyID)
	if errors.Is(err, pipeline.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	return b.lanes.Delete(ctx, ev.Body)
}

func (f *userFlags) reset(cmd *cobra.Command, key string) error {
	err := f.mayAsk(cmd, "a key that is reset may get one burst more than its limits let pass; give --yes")
	if err != nil {
		return err
	}
	b, err := openUser(cmd.Context(), key, newProgress(cmd.ErrOrStderr(), 0).report)
	if err != nil {
		return err
	}
	defer b.close()
	who := visible(key)
	if !f.yes {
		question := fmt.Sprintf("Forget the tokens, cool-down and failures of %s? It may get one burst more than its limits let pass.", who)
		if err := confirm(cmd, question); err != nil {
			return err
		}
	}
	was, err := b.store.Reset(cmd.Context(), key)
	if err != nil {
		return stateless("reset", err)
	}
	stream.NewGossip(b.nc, b.sc).Over(key) // workers remember cool-downs, too
	if err := b.nc.Flush(); err != nil {
		return fmt.Errorf("telling the workers: %w", err)
	}
	out := cmd.OutOrStdout()
	switch {
	case f.json:
		return json.NewEncoder(out).Encode(struct {
			keyJSON
			Reset bool `json:"reset"`
		}{keyOf(key), was})
	case !was:
		_, err = fmt.Fprintf(out, "nothing was known of %s, so that there is nothing to forget\n", who)
	default:
		_, err = fmt.Fprintf(out, "%s is as new; up to one burst more than its limits let pass may go\n", who)
	}
	return err
}
